//! The process's life from start to an orderly end.
use std::{sync::Arc, time::Duration};

use serde_json::json;
use tempfile::TempDir;
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    PluginError, ServedProvider,
    controller::{BeforeEnd, Controller},
    ends::Ends,
    handshake::{self, HostOffer},
    listener::Socket,
    panics,
    proto::{
        health::health_server::HealthServer,
        plugin::{
            grpc_broker_server::GrpcBrokerServer, grpc_controller_server::GrpcControllerServer,
            grpc_stdio_server::GrpcStdioServer,
        },
        tfplugin6::provider_server::ProviderServer,
    },
    served::Served,
    service::Service,
    tls,
};

/// Same limit as Go's own plugins; states of this size exist.
const LARGEST_MESSAGE: usize = 256 << 20;
/// Time to send the last answers.
const TO_CLOSE: Duration = Duration::from_millis(300);

/// Settings for serving a provider.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Serves a debugger instead of a host: prints the value for `TF_REATTACH_PROVIDERS`, accepts
    /// clients without a certificate (the socket's folder is private), and stays until SIGINT or
    /// SIGTERM. A stop request from any run lasts until the process is restarted.
    pub debug: bool,
    /// The provider's source address in configurations, as `host/namespace/type`; only shown with
    /// `debug`.
    pub address: String,
    /// Time limit for running requests after SIGTERM or the host's death.
    pub finish_within: Duration,
}

impl ServeOptions {
    /// Serves a host. Requests have 25 seconds to end, less than the 30 seconds after which process
    /// managers commonly kill.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self { debug: false, address: address.into(), finish_within: Duration::from_secs(25) }
    }
}

/// Serves `provider` until the host, a signal, or the host's death ends it.
///
/// `stop` is cancelled by the host's stop request, by SIGTERM, and by the host's shutdown or death.
/// Requests continue and are answered; the provider's code must watch the token and return early.
/// SIGINT and SIGHUP (on Windows, Ctrl-C and Ctrl-Break) are ignored: a terminal also sends them to
/// the host, which then requests a stop, ends, or was started to outlive the terminal.
///
/// Do not drop the future before it returns, because requests would continue without a server. It
/// requires a Tokio runtime with time and I/O. Only the handshake is allowed to write to standard
/// output.
pub async fn serve<P: ServedProvider>(
    provider: P,
    stop: CancellationToken,
    options: ServeOptions,
) -> Result<(), PluginError> {
    panics::install_hook();
    let offer = if options.debug { None } else { Some(HostOffer::from_env()?) };
    // Install handlers before the host can detect the process, so that they catch every Ctrl-C.
    let mut ends = Ends::watch(options.debug)?;

    let parent = offer.as_ref().and_then(|offer| offer.socket_parent.clone());
    let socket = Socket::bind(parent)?;
    let identity = match &offer {
        Some(offer) => Some(tls::identity(&offer.client_certificate)?),
        None => None,
    };
    let announcement = match &identity {
        Some(identity) => handshake::line(socket.address(), &identity.certificate),
        None => reattach(&options.address, &socket),
    };
    let open = ends.connections.clone();
    let server = GrpcServer {
        stop,
        requests: TaskTracker::new(),
        asked_to_end: CancellationToken::new(),
        down: CancellationToken::new(),
    };
    let (running, folder) = server.start(provider, socket, identity.map(|of| of.config), open);
    handshake::announce(&announcement)?;

    let ended = server.until(&mut ends, running, options.finish_within).await;
    drop(folder);
    ended
}

/// Returns the debugged provider's output, in a form for shells.
fn reattach(address: &str, socket: &Socket) -> String {
    let address_of = socket.address();
    let value = json!({
        address: {
            "Protocol": "grpc",
            "ProtocolVersion": handshake::PROVIDER_PROTOCOL,
            "Pid": std::process::id(),
            // With "Test", the host does not end a process that it did not start.
            "Test": true,
            "Addr": { "Network": address_of.network, "String": address_of.text },
        }
    });
    format!("TF_REATTACH_PROVIDERS='{value}'\n")
}

type ServerTask = JoinHandle<Result<(), tonic::transport::Error>>;

/// The server's tokens.
struct GrpcServer {
    stop: CancellationToken,
    requests: TaskTracker,
    asked_to_end: CancellationToken,
    down: CancellationToken,
}

impl GrpcServer {
    fn start<P: ServedProvider>(
        &self,
        provider: P,
        socket: Socket,
        tls: Option<Arc<rustls::ServerConfig>>,
        open: watch::Sender<usize>,
    ) -> (ServerTask, Option<TempDir>) {
        let offered = Arc::new(Served::new(provider));
        let ending = Arc::clone(&offered);
        let before_end = BeforeEnd(Arc::new(move || {
            let ending = Arc::clone(&ending);
            Box::pin(async move { ending.provider.before_end().await })
        }));
        let service = Service { served: offered, stop: self.stop.clone(), requests: self.requests.clone() };
        let controller = Controller {
            stop: self.stop.clone(),
            before_end,
            requests: self.requests.clone(),
            asked_to_end: self.asked_to_end.clone(),
            down: self.down.clone(),
        };
        let service = ProviderServer::new(service)
            .max_decoding_message_size(LARGEST_MESSAGE)
            .max_encoding_message_size(LARGEST_MESSAGE);
        let (incoming, folder) = socket.accept(tls, open, self.down.clone());
        let router = tonic::transport::Server::builder()
            .add_service(GrpcControllerServer::new(controller.clone()))
            .add_service(GrpcStdioServer::new(controller.clone()))
            .add_service(GrpcBrokerServer::new(controller.clone()))
            .add_service(HealthServer::new(controller))
            .add_service(service);
        let server = router.serve_with_incoming_shutdown(incoming, self.down.clone().cancelled_owned());
        (tokio::spawn(server), folder)
    }

    async fn until(self, ends: &mut Ends, mut running: ServerTask, finish_within: Duration) -> Result<(), PluginError> {
        let patience = tokio::select! {
            ended = &mut running => return ended.map_err(PluginError::Aborted)?.map_err(Into::into),
            patience = ends.first(&self.asked_to_end, &self.requests, finish_within) => patience,
        };
        // New requests are still answered while running requests end: the host can need them to
        // write its state.
        self.stop.cancel();
        self.requests.close();
        if timeout(patience, self.requests.wait()).await.is_err() {
            tracing::warn!(requests = self.requests.len(), "requests did not end in time");
        }
        self.down.cancel();
        // A host keeps its connection open; by now every answer was sent.
        if let Ok(ended) = timeout(TO_CLOSE, &mut running).await {
            return ended.map_err(PluginError::Aborted)?.map_err(Into::into);
        }
        running.abort();
        Ok(())
    }
}
