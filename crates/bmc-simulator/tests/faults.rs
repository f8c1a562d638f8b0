//! Faults, held requests, and unreachable BMCs.

#![allow(clippy::unwrap_used, reason = "tests may stop")]

mod common;

use std::time::{Duration, Instant};

use bmc_simulator::{
    Availability, Fault, FaultAction, FaultBody, HeldQuery, JournalQuery, Outcome, Phase, PowerState, SimulatorConfig,
};
use common::{Bench, LONG, SYSTEM, messages};
use serde_json::{Value, json};

fn resets() -> JournalQuery {
    JournalQuery::system("node1").request("POST", "*/Actions/ComputerSystem.Reset")
}

fn reset_of(bench: &Bench, kind: &str) -> reqwest::RequestBuilder {
    bench.request("POST", &format!("{SYSTEM}/Actions/ComputerSystem.Reset")).json(&json!({ "ResetType": kind }))
}

#[tokio::test]
async fn a_lost_reply_is_applied_and_a_cut_request_is_not() {
    let bench = Bench::one().await;
    let id = bench.simulator.inject(Fault::lose_reply().on_request("POST", "*.Reset").times(1));
    let lost = reset_of(&bench, "ForceOff").send().await;
    assert!(lost.unwrap_err().is_request());
    let off = PowerState::Off;
    bench.simulator.wait_power("node1", off, LONG).await.unwrap();
    bench.simulator.remove_fault(id).unwrap();
    let _ = bench.simulator.inject(Fault::new(FaultAction::Cut).times(1));
    assert!(reset_of(&bench, "On").send().await.is_err());
    assert_eq!(bench.get(SYSTEM).await["PowerState"], "Off");
    let journal = bench.simulator.journal(&resets());
    let told: Vec<_> = journal.iter().map(|entry| (entry.outcome, entry.applied, entry.status)).collect();
    assert_eq!(told, [(Outcome::Cut, true, None), (Outcome::Cut, false, None)]);
    assert_eq!(journal[0].faults, [id]);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_held_before_leaves_the_machine_untouched() {
    leave_while_held_before(Bench::one().await).await;
    leave_while_held_before(Bench::start(SimulatorConfig::with_systems(1)).await).await;
}

async fn leave_while_held_before(bench: Bench) {
    let _ = bench.simulator.inject(Fault::hold(Phase::Before).on_request("POST", "*.Reset"));
    let request = tokio::spawn(reset_of(&bench, "ForceOff").send());
    let query = HeldQuery::default();
    let held = bench.simulator.wait_held(&query, LONG).await.unwrap();
    assert_eq!(held.system.as_deref(), Some("node1"));
    request.abort();
    let abandoned = JournalQuery { outcome: Some(Outcome::Abandoned), ..resets() };
    let entries = bench.simulator.wait_journal(&abandoned, 1, LONG).await;
    assert!(!entries.unwrap()[0].applied);
    assert_eq!(bench.simulator.held(&query), []);
    assert!(bench.simulator.release(held.sequence).is_err());
    assert_eq!(bench.simulator.events("node1", 0).unwrap(), []);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_held_after_has_done_it() {
    leave_while_held_after(Bench::one().await).await;
    leave_while_held_after(Bench::start(SimulatorConfig::with_systems(1)).await).await;
}

async fn leave_while_held_after(bench: Bench) {
    let _ = bench.simulator.inject(Fault::hold(Phase::After).on_request("POST", "*.Reset"));
    let request = tokio::spawn(reset_of(&bench, "ForceOff").send());
    let query = HeldQuery { phase: Some(Phase::After), ..HeldQuery::default() };
    bench.simulator.wait_held(&query, LONG).await.unwrap();
    request.abort();
    let abandoned = JournalQuery { outcome: Some(Outcome::Abandoned), ..resets() };
    let entries = bench.simulator.wait_journal(&abandoned, 1, LONG).await;
    assert!(entries.unwrap()[0].applied);
    let off = PowerState::Off;
    bench.simulator.wait_power("node1", off, LONG).await.unwrap();
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_released_request_goes_on_as_if_nothing_had_been() {
    let bench = Bench::one().await;
    let _ = bench.simulator.inject(Fault::hold(Phase::Before).on_system("node1").times(1));
    let request = tokio::spawn(reset_of(&bench, "ForceOff").send());
    let held = bench.simulator.wait_held(&HeldQuery::default(), LONG).await;
    // Other requests are not delayed.
    assert_eq!(bench.get(SYSTEM).await["PowerState"], "On");
    bench.simulator.release(held.unwrap().sequence).unwrap();
    assert_eq!(request.await.unwrap().unwrap().status(), 204);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn injected_answers_are_what_they_are_said_to_be() {
    let bench = Bench::one().await;
    let answer = |status, body| {
        Fault::new(FaultAction::Answer { status, body, headers: vec![("x-odd".into(), "1".into())], apply: false })
            .times(1)
    };
    let fetch = || async { bench.request("GET", SYSTEM).send().await.unwrap() };

    let _ = bench.simulator.inject(Fault::error(500, "out of order").times(1));
    let reply = fetch().await;
    assert_eq!(reply.status(), 500);
    assert_eq!(messages(reply).await, ["GeneralError"]);

    let page = "<html>sign in</html>".to_owned();
    let _ = bench.simulator.inject(answer(200, FaultBody::Html(page.clone())));
    let reply = fetch().await;
    assert_eq!(reply.headers()["content-type"], "text/html");
    assert_eq!(reply.headers()["x-odd"], "1");
    assert_eq!(reply.text().await.unwrap(), page);

    let _ = bench.simulator.inject(answer(200, FaultBody::Large(10 << 20)));
    let body = fetch().await.bytes().await.unwrap();
    assert_eq!(body.len(), 10 << 20);
    assert!(serde_json::from_slice::<Value>(&body).is_ok());

    let busy = FaultAction::Busy { retry_after_seconds: 7 };
    let _ = bench.simulator.inject(Fault::new(busy).times(1));
    let reply = fetch().await;
    assert_eq!((reply.status().as_u16(), &reply.headers()["retry-after"]), (503, &"7".parse().unwrap()));

    let elsewhere = FaultAction::Redirect { location: "http://elsewhere.example/".into() };
    let _ = bench.simulator.inject(Fault::new(elsewhere).times(1));
    let reply = fetch().await;
    assert_eq!(reply.status(), 307);
    assert_eq!(reply.headers()["location"], "http://elsewhere.example/");

    assert_eq!(fetch().await.status(), 200);
    assert!(bench.simulator.faults().iter().all(|fault| fault.met == 1));
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_true_answer_can_be_cut_short_with_and_without_saying_so() {
    let bench = Bench::one().await;
    let cut = |honest_length| Fault::new(FaultAction::Truncate { bytes: 100, honest_length }).times(1);
    let _ = bench.simulator.inject(cut(true));
    let reply = bench.request("GET", SYSTEM).send().await.unwrap();
    let body = reply.bytes().await.unwrap();
    assert_eq!(body.len(), 100);
    assert!(serde_json::from_slice::<Value>(&body).is_err());
    let _ = bench.simulator.inject(cut(false));
    let mut reply = bench.request("GET", SYSTEM).send().await.unwrap();
    assert!(reply.content_length().unwrap() > 100);
    assert_eq!(reply.chunk().await.unwrap().unwrap().len(), 100);
    assert!(reply.chunk().await.is_err());
    bench.simulator.stop().await;
}

#[tokio::test]
async fn an_error_may_be_told_although_the_write_was_applied() {
    let bench = Bench::one().await;
    let action = FaultAction::Answer { status: 400, body: FaultBody::Empty, headers: Vec::new(), apply: true };
    let fault = Fault::new(action).on_request("PATCH", SYSTEM);
    let _ = bench.simulator.inject(fault);
    assert_eq!(bench.set_boot("Once", "Pxe").await, 400);
    let boot = bench.get(SYSTEM).await["Boot"].clone();
    assert_eq!(boot["BootSourceOverrideTarget"], "Pxe");
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_bmc_that_is_down_refuses_and_comes_back_on_its_port() {
    let bench = Bench::one().await;
    bench.get(SYSTEM).await;
    let set = |availability| bench.simulator.set_availability("node1-bmc", availability);
    set(Availability::Refusing).await.unwrap();
    let status = bench.simulator.bmc_status("node1-bmc").unwrap();
    assert_eq!(status.connections_open, 0);
    let refused = bench.request("GET", SYSTEM).send().await;
    assert!(refused.unwrap_err().is_connect());
    set(Availability::Up).await.unwrap();
    assert_eq!(bench.get(SYSTEM).await["PowerState"], "On");
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_silent_bmc_accepts_and_says_nothing_until_it_is_up_again() {
    let bench = Bench::one().await;
    let set = |availability| bench.simulator.set_availability("node1-bmc", availability);
    set(Availability::Silent).await.unwrap();
    let request = tokio::spawn(bench.request("GET", SYSTEM).send());
    let connected = || {
        let status = bench.simulator.bmc_status("node1-bmc").unwrap();
        (status.connections_open == 1).then_some(status.requests)
    };
    let requests = bench.simulator.wait_until("a connection", LONG, connected);
    assert_eq!(requests.await.unwrap(), 0);
    let impatient = bench.request("GET", SYSTEM);
    let impatient = impatient.timeout(Duration::from_millis(100)).send().await;
    assert!(impatient.unwrap_err().is_timeout());
    let status = bench.simulator.bmc_status("node1-bmc").unwrap();
    assert_eq!((status.requests, status.connections_opened), (0, 2));
    assert!(!request.is_finished());
    set(Availability::Up).await.unwrap();
    assert_eq!(request.await.unwrap().unwrap().status(), 200);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn every_request_takes_the_latency_that_was_set() {
    let bench = Bench::one().await;
    bench.simulator.set_latency(Duration::from_millis(80));
    let start = Instant::now();
    bench.get(SYSTEM).await;
    assert!(start.elapsed() >= Duration::from_millis(80));
    let entry = &bench.simulator.journal(&JournalQuery::default())[0];
    let took = entry.finished_micros.unwrap() - entry.at.micros;
    assert!(took >= 80_000, "{took}");
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_silenced_request_ends_with_its_client() {
    let bench = Bench::one().await;
    let _ = bench.simulator.inject(Fault::new(FaultAction::Silence));
    let request = reset_of(&bench, "ForceOff").timeout(Duration::from_millis(50));
    assert!(request.send().await.unwrap_err().is_timeout());
    let abandoned = JournalQuery { outcome: Some(Outcome::Abandoned), ..resets() };
    let entries = bench.simulator.wait_journal(&abandoned, 1, LONG).await;
    assert!(!entries.unwrap()[0].applied);
    bench.simulator.stop().await;
}

async fn set_boot(bench: &Bench, target: &str) -> Value {
    let boot = json!({ "Boot": { "BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": target } });
    let reply = bench.request("PATCH", SYSTEM).json(&boot).send().await.unwrap();
    assert_eq!(reply.status(), 200);
    reply.json::<Value>().await.unwrap()["Boot"].take()
}

#[tokio::test]
async fn an_ignored_request_is_accepted_and_changes_nothing() {
    let bench = Bench::one().await;
    let _ = bench.simulator.inject(Fault::ignore().with_body("Pxe"));
    assert_eq!(set_boot(&bench, "Pxe").await["BootSourceOverrideTarget"], "None");
    assert_eq!(set_boot(&bench, "Cd").await["BootSourceOverrideTarget"], "Cd", "another body");
    let _ = bench.simulator.inject(Fault::ignore().on_request("POST", "*.Reset"));
    assert_eq!(reset_of(&bench, "ForceOff").send().await.unwrap().status(), 204);
    assert_eq!(bench.get(SYSTEM).await["PowerState"], "On");
    assert!(bench.simulator.journal(&resets()).iter().all(|entry| !entry.applied));
    bench.simulator.stop().await;
}

#[tokio::test]
async fn an_altered_request_has_another_effect() {
    let bench = Bench::one().await;
    let target = "/Boot/BootSourceOverrideTarget";
    let id = bench.simulator.inject(Fault::alter(target, "Hdd").with_body("Pxe"));
    assert_eq!(set_boot(&bench, "Pxe").await["BootSourceOverrideTarget"], "Hdd");
    bench.simulator.remove_fault(id).unwrap();
    let _ = bench.simulator.inject(Fault::omit(target).times(1));
    assert_eq!(set_boot(&bench, "Cd").await["BootSourceOverrideTarget"], "Hdd", "the rest was carried out");
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_request_can_work_the_second_time() {
    let bench = Bench::one().await;
    let _ = bench.simulator.inject(Fault::ignore_first().on_request("POST", "*.Reset"));
    for (sent, power) in [("first", "On"), ("second", "Off")] {
        assert_eq!(reset_of(&bench, "ForceOff").send().await.unwrap().status(), 204);
        if power == "Off" {
            bench.simulator.wait_power("node1", PowerState::Off, LONG).await.unwrap();
        }
        assert_eq!(bench.get(SYSTEM).await["PowerState"], power, "{sent}");
    }
    bench.simulator.stop().await;
}
