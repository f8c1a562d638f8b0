//! Data visible to an eavesdropper: a BMC configured with `http`, an environment proxy, and a
//! PostgreSQL server without TLS.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use secrecy::SecretString;
use terraform_provider_metal::{
    clock::SystemClock,
    store::{PostgresOptions, PostgresStore},
};

const PASSWORD: &str = "sentinel-3d77";

/// Starts a server with one fixed response that records all received data.
fn listener(answer: fn(&str) -> &'static [u8]) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let all = Arc::clone(&heard);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().filter_map(Result::ok) {
            let all = Arc::clone(&all);
            std::thread::spawn(move || {
                let mut part = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut part) {
                    let said = String::from_utf8_lossy(&part[..read]).into_owned();
                    let answer = answer(&said);
                    all.lock().unwrap().push(said);
                    if stream.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, heard)
}

/// A BMC that rejects basic authentication and keeps its sessions elsewhere, so the client
/// searches its root.
fn bmc(said: &str) -> &'static [u8] {
    if said.starts_with("POST ") {
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
    } else {
        b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
    }
}

/// Returns the output of `check node1`, with extra environment variables.
fn check(server: &str, variables: &[(&str, String)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let inventory = folder.path().join("servers.yaml");
    fs::write(&inventory, format!("node1:\n{server}")).unwrap();
    let output = Command::new(super::program())
        .args(["--inventory", inventory.to_str().unwrap(), "check", "node1"])
        .env("METAL_REDFISH_USERNAME", "admin")
        .env("METAL_REDFISH_PASSWORD", PASSWORD)
        .env("METAL_COORDINATION_URL", format!("sqlite://{}/coordination.sqlite", folder.path().display()))
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap();
    let all = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(!output.status.success() && !all.contains(PASSWORD), "{all}");
    all
}

#[test]
fn a_pin_or_an_authority_with_http_gets_no_request() {
    let (address, heard) = listener(bmc);
    let pin = "00".repeat(32);
    let authority = tempfile::NamedTempFile::new().unwrap();
    let made = rcgen::generate_simple_self_signed(["bmc".to_owned()]).unwrap();
    fs::write(authority.path(), made.cert.pem()).unwrap();
    for (server, told) in [
        (format!("  endpoint: http://{address}\n  certificate_sha256: \"{pin}\"\n"), "require https"),
        (
            format!("  endpoint: http://{address}\n  ca_certificate_file: {}\n", authority.path().display()),
            "require https",
        ),
        ("  endpoint: http://bmc.example\n".to_owned(), "the password would be sent unencrypted"),
    ] {
        let said = check(&server, &[]);
        assert!(said.contains(told), "{server}: {said}");
        assert_eq!(*heard.lock().unwrap(), [""; 0], "{server}");
    }
}

#[test]
fn no_password_goes_to_the_root_of_a_bmc_or_to_a_proxy_of_the_environment() {
    let (address, heard) = listener(bmc);
    let (proxy, overheard) = listener(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let proxies = names.map(|name| (name, format!("http://{proxy}")));
    check(&format!("  endpoint: http://{address}\n  insecure: true\n"), &proxies);
    let requests = heard.lock().unwrap().clone();
    let roots: Vec<&String> = requests
        .iter()
        .filter(|said| said.starts_with("GET /redfish/v1/ ") || said.starts_with("GET /redfish/v1 "))
        .collect();
    assert!(!roots.is_empty(), "{requests:?}");
    for said in roots {
        let said = said.to_lowercase();
        assert!(!said.contains("authorization:") && !said.contains("x-auth-token:"), "{said}");
    }
    // Host names that only a proxy could resolve.
    for scheme in ["http", "https"] {
        check(&format!("  endpoint: {scheme}://bmc.invalid\n  insecure: true\n"), &proxies);
    }
    assert_eq!(*overheard.lock().unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_password_goes_to_a_database_that_speaks_no_tls() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (address, heard) = listener(|_| b"N");
    let open = async |mode: &str| {
        let url = format!("postgres://runner:{PASSWORD}@{address}/metal?sslmode={mode}");
        let options = PostgresOptions { patience: Duration::from_secs(1), ..PostgresOptions::default() };
        let clock = Arc::new(SystemClock::default());
        PostgresStore::open(&SecretString::from(url), clock, &options).await.unwrap_err().to_string()
    };
    for mode in ["verify-full", "verify-ca", "require"] {
        let told = open(mode).await;
        let all = heard.lock().unwrap().concat();
        assert!(!all.is_empty() && !all.contains("runner") && !told.contains(PASSWORD), "{mode}: {all:?} {told}");
    }
    // With unencrypted access explicitly allowed.
    open("disable").await;
    assert!(heard.lock().unwrap().concat().contains("runner"), "the client sent nothing, so this test proves nothing");
}

/// Each backend connects to a server without TLS on another machine. The address `0.0.0.0`
/// represents that machine: Linux routes it to the local host.
#[test]
fn no_account_or_token_goes_to_another_machine_without_tls_or_to_a_proxy() {
    let (address, heard) = listener(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let (proxy, overheard) = listener(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let elsewhere = format!("http://0.0.0.0:{}", address.port());
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    fs::write(
        &kubeconfig,
        format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: '{elsewhere}'}}}}], users: \
             [{{name: c, user: {{token: {PASSWORD}}}}}], contexts: [{{name: c, context: {{cluster: c, user: c}}}}]}}"
        ),
    )
    .unwrap();
    let kubeconfig = kubeconfig.display().to_string();
    let clouds = folder.path().join("clouds.yaml");
    let auth = format!("{{auth_url: '{elsewhere}', username: u, password: {PASSWORD}, project_name: p}}");
    fs::write(&clouds, format!("clouds: {{lab: {{auth: {auth}}}}}")).unwrap();
    let clouds = clouds.display().to_string();
    for (backend, variables, setting) in [
        (
            "ironic",
            vec![
                ("METAL_IRONIC_ENDPOINT", elsewhere.as_str()),
                ("METAL_IRONIC_USERNAME", "admin"),
                ("METAL_IRONIC_PASSWORD", PASSWORD),
            ],
            "ironic.plain_http",
        ),
        ("ironic", vec![("OS_CLOUD", "lab"), ("OS_CLIENT_CONFIG_FILE", &clouds)], "ironic.plain_http"),
        ("metal3", vec![("METAL_KUBECONFIG", &kubeconfig)], "insecure-skip-tls-verify"),
        ("metal_operator", vec![("METAL_KUBECONFIG", &kubeconfig)], "insecure-skip-tls-verify"),
    ] {
        for proxied in [false, true] {
            let proxies = ["HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"].into_iter().filter(|_| proxied);
            let output = Command::new(super::program())
                .args(["--backend", backend, "check", "node1"])
                .env("METAL_COORDINATION_URL", format!("sqlite://{}/c.sqlite", folder.path().display()))
                .envs(variables.iter().copied())
                .envs(proxies.map(|name| (name, format!("http://{proxy}"))))
                .output()
                .unwrap();
            let all = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
            assert!(!output.status.success() && all.contains(setting) && !all.contains(PASSWORD), "{backend}: {all}");
        }
    }
    assert_eq!((heard.lock().unwrap().clone(), overheard.lock().unwrap().clone()), (vec![], vec![]));
}
