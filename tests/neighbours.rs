//! Protection against other users on the machine and the network: core dumps, planted files, and
//! passwords for a server whose DNS name now points elsewhere. `promises` maps each documented
//! promise to its test.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![cfg(target_os = "linux")]

#[path = "neighbours/clear.rs"]
mod clear;
#[path = "neighbours/names.rs"]
mod names;
#[path = "neighbours/promises.rs"]
mod promises;
#[path = "neighbours/trusted.rs"]
mod trusted;

#[path = "../crates/tf-plugin-server/tests/wire/host.rs"]
#[allow(dead_code, reason = "only a part is used here")]
mod host;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
        process::ExitStatusExt as _,
    },
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use bmc_simulator::{JournalQuery, Simulator, SimulatorConfig};
use host::{Host, Start};
use rustix::process::{DumpableBehavior, dumpable_behavior};
use secrecy::{ExposeSecret as _, SecretString};
use terraform_provider_metal::{
    backend::{
        Backend as _, BackendError,
        redfish::{
            Authentication, MediaSettings, RedfishBackend, RedfishSettings, ServerSettings, Trust, parse_fingerprint,
        },
    },
    clock::SystemClock,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

fn program() -> std::path::PathBuf {
    env!("CARGO_BIN_EXE_terraform-provider-metal").into()
}

/// Returns true if a program that aborts under `ulimit -c unlimited` leaves a core dump in this
/// folder.
fn dumps(folder: &std::path::Path) -> bool {
    use std::io::{Read as _, Write as _};
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -c unlimited && exec cat"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The program answers once the limit is set and it runs.
    let _ = child.stdin.as_mut().unwrap().write_all(b"x");
    let _ = child.stdout.as_mut().unwrap().read(&mut [0]).unwrap();
    host::signal("ABRT", child.id());
    child.wait().unwrap().core_dumped()
}

#[tokio::test]
async fn the_memory_of_the_provider_is_in_no_core_dump() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::Dumpable, "this process could be dumped");
    let start = Start { program: Some(program()), shell: Some("ulimit -c unlimited; exec \"$1\""), ..Start::default() };
    let mut host = Host::start_with(start).await;
    let pid = host.child.id().unwrap();
    // Root owns the `/proc` files of an undumpable process. If root runs the test, only the dump
    // itself is conclusive.
    let owner = fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid();
    assert_eq!(owner, 0);
    host.signal("ABRT");
    let status = host.child.wait().await.unwrap();
    assert!(status.signal().is_some(), "{status}");
    assert!(!status.core_dumped(), "the provider left a core dump");

    let folder = tempfile::tempdir().unwrap();
    let root = rustix::process::geteuid().is_root();
    let hard = Command::new("sh").args(["-c", "ulimit -H -c"]).output().unwrap().stdout;
    if hard.trim_ascii() == b"0" {
        eprintln!("core dumps are disabled on this system: only the file owner was tested");
        return;
    }
    assert!(
        dumps(folder.path()) || !root,
        "core dumps do not work here and root cannot test the file owner: this test proves nothing"
    );
}

/// A kubeconfig's exec plugin can print secrets; hosts and CI jobs log the provider's output.
#[test]
fn what_an_exec_plugin_writes_to_standard_error_reaches_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let (config, ran) = (folder.path().join("kubeconfig"), folder.path().join("ran"));
    let script =
        format!("read line && echo sentinel-in >&2; echo sentinel-err >&2; echo ran > {}; exit 3", ran.display());
    // Most files omit interactiveMode.
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": "https://127.0.0.1:1" } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "users": [{ "name": "u", "user": { "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
        } } }],
    });
    fs::write(&config, text.to_string()).unwrap();
    let output = Command::new(program())
        .args(["--coordination-url", &format!("kubernetes://metal?kubeconfig={}", config.display()), "queue"])
        .env("RUST_LOG", "trace")
        .output()
        .unwrap();
    let all = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(ran.exists() && !output.status.success(), "{all}");
    assert!(all.contains("exit status: 3") && all.contains("exec plugin sh"), "{all}");
    assert!(!all.contains("sentinel"), "{all}");
}

