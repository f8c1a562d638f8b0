//! go-plugin services that every host expects in addition to the provider.
use std::{fmt, sync::Arc};

use futures_util::{
    future::BoxFuture,
    stream::{self, StreamExt},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

use super::proto::{
    health::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server::Health},
    plugin::{
        ConnInfo, Empty, StdioData, grpc_broker_server::GrpcBroker, grpc_controller_server::GrpcController,
        grpc_stdio_server::GrpcStdio,
    },
};

/// Work between the host's shutdown request and the reply to it.
#[derive(Clone)]
pub(super) struct BeforeEnd(pub Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>);

impl fmt::Debug for BeforeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BeforeEnd")
    }
}

/// Implements all three services, which share only the tokens.
#[derive(Clone, Debug)]
pub(super) struct Controller {
    /// Cancelled to stop running requests.
    pub stop: CancellationToken,
    pub before_end: BeforeEnd,
    /// All running requests.
    pub requests: TaskTracker,
    /// Cancelled by the host's shutdown request.
    pub asked_to_end: CancellationToken,
    /// Cancelled when the server closes; ends all open streams.
    pub down: CancellationToken,
}

impl Controller {
    /// Returns a stream without messages that ends with the server.
    fn silence<T: Send + 'static>(&self) -> BoxStream<T> {
        Box::pin(stream::pending().take_until(self.down.clone().cancelled_owned()))
    }
}

#[tonic::async_trait]
impl GrpcController for Controller {
    /// Hosts wait for the answer without a limit, and kill the process two seconds after it.
    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.stop.cancel();
        if self.requests.spawn((self.before_end.0)()).await.is_err() {
            tracing::error!("the cleanup before the exit failed");
        }
        self.asked_to_end.cancel();
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl GrpcStdio for Controller {
    /// Sends no messages: standard output stays silent, and the host reads standard error from its
    /// pipe. The open stream keeps the host's connection from becoming idle.
    async fn stream_stdio(&self, _: Request<Empty>) -> Result<Response<BoxStream<StdioData>>, Status> {
        Ok(Response::new(self.silence()))
    }
}

#[tonic::async_trait]
impl GrpcBroker for Controller {
    async fn start_stream(&self, _: Request<Streaming<ConnInfo>>) -> Result<Response<BoxStream<ConnInfo>>, Status> {
        Ok(Response::new(self.silence()))
    }
}

#[tonic::async_trait]
impl Health for Controller {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        match request.get_ref().service.as_str() {
            "" | "plugin" => Ok(Response::new(HealthCheckResponse { status: ServingStatus::Serving.into() })),
            other => Err(Status::not_found(format!("no service {other}"))),
        }
    }
}
