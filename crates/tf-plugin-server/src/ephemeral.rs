//! A common trait for ephemeral resources of any state type, and their requests.
use std::{
    any::type_name,
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use prost::bytes::Bytes;
use serde::{Deserialize, Serialize};
use tf_provider::{Diagnostics, schema::Schema};

use super::{
    ServedProvider,
    codec::{self, Received},
    deferral,
    diagnostics::{known, to_wire},
    panics,
    proto::tfplugin6 as wire,
    resource::Described,
    running::RpcResult,
    service::Service,
    shape::Shape,
};

/// A resource that exists for one host walk, outside plan and state. tf-provider does not have a
/// trait for it; this trait resembles its resources.
///
/// Hosts open it in both plan and apply without distinguishing them. They close only opened
/// resources, and not if the walk failed or was interrupted (Terraform 1.15.5), or if they are
/// killed.
#[async_trait]
pub trait EphemeralResource: Send + Sync {
    /// Configuration and result, as described by [`schema`](Self::schema).
    type State<'a>: Serialize + Deserialize<'a> + Send + Sync;

    /// Returns the schema. Attributes that are not computed keep their configured values.
    fn schema(&self, diags: &mut Diagnostics) -> Option<Schema>;

    /// Checks a configuration; values can be unknown.
    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()>;

    /// Opens the resource. With an error in `diags` it is not open and never closed.
    async fn open<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<Opened<Self::State<'a>>>;

    /// Renews the resource. Returns the next renewal's time, if any.
    async fn renew(&self, diags: &mut Diagnostics, private: &[u8]) -> Option<Option<SystemTime>>;

    /// Closes the resource.
    async fn close(&self, diags: &mut Diagnostics, private: &[u8]) -> Option<()>;
}

/// Result of opening an ephemeral resource.
#[derive(Clone, Debug)]
pub struct Opened<S> {
    /// The result without unknown values: OpenTofu 1.12 rejects unknown values, even in a plan.
    pub result: S,
    /// Data for renew and close.
    pub private: Vec<u8>,
    /// Time of the first renewal, if any.
    pub renew_at: Option<SystemTime>,
}

/// An ephemeral resource of any type, created by [`ephemeral`]. Only this module implements it.
pub trait AnyEphemeral: Erased {}

/// Wraps an ephemeral resource for serving.
pub fn ephemeral<E: EphemeralResource + 'static>(ephemeral: E) -> Box<dyn AnyEphemeral> {
    Box::new(Adapter { inner: ephemeral, described: OnceLock::new() })
}

/// The object-safe interface of an ephemeral resource.
#[async_trait]
pub trait Erased: Send + Sync {
    fn described(&self) -> Result<&Described, Diagnostics>;
    async fn validate(&self, diags: &mut Diagnostics, config: Option<&wire::DynamicValue>) -> Option<()>;
    async fn open(
        &self,
        diags: &mut Diagnostics,
        config: Option<&wire::DynamicValue>,
    ) -> Option<Opened<wire::DynamicValue>>;
    async fn renew(&self, diags: &mut Diagnostics, private: &[u8]) -> Option<Option<SystemTime>>;
    async fn close(&self, diags: &mut Diagnostics, private: &[u8]) -> Option<()>;
}

struct Adapter<E> {
    inner: E,
    described: OnceLock<Result<Described, Diagnostics>>,
}

impl<E: EphemeralResource + 'static> AnyEphemeral for Adapter<E> {}

impl<E: EphemeralResource + 'static> Adapter<E> {
    fn shape(&self, diags: &mut Diagnostics) -> Option<&Shape> {
        Some(&known(diags, self.described())?.shape)
    }
}

#[async_trait]
impl<E: EphemeralResource + 'static> Erased for Adapter<E> {
    fn described(&self) -> Result<&Described, Diagnostics> {
        let described = self.described.get_or_init(|| {
            let produce = |diags: &mut Diagnostics| EphemeralResource::schema(&self.inner, diags);
            Described::new(produce, &[], type_name::<E>())
        });
        described.as_ref().map_err(Clone::clone)
    }

    async fn validate(&self, diags: &mut Diagnostics, config: Option<&wire::DynamicValue>) -> Option<()> {
        let config = Received::new(config, self.shape(diags)?, "configuration");
        let config = config.decode(diags)?;
        EphemeralResource::validate(&self.inner, diags, config).await
    }

    async fn open(
        &self,
        diags: &mut Diagnostics,
        config: Option<&wire::DynamicValue>,
    ) -> Option<Opened<wire::DynamicValue>> {
        let config = Received::new(config, self.shape(diags)?, "configuration");
        let config = config.decode(diags)?;
        let opened = EphemeralResource::open(&self.inner, diags, config).await?;
        let result = codec::send(diags, &opened.result)?;
        Some(Opened { result, private: opened.private, renew_at: opened.renew_at })
    }

    async fn renew(&self, diags: &mut Diagnostics, private: &[u8]) -> Option<Option<SystemTime>> {
        EphemeralResource::renew(&self.inner, diags, private).await
    }

    async fn close(&self, diags: &mut Diagnostics, private: &[u8]) -> Option<()> {
        EphemeralResource::close(&self.inner, diags, private).await
    }
}

