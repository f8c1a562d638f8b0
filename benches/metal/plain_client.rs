//! Baseline for refreshes: a separate process that only sends GET requests.
use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use bmc_simulator::Simulator;
use futures_util::{StreamExt as _, stream};
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};

use crate::provider::AT_ONCE;

/// Environment variable that turns this program into the client.
pub const ROLE: &str = "METAL_BENCH_PLAIN_CLIENT";

#[derive(Serialize, Deserialize)]
struct Task {
    username: String,
    password: String,
    ca_certificate: Option<String>,
    /// Request paths, one list per machine.
    machines: Vec<Vec<String>>,
}

/// Runs the client against every machine. Returns the duration without its start.
pub async fn time(simulator: &Simulator, folder: &Path, requests_per_machine: usize) -> Duration {
    let account = simulator.credentials();
    let inventory: serde_json::Value = serde_saphyr::from_str(&simulator.inventory()).unwrap();
    let system = |of: &serde_json::Value| {
        format!("{}/redfish/v1/Systems/{}", of["endpoint"].as_str().unwrap(), of["system_id"].as_str().unwrap())
    };
    let machines = inventory.as_object().unwrap().values().map(|of| vec![system(of); requests_per_machine]).collect();
    let task = Task {
        username: account.username.clone(),
        password: account.password.expose_secret().to_owned(),
        ca_certificate: simulator.trust().map(|trust| trust.ca_pem.clone()),
        machines,
    };
    let file = folder.join("plain-client.json");
    fs::write(&file, serde_json::to_vec(&task).unwrap()).unwrap();
    let child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .env(ROLE, &file)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let output = child.await.unwrap();
    assert!(output.status.success());
    Duration::from_secs_f64(String::from_utf8(output.stdout).unwrap().trim().parse().unwrap())
}

/// Runs the client process, which prints its duration in seconds.
pub async fn run(task: &str) {
    let task: Task = serde_json::from_slice(&fs::read(task).unwrap()).unwrap();
    let mut client = reqwest::Client::builder().timeout(Duration::from_mins(1));
    if let Some(pem) = &task.ca_certificate {
        client = client.tls_certs_only([reqwest::Certificate::from_pem(pem.as_bytes()).unwrap()]);
    }
    let client = client.build().unwrap();
    let begin = Instant::now();
    let work = stream::iter(&task.machines).map(async |urls| {
        for url in urls {
            let answer = client.get(url).basic_auth(&task.username, Some(&task.password)).send().await.unwrap();
            assert!(answer.status().is_success(), "{url}: {}", answer.status());
            answer.json::<serde_json::Value>().await.unwrap();
        }
    });
    work.buffer_unordered(AT_ONCE).collect::<()>().await;
    println!("{}", begin.elapsed().as_secs_f64());
}
