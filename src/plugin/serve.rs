//! From the start of the process to its end in order.
use std::{os::unix::process::parent_id, sync::Arc, time::Duration};

use serde_json::json;
use tempfile::TempDir;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    PluginError, ServedProvider,
    controller::Controller,
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
/// The host kills two seconds after it asked to end.
const AFTER_SHUTDOWN: Duration = Duration::from_millis(1500);
/// For the last bytes of the last answers.
const TO_CLOSE: Duration = Duration::from_millis(300);
/// How soon a host that died is noticed once its connection is gone.
const HOST_CHECK: Duration = Duration::from_millis(250);

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
/// to watch the token and to return early. SIGINT and SIGHUP are ignored: a terminal sends them to
/// the host as well, which then asks to stop, or dies, or was started to outlive the terminal.
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
        Some(identity) => handshake::line(socket.path(), &identity.certificate),
        None => reattach(&options.address, &socket),
    };
    let open = ends.connections.clone();
    let server = Server {
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
    let value = json!({
        address: {
            "Protocol": "grpc",
            "ProtocolVersion": handshake::PROVIDER_PROTOCOL,
            "Pid": std::process::id(),
            // "Test" tells the host not to end a process it did not start.
            "Test": true,
            "Addr": { "Network": "unix", "String": socket.path() },
        }
    });
    format!("TF_REATTACH_PROVIDERS='{value}'\n")
}

type Running = JoinHandle<Result<(), tonic::transport::Error>>;

/// The server's four switches.
struct Server {
    stop: CancellationToken,
    requests: TaskTracker,
    asked_to_end: CancellationToken,
    down: CancellationToken,
}

/// What can end the process.
struct Ends {
    interrupt: Signal,
    hangup: Signal,
    terminate: Signal,
    /// How many connections are open.
    connections: watch::Sender<usize>,
    /// The process that started us.
    parent: u32,
    debug: bool,
}

impl Server {
    fn start<P: ServedProvider>(
        &self,
        provider: P,
        socket: Socket,
        tls: Option<Arc<rustls::ServerConfig>>,
        open: watch::Sender<usize>,
    ) -> (Running, TempDir) {
        let service = Service {
            served: Arc::new(Served::new(provider)),
            stop: self.stop.clone(),
            requests: self.requests.clone(),
        };
        let controller = Controller { asked_to_end: self.asked_to_end.clone(), down: self.down.clone() };
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

    async fn until(self, ends: &mut Ends, mut running: Running, finish_within: Duration) -> Result<(), PluginError> {
        let patience = tokio::select! {
            ended = &mut running => return ended.map_err(PluginError::Aborted)?.map_err(Into::into),
            patience = ends.first(&self.asked_to_end, finish_within) => patience,
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

impl Ends {
    fn watch(debug: bool) -> Result<Self, PluginError> {
        let on = |kind| signal(kind).map_err(PluginError::Signals);
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
            terminate: on(SignalKind::terminate())?,
            connections: watch::Sender::new(0),
            parent: parent_id(),
            debug,
        })
    }

    /// Waits for a reason to end; tells how long running requests may take.
    async fn first(&mut self, asked: &CancellationToken, finish_within: Duration) -> Duration {
        if self.debug {
            // No host decides here, only whoever sits at the terminal.
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.hangup.recv() => {}
                _ = self.terminate.recv() => {}
            }
            return finish_within;
        }
        let Self { interrupt, hangup, terminate, connections, parent, .. } = self;
        let ignored = async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => tracing::debug!("SIGINT ignored; the host decides"),
                    _ = hangup.recv() => tracing::debug!("SIGHUP ignored; the host decides"),
                }
            }
        };
        tokio::select! {
            () = asked.cancelled() => AFTER_SHUTDOWN,
            _ = terminate.recv() => {
                tracing::info!("SIGTERM: ending");
                finish_within
            }
            () = host_gone(connections.subscribe(), *parent) => {
                tracing::warn!("the host is gone: ending");
                finish_within
            }
            () = ignored => finish_within,
        }
    }
}

/// Returns when no connection is left and the process that started us is no longer our parent.
///
/// A host that was killed cannot ask to end. Without this, a create that waits in a queue would be
/// admitted for nobody.
async fn host_gone(mut connections: watch::Receiver<usize>, host: u32) {
    loop {
        if connections.wait_for(|open| *open == 0).await.is_err() || parent_id() != host {
            return;
        }
        // Either time passes or a connection comes; both lead to another look.
        let _ = timeout(HOST_CHECK, connections.changed()).await;
    }
}
