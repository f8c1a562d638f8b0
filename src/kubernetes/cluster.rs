//! One API server and how we are known to it.

use std::{
    fmt,
    future::Future,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use jiff::Timestamp;
use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use tokio::sync::Mutex;

use super::{ClusterError, error::chain as words, exec};
use crate::{
    clock::{Clock, within},
    files::{self, Pipes},
};

/// How a cluster is reached, as it was configured. What is not given comes from `KUBECONFIG`,
/// `~/.kube/config`, or, inside a pod, from its service account.
#[derive(Clone, Debug, Default)]
pub struct ClusterSettings {
    /// A kubeconfig file. Its users may be certificates, tokens, token files and exec plugins,
    /// which get no terminal.
    pub kubeconfig: Option<PathBuf>,
    /// Which of its contexts, instead of the current one.
    pub context: Option<String>,
    /// The API server's address, instead of a kubeconfig.
    pub host: Option<String>,
    /// With `host`: a file with a bearer token; it is read again when it changes.
    pub token_file: Option<PathBuf>,
    /// With `host`: the authority that signed the API server's certificate, as PEM.
    pub ca_certificate_file: Option<PathBuf>,
    /// Time limit of one request; `None`: 10 s.
    pub request_timeout: Option<Duration>,
}

/// How long one request may take when nothing else is said.
const REQUEST: Duration = Duration::from_secs(10);

/// How long a connection may say nothing while an answer is awaited.
const SILENCE: Duration = Duration::from_secs(75);

/// How often a request that was turned away for being one too many is made again, before that is
/// told.
const AGAIN: u32 = 4;

/// The longest wait before it is made again, whatever the server asks for.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How often credentials that are refused are asked for again: an exec plugin may cost a log-in,
/// and a refusal that lasts has to be told.
const RENEWAL: Duration = Duration::from_mins(1);

/// One request, for messages: `verb` and `resource` are what a role would have to allow.
#[derive(Clone, Copy, Debug)]
pub struct RequestInfo<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    /// For example `servers.metal.ironcore.dev`, or `leases.coordination.k8s.io`.
    pub resource: &'a str,
    /// Where; `None` for what belongs to the whole cluster.
    pub namespace: Option<&'a str>,
    /// Which one, when it is one.
    pub name: Option<&'a str>,
}

impl RequestInfo<'_> {
    /// Whether it may have changed something although no answer came.
    pub(super) fn writes(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }
}

impl fmt::Display for RequestInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match (self.namespace, self.name) {
            (Some(namespace), Some(name)) => write!(f, " {namespace}/{name}"),
            (Some(namespace), None) => write!(f, " in {namespace}"),
            (None, Some(name)) => write!(f, " {name}"),
            (None, None) => Ok(()),
        }
    }
}

/// A cluster. Cheap to make: nothing is read or asked before the first request.
#[derive(Clone)]
pub struct Cluster(Arc<ClusterInner>);

struct ClusterInner {
    settings: ClusterSettings,
    clock: Arc<dyn Clock>,
    /// Locked while one is made, so that one run of an exec plugin serves all who wait.
    connection: Mutex<Connection>,
    address: OnceLock<String>,
}

/// The client that is used now.
#[derive(Default)]
struct Connection {
    connected: Option<Connected>,
    /// How many clients were made.
    number: u64,
    /// On our own clock: when one was made because its credentials were refused.
    renewed: Option<Duration>,
}

/// A client with its credentials.
struct Connected {
    client: Client,
    /// When the credentials end that an exec plugin gave.
    until: Option<Timestamp>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

impl Cluster {
    /// The cluster of these settings.
    #[must_use]
    pub fn new(settings: ClusterSettings, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(ClusterInner { settings, clock, connection: Mutex::default(), address: OnceLock::new() }))
    }

    /// A client. Reads the configuration at the first call; asks no server.
    pub async fn client(&self) -> Result<Client, ClusterError> {
        Ok(self.connected().await?.0)
    }

