//! A kubeconfig's exec plugins: programs that print credentials.
//!
//! Each plugin runs in a separate process group, which is killed after the plugin ended or timed
//! out. A child that starts its own group survives. Standard input is empty and standard error is
//! discarded. The provider's own streams belong to Terraform, which logs them.
//!
//! A plugin does not receive the variables that contain accounts of BMCs, OpenStack or the store.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
};

use crate::{
    clock::{no_answer_within, within},
    files::{self, PathTrust},
};

/// Prefixes of variables that a plugin does not receive: our own, Terraform's, OpenStack's and the
/// PostgreSQL client's. The kubeconfig can set them for its plugin.
const WITHHELD: [&str; 4] = ["METAL_", "TF_", "OS_", "PG"];

/// The maximum output size, in bytes. Certificates and tokens have a few kilobytes.
const MOST: u64 = 1024 * 1024;

/// How long before expiry credentials are renewed.
const MARGIN: SignedDuration = SignedDuration::from_secs(60);

pub(super) struct Credentials {
    /// The client's authentication settings.
    pub(super) auth: AuthInfo,
    /// The expiry; `None` if the credentials are valid until the API server rejects them.
    pub(super) until: Option<Timestamp>,
}

/// Returns true if credentials with this expiry must be renewed.
pub(super) fn is_ending(until: Option<Timestamp>, now: Timestamp) -> bool {
    until.is_some_and(|until| now.checked_add(MARGIN).unwrap_or(Timestamp::MAX) >= until)
}

