//! Runs requests as tasks that survive their connection, and handles their failures.
use std::sync::Arc;

use tf_provider::Diagnostics;
use tokio::task::JoinHandle;
use tonic::{Response, Status};
use tracing::Instrument;

use super::{
    ServedProvider,
    diagnostics::{ensure_error, internal_error},
    panics::Caught,
    served::Served,
    service::Service,
};

pub(super) type RpcResult<T> = Result<Response<T>, Status>;

/// A running request's name and subject, for diagnostics.
#[derive(Clone)]
pub(super) struct RpcContext {
    pub(super) rpc: &'static str,
    pub(super) subject: String,
}

impl RpcContext {
    /// Returns the provider's result. `None` follows an error: `missing` if the provider added no
    /// other.
    pub(super) fn settle<T>(
        &self,
        diags: &mut Diagnostics,
        result: Result<Option<T>, Caught>,
        missing: &str,
    ) -> Option<T> {
        match result {
            Ok(Some(value)) => Some(value),
            Ok(None) => {
                ensure_error(diags, || internal_error(self.rpc, &self.subject, missing));
                None
            }
            Err(caught) => {
                diags.add_error(internal_error(self.rpc, &self.subject, caught));
                None
            }
        }
    }
}

impl<P: ServedProvider> Service<P> {
    /// Runs a request to its end.
    ///
    /// It runs as a separate task, because tonic drops a request if its connection breaks. The
    /// provider would then stop during a step without recording it. The task continues
    /// without a listener, observes the stop token, and ends in order.
    pub(super) async fn run<T, W, F>(&self, rpc: &'static str, subject: &str, work: W) -> RpcResult<T>
    where
        T: Send + 'static,
        W: FnOnce(Arc<Served<P>>, RpcContext) -> F,
        F: Future<Output = T> + Send + 'static,
    {
        let done = self.begin(rpc, subject, work).await;
        done.map(Response::new).map_err(|_| Status::internal(format!("{rpc} was aborted")))
    }

    /// Begins a request like [`run`](Self::run), without waiting for its end.
    pub(super) fn begin<T, W, F>(&self, rpc: &'static str, subject: &str, work: W) -> JoinHandle<T>
    where
        T: Send + 'static,
        W: FnOnce(Arc<Served<P>>, RpcContext) -> F,
        F: Future<Output = T> + Send + 'static,
    {
        // At the highest level, so that the span exists for every log event in it.
        let span = tracing::error_span!("request", tf_rpc = rpc, tf_resource_type = subject);
        let running = RpcContext { rpc, subject: subject.to_owned() };
        let work = work(Arc::clone(&self.served), running);
        let task = async move {
            tracing::debug!("request received");
            let answer = work.await;
            tracing::debug!("request answered");
            answer
        };
        self.requests.spawn(task.instrument(span))
    }
}