    /// Where it is, for people; what was configured while that has not been read.
    #[must_use]
    pub fn address(&self) -> String {
        if let Some(address) = self.0.address.get() {
            return address.clone();
        }
        let settings = &self.0.settings;
        settings
            .host
            .clone()
            .or_else(|| settings.context.as_ref().map(|context| format!("the Kubernetes context {context:?}")))
            .or_else(|| settings.kubeconfig.as_ref().map(|path| format!("the cluster of {}", path.display())))
            .unwrap_or_else(|| "the Kubernetes cluster".to_owned())
    }

    /// What its pauses are measured with.
    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    /// The client and its number; a new one where the credentials of the last one end.
    async fn connected(&self) -> Result<(Client, u64), ClusterError> {
        let mut last = self.0.connection.lock().await;
        if let Some(connected) = &last.connected
            && !exec::is_ending(connected.until, self.0.clock.now())
        {
            return Ok((connected.client.clone(), last.number));
        }
        self.replace(&mut last).await
    }

    /// Another client than the one with this number, whose credentials were refused: a token may
    /// end before it says so, and what a kubeconfig names may have changed. `None` where
    /// that was tried a short while ago.
    async fn renewed(&self, refused: u64) -> Result<Option<(Client, u64)>, ClusterError> {
        let mut last = self.0.connection.lock().await;
        if let (Some(connected), true) = (&last.connected, last.number != refused) {
            return Ok(Some((connected.client.clone(), last.number)));
        }
        let now = self.0.clock.monotonic();
        if last.renewed.is_some_and(|at| now.saturating_sub(at) < RENEWAL) {
            return Ok(None);
        }
        last.renewed = Some(now);
        self.replace(&mut last).await.map(Some)
    }

    async fn replace(&self, last: &mut Connection) -> Result<(Client, u64), ClusterError> {
        let connected = self.connect().await.map_err(|cause| self.misconfigured(cause))?;
        last.number += 1;
        Ok((last.connected.insert(connected).client.clone(), last.number))
    }

    async fn connect(&self) -> Result<Connected, String> {
        let mut config = self.config().await?;
        // A request that was answered with 503 or 504 may have been carried out: who asks decides
        // what is done then.
        config.default_retry = false;
        config.connect_timeout = Some(self.patience());
        // A list that a watch begins with has no time limit of its own. A quiet watch is heard of
        // before this.
        config.read_timeout = Some(SILENCE);
        config.reset_reader_on_write = true;
        let address = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let _ = self.0.address.set(address);
        let mut until = None;
        if let Some(plugin) = exec::plugin(&config.auth_info) {
            let given = exec::credentials(&config.auth_info, plugin, self.patience()).await?;
            (config.auth_info, until) = (given.auth, given.until);
        }
        let client = Client::try_from(config).map_err(|error| words(&error))?;
        Ok(Connected { client, until })
    }

    fn patience(&self) -> Duration {
        self.0.settings.request_timeout.unwrap_or(REQUEST)
    }

    /// What a client's error means for a request.
    pub(super) fn failure(&self, error: kube::Error, request: RequestInfo<'_>) -> ClusterError {
        ClusterError::classify(error, request, &self.address(), self.patience())
    }

    fn misconfigured(&self, cause: String) -> ClusterError {
        ClusterError::Configuration { address: self.address(), cause }
    }

