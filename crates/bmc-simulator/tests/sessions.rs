//! Sessions, wrong passwords, lock-out and TLS.

#![allow(clippy::unwrap_used, reason = "tests may stop")]

mod common;

use std::time::Duration;

use bmc_simulator::{Authentication, JournalQuery, Personality, SimulatorConfig};
use common::{Bench, SYSTEM, messages};
use reqwest::Response;
use serde_json::json;

const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";

async fn log_in(bench: &Bench, password: &str) -> Response {
    bench
        .client
        .post(format!("{}{SESSIONS}", bench.url))
        .json(&json!({"UserName": "admin", "Password": password}))
        .send()
        .await
        .unwrap()
}

async fn with_token(bench: &Bench, method: &str, path: &str, token: &str) -> u16 {
    bench
        .client
        .request(method.parse().unwrap(), format!("{}{path}", bench.url))
        .header("x-auth-token", token)
        .send()
        .await
        .unwrap()
        .status()
        .as_u16()
}

fn token(response: &Response) -> (String, String) {
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    (header("x-auth-token"), header("location"))
}

#[tokio::test]
async fn a_session_lasts_until_it_is_closed() {
    let bench = Bench::start(SimulatorConfig::with_systems(1)).await;
    let response = log_in(&bench, "simulated-password").await;
    assert_eq!(response.status(), 201);
    let (token, location) = token(&response);
    assert_eq!(with_token(&bench, "GET", SYSTEM, &token).await, 200);
    assert_eq!(with_token(&bench, "DELETE", &location, &token).await, 204);
    assert_eq!(with_token(&bench, "GET", SYSTEM, &token).await, 401);
    let journal = bench.simulator.journal(&JournalQuery::default());
    let used: Vec<_> = journal.iter().map(|entry| entry.authentication).collect();
    let session = Authentication::Session;
    assert_eq!(used, [Authentication::None, session, session, session]);
    let shown = serde_json::to_string(&journal).unwrap();
    assert!(!shown.contains("simulated-password"));
    assert!(!shown.contains(&token));
    bench.simulator.stop().await;
}

