//! Connection to an API server, with configuration, credentials and retries.

use std::{
    fmt,
    future::Future,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use jiff::Timestamp;
use kube::Client;
use tokio::sync::Mutex;

use super::{ClusterError, error::chain as words, exec, kubeconfig};
use crate::{
    clock::{Clock, within},
    files::PathTrust,
    outbound,
};

/// A cluster's configured access. Missing settings come from `KUBECONFIG`, `~/.kube/config` or,
/// inside a Pod, from its service account.
#[derive(Clone, Debug, Default)]
pub struct ClusterSettings {
    /// A kubeconfig file. Its users can be certificates, tokens, token files and exec plugins,
    /// which do not get a terminal.
    pub kubeconfig: Option<PathBuf>,
    /// The context, if it is not the current one.
    pub context: Option<String>,
    /// The API server's address, instead of a kubeconfig.
    pub host: Option<String>,
    /// With `host`: a file with a bearer token; it is read again when it changes.
    pub token_file: Option<PathBuf>,
    /// With `host`: the PEM authority that signed the API server's certificate.
    pub ca_certificate_file: Option<PathBuf>,
    /// Time limit of a request; `None` means 10 s.
    pub request_timeout: Option<Duration>,
    /// Whether files and programs that other users can change are accepted.
    pub trust: PathTrust,
}

/// Default time limit of a request.
const REQUEST: Duration = Duration::from_secs(10);

/// How long a connection can be silent while an answer is pending.
const SILENCE: Duration = Duration::from_secs(75);

/// Retries after 429 before the error is returned.
const AGAIN: u32 = 4;

/// The longest pause before a retry, whatever the server requests.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The minimum interval between renewals of rejected credentials: an exec plugin can cost a login,
/// and a lasting rejection must be reported.
const RENEWAL: Duration = Duration::from_mins(1);

/// A request, for messages. A role must allow `verb` on `resource`.
#[derive(Clone, Copy, Debug)]
pub struct RequestInfo<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    /// The resource, for example `servers.metal.ironcore.dev` or `leases.coordination.k8s.io`.
    pub resource: &'a str,
    /// The namespace; `None` for cluster-scoped resources.
    pub namespace: Option<&'a str>,
    /// The object's name, if it is a single object.
    pub name: Option<&'a str>,
}

impl RequestInfo<'_> {
    /// Returns true if the request could have changed something even without an answer.
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

/// A cluster. Cheap to create: nothing is read or requested before the first call.
#[derive(Clone)]
pub struct Cluster(Arc<ClusterInner>);

struct ClusterInner {
    settings: ClusterSettings,
    clock: Arc<dyn Clock>,
    /// Locked while a client is created, so that a single exec plugin run serves all waiters.
    connection: Mutex<Connection>,
    address: OnceLock<String>,
}

#[derive(Default)]
struct Connection {
    connected: Option<Connected>,
    number: u64,
    /// The monotonic time of the last client created for rejected credentials.
    renewed: Option<Duration>,
}

struct Connected {
    client: Client,
    /// When the exec plugin's credentials expire.
    until: Option<Timestamp>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Returns the cluster with these settings.
    #[must_use]
    pub fn new(settings: ClusterSettings, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(ClusterInner { settings, clock, connection: Mutex::default(), address: OnceLock::new() }))
    }

    /// Returns a client. Reads the configuration in the first call without sending a request.
    pub async fn client(&self) -> Result<Client, ClusterError> {
        Ok(self.connected().await?.0)
    }

    /// Returns the address for display; before the first connection, the configured source.
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

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    /// Returns the client and its number, or a new client if the credentials are about to expire.
    async fn connected(&self) -> Result<(Client, u64), ClusterError> {
        let mut last = self.0.connection.lock().await;
        if let Some(connected) = &last.connected
            && !exec::is_ending(connected.until, self.0.clock.now())
        {
            return Ok((connected.client.clone(), last.number));
        }
        self.replace(&mut last).await
    }

    /// Replaces the client whose credentials were rejected. A token can expire early, and files
    /// that a kubeconfig references can change. `None` if this was tried recently.
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
        let mut config = kubeconfig::load(&self.0.settings).await?;
        // A request answered with 503 or 504 could have been applied, so the caller decides about a
        // retry.
        config.default_retry = false;
        config.connect_timeout = Some(self.patience());
        // A watch's initial list does not have its own time limit. A quiet watch ends before this
        // limit.
        config.read_timeout = Some(SILENCE);
        config.reset_reader_on_write = true;
        let address = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let _ = self.0.address.set(address);
        let mut until = None;
        if let Some(plugin) = exec::plugin(&config.auth_info) {
            let given = exec::credentials(&config.auth_info, plugin, self.patience(), self.0.settings.trust).await?;
            (config.auth_info, until) = (given.auth, given.until);
        }
        let client = outbound::kubernetes(config).await.map_err(|error| words(&*error))?;
        Ok(Connected { client, until })
    }

    fn patience(&self) -> Duration {
        self.0.settings.request_timeout.unwrap_or(REQUEST)
    }

    /// Converts a client error for a request.
    pub(super) fn failure(&self, error: kube::Error, request: RequestInfo<'_>) -> ClusterError {
        ClusterError::classify(error, request, &self.address(), self.patience())
    }

    fn misconfigured(&self, cause: String) -> ClusterError {
        ClusterError::Configuration { address: self.address().into(), cause: cause.into() }
    }

    /// Sends a request within a time limit and converts its error. Retries after 429. Retries once
    /// with new credentials after 401, which the server returns before any effect. Calls `make` for
    /// each attempt.
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

    /// Connection and request timeouts race, so both produce the same error.
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
            let expected =
                ClusterError::Unreachable { address: address.into(), cause: "no answer within 0.05s".into() };
            assert_eq!(asked.map(|_| ()), Err(expected));
        }
    }
}