#[derive(Deserialize)]
struct Printed {
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Returns the user's exec plugin, unless the kubeconfig itself contains credentials.
pub(super) fn plugin(user: &AuthInfo) -> Option<&ExecConfig> {
    let given = user.auth_provider.is_some() || user.token.is_some() || user.token_file.is_some();
    let password = user.username.is_some() && user.password.is_some();
    user.exec.as_ref().filter(|_| !given && !password)
}

/// Runs a user's plugin for at most `limit`. Errors contain neither its output nor its arguments or
/// variables.
pub(super) async fn credentials(
    user: &AuthInfo,
    plugin: &ExecConfig,
    limit: Duration,
    trust: PathTrust,
) -> Result<Credentials, String> {
    let name = plugin.command.clone().ok_or("its user has an exec plugin without a command")?;
    let told = |cause: &str| format!("{cause} (exec plugin {name})");
    if plugin.interactive_mode == Some(ExecInteractiveMode::Always) {
        return Err(told("interactiveMode Always requires a terminal, which the provider does not have"));
    }
    let started = command(plugin, &name, trust).and_then(|mut command| {
        command.spawn().map_err(|error| format!("the exec plugin cannot be started: {}", error.kind()))
    });
    let mut running = PluginProcess::new(started.map_err(|cause| told(&cause))?);
    let Some(printed) = within(limit, running.output()).await else {
        running.kill().await;
        let limit = no_answer_within(limit);
        return Err(told(&format!("the credentials did not arrive in time: {limit}")));
    };
    let printed = printed.map_err(|cause| told(&cause))?;
    parse(&printed, user).ok_or_else(|| told("the exec plugin printed no valid ExecCredential"))
}

/// Returns the program's path as the system would find it, after checking that other users cannot
/// change it. A program that does not exist keeps its name: the start reports it.
fn program(name: &str, trust: PathTrust) -> Result<PathBuf, String> {
    let given = PathBuf::from(name);
    // On Windows, programs are outside the profile, and permissions are not read.
    if cfg!(not(unix)) {
        return Ok(given);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    let found = if given.components().count() > 1 { Some(given) } else { places.find(|place| is_program(place)) };
    let Some(found) = found.filter(|found| found.exists()) else { return Ok(PathBuf::from(name)) };
    files::refuse_writable(&found, trust).map_err(|error| error.to_string())?;
    Ok(found)
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(path: &Path) -> bool {
    path.is_file()
}

fn command(plugin: &ExecConfig, name: &str, trust: PathTrust) -> Result<Command, String> {
    let mut command = Command::new(program(name, trust)?);
    for (variable, _) in std::env::vars_os() {
        if WITHHELD.iter().any(|start| variable.to_string_lossy().starts_with(start)) {
            command.env_remove(variable);
        }
    }
    command.args(plugin.args.iter().flatten());
    for variable in plugin.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    let cluster = if plugin.provide_cluster_info { plugin.cluster.as_ref() } else { None };
    let mut info = json!({
        "apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": { "interactive": false },
    });
    if let Some(cluster) = cluster {
        info["spec"]["cluster"] = serde_json::to_value(cluster).map_err(|error| error.to_string())?;
    }
    command.env("KUBERNETES_EXEC_INFO", info.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    #[cfg(unix)]
    command.process_group(0);
    Ok(command)
}

/// Adds a plugin's output to the user's authentication settings.
fn parse(printed: &[u8], user: &AuthInfo) -> Option<Credentials> {
    // Plugins print JSON or YAML, and YAML includes JSON.
    let Printed { status } = serde_saphyr::from_slice(printed).ok()?;
    let until = status.expiration_timestamp.map(|until| until.parse()).transpose().ok()?;
    let mut auth = AuthInfo { exec: None, token: status.token.map(SecretString::from), ..user.clone() };
    if let (Some(certificate), Some(key)) = (status.client_certificate_data, status.client_key_data) {
        // The client expects the kubeconfig encoding.
        auth.client_certificate_data = Some(STANDARD.encode(certificate));
        auth.client_key_data = Some(SecretString::from(STANDARD.encode(key)));
    } else if auth.token.is_none() {
        return None;
    }
    Some(Credentials { auth, until })
}

/// A running plugin. Dropping it early kills its whole process group.
struct PluginProcess {
    child: Child,
    ended: bool,
}

impl PluginProcess {
    fn new(child: Child) -> Self {
        Self { child, ended: false }
    }

    /// Returns the output after a successful exit.
    async fn output(&mut self) -> Result<Vec<u8>, String> {
        let mut printed = Vec::new();
        if let Some(out) = self.child.stdout.take() {
            let read = out.take(MOST).read_to_end(&mut printed).await;
            read.map_err(|error| format!("the exec plugin cannot be read: {}", error.kind()))?;
        }
        #[cfg(unix)]
        if let Some(plugin) = self.pid() {
            // Before it is reaped, no other process can have its group's ID.
            let _ = tokio::task::spawn_blocking(move || wait_unreaped(plugin)).await;
            self.kill_group();
        }
        let status = self.child.wait().await;
        let status = status.map_err(|error| format!("the exec plugin was lost: {}", error.kind()))?;
        self.ended = true;
        if status.success() { Ok(printed) } else { Err(format!("the exec plugin ended with {status}")) }
    }

    #[cfg(unix)]
    fn pid(&self) -> Option<rustix::process::Pid> {
        rustix::process::Pid::from_raw(i32::try_from(self.child.id()?).ok()?)
    }

    /// Kills the plugin and reaps it, so that no zombie remains.
    async fn kill(mut self) {
        self.kill_group();
        let _ = self.child.kill().await;
        self.ended = true;
    }

    /// Kills the process group. Its ID cannot be reused before the plugin was reaped.
    fn kill_group(&self) {
        #[cfg(unix)]
        if let Some(group) = self.pid() {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

/// Waits until a child ends, and leaves it to be reaped.
#[cfg(unix)]
fn wait_unreaped(child: rustix::process::Pid) {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(child), options), Err(rustix::io::Errno::INTR)) {}
}

impl Drop for PluginProcess {
    fn drop(&mut self) {
        if !self.ended {
            self.kill_group();
        }
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::{fs, path::Path, sync::Arc};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::{
        clock::SystemClock,
        kubernetes::{Cluster, ClusterError, ClusterSettings, RequestInfo},
    };

    const VERSION: RequestInfo<'static> = RequestInfo { verb: "get", resource: "version", namespace: None, name: None };

    /// Returns a cluster whose user runs this shell script as an exec plugin.
    fn with_plugin(folder: &Path, script: &str, server: &str, patience: Duration) -> Cluster {
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": server } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": { "exec": {
                "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script, "sentinel-arg"],
                "env": [{ "name": "SECRET", "value": "sentinel-env" }],
            } } }],
        });
        let path = folder.join("kubeconfig");
        fs::write(&path, kubeconfig.to_string()).unwrap();
        let settings =
            ClusterSettings { kubeconfig: Some(path), request_timeout: Some(patience), ..ClusterSettings::default() };
        Cluster::new(settings, Arc::new(SystemClock::default()))
    }

    const NOWHERE: &str = "https://127.0.0.1:1";

    fn credential(status: &str) -> String {
        format!(r#"{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{status}}}"#)
    }

    async fn until<T: Send>(what: &str, mut look: impl FnMut() -> Option<T> + Send) -> T {
        let looked = within(Duration::from_secs(20), async {
            loop {
                if let Some(found) = look() {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        });
        looked.await.unwrap_or_else(|| panic!("{what} did not come"))
    }

    /// Returns a script for a silent plugin with a child that survives hangups. Writes both process
    /// IDs to the file `pids`.
    fn hanging(folder: &Path) -> String {
        let (pipe, pids) = (folder.join("pipe"), folder.join("pids"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (pipe, pids) = (pipe.display(), pids.display());
        format!(
            "trap '' TERM HUP INT; echo sentinel-out; sh -c \"trap '' TERM HUP; cat {pipe}\" & \
             echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait; cat {pipe}"
        )
    }

    fn pids(folder: &Path) -> Option<Vec<String>> {
        let text = fs::read_to_string(folder.join("pids")).ok()?;
        Some(text.split_whitespace().map(str::to_owned).collect())
    }

    /// Returns a process's state and parent; `None` if it does not exist.
    fn process(pid: &str) -> Option<(String, String)> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = text.rsplit_once(") ")?.1.split(' ');
        Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
    }

    /// Waits until both processes have ended and the plugin was reaped. The child's new parent
    /// reaps the child.
    async fn are_gone(folder: &Path) {
        let pids = pids(folder).unwrap();
        let own = std::process::id().to_string();
        for pid in &pids {
            until("the end of a plugin", || match process(pid) {
                None => Some(()),
                Some((state, parent)) => (state == "Z" && parent != own).then_some(()),
            })
            .await;
        }
    }

    #[tokio::test]
    async fn an_exec_plugin_that_hangs_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = with_plugin(folder.path(), &hanging(folder.path()), NOWHERE, Duration::from_secs(2));
        let asked = within(Duration::from_secs(10), cluster.client()).await;
        let problem = asked.expect("it ended in time").map(|_| ()).unwrap_err().to_string();
        assert!(problem.contains("no answer within 2s") && problem.contains("exec plugin sh"), "{problem}");
        assert!(!problem.contains("sentinel"), "{problem}");
        are_gone(folder.path()).await;
    }

    #[tokio::test]
    async fn children_of_an_exec_plugin_end_after_its_success() {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "{} </dev/null >/dev/null 2>&1 & while ! test -e {}; do sleep 0.01; done; printf '{}'",
            format_args!("sh -c '{}'", hanging(folder.path()).replace('\'', "'\\''")),
            folder.path().join("pids").display(),
            credential(r#"{"token":"t"}"#)
        );
        let cluster = with_plugin(folder.path(), &script, NOWHERE, Duration::from_secs(10));
        cluster.client().await.unwrap();
        are_gone(folder.path()).await;
    }

    #[tokio::test]
    async fn a_program_that_others_may_change_is_not_run() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let (program, ran) = (folder.path().join("plugin"), folder.path().join("ran"));
        fs::write(&program, format!("#!/bin/sh\ntouch {}\nprintf '{}'", ran.display(), credential(r#"{"token":"t"}"#)))
            .unwrap();
        let plugin = ExecConfig { command: Some(program.display().to_string()), ..ExecConfig::default() };
        let user = AuthInfo::default();
        let run = |trust| credentials(&user, &plugin, Duration::from_secs(10), trust);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = run(PathTrust::Checked).await.map(|_| ()).unwrap_err();
        assert!(refused.contains("can be changed by every user") && !ran.exists(), "{refused}");
        run(PathTrust::WorldWritable).await.map(|_| ()).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        run(PathTrust::Checked).await.map(|_| ()).unwrap();
    }

    #[tokio::test]
    async fn an_exec_plugin_is_killed_with_the_request_that_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = with_plugin(folder.path(), &hanging(folder.path()), NOWHERE, Duration::from_mins(10));
        let asking = tokio::spawn(async move { cluster.client().await.map(|_| ()) });
        until("the plugin", || pids(folder.path())).await;
        asking.abort();
        let _ = asking.await;
        are_gone(folder.path()).await;
    }

    #[tokio::test]
    async fn what_an_exec_plugin_prints_is_in_no_message() {
        let folder = tempfile::tempdir().unwrap();
        let invalid = "no valid ExecCredential";
        for (script, said) in [
            ("echo sentinel-out; echo sentinel-err >&2; exit 3".to_owned(), "exit status: 3"),
            ("echo '{\"sentinel-out\": [sentinel'".to_owned(), invalid),
            ("echo sentinel-out".to_owned(), invalid),
            ("head -c 3000000 /dev/zero | tr '\\0' s; echo sentinel".to_owned(), "exec plugin sh"),
            (format!("echo '{}'", credential("null")), invalid),
            (format!("echo '{}'", credential("{}")), invalid),
            (format!("echo '{}'", credential(r#"{"token":"sentinel\ntoken"}"#)), ""),
            (format!("echo '{}'", credential(r#"{"token":"t","expirationTimestamp":"sentinel"}"#)), invalid),
            (
                format!("echo '{}'", credential(r#"{"clientCertificateData":"sentinel","clientKeyData":"sentinel"}"#)),
                "",
            ),
        ] {
            let cluster = with_plugin(folder.path(), &script, NOWHERE, Duration::from_secs(5));
            let asked = cluster.call(VERSION, |client| async move { client.apiserver_version().await }).await;
            let problem = asked.map(|_| ()).unwrap_err();
            let all = format!("{problem} {problem:?}");
            assert!(all.contains(said) && !all.contains("sentinel"), "{script}: {all}");
        }
    }

    /// Answers each request, with 401 for this token, and reports each received token.
    async fn server(refused: &'static str) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (tell, told) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let tell = tell.clone();
                tokio::spawn(async move {
                    let mut heard = Vec::new();
                    while !heard.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        heard.push(byte);
                    }
                    let text = String::from_utf8(heard).unwrap().to_lowercase();
                    let token = text.lines().find_map(|line| line.strip_prefix("authorization: bearer "));
                    let answer = if token == Some(refused) { "401 Unauthorized" } else { "404 Not Found" };
                    tell.send(token.unwrap_or("none").to_owned()).unwrap();
                    let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        (address, told)
    }

    #[tokio::test]
    async fn credentials_are_asked_for_again_before_they_end() {
        let (server, mut tokens) = server("").await;
        for (end, expected) in [("+1 hour", ["token-1", "token-1"]), ("+30 seconds", ["token-1", "token-2"])] {
            let folder = tempfile::tempdir().unwrap();
            let count = folder.path().join("count");
            let status = r#"{"token":"token-%s","expirationTimestamp":"%s"}"#;
            let script = format!(
                "echo run >> {count}; printf '{}' $(grep -c run {count}) $(date -u -d '{end}' +%FT%TZ)",
                credential(status),
                count = count.display()
            );
            let cluster = with_plugin(folder.path(), &script, &server, Duration::from_secs(10));
            for token in expected {
                let asked = cluster.call(VERSION, |client| async move { client.apiserver_version().await }).await;
                assert!(matches!(asked, Err(ClusterError::NotFound { .. })), "{asked:?}");
                assert_eq!(tokens.recv().await.unwrap(), token, "{end}");
            }
        }
    }

    /// A plugin whose token does not expire, and a server that accepts at most the second token.
    #[tokio::test]
    async fn credentials_that_are_refused_are_asked_for_again_and_not_without_end() {
        for (refused, expected) in [("token-1", ["token-1", "token-2"]), ("token", ["token", "token"])] {
            let (server, mut tokens) = server(refused).await;
            let folder = tempfile::tempdir().unwrap();
            let count = folder.path().join("count");
            let number = if refused == "token" { "" } else { "-%s" };
            let script = format!(
                "echo run >> {count}; printf '{}' $(grep -c run {count})",
                credential(&format!("{{\"token\":\"token{number}\"}}")),
                count = count.display()
            );
            let cluster = with_plugin(folder.path(), &script, &server, Duration::from_secs(10));
            let ask = || cluster.call(VERSION, |client| async move { client.apiserver_version().await });
            let asked = ask().await.unwrap_err();
            let is_refused = refused == "token";
            assert_eq!(matches!(asked, ClusterError::Unauthorized { .. }), is_refused, "{asked:?}");
            for token in expected {
                assert_eq!(tokens.recv().await.unwrap(), token);
            }
            // A second rejection is returned immediately without running the plugin again.
            assert_eq!(matches!(ask().await.unwrap_err(), ClusterError::Unauthorized { .. }), is_refused);
            assert_eq!(fs::read_to_string(&count).unwrap().lines().count(), 2);
        }
    }
}