#[tokio::test]
async fn the_journal_tells_who_asked_when_every_account_gets_in() {
    let config = SimulatorConfig { any_account: true, ..SimulatorConfig::with_systems(1).without_tls() };
    let bench = Bench::start(config).await;
    let patch = async |name: &str, password: &str| {
        let request = bench.client.patch(format!("{}{SYSTEM}", bench.url)).basic_auth(name, Some(password));
        request.json(&json!({"AssetTag": name})).send().await.unwrap().status().as_u16()
    };
    assert_eq!(patch("hold-1.1", "simulated-password").await, 200);
    assert_eq!(patch("hold-2.1", "simulated-password").await, 200);
    assert_eq!(patch("hold-3.1", "wrong").await, 401);
    bench.get(SYSTEM).await;
    let who = |journal: Vec<bmc_simulator::JournalEntry>| -> Vec<_> {
        journal.into_iter().map(|entry| (entry.account, entry.applied)).collect()
    };
    let said = |name: &str, applied| (Some(name.to_owned()), applied);
    let all = bench.simulator.journal(&JournalQuery::default());
    assert_eq!(who(all), [said("hold-1.1", true), said("hold-2.1", true), (None, false), said("admin", false)]);

    bench.simulator.clear_journal();
    bench.simulator.set_journal(bmc_simulator::JournalMode::KeepChanges(1));
    patch("hold-1.1", "simulated-password").await;
    patch("hold-4.1", "simulated-password").await;
    bench.get(SYSTEM).await;
    assert_eq!(who(bench.simulator.journal(&JournalQuery::default())), [said("hold-4.1", true)]);
    assert_eq!(bench.simulator.counts().requests, 3);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn one_session_more_than_the_limit_is_503() {
    let mut personality = Personality::generic();
    personality.sessions.limit = 2;
    let bench = Bench::with(personality).await;
    let first = log_in(&bench, "simulated-password").await;
    let (token, location) = token(&first);
    assert_eq!(log_in(&bench, "simulated-password").await.status(), 201);
    let third = log_in(&bench, "simulated-password").await;
    assert_eq!(third.status(), 503);
    assert_eq!(messages(third).await, ["SessionLimitExceeded"]);
    assert_eq!(with_token(&bench, "DELETE", &location, &token).await, 204);
    assert_eq!(log_in(&bench, "simulated-password").await.status(), 201);
    let status = bench.simulator.bmc_status("node1-bmc").unwrap();
    assert_eq!((status.sessions_open, status.sessions_most), (2, 2));
    assert_eq!(status.sessions_opened, 3);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn an_idle_session_ends_and_a_restarted_bmc_forgets_all() {
    let mut personality = Personality::generic();
    personality.sessions.timeout = Duration::ZERO;
    let bench = Bench::with(personality).await;
    let (idle, _) = token(&log_in(&bench, "simulated-password").await);
    assert_eq!(with_token(&bench, "GET", SYSTEM, &idle).await, 401);
    bench.simulator.stop().await;

    let bench = Bench::one().await;
    let (kept, _) = token(&log_in(&bench, "simulated-password").await);
    assert_eq!(with_token(&bench, "GET", SYSTEM, &kept).await, 200);
    bench.simulator.close_sessions("node1-bmc").unwrap();
    assert_eq!(with_token(&bench, "GET", SYSTEM, &kept).await, 401);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn wrong_passwords_are_counted_and_lock_the_account() {
    let mut personality = Personality::generic();
    personality.sessions.lockout_after = 2;
    let bench = Bench::with(personality).await;
    assert_eq!(log_in(&bench, "wrong").await.status(), 401);
    // A correct password in between resets the count.
    assert_eq!(log_in(&bench, "simulated-password").await.status(), 201);
    for _ in 0..2 {
        let request = bench.client.get(format!("{}{SYSTEM}", bench.url));
        let response = request.basic_auth("admin", Some("wrong")).send();
        assert_eq!(response.await.unwrap().status(), 401);
    }
    assert_eq!(log_in(&bench, "simulated-password").await.status(), 401);
    let status = bench.simulator.bmc_status("node1-bmc").unwrap();
    assert_eq!(status.wrong_passwords, 4);
    assert_eq!(status.locked_users, ["admin"]);
    bench.simulator.unlock_accounts("node1-bmc").unwrap();
    assert_eq!(log_in(&bench, "simulated-password").await.status(), 201);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_client_without_the_authority_does_not_connect() {
    let bench = Bench::start(SimulatorConfig::with_systems(1)).await;
    assert!(bench.get(SYSTEM).await["UUID"].is_string());
    let other = reqwest::Client::builder().no_proxy().build().unwrap();
    let refused = other.get(format!("{}/redfish/v1", bench.url)).send().await;
    assert!(refused.unwrap_err().is_connect());
    let trust = bench.simulator.trust().unwrap();
    assert_eq!(trust.certificate_sha256.len(), 64);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn what_is_not_public_needs_authentication_even_where_nothing_is() {
    let bench = Bench::one().await;
    for (path, status) in [
        ("/redfish", 200),
        ("/redfish/v1", 200),
        ("/redfish/v1/odata", 200),
        ("/redfish/v1/$metadata", 200),
        ("/redfish/v1/Systems", 401),
        ("/redfish/v1/Nowhere", 401),
    ] {
        let response = bench.client.get(format!("{}{path}", bench.url)).send();
        assert_eq!(response.await.unwrap().status(), status, "{path}");
    }
    let response = bench.request("DELETE", SYSTEM).send().await.unwrap();
    assert_eq!(response.status(), 405);
    assert_eq!(response.headers()["allow"], "GET, HEAD, PATCH");
    bench.simulator.stop().await;
}