    async fn config(&self) -> Result<Config, String> {
        let settings = &self.0.settings;
        if let Some(host) = &settings.host {
            let url = host.parse().map_err(|error| format!("host {host:?} is not a valid address: {error}"))?;
            let mut config = Config::new(url);
            if let Some(path) = &settings.ca_certificate_file {
                let pem = files::read_bytes(path, files::SMALL, Pipes::Allowed).map_err(|error| error.to_string())?;
                let parsed: Result<Vec<_>, _> = x509_parser::pem::Pem::iter_from_buffer(&pem).collect();
                let pems = parsed.map_err(|error| format!("{} holds no certificate: {error}", path.display()))?;
                config.root_cert = Some(pems.into_iter().map(|pem| pem.contents).collect());
            }
            if let Some(path) = &settings.token_file {
                // The client reads it again and again.
                files::check(path, files::SMALL, Pipes::Refused).map_err(|error| error.to_string())?;
            }
            let token_file = settings.token_file.as_ref().map(|path| path.display().to_string());
            config.auth_info = AuthInfo { token_file, ..AuthInfo::default() };
            return Ok(config);
        }
        let options = KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
        if let Some(path) = &settings.kubeconfig {
            let is_pipe = files::check(path, files::SMALL, Pipes::Allowed).map_err(|error| error.to_string())?;
            let read = if is_pipe {
                let text = files::read_text(path, files::SMALL, Pipes::Allowed).map_err(|error| error.to_string())?;
                Kubeconfig::from_yaml(&text)
            } else {
                Kubeconfig::read_from(path)
            };
            let read = read.map_err(|error| words(&error))?;
            return Config::from_custom_kubeconfig(read, &options).await.map_err(|error| words(&error));
        }
        match Config::from_kubeconfig(&options).await {
            Ok(config) => Ok(config),
            // Whoever names a context means a file.
            Err(error) if settings.context.is_some() => Err(words(&error)),
            Err(error) => Config::incluster_env().map_err(|inside| {
                format!(
                    "{}; and this process does not run in a Pod with a service account ({})",
                    words(&error),
                    words(&inside)
                )
            }),
        }
    }

    /// Makes a request: bounded in time, made again while the server says that it is one too many
    /// (429), made once more with other credentials where it does not accept ours (401, which it
    /// answers before it does anything), and its error told in our words. `make` is called for each
    /// try.
    pub async fn call<T, F>(
        &self,
        request: RequestInfo<'_>,
        make: impl Fn(Client) -> F + Send,
    ) -> Result<T, ClusterError>
    where
        F: Future<Output = Result<T, kube::Error>> + Send,
        T: Send,
    {
        let (mut client, mut number) = self.connected().await?;
        let (mut tries, mut renewed) = (0, false);
        loop {
            let result = match within(self.patience(), Box::pin(make(client.clone()))).await {
                Some(result) => result.map_err(|error| self.failure(error, request)),
                None => Err(ClusterError::silence(request, &self.address(), self.patience())),
            };
            match result {
                Err(ClusterError::Busy { retry_after, .. }) if tries < AGAIN => {
                    let grown = Duration::from_millis(100) * 2u32.pow(tries);
                    tries += 1;
                    self.0.clock.sleep(retry_after.unwrap_or(grown).max(grown).min(LONGEST_PAUSE)).await;
                }
                Err(refused @ ClusterError::Unauthorized { .. }) if !renewed => match self.renewed(number).await? {
                    Some(other) => {
                        renewed = true;
                        (client, number) = other;
                    }
                    None => return Err(refused),
                },
                result => return result,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    /// Whether the connection or the request runs out of time first is chance: both are told alike.
    #[tokio::test]
    async fn a_server_that_takes_connections_and_says_nothing_is_told_in_one_way() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = ClusterSettings {
            host: Some(format!("https://{}", silent.local_addr().unwrap())),
            request_timeout: Some(Duration::from_millis(50)),
            ..ClusterSettings::default()
        };
        let request = RequestInfo { verb: "list", resource: "pods", namespace: None, name: None };
        for _ in 0..20 {
            let cluster = Cluster::new(settings.clone(), Arc::new(SystemClock::default()));
            let asked = cluster.call(request, |client| async move { client.apiserver_version().await }).await;
            let address = settings.host.clone().unwrap();
            let expected = ClusterError::Unreachable { address, cause: "no answer within 0.05s".to_owned() };
            assert_eq!(asked.map(|_| ()), Err(expected));
        }
    }
}