/// Another local user plants files and links at the expected place of the provider's socket.
#[tokio::test]
async fn nothing_in_a_shared_temporary_folder_is_followed_or_shared() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (shared, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    // Socket names are random; these are the predictable candidates.
    for name in ["tf", "tf0", "s", "tf.sock", "plugin"] {
        symlink(elsewhere.path(), shared.path().join(name)).unwrap();
    }
    let mut folders = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let variables = [("TMPDIR", shared.path().display().to_string())].into();
        // The host names the socket's folder; the default is TMPDIR.
        let start = Start {
            program: Some(program()),
            variables,
            shell: Some("unset PLUGIN_UNIX_SOCKET_DIR; umask 000; exec \"$1\""),
        };
        let host = Host::start_with(start).await;
        let folder = host.socket.parent().unwrap().to_owned();
        assert_eq!(folder.parent(), Some(shared.path()));
        let of = fs::symlink_metadata(&folder).unwrap();
        assert!(of.is_dir() && of.permissions().mode() & 0o777 == 0o700, "{:o}", of.permissions().mode());
        assert!(folders.insert(folder.clone()), "the same name twice");
        let random = folder.file_name().unwrap().to_string_lossy().len();
        assert!(random >= 8, "{}", folder.display());
        host.shut_down().await;
        assert!(!folder.exists());
    }
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0, "a link was followed");
    assert_eq!(fs::read_dir(shared.path()).unwrap().count(), 5, "the provider left files behind");
}

/// An address whose target server can change, like a DNS record.
struct Name {
    address: String,
    leads_to: Arc<Mutex<u16>>,
    /// Dropped to end open connections.
    open: Arc<tokio::sync::Mutex<JoinSet<()>>>,
}

impl Name {
    async fn of(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let (leads_to, open) = (Arc::new(Mutex::new(port)), Arc::<tokio::sync::Mutex<JoinSet<()>>>::default());
        let (to, connections) = (Arc::clone(&leads_to), Arc::clone(&open));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let port = *to.lock().unwrap();
                connections.lock().await.spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                        let _ = copy_bidirectional(&mut stream, &mut server).await;
                    }
                });
            }
        });
        Self { address, leads_to, open }
    }

    async fn leads_to(&self, port: u16) {
        *self.leads_to.lock().unwrap() = port;
        self.open.lock().await.shutdown().await;
    }
}

fn port(simulator: &Simulator) -> u16 {
    let url: reqwest::Url = simulator.url(&simulator.systems()[0]).unwrap().parse().unwrap();
    url.port().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_leads_elsewhere_since_the_last_request_gets_no_password() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (ours, theirs) = (SimulatorConfig::with_systems(1), SimulatorConfig::with_systems(1));
    let (ours, theirs) = (Simulator::start(ours).await.unwrap(), Simulator::start(theirs).await.unwrap());
    let trust = ours.trust().unwrap();
    let pin = parse_fingerprint(&trust.certificate_sha256).unwrap();
    // `Trust::Anything` proves the test: with it, the other server does receive the request.
    for trust in [Trust::Authority(trust.ca_pem.clone()), Trust::Fingerprint(pin), Trust::Anything] {
        for authentication in [Authentication::Session, Authentication::Basic] {
            let name = Name::of(port(&ours)).await;
            let server = ServerSettings {
                endpoint: name.address.parse().unwrap(),
                system_id: None,
                lock_key: None,
                labels: BTreeMap::new(),
                username: ours.credentials().username.clone(),
                password: SecretString::from(ours.credentials().password.expose_secret()),
                media: MediaSettings::default(),
                trust: trust.clone(),
            };
            let servers = [("node".to_owned(), server)].into();
            let request_timeout = Duration::from_secs(3);
            let settings = RedfishSettings { servers, authentication, request_timeout, ..RedfishSettings::default() };
            let backend = RedfishBackend::new(settings, &(Arc::new(SystemClock::default()) as _)).unwrap();
            let machine = backend.machine("node").unwrap();
            machine.observe().await.unwrap();

            name.leads_to(port(&theirs)).await;
            let error = loop {
                match machine.observe().await {
                    // A request can fail on a connection that just ended.
                    Err(BackendError::Unreachable { .. } | BackendError::ReplyLost { .. }) => {}
                    other => break other.map(|_| ()),
                }
            };
            if trust == Trust::Anything {
                assert!(!theirs.journal(&JournalQuery::default()).is_empty(), "{error:?}");
                return;
            }
            assert!(matches!(error, Err(BackendError::Untrusted { .. })), "{trust:?}: {error:?}");
            let heard = theirs.journal(&JournalQuery::default());
            assert!(heard.is_empty(), "the other server received a request: {heard:?}");

            // After the name points back, requests succeed again.
            name.leads_to(port(&ours)).await;
            while machine.observe().await.is_err() {}
            backend.close().await;
        }
    }
}
