//! The hook for vendor-specific behaviour, and a simulator's lifetime.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may stop")]

mod common;

use std::sync::Arc;

use bmc_simulator::{Etags, JournalQuery, Personality, Quirks, Reply, RequestView, Simulator, SimulatorConfig};
use common::{Bench, SYSTEM};

#[derive(Debug)]
struct Odd;

impl Quirks for Odd {
    fn before(&self, request: &RequestView<'_>) -> Option<Reply> {
        let refused = request.method == "POST" && request.header("x-trace").is_none();
        refused.then(|| Reply::error_text(400, "Not during POST."))
    }

    fn after(&self, request: &RequestView<'_>, reply: &mut Reply) {
        if request.path.ends_with("/Systems/1") {
            reply.edit_json(|system| system["Oem"]["Odd"] = true.into());
            reply.remove_header("etag");
        }
    }
}

#[tokio::test]
async fn quirks_replace_and_change_answers_but_not_authentication() {
    let personality = Personality { quirks: Some(Arc::new(Odd)), ..Personality::generic() };
    let bench = Bench::with(personality).await;
    let reply = bench.request("GET", SYSTEM).send().await.unwrap();
    assert!(!reply.headers().contains_key("etag"));
    let system: serde_json::Value = reply.json().await.unwrap();
    assert_eq!(system["Oem"]["Odd"], true);
    assert_eq!(bench.reset("ForceOff").await, 400);
    assert_eq!(bench.simulator.events("node1", 0).unwrap(), []);
    let path = format!("{}{SYSTEM}/Actions/ComputerSystem.Reset", bench.url);
    let anonymous = bench.client.post(path).send().await.unwrap();
    assert_eq!(anonymous.status(), 401);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn entity_tags_can_be_weak_or_missing() {
    for (etags, starts) in [(Etags::Strong, Some("\"")), (Etags::Weak, Some("W/\"")), (Etags::None, None)] {
        let mut personality = Personality::generic();
        personality.http.etags = etags;
        let bench = Bench::with(personality).await;
        let reply = bench.request("GET", SYSTEM).send().await.unwrap();
        let header = reply.headers().get("etag").cloned();
        let body: serde_json::Value = reply.json().await.unwrap();
        match (starts, header) {
            (Some(starts), Some(etag)) => {
                assert!(etag.to_str().unwrap().starts_with(starts));
                assert_eq!(body["@odata.etag"], etag.to_str().unwrap());
            }
            (None, None) => assert!(body.get("@odata.etag").is_none()),
            (wanted, got) => panic!("{wanted:?} {got:?}"),
        }
        bench.simulator.stop().await;
    }
}

#[tokio::test]
async fn a_bmc_may_close_every_connection() {
    let mut personality = Personality::generic();
    personality.http.closes_connections = true;
    let bench = Bench::with(personality).await;
    bench.get(SYSTEM).await;
    bench.get(SYSTEM).await;
    let journal = bench.simulator.journal(&JournalQuery::default());
    assert_ne!(journal[0].connection, journal[1].connection);
    bench.simulator.stop().await;

    let bench = Bench::one().await;
    bench.get(SYSTEM).await;
    bench.get(SYSTEM).await;
    let journal = bench.simulator.journal(&JournalQuery::default());
    assert_eq!(journal[0].connection, journal[1].connection);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_stopped_simulator_leaves_its_ports() {
    let config = || SimulatorConfig::with_systems(1).without_tls().with_control();
    let simulator = Simulator::start(config()).await.unwrap();
    let url = simulator.url("node1").unwrap();
    let port = url.rsplit_once(':').unwrap().1.parse().unwrap();
    simulator.stop().await;
    let again = SimulatorConfig { port, ..config() };
    let simulator = Simulator::start(again).await.unwrap();
    assert_eq!(simulator.url("node1").unwrap(), url);
    simulator.stop().await;
}
