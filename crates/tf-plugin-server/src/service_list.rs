//! Requests about lists of existing resources.
use futures_util::StreamExt as _;
use tf_provider::Diagnostics;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, codegen::BoxStream};

use super::{
    ServedProvider,
    diagnostics::to_wire,
    panics,
    proto::tfplugin6::{self as wire, list_resource::Event},
    running::RpcResult,
    service::Service,
};

/// Maximum number of results that wait for the host.
const AHEAD: usize = 16;

impl<P: ServedProvider> Service<P> {
    pub(super) async fn validate_list(
        &self,
        request: wire::validate_list_resource_config::Request,
    ) -> RpcResult<wire::validate_list_resource_config::Response> {
        let name = request.type_name.clone();
        self.run("ValidateListResourceConfig", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            if let Some(list) = served.list_resource(&mut diags, &request.type_name) {
                let valid = panics::caught(list.validate(&mut diags, &request)).await;
                running.settle(&mut diags, valid, "The configuration was refused without a reason.");
            }
            wire::validate_list_resource_config::Response { diagnostics: to_wire(diags) }
        })
        .await
    }

    /// Begins a list. Results are streamed while the list reads on; a host that stops reading ends
    /// the list.
    pub(super) fn list(&self, request: wire::list_resource::Request) -> Response<BoxStream<Event>> {
        let (events, received) = mpsc::channel(AHEAD);
        let name = request.type_name.clone();
        self.begin("ListResource", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            if let Some(list) = served.list_resource(&mut diags, &request.type_name) {
                let listed = panics::caught(list.list(&mut diags, &request, events.clone())).await;
                running.settle(&mut diags, listed, "Nothing was listed.");
            }
            let last = Event { diagnostic: to_wire(diags), ..Event::default() };
            if !last.diagnostic.is_empty() {
                // Fails if the host has stopped reading.
                let _ = events.send(last).await;
            }
        });
        Response::new(Box::pin(ReceiverStream::new(received).map(Ok)))
    }
}
