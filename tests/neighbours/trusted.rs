//! Attack surface for other local users and a hostile BMC: writable files, exec plugin variables,
//! and plan time.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use secrecy::SecretString;
use terraform_provider_metal::{
    backend::{
        Backend as _, BackendError, planning,
        redfish::{MediaSettings, RedfishBackend, RedfishSettings, ServerSettings, Trust},
    },
    clock::SystemClock,
};

/// A kubeconfig whose plugin writes its environment to a file.
fn kubeconfig(folder: &Path) -> std::path::PathBuf {
    let config = folder.join("kubeconfig");
    let script = format!("env > {}; exit 3", folder.join("ran").display());
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": "https://127.0.0.1:1" } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "users": [{ "name": "u", "user": { "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
        } } }],
    });
    fs::write(&config, text.to_string()).unwrap();
    config
}

fn queue(url: Option<&Path>, variables: &[(&str, &str)]) -> String {
    let url = url.map(|path| format!("?kubeconfig={}", path.display())).unwrap_or_default();
    let output = Command::new(crate::program())
        .args(["--coordination-url", &format!("kubernetes://metal{url}"), "queue"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat()
}

#[test]
fn a_kubeconfig_that_others_may_change_runs_no_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let (config, ran) = (kubeconfig(folder.path()), folder.path().join("ran"));
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let text = config.display().to_string();
    for (of_file, of_folder) in [(0o666, 0o755), (0o644, 0o777)] {
        mode(&config, of_file);
        mode(folder.path(), of_folder);
        for said in [queue(Some(&config), &[]), queue(None, &[("KUBECONFIG", &text)])] {
            assert!(said.contains("every user") && said.contains("trust_world_writable_paths"), "{said}");
        }
        assert!(!ran.exists());
        queue(Some(&config), &[("METAL_TRUST_WORLD_WRITABLE_PATHS", "true")]);
        fs::remove_file(&ran).unwrap();
    }
    let said = queue(Some(&config), &[("METAL_TRUST_WORLD_WRITABLE_PATHS", "yes")]);
    assert!(said.contains("neither true nor false") && !ran.exists(), "{said}");
}

#[test]
fn an_exec_plugin_gets_no_account_of_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig(folder.path());
    let secret = "sentinel-8f1e";
    let withheld = ["METAL_REDFISH_PASSWORD", "METAL_COORDINATION_URL", "TF_VAR_password", "OS_PASSWORD", "PGPASSWORD"];
    let mut variables: Vec<(&str, &str)> = withheld.iter().map(|name| (*name, secret)).collect();
    variables.push(("AWS_PROFILE", "kept"));
    let said = queue(Some(&config), &variables);
    let given = fs::read_to_string(folder.path().join("ran")).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert!(given.contains("AWS_PROFILE=kept") && !given.contains(secret), "{given}");
}

#[test]
fn an_authority_of_the_environment_that_others_may_change_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let (file, folder) = (file.display().to_string(), folder.path().display().to_string());
    for variable in [("SSL_CERT_FILE", file.as_str()), ("SSL_CERT_DIR", folder.as_str())] {
        let said = queue(None, &[variable]);
        assert!(said.contains("can be changed by every user"), "{variable:?}: {said}");
    }
}

/// The headers come immediately, and the body one byte at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bmc_that_drips_delays_a_plan_once() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::<AtomicUsize>::default();
    let requests = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().filter_map(Result::ok) {
            requests.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{";
                let mut sent = stream.write_all(head);
                while sent.is_ok() {
                    #[allow(clippy::disallowed_methods, reason = "the BMC drips in real time")]
                    std::thread::sleep(Duration::from_millis(20));
                    sent = stream.write_all(b" ");
                }
            });
        }
    });
    let server = ServerSettings {
        endpoint: format!("http://{address}").parse().unwrap(),
        system_id: None,
        lock_key: None,
        labels: BTreeMap::new(),
        username: "u".to_owned(),
        password: SecretString::from("p"),
        media: MediaSettings::default(),
        trust: Trust::System,
    };
    let limit = Duration::from_secs(1);
    let settings = RedfishSettings {
        servers: [("node".to_owned(), server)].into(),
        request_timeout: limit,
        read_timeout: limit,
        ..RedfishSettings::default()
    };
    let backend = RedfishBackend::new(settings, &(Arc::new(SystemClock::default()) as _)).unwrap();
    let machine = backend.machine("node").unwrap();
    #[allow(clippy::disallowed_methods, reason = "tests measure real time")]
    let begun = Instant::now();
    // A plan with many resources of this server, over more than its share.
    let deadline = limit * 5;
    planning(async {
        while begun.elapsed() < deadline {
            let error = machine.observe().await.unwrap_err();
            assert!(matches!(error, BackendError::Unreachable { .. }), "{error:?}");
            tokio::task::yield_now().await;
        }
    })
    .await;
    // A read that reaches the full limit marks the BMC as down briefly; the time share ends the
    // next read.
    assert!(asked.load(Ordering::SeqCst) <= 3, "{asked:?}");
}
