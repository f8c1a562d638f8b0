//! A common trait for data sources of any state type.
use std::{any::type_name, sync::OnceLock};

use async_trait::async_trait;
use tf_provider::{DataSource, Diagnostics};

use super::{
    codec::{self, Received},
    diagnostics::known,
    proto::tfplugin6 as wire,
    resource::Described,
    shape::Shape,
};

/// A data source of any type, created by [`data_source`]. Only this module implements it.
pub trait AnyDataSource: Erased {}

/// Wraps a data source for serving.
pub fn data_source<D: DataSource + 'static>(data_source: D) -> Box<dyn AnyDataSource> {
    Box::new(Adapter { inner: data_source, described: OnceLock::new() })
}

/// The object-safe interface of a data source.
#[async_trait]
pub trait Erased: Send + Sync {
    fn described(&self) -> Result<&Described, Diagnostics>;
    async fn validate(
        &self,
        diags: &mut Diagnostics,
        request: &wire::validate_data_resource_config::Request,
    ) -> Option<()>;
    async fn read(
        &self,
        diags: &mut Diagnostics,
        request: &wire::read_data_source::Request,
    ) -> Option<wire::DynamicValue>;
}

struct Adapter<D> {
    inner: D,
    described: OnceLock<Result<Described, Diagnostics>>,
}

impl<D: DataSource + 'static> AnyDataSource for Adapter<D> {}

impl<D: DataSource + 'static> Adapter<D> {
    fn shape(&self, diags: &mut Diagnostics) -> Option<&Shape> {
        Some(&known(diags, self.described())?.shape)
    }
}

#[async_trait]
impl<D: DataSource + 'static> Erased for Adapter<D> {
    fn described(&self) -> Result<&Described, Diagnostics> {
        let described = self.described.get_or_init(|| {
            let produce = |diags: &mut Diagnostics| DataSource::schema(&self.inner, diags);
            Described::new(produce, &[], type_name::<D>())
        });
        described.as_ref().map_err(Clone::clone)
    }

    async fn validate(
        &self,
        diags: &mut Diagnostics,
        request: &wire::validate_data_resource_config::Request,
    ) -> Option<()> {
        let config = Received::new(request.config.as_ref(), self.shape(diags)?, "configuration");
        let config = config.decode(diags)?;
        DataSource::validate(&self.inner, diags, config).await
    }

    async fn read(
        &self,
        diags: &mut Diagnostics,
        request: &wire::read_data_source::Request,
    ) -> Option<wire::DynamicValue> {
        let config = Received::new(request.config.as_ref(), self.shape(diags)?, "configuration");
        let meta = Received::meta(request.provider_meta.as_ref());
        let (config, meta) = (config.decode(diags)?, meta.decode(diags)?);
        let state = DataSource::read(&self.inner, diags, config, meta).await?;
        codec::send(diags, &state)
    }
}
