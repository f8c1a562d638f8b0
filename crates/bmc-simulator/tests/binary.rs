//! The simulator as a process.

#![allow(clippy::unwrap_used, reason = "tests may stop")]

mod common;

use std::process::Stdio;

use common::LONG;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

async fn start(arguments: &[&str]) -> (Child, Value) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bmc-simulator"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(LONG, lines.next_line()).await.unwrap().unwrap();
    (child, serde_json::from_str(&line.unwrap()).unwrap())
}

#[tokio::test]
async fn it_tells_where_it_is_and_stops_when_its_input_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, inventory) = (folder.path().join("ca.pem"), folder.path().join("servers.yaml"));
    let arguments = [
        "--systems=2",
        "--control-port=0",
        "--stop-with-stdin",
        "--behaviour={\"power_on_ms\": 1234}",
        &format!("--ca-file={}", ca.display()),
        &format!("--inventory={}", inventory.display()),
    ];
    let (mut child, line) = start(&arguments).await;
    let endpoint = line["systems"]["node2"]["endpoint"].as_str().unwrap();
    let pem = std::fs::read(&ca).unwrap();
    rustls::crypto::aws_lc_rs::default_provider().install_default().unwrap();
    let client = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([reqwest::Certificate::from_pem(&pem).unwrap()])
        .build()
        .unwrap();
    let system = client
        .get(format!("{endpoint}/redfish/v1/Systems/1"))
        .basic_auth(line["username"].as_str().unwrap(), line["password"].as_str());
    let system: Value = system.send().await.unwrap().json().await.unwrap();
    assert_eq!(system["Name"], "node2");
    let control = line["control_url"].as_str().unwrap();
    let told = client.get(format!("{control}/systems/node1")).send();
    let told: Value = told.await.unwrap().json().await.unwrap();
    assert_eq!(told["behaviour"]["power_on_ms"], 1234);
    let yaml = std::fs::read_to_string(&inventory).unwrap();
    assert!(yaml.contains(endpoint), "{yaml}");
    drop(child.stdin.take());
    let status = timeout(LONG, child.wait()).await.unwrap().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn it_stops_on_sigterm() {
    let (mut child, line) = start(&["--tls=off"]).await;
    let pid = i32::try_from(line["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = timeout(LONG, child.wait()).await.unwrap().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let output = Command::new(env!("CARGO_BIN_EXE_bmc-simulator")).arg(format!("--port={port}")).output();
    let output = timeout(LONG, output).await.unwrap().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("opening a port for BMC node1-bmc"), "{text}");
}
