//! Ephemeral resources of any state type behind one trait, and the requests about them.
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

/// What exists for one walk of a host only, and is in no plan and no state. tf-provider has no
/// trait for it; this one is made like its resources.
///
/// Hosts open in a plan as well as in an apply, and do not tell which it is. They close what was
/// opened, and only that; not where the walk failed or was interrupted (Terraform 1.15.5), nor
/// where they are killed.
#[async_trait]
pub trait EphemeralResource: Send + Sync {
    /// Configuration and result, of [`schema`](Self::schema).
    type State<'a>: Serialize + Deserialize<'a> + Send + Sync;

    /// The schema. What is not computed comes back as it was configured.
    fn schema(&self, diags: &mut Diagnostics) -> Option<Schema>;

    /// Checks a configuration, in which values may be unknown.
    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()>;

    /// Opens it. With an error in `diags` it is not open, and is never closed.
    async fn open<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<Opened<Self::State<'a>>>;

    /// Keeps it open. Tells when it has to be renewed next, if ever.
    async fn renew(&self, diags: &mut Diagnostics, private: &[u8]) -> Option<Option<SystemTime>>;

    /// Closes it.
    async fn close(&self, diags: &mut Diagnostics, private: &[u8]) -> Option<()>;
}

/// What was opened.
#[derive(Clone, Debug)]
pub struct Opened<S> {
    /// The result, wholly known: OpenTofu 1.12 refuses another one, also in a plan.
    pub result: S,
    /// What renew and close are given.
    pub private: Vec<u8>,
    /// When it has to be renewed, if ever.
    pub renew_at: Option<SystemTime>,
}

/// An ephemeral resource of any type, made by [`ephemeral`]. Only this module implements it.
pub trait AnyEphemeral: Erased {}

/// Makes an ephemeral resource servable.
pub fn ephemeral<E: EphemeralResource + 'static>(ephemeral: E) -> Box<dyn AnyEphemeral> {
    Box::new(Adapter { inner: ephemeral, described: OnceLock::new() })
}

/// The object-safe side of an ephemeral resource.
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
