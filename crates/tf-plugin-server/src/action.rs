//! A common trait for actions of any configuration type, and their requests.
use std::{any::type_name, sync::OnceLock};

use async_trait::async_trait;
use serde::Deserialize;
use tf_provider::{Diagnostics, schema::Schema};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;

use super::{
    ServedProvider,
    codec::Received,
    diagnostics::{known, to_wire},
    panics,
    proto::tfplugin6 as wire,
    resource::Described,
    running::RpcResult,
    service::Service,
    shape::Shape,
};
use shown_text as shown;

/// An action that a host invokes on request or on a resource change, without state. tf-provider
/// does not have a trait for actions; this trait resembles its data sources.
#[async_trait]
pub trait Action: Send + Sync {
    /// The configuration, as described by [`schema`](Self::schema).
    type Config<'a>: Deserialize<'a> + Send;

    /// Returns the configuration's schema. Computed attributes are not allowed.
    fn schema(&self, diags: &mut Diagnostics) -> Option<Schema>;

    /// Returns the attributes that accept ephemeral values, as dotted paths. Hosts reject ephemeral
    /// values in other attributes, and keep these values out of plans.
    fn write_only(&self) -> &'static [&'static str] {
        &[]
    }

    /// Checks a configuration; values can be unknown.
    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::Config<'a>) -> Option<()>;

    /// Describes an invocation to a reviewer; values can be unknown. Changes nothing.
    async fn plan<'a>(&self, diags: &mut Diagnostics, config: Self::Config<'a>) -> Option<()>;

    /// Performs the action. An error in `diags` fails the invocation.
    async fn invoke<'a>(&self, diags: &mut Diagnostics, config: Self::Config<'a>, progress: &Progress) -> Option<()>;
}

/// Reports an invocation's progress.
#[derive(Clone, Debug)]
pub struct Progress {
    events: mpsc::UnboundedSender<Result<wire::invoke_action::Event, tonic::Status>>,
    stop: CancellationToken,
}

impl Progress {
    /// Shows one line in the host, unless the host has requested a stop. Terraform 1.15.5 crashes
    /// if an interrupted action reports anything but its end.
    pub fn tell(&self, text: &str) {
        use wire::invoke_action::event::{Progress, Type};
        if self.stop.is_cancelled() {
            return;
        }
        self.send(Type::Progress(Progress { message: shown::line(text).into_owned() }));
    }

    /// Returns true if the host still receives progress.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        !self.events.is_closed()
    }

    fn send(&self, event: wire::invoke_action::event::Type) {
        if self.events.send(Ok(wire::invoke_action::Event { r#type: Some(event) })).is_err() {
            tracing::debug!("the host no longer listens to the action");
        }
    }

    fn complete(&self, diags: Diagnostics) {
        use wire::invoke_action::event::{Completed, Type};
        self.send(Type::Completed(Completed { diagnostics: to_wire(diags) }));
    }
}

/// An action of any type, created by [`action`]. Only this module implements it.
pub trait AnyAction: Erased {}

/// Wraps an action for serving.
pub fn action<A: Action + 'static>(action: A) -> Box<dyn AnyAction> {
    Box::new(Adapter { inner: action, described: OnceLock::new() })
}

/// The object-safe interface of an action.
#[async_trait]
pub trait Erased: Send + Sync {
    fn described(&self) -> Result<&Described, Diagnostics>;
    async fn validate(&self, diags: &mut Diagnostics, config: Option<&wire::DynamicValue>) -> Option<()>;
    async fn plan(&self, diags: &mut Diagnostics, config: Option<&wire::DynamicValue>) -> Option<()>;
    async fn invoke(
        &self,
        diags: &mut Diagnostics,
        config: Option<&wire::DynamicValue>,
        progress: &Progress,
    ) -> Option<()>;
}

struct Adapter<A> {
    inner: A,
    described: OnceLock<Result<Described, Diagnostics>>,
}

impl<A: Action + 'static> AnyAction for Adapter<A> {}

impl<A: Action + 'static> Adapter<A> {
    fn shape(&self, diags: &mut Diagnostics) -> Option<&Shape> {
        Some(&known(diags, self.described())?.shape)
    }
}

#[async_trait]
impl<A: Action + 'static> Erased for Adapter<A> {
    fn described(&self) -> Result<&Described, Diagnostics> {
        let described = self.described.get_or_init(|| {
            let produce = |diags: &mut Diagnostics| Action::schema(&self.inner, diags);
            Described::new(produce, self.inner.write_only(), type_name::<A>())
        });
        described.as_ref().map_err(Clone::clone)
    }

    async fn validate(&self, diags: &mut Diagnostics, config: Option<&wire::DynamicValue>) -> Option<()> {
        let config = Received::new(config, self.shape(diags)?, "configuration");
        let config = config.decode(diags)?;
        Action::validate(&self.inner, diags, config).await
    }

    async fn plan(&self, diags: &mut Diagnostics, config: Option<&wire::DynamicValue>) -> Option<()> {
        let config = Received::new(config, self.shape(diags)?, "configuration");
        let config = config.decode(diags)?;
        Action::plan(&self.inner, diags, config).await
    }

    async fn invoke(
        &self,
        diags: &mut Diagnostics,
        config: Option<&wire::DynamicValue>,
        progress: &Progress,
    ) -> Option<()> {
        let config = Received::new(config, self.shape(diags)?, "configuration");
        let config = config.decode(diags)?;
        Action::invoke(&self.inner, diags, config, progress).await
    }
}

impl<P: ServedProvider> Service<P> {
    pub(super) async fn validate_action(
        &self,
        request: wire::validate_action_config::Request,
    ) -> RpcResult<wire::validate_action_config::Response> {
        let name = request.action_type.clone();
        self.run("ValidateActionConfig", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            if let Some(action) = served.action(&mut diags, &request.action_type) {
                let valid = panics::caught(action.validate(&mut diags, request.config.as_ref())).await;
                running.settle(&mut diags, valid, "The configuration was refused without a reason.");
            }
            wire::validate_action_config::Response { diagnostics: to_wire(diags) }
        })
        .await
    }

    pub(super) async fn planned_action(
        &self,
        request: wire::plan_action::Request,
    ) -> RpcResult<wire::plan_action::Response> {
        let name = request.action_type.clone();
        self.run("PlanAction", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            if let Some(action) = served.action(&mut diags, &request.action_type) {
                let planned = panics::caught(action.plan(&mut diags, request.config.as_ref())).await;
                running.settle(&mut diags, planned, "The action was not planned.");
            }
            let deferred = served.deferred(request.client_capabilities);
            wire::plan_action::Response { diagnostics: to_wire(diags), deferred }
        })
        .await
    }

    /// Returns an invocation's events: progress lines as they occur, then the result.
    pub(super) fn invoked_action(
        &self,
        request: wire::invoke_action::Request,
    ) -> BoxStream<wire::invoke_action::Event> {
        let (sender, events) = mpsc::unbounded_channel();
        let progress = Progress { events: sender, stop: self.stop.clone() };
        let name = request.action_type.clone();
        // The last event reports the end.
        drop(self.begin("InvokeAction", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            if let Some(action) = served.action(&mut diags, &request.action_type) {
                let invoked = panics::caught(action.invoke(&mut diags, request.config.as_ref(), &progress)).await;
                running.settle(&mut diags, invoked, "The action ended without a result.");
            }
            progress.complete(diags);
        }));
        Box::pin(UnboundedReceiverStream::new(events))
    }
}