fn moment(at: SystemTime) -> Option<wire::Timestamp> {
    let since = at.duration_since(UNIX_EPOCH).ok()?;
    Some(wire::Timestamp {
        seconds: i64::try_from(since.as_secs()).ok()?,
        nanos: i32::try_from(since.subsec_nanos()).ok()?,
    })
}

impl<P: ServedProvider> Service<P> {
    pub(super) async fn validate_ephemeral(
        &self,
        request: wire::validate_ephemeral_resource_config::Request,
    ) -> RpcResult<wire::validate_ephemeral_resource_config::Response> {
        let name = request.type_name.clone();
        self.run("ValidateEphemeralResourceConfig", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            if let Some(ephemeral) = served.ephemeral(&mut diags, &request.type_name) {
                let valid = panics::caught(ephemeral.validate(&mut diags, request.config.as_ref())).await;
                running.settle(&mut diags, valid, "The configuration was refused without a reason.");
            }
            wire::validate_ephemeral_resource_config::Response { diagnostics: to_wire(diags) }
        })
        .await
    }

    pub(super) async fn open_ephemeral(
        &self,
        request: wire::open_ephemeral_resource::Request,
    ) -> RpcResult<wire::open_ephemeral_resource::Response> {
        let name = request.type_name.clone();
        self.run("OpenEphemeralResource", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            let mut response = wire::open_ephemeral_resource::Response::default();
            let ephemeral = served.ephemeral(&mut diags, &request.type_name);
            response.deferred = served.deferred(request.client_capabilities);
            if let Some(ephemeral) = ephemeral.filter(|_| response.deferred.is_some()) {
                response.result = deferral::to_be_filled(&mut diags, ephemeral.described(), request.config.as_ref());
            } else if let Some(ephemeral) = ephemeral {
                let opened = panics::caught(ephemeral.open(&mut diags, request.config.as_ref())).await;
                if let Some(opened) = running.settle(&mut diags, opened, "It was not opened.") {
                    response.result = Some(opened.result);
                    response.private = Some(opened.private.into());
                    response.renew_at = opened.renew_at.and_then(moment);
                }
            }
            response.diagnostics = to_wire(diags);
            response
        })
        .await
    }

    pub(super) async fn renew_ephemeral(
        &self,
        request: wire::renew_ephemeral_resource::Request,
    ) -> RpcResult<wire::renew_ephemeral_resource::Response> {
        let name = request.type_name.clone();
        self.run("RenewEphemeralResource", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            let private: Bytes = request.private.unwrap_or_default();
            let mut renew_at = None;
            if let Some(ephemeral) = served.ephemeral(&mut diags, &request.type_name) {
                let renewed = panics::caught(ephemeral.renew(&mut diags, &private)).await;
                renew_at = running.settle(&mut diags, renewed, "It was not renewed.").flatten().and_then(moment);
            }
            wire::renew_ephemeral_resource::Response { diagnostics: to_wire(diags), renew_at, private: Some(private) }
        })
        .await
    }

    pub(super) async fn close_ephemeral(
        &self,
        request: wire::close_ephemeral_resource::Request,
    ) -> RpcResult<wire::close_ephemeral_resource::Response> {
        let name = request.type_name.clone();
        self.run("CloseEphemeralResource", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            if let Some(ephemeral) = served.ephemeral(&mut diags, &request.type_name) {
                let private = request.private.unwrap_or_default();
                let closed = panics::caught(ephemeral.close(&mut diags, &private)).await;
                running.settle(&mut diags, closed, "It was not closed.");
            }
            wire::close_ephemeral_resource::Response { diagnostics: to_wire(diags) }
        })
        .await
    }
}
