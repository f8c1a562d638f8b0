//! A proxy between a real host and the real provider, in which a request fails, loses its reply,
//! or is interrupted.
//!
//! The provider is started with `--debug`, so that the host reaches it through the proxy
//! (`TF_REATTACH_PROVIDERS`) and the process can outlive a command.

use std::{
    convert::Infallible,
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinHandle,
};
use tonic::{
    Status,
    body::Body,
    server::NamedService,
    transport::{Channel, Endpoint, Server},
};
use tower::Service;

use crate::support::{process, process::Signal, provider, run::Running, simulator::SOON, workspace::Workspace};

/// A fault injected into one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not reach the provider.
    Fails,
    /// The provider carries it out, and the host gets an error.
    ReplyLost,
    /// The host gets a SIGINT, as from Ctrl-C, before the request reaches the provider.
    Interrupted,
    /// The provider is killed instead.
    Killed,
}

impl Fault {
    pub const ALL: [Self; 4] = [Self::Fails, Self::ReplyLost, Self::Interrupted, Self::Killed];

    /// Returns true if the provider's process stays usable. A stopped process stays stopped until
    /// its exit.
    pub fn keeps_process(self) -> bool {
        matches!(self, Self::Fails | Self::ReplyLost)
    }
}

/// A fault for one request.
#[derive(Clone, Debug)]
struct Rule {
    rpc: String,
    fault: Fault,
    host: u32,
}

#[derive(Default)]
struct Inside {
    rule: Option<Rule>,
    seen: Vec<String>,
}

/// A provider process behind its proxy.
pub struct Proxied {
    _provider: Running,
    inside: Arc<Mutex<Inside>>,
    pub reattach: String,
    task: JoinHandle<()>,
}

impl Drop for Proxied {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn locked(inside: &Mutex<Inside>) -> MutexGuard<'_, Inside> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxied {
    /// Starts a provider for a workspace; `folder` gets the socket.
    pub async fn start(workspace: &Workspace, folder: &Path) -> Self {
        let provider = workspace.start_metal(&["--debug"]);
        provider.until_it_says("TF_REATTACH_PROVIDERS", SOON).await;
        let said = provider.output();
        let offered = said.lines().find_map(|line| line.strip_prefix("TF_REATTACH_PROVIDERS='")).unwrap();
        let offered: Value = serde_json::from_str(offered.trim_end().trim_end_matches('\'')).unwrap();
        let offered = offered.as_object().unwrap().values().next().unwrap().clone();
        let socket = PathBuf::from(offered["Addr"]["String"].as_str().unwrap());
        let connector = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::try_from("http://[::]:1").unwrap();
        let channel = endpoint.connect_with_connector(connector).await.expect("the provider listens");

        let address = folder.join(format!("{}.sock", provider.pid()));
        let listener = UnixListener::bind(&address).expect("a free name");
        let inside = Arc::<Mutex<Inside>>::default();
        let forward = Forward { channel, inside: Arc::clone(&inside), provider: provider.pid() };
        let incoming = futures_util::stream::unfold(listener, async |listener| {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        let server = Server::builder()
            .add_service(Named::<0>(forward.clone()))
            .add_service(Named::<1>(forward.clone()))
            .add_service(Named::<2>(forward.clone()))
            .add_service(Named::<3>(forward.clone()))
            .add_service(Named::<4>(forward));
        let task = tokio::spawn(async move {
            let _ = server.serve_with_incoming(Box::pin(incoming)).await;
        });
        let reattach = json!({ provider::SOURCE: {
            "Protocol": "grpc", "ProtocolVersion": offered["ProtocolVersion"], "Pid": provider.pid(), "Test": true,
            "Addr": { "Network": "unix", "String": address },
        }});
        Self { _provider: provider, inside, reattach: reattach.to_string(), task }
    }

    /// Injects the fault into the next request with this name.
    pub fn disturb(&self, rpc: &str, fault: Fault, host: u32) {
        locked(&self.inside).rule = Some(Rule { rpc: rpc.to_owned(), fault, host });
    }

    /// Removes the fault. Returns true if its request did not occur.
    pub fn is_undisturbed(&self) -> bool {
        locked(&self.inside).rule.take().is_some()
    }

    /// Names of the requests so far, without duplicates.
    pub fn seen(&self) -> Vec<String> {
        locked(&self.inside).seen.clone()
    }
}

#[derive(Clone)]
struct Forward {
    channel: Channel,
    inside: Arc<Mutex<Inside>>,
    provider: u32,
}

impl Forward {
    async fn answer(mut self, request: http::Request<Body>) -> http::Response<Body> {
        let rpc = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let rule = {
            let mut inside = locked(&self.inside);
            if !inside.seen.contains(&rpc) {
                inside.seen.push(rpc.clone());
            }
            inside.rule.take_if(|rule| rule.rpc == rpc)
        };
        match rule.as_ref().map(|rule| rule.fault) {
            Some(Fault::Fails) => return Status::unavailable("the test refused it").into_http(),
            Some(Fault::Killed) => {
                process::signal(self.provider, Signal::KILL);
                process::wait_for_end(self.provider);
                return Status::unavailable("the test killed the provider").into_http();
            }
            Some(Fault::Interrupted) => {
                let host = rule.as_ref().map_or(0, |rule| rule.host);
                process::signal(host, Signal::INT);
            }
            Some(Fault::ReplyLost) | None => {}
        }
        let answer = match futures_util::future::poll_fn(|context| self.channel.poll_ready(context)).await {
            Ok(()) => self.channel.call(request).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(_) if rule.is_some_and(|rule| rule.fault == Fault::ReplyLost) => {
                Status::unavailable("the test lost the reply").into_http()
            }
            Ok(answer) => answer,
            Err(error) => Status::unavailable(error.to_string()).into_http(),
        }
    }
}

const SERVICES: [&str; 5] =
    ["tfplugin6.Provider", "plugin.GRPCBroker", "plugin.GRPCController", "plugin.GRPCStdio", "grpc.health.v1.Health"];

/// A provider service.
#[derive(Clone)]
struct Named<const N: usize>(Forward);

impl<const N: usize> NamedService for Named<N> {
    const NAME: &'static str = SERVICES[N];
}

impl<const N: usize> Service<http::Request<Body>> for Named<N> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let forward = self.0.clone();
        Box::pin(async move { Ok(forward.answer(request).await) })
    }
}
