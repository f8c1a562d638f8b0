//! Reads recorded trees of real BMCs and tells what works on each: the table in `DESIGN.md`, "Recorded BMCs".
//!
//! The recordings are not part of the project. `REDFISH_TREES` names a folder of files, one for each BMC: a JSON object that
//! has the body of each resource under its path.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

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

/// Serves a tree; a path with a last slash is the same one.
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
    let drives = machine.media().await.map_err(text)?;
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
        // As it is, and with a system_id where that is asked for.
        for system_id in std::iter::once(None).chain(systems.into_iter().map(Some)) {
            let server = ServerSettings {
                endpoint: format!("http://127.0.0.1:{port}").parse().unwrap(),
                system_id: system_id.clone(),
                media: MediaSettings::default(),
                lock_key: None,
                labels: BTreeMap::new(),
                username: "reader".into(),
                password: SecretString::from("none"),
                trust: Trust::Fingerprint([0; 32]),
            };
            let settings =
                RedfishSettings { servers: [("node".to_owned(), server)].into(), ..RedfishSettings::default() };
            let backend = RedfishBackend::new(settings, &(Arc::new(SystemClock::default()) as _)).unwrap();
            let machine = backend.machine("node").unwrap();
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            let shown = row(machine.as_ref()).await.unwrap_or_else(|error| format!(" ERROR {error}"));
            println!("{name} {}:{shown}", system_id.as_deref().unwrap_or("(no system_id)"));
        }
    }
}
