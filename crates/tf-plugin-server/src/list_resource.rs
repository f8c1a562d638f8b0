//! A common trait for lists of existing resources (`terraform query`), streamed to the host.
use std::{any::type_name, marker::PhantomData, sync::OnceLock};

use async_trait::async_trait;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;
use tf_provider::{Diagnostic, Diagnostics, schema::Schema};
use tokio::sync::mpsc;

use super::{
    codec::{self, Received},
    diagnostics::{known, to_wire},
    proto::tfplugin6::{self as wire, list_resource::Event},
    resource::Described,
};

/// A list of existing resources of one type. The resource with this name must have an identity.
#[async_trait]
pub trait ListResource: Send + Sync {
    /// The list block's arguments.
    type Config: DeserializeOwned + Send;
    /// The resource's state, as `import` returns it.
    type State: Serialize + Send + 'static;

    /// Returns the arguments' schema.
    fn schema(&self, diags: &mut Diagnostics) -> Option<Schema>;

    /// Checks the arguments; values can be unknown.
    async fn validate(&self, diags: &mut Diagnostics, config: Self::Config) -> Option<()> {
        let _ = (diags, config);
        Some(())
    }

    /// Sends every matching resource to `found`, and ends when `found` returns false.
    ///
    /// It only reads. Errors and warnings in `diags` are sent after the resources.
    async fn list(&self, diags: &mut Diagnostics, config: Self::Config, found: &mut FoundResources<Self::State>);
}

/// One existing resource.
#[derive(Debug)]
pub struct FoundResource<S> {
    /// One line for people.
    pub display_name: String,
    /// As returned by [`ResourceExt::identity`](super::ResourceExt::identity).
    pub identity: Json,
    /// Its state, omitted if the host wants only identities.
    pub state: S,
}

/// Receiver of a list: the host, which can stop reading at any time.
#[derive(Debug)]
pub struct FoundResources<S> {
    events: mpsc::Sender<Event>,
    with_state: bool,
    /// Number of resources that the host still accepts; `None`: no limit.
    left: Option<u64>,
    of: PhantomData<fn(S)>,
}

impl<S: Serialize> FoundResources<S> {
    /// Returns true if the host wants each resource's state. Otherwise the list can skip
    /// reading it.
    #[must_use]
    pub fn with_state(&self) -> bool {
        self.with_state
    }

    /// Sends a resource. Returns false if the host does not accept more.
    pub async fn send(&mut self, found: FoundResource<S>) -> bool {
        if self.left == Some(0) {
            return false;
        }
        self.left = self.left.map(|left| left - 1);
        let mut diags = Diagnostics::default();
        let mut event = Event { display_name: found.display_name, ..Event::default() };
        if let Some(identity) = codec::send(&mut diags, &found.identity) {
            event.identity = Some(wire::ResourceIdentityData { identity_data: Some(identity) });
        }
        if self.with_state {
            event.resource_object = codec::send(&mut diags, &found.state);
        }
        event.diagnostic = to_wire(diags);
        self.events.send(event).await.is_ok() && self.left != Some(0)
    }

    /// Sends a warning immediately.
    pub async fn warn(&self, warning: Diagnostic) -> bool {
        let mut diags = Diagnostics::default();
        diags.add_warning(warning);
        self.events.send(Event { diagnostic: to_wire(diags), ..Event::default() }).await.is_ok()
    }
}

/// A list of any type, created by [`list_resource`]. Only this module implements it.
pub trait AnyListResource: Erased {}

/// Wraps a list for serving.
pub fn list_resource<L: ListResource + 'static>(list: L) -> Box<dyn AnyListResource> {
    Box::new(Adapter { inner: list, described: OnceLock::new() })
}

/// The object-safe interface of a list.
#[async_trait]
pub trait Erased: Send + Sync {
    fn described(&self) -> Result<&Described, Diagnostics>;
    async fn validate(
        &self,
        diags: &mut Diagnostics,
        request: &wire::validate_list_resource_config::Request,
    ) -> Option<()>;
    async fn list(
        &self,
        diags: &mut Diagnostics,
        request: &wire::list_resource::Request,
        events: mpsc::Sender<Event>,
    ) -> Option<()>;
}

struct Adapter<L> {
    inner: L,
    described: OnceLock<Result<Described, Diagnostics>>,
}

impl<L: ListResource + 'static> AnyListResource for Adapter<L> {}

impl<L: ListResource + 'static> Adapter<L> {
    fn config(&self, diags: &mut Diagnostics, config: Option<&wire::DynamicValue>) -> Option<L::Config> {
        let described = known(diags, self.described())?;
        Received::new(config, &described.shape, "list configuration").decode(diags)
    }
}

#[async_trait]
impl<L: ListResource + 'static> Erased for Adapter<L> {
    fn described(&self) -> Result<&Described, Diagnostics> {
        let described = self.described.get_or_init(|| {
            let produce = |diags: &mut Diagnostics| self.inner.schema(diags);
            Described::new(produce, &[], type_name::<L>())
        });
        described.as_ref().map_err(Clone::clone)
    }

    async fn validate(
        &self,
        diags: &mut Diagnostics,
        request: &wire::validate_list_resource_config::Request,
    ) -> Option<()> {
        let config = self.config(diags, request.config.as_ref())?;
        self.inner.validate(diags, config).await
    }

    async fn list(
        &self,
        diags: &mut Diagnostics,
        request: &wire::list_resource::Request,
        events: mpsc::Sender<Event>,
    ) -> Option<()> {
        let config = self.config(diags, request.config.as_ref())?;
        let left = u64::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let with_state = request.include_resource_object;
        let mut found = FoundResources { events, with_state, left, of: PhantomData };
        self.inner.list(diags, config, &mut found).await;
        Some(())
    }
}
