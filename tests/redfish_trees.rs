//! Reads recorded Redfish trees of real BMCs and reports the working features of each: the table
//! in `tests/README.md`.
//!
//! Each test run reads sushy's samples, served by sushy-tools. The recordings are not part of the
//! project. `REDFISH_TREES` names a folder with one file per BMC: a JSON object with each
//! resource's body under its path.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "the static server starts in real time")]

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener as Listener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use secrecy::SecretString;
use serde_json::Value;
use terraform_provider_metal::{
    backend::{
        Backend as _, Machine,
        redfish::{MediaSettings, RedfishBackend, RedfishSettings, ServerSettings, Trust},
    },
    clock::SystemClock,
    maintenance::{ability::abilities, aliases::SystemUuid},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

/// Serves a tree, with or without a trailing slash.
async fn serve(tree: Arc<BTreeMap<String, Value>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let tree = Arc::clone(&tree);
            tokio::spawn(async move {
                let mut head = Vec::new();
                let mut byte = [0];
                while stream.read_exact(&mut byte).await.is_ok() {
                    head.push(byte[0]);
                    if !head.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    let text = String::from_utf8_lossy(&head).into_owned();
                    let path = text.split(' ').nth(1).unwrap_or_default().trim_end_matches('/').to_owned();
                    head.clear();
                    let length = text.lines().find_map(|line| {
                        line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok()
                    });
                    let mut body = vec![0; length.unwrap_or(0)];
                    if stream.read_exact(&mut body).await.is_err() {
                        return;
                    }
                    let found = tree.get(&path).filter(|_| text.starts_with("GET"));
                    let (status, body) = found.map_or((404, "{}".to_owned()), |body| (200, body.to_string()));
                    let answer = format!("HTTP/1.1 {status} -\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

async fn row(machine: &dyn Machine) -> Result<String, String> {
    let text = |error: terraform_provider_metal::backend::BackendError| error.to_string();
    let identity = machine.identify().await.map_err(text)?;
    machine.observe().await.map_err(text)?;
    let has = machine.capabilities().await.map_err(text)?;
    let drives = machine.media(&[]).await.map_err(text)?;
    let mut out = String::new();
    for ability in abilities(&has, &drives, None) {
        if ability.lacks.is_empty() {
            let _ = write!(out, " {};", ability.kind);
        }
    }
    let uuid = identity.uuid.as_deref().and_then(SystemUuid::read).is_some();
    let _ = write!(out, " | {} drives | uuid {uuid} | serial {}", drives.len(), identity.serial_number.is_some());
    for ability in abilities(&has, &drives, None).into_iter().filter(|ability| !ability.lacks.is_empty()) {
        let _ = write!(out, "\n    - {}: {}", ability.kind, ability.lacks.join(" "));
    }
    Ok(out)
}

/// Returns the machine at an address.
fn machine(port: u16, system_id: Option<&str>) -> Arc<dyn Machine> {
    let server = ServerSettings {
        endpoint: format!("http://127.0.0.1:{port}").parse().unwrap(),
        system_id: system_id.map(str::to_owned),
        media: MediaSettings::default(),
        lock_key: None,
        labels: BTreeMap::new(),
        username: "reader".into(),
        password: SecretString::from("none"),
        trust: Trust::Fingerprint([0; 32]),
    };
    let settings = RedfishSettings { servers: [("node".to_owned(), server)].into(), ..RedfishSettings::default() };
    let backend = RedfishBackend::new(settings, &(Arc::new(SystemClock::default()) as _)).unwrap();
    backend.machine("node").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs recordings: REDFISH_TREES"]
async fn what_works_on_each_recorded_bmc() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = std::env::var("REDFISH_TREES").expect("REDFISH_TREES names the folder of recordings");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    assert!(!files.is_empty(), "no recordings");
    for file in files {
        let tree: BTreeMap<String, Value> = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let systems: Vec<String> = tree
            .keys()
            .filter_map(|path| path.strip_prefix("/redfish/v1/Systems/"))
            .filter(|id| !id.contains('/'))
            .map(str::to_owned)
            .collect();
        let port = serve(Arc::new(tree)).await;
        // Without `system_id`, and with each `system_id` of a BMC that requires it.
        for system_id in std::iter::once(None).chain(systems.into_iter().map(Some)) {
            let machine = machine(port, system_id.as_deref());
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            let shown = row(machine.as_ref()).await.unwrap_or_else(|error| format!(" ERROR {error}"));
            println!("{name} {}:{shown}", system_id.as_deref().unwrap_or("(no system_id)"));
        }
    }
}

/// `sushy-static` from sushy-tools: a file-based Redfish service over HTTP/1.0. It stops on drop.
struct Static {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Static {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tool(path: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools").join(path);
    assert!(file.exists(), "{} is missing: run `make setup`", file.display());
    file
}

/// Number of start checks, 90 seconds in total.
const MOST_LOOKS: usize = 3_000;
const LOOK: Duration = Duration::from_millis(30);

/// Returns true if this folder is served there, because another process can have taken the port.
fn serves(port: u16, resource: &str) -> bool {
    let asked = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET /redfish/v1/{resource} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    asked.is_ok_and(|answer| answer.lines().next().is_some_and(|line| line.contains(" 200 ")))
}

impl Static {
    async fn start(tree: &BTreeMap<String, Value>) -> Self {
        let folder = tempfile::TempDir::with_prefix("static-").unwrap();
        for (path, body) in tree {
            let below = path.trim_start_matches("/redfish/v1").trim_matches('/');
            let place = folder.path().join(below);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("index.json"), body.to_string()).unwrap();
        }
        let own = format!("Own{}", uuid::Uuid::new_v4().simple());
        fs::create_dir(folder.path().join(&own)).unwrap();
        fs::write(folder.path().join(&own).join("index.json"), "{}").unwrap();
        // It cannot choose a port itself, so another process can take the free port first.
        for _ in 0..10 {
            let port = Listener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
            let mut child = Command::new(tool("sushy/bin/sushy-static"))
                .args(["-i", "127.0.0.1", "-p", &port.to_string(), "-m"])
                .arg(folder.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            for _ in 0..MOST_LOOKS {
                if child.try_wait().unwrap().is_some() {
                    break;
                }
                if serves(port, &own) {
                    return Self { child, port, _folder: folder };
                }
                tokio::time::sleep(LOOK).await;
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("sushy-static does not listen");
    }
}

/// Returns sushy's own test samples.
fn samples() -> PathBuf {
    let lib = tool("ironic/lib");
    let python =
        fs::read_dir(lib).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.join("site-packages").exists());
    let samples = python.unwrap().join("site-packages/sushy/tests/unit/json_samples");
    assert!(samples.exists(), "{} is missing: run `make setup`", samples.display());
    samples
}

fn sample(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(samples().join(name)).unwrap()).unwrap()
}

/// Builds a service from samples: a system, drives, and the optional settings object.
fn service(system: &str, others: &[&str], settings: Option<&str>) -> BTreeMap<String, Value> {
    let all = ["root.json", "system_collection.json", "manager_collection.json", system]
        .into_iter()
        .chain(others.iter().copied());
    let mut tree: BTreeMap<String, Value> = all
        .map(|name| {
            let body = sample(name);
            (body["@odata.id"].as_str().unwrap().trim_end_matches('/').to_owned(), body)
        })
        .collect();
    if let Some(settings) = settings {
        let body = sample(settings);
        let at = body["@odata.id"].as_str().unwrap().to_owned();
        let system = tree.get_mut("/redfish/v1/Systems/437XR1138R2").unwrap();
        system["@Redfish.Settings"] = serde_json::json!({ "SettingsObject": { "@odata.id": at } });
        tree.insert(at, body);
    }
    tree
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_not_ours_is_read_out_of_samples_that_are_not_ours() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let at_manager = ["manager.json", "virtual_media_collection.json", "virtual_media.json"];
    let at_system = ["managerv1_18.json", "virtual_media_collectionv1_6.json", "virtual_mediav1_6.json"];
    let mut shown = String::new();
    for (name, tree) in [
        ("HttpBootUri", service("system.json", &at_manager, None)),
        ("drives at the system", service("systemv1_20.json", &at_system, None)),
        ("no ManagedBy", service("system_managedby_missing_manager_present.json", &at_manager, None)),
        ("Nokia", service("system.json", &at_manager, Some("settings-body-nokia.json"))),
        ("Lenovo SE450", service("system.json", &at_manager, Some("settings-body-lenovo-se450.json"))),
        ("mode only", service("system.json", &at_manager, Some("settings-body-bootsourceoverridemode-only.json"))),
    ] {
        let served = Static::start(&tree).await;
        let machine = machine(served.port, None);
        let text = row(machine.as_ref()).await.unwrap_or_else(|error| format!(" ERROR {error}"));
        let view = machine.observe().await.unwrap();
        let boot = view.boot.unwrap_or_default();
        let _ = writeln!(
            shown,
            "{name}:{text}\n    {} {} {}",
            boot.target.unwrap_or_default(),
            boot.enabled.unwrap_or_default(),
            boot.http_boot_uri.unwrap_or_default()
        );
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redfish_trees/samples.txt");
    if std::env::var("UPDATE_SAMPLES").is_ok() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &shown).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), shown, "UPDATE_SAMPLES=1 writes it");
}
