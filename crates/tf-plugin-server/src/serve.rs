//! From the start of the process to its end in order.
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

/// What Go's own plugins accept; states of this size are real.
const LARGEST_MESSAGE: usize = 256 << 20;
/// For the last bytes of the last answers.
const TO_CLOSE: Duration = Duration::from_millis(300);

/// How a provider is served.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Serve a debugger instead of a host: print what `TF_REATTACH_PROVIDERS` has to be, accept
    /// without a certificate (the socket's folder is private), and stay until SIGINT or SIGTERM.
    /// As the process outlives runs, a stop asked for by one of them lasts until it is restarted.
    pub debug: bool,
    /// The source address under which configurations name the provider, as
    /// `host/namespace/type`; only shown with `debug`.
    pub address: String,
    /// How long running requests may go on after SIGTERM, or after the host died.
    pub finish_within: Duration,
}

impl ServeOptions {
    /// Serves a host; requests get 25 seconds to end, less than the 30 after which process managers
    /// commonly kill.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self { debug: false, address: address.into(), finish_within: Duration::from_secs(25) }
    }
}

/// Serves `provider` until the host, a signal, or the death of the host ends it.
///
/// `stop` is cancelled when what runs shall come to an end: by the host's stop request, by SIGTERM,
/// by the host's shutdown or death. Requests go on and are answered; it is for the provider's code
/// to watch the token and to return early. SIGINT and SIGHUP are ignored (Ctrl-C and Ctrl-Break on
/// Windows): a terminal sends them to the host as well, which then asks to stop, or dies, or was
/// started to outlive the terminal.
///
/// Not to be dropped before it returns: requests would go on without a server.
/// Needs a Tokio runtime with time and I/O. Standard output belongs to the handshake: nothing else
/// in the process may write to it.
pub async fn serve<P: ServedProvider>(
    provider: P,
    stop: CancellationToken,
    options: ServeOptions,
) -> Result<(), PluginError> {
    panics::install_hook();
    let offer = if options.debug { None } else { Some(HostOffer::from_env()?) };
    // Before the host can know that we are there, so that no Ctrl-C finds us without a handler.
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

/// What a debugged provider prints, in the form a shell can take.
fn reattach(address: &str, socket: &Socket) -> String {
    let address_of = socket.address();
    let value = json!({
        address: {
            "Protocol": "grpc",
            "ProtocolVersion": handshake::PROVIDER_PROTOCOL,
            "Pid": std::process::id(),
            // "Test" tells the host not to end a process it did not start.
            "Test": true,
            "Addr": { "Network": address_of.network, "String": address_of.text },
        }
    });
    format!("TF_REATTACH_PROVIDERS='{value}'\n")
}

type ServerTask = JoinHandle<Result<(), tonic::transport::Error>>;

/// The server's four switches.
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
        // New requests are still answered while the running ones end: the host may need some to
        // write its state.
        self.stop.cancel();
        self.requests.close();
        if timeout(patience, self.requests.wait()).await.is_err() {
            tracing::warn!(requests = self.requests.len(), "requests did not end in time");
        }
        self.down.cancel();
        // A host keeps its connection open; what was answered has been sent by then.
        if let Ok(ended) = timeout(TO_CLOSE, &mut running).await {
            return ended.map_err(PluginError::Aborted)?.map_err(Into::into);
        }
        running.abort();
        Ok(())
    }
}
