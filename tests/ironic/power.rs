//! Power through Ironic.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use terraform_provider_metal::{
    backend::{Backend as _, BackendError, ironic::IronicAccess},
    maintenance::machine::{PowerState, ResetType},
};

use crate::{
    bench::{Bench, RedfishBench, backend, settled, wish},
    proxy::{Deal, Proxy},
    support::ironic::Options,
};

#[tokio::test]
async fn power_is_changed_and_seen_on_fake_hardware() {
    let bench = Bench::active().await;
    let held = bench.held(&wish()).await;
    assert_eq!(held.observe().await.unwrap().power, PowerState::On);
    let can = held.capabilities().await.unwrap();
    for reset in [ResetType::On, ResetType::ForceOff, ResetType::GracefulShutdown, ResetType::ForceRestart] {
        assert!(can.can(reset), "{reset}");
    }
    held.reset(ResetType::GracefulShutdown).await.unwrap();
    settled(&held, PowerState::Off).await;
    held.reset(ResetType::On).await.unwrap();
    settled(&held, PowerState::On).await;
    held.reset(ResetType::ForceOff).await.unwrap();
    settled(&held, PowerState::Off).await;
    let refused = held.reset(ResetType::PowerCycle).await.unwrap_err();
    assert!(matches!(refused, BackendError::Unsupported { .. }), "{refused}");
}

#[tokio::test]
async fn power_is_changed_and_seen_at_a_bmc() {
    let redfish = RedfishBench::new().await;
    let held = redfish.bench.held(&wish()).await;
    held.reset(ResetType::GracefulShutdown).await.unwrap();
    settled(&held, PowerState::Off).await;
    assert_eq!(redfish.simulated_power(), bmc_simulator::PowerState::Off);
    held.reset(ResetType::On).await.unwrap();
    settled(&held, PowerState::On).await;
    held.reset(ResetType::Nmi).await.unwrap();
}

#[tokio::test]
async fn a_bmc_that_is_away_is_told_with_the_words_of_ironic() {
    let redfish = RedfishBench::new().await;
    let held = redfish.bench.held(&wish()).await;
    let bmc = redfish.simulator.bmc_of(&redfish.system).unwrap();
    redfish.simulator.set_availability(&bmc, bmc_simulator::Availability::Refusing).await.unwrap();
    let first = held.reset(ResetType::ForceOff).await;
    // The conductor retries while the node is locked. The error is returned here, or observed
    // later.
    match first {
        Ok(()) => {
            let node = redfish
                .bench
                .ironic
                .await_node("n1", "the attempt ends", |node| {
                    node["target_power_state"].is_null() && node["reservation"].is_null()
                })
                .await;
            assert!(node["last_error"].as_str().unwrap_or_default().contains("power"), "{node}");
        }
        Err(error) => {
            assert!(error.is_transient() && error.to_string().contains("Failed to change power state"), "{error}");
        }
    }
}

#[tokio::test]
async fn an_unknown_power_state_is_no_state_and_no_goal() {
    let bench = Bench::new(Options::default()).await;
    bench.ironic.call(Method::POST, "/v1/nodes", Some(json!({ "name": "n1", "driver": "fake-hardware" }))).await;
    let held = bench.held(&wish()).await;
    let seen = held.observe().await.unwrap();
    assert_eq!((seen.power, seen.power.settled()), (PowerState::Unknown, None));
    bench.leave(&crate::bench::entered(&wish())).await.unwrap();
    let node = bench.ironic.node("n1").await;
    assert_eq!(
        (&node["maintenance"], &node["power_state"]),
        (&json!(false), &json!(null)),
        "the release set a power state"
    );
}

#[tokio::test]
async fn a_node_that_is_never_switched_off_is_not() {
    let bench = Bench::active().await;
    let patch = json!([{ "op": "replace", "path": "/disable_power_off", "value": true }]);
    bench.ironic.call(Method::PATCH, "/v1/nodes/n1", Some(patch)).await;
    let held = bench.held(&wish()).await;
    assert!(!held.capabilities().await.unwrap().can(ResetType::ForceOff));
    let refused = held.reset(ResetType::ForceOff).await.unwrap_err();
    assert!(refused.to_string().contains("disable_power_off"), "{refused}");
    assert!(bench.machine().maintenance_system().unwrap().would_last(ResetType::ForceOff).await.is_err());
}

#[tokio::test]
async fn a_lost_reply_to_a_power_change_is_not_sent_again() {
    let bench = Bench::active().await;
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let lossy = backend(&proxy.url(), IronicAccess::Open, |_| {});
    let machine = lossy.machine("n1").unwrap();
    proxy.rule(|seen| if seen.is("PUT", "/states/power") { Deal::LoseReply } else { Deal::Pass });
    let lost = machine.reset(ResetType::ForceRestart).await.unwrap_err();
    assert!(matches!(lost, BackendError::ReplyLost { .. }), "{lost}");
    proxy.rule(|seen| {
        if seen.is("PUT", "/states/power") {
            Deal::Answer(502, String::new(), "bad gateway".into())
        } else {
            Deal::Pass
        }
    });
    bench.ironic.await_node("n1", "the restart ends", |node| node["target_power_state"].is_null()).await;
    let unknown = machine.reset(ResetType::ForceRestart).await.unwrap_err();
    assert!(matches!(unknown, BackendError::OutcomeUnknown { .. }), "{unknown}");
    assert_eq!(proxy.count("PUT", "/states/power"), 2);
    // A busy service executed nothing.
    let mut left = 1;
    proxy.rule(move |seen| {
        if seen.is("PUT", "/states/power") && left > 0 {
            left -= 1;
            return Deal::Answer(
                503,
                String::new(),
                r#"{"error_message": "There are no free conductor workers"}"#.into(),
            );
        }
        Deal::Pass
    });
    machine.reset(ResetType::ForceOff).await.unwrap();
    assert_eq!(proxy.count("PUT", "/states/power"), 4);
    settled(&machine, PowerState::Off).await;
}

#[tokio::test]
async fn a_conductor_that_is_killed_in_the_middle_of_power_leaves_an_observable_node() {
    let mut bench = Bench::new(Options { fake_delay: 8, ..Options::default() }).await;
    bench.ironic.active_node("n1").await;
    let held = bench.held(&wish()).await;
    held.reset(ResetType::ForceOff).await.unwrap();
    settled(&held, PowerState::PoweringOff).await;
    let busy = held.reset(ResetType::On).await.unwrap_err();
    assert!(busy.is_transient() && !busy.outcome_unknown(), "{busy}");
    bench.ironic.restart().await;
    let node = bench.ironic.await_node("n1", "the lock is released", |node| node["reservation"].is_null()).await;
    assert_eq!(node["power_state"], "power on", "unchanged");
    assert!(node["maintenance_reason"].as_str().unwrap().contains("ops/bios"));
    assert_eq!(held.observe().await.unwrap().power, PowerState::On);
    held.reset(ResetType::ForceOff).await.unwrap();
    settled(&held, PowerState::Off).await;
}

#[tokio::test]
async fn a_thousand_reads_at_once_are_a_few_lists() {
    let bench = Bench::new(Options::default()).await;
    for n in 0..40 {
        bench
            .ironic
            .call(Method::POST, "/v1/nodes", Some(json!({ "name": format!("m{n}"), "driver": "fake-hardware" })))
            .await;
    }
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let counted = backend(&proxy.url(), IronicAccess::Open, |_| {});
    let reads = (0..40).map(|n| {
        let machine = counted.machine(&format!("m{n}")).unwrap();
        async move { machine.observe().await.unwrap() }
    });
    let _ = tokio::time::timeout(Duration::from_mins(1), futures_util::future::join_all(reads)).await.unwrap();
    assert!(proxy.total() <= 10, "{} requests", proxy.total());
    let listed = counted.inventory().await.unwrap();
    assert_eq!(listed.len(), 40);
    assert_eq!(listed["m7"].labels["provision_state"], "enroll");
}

#[tokio::test]
async fn a_node_that_a_shared_list_does_not_have_is_asked_for() {
    let bench = Bench::active().await;
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let behind = backend(&proxy.url(), IronicAccess::Open, |_| {});
    proxy.rule(|seen| {
        if seen.is("GET", "/v1/nodes?limit=") {
            Deal::Answer(200, String::new(), json!({ "nodes": [] }).to_string())
        } else {
            Deal::Pass
        }
    });
    let machine = behind.machine("n1").unwrap();
    let reads = (0..20).map(|_| machine.observe());
    for seen in futures_util::future::join_all(reads).await {
        assert_eq!(seen.unwrap().power, PowerState::On);
    }
}

#[tokio::test]
async fn a_change_waits_for_a_power_change_that_is_under_way() {
    let bench = Bench::active().await;
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let behind = backend(&proxy.url(), IronicAccess::Open, |_| {});
    let machine = behind.machine("n1").unwrap();
    machine.observe().await.unwrap();
    let idle = bench.ironic.node("n1").await;
    let mut busy = idle.clone();
    busy["target_power_state"] = json!("rebooting");
    let mut reads = 0;
    proxy.rule(move |seen| {
        reads += usize::from(seen.method == "GET");
        match seen.method.as_str() {
            "PUT" => Deal::Answer(202, String::new(), String::new()),
            _ if reads <= 2 => Deal::Answer(200, String::new(), busy.to_string()),
            _ => Deal::Answer(200, String::new(), idle.to_string()),
        }
    });
    machine.reset(ResetType::ForceOff).await.unwrap();
    assert_eq!(proxy.count("PUT", "/states/power"), 1);
}

#[tokio::test]
async fn a_power_change_that_fails_after_its_call_is_told_once() {
    let bench = Bench::active().await;
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let slow = backend(&proxy.url(), IronicAccess::Open, |_| {});
    let machine = slow.machine("n1").unwrap();
    machine.observe().await.unwrap();
    let node = bench.ironic.node("n1").await;
    let with = |change: serde_json::Value| {
        let mut node = node.clone();
        node.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        node.to_string()
    };
    let (idle, busy) = (json!({}), json!({ "target_power_state": "power off", "last_error": null }));
    let failed = json!({ "target_power_state": null, "last_error": "the PDU did not answer" });
    for (reset, unknown) in [(ResetType::ForceOff, false), (ResetType::ForceRestart, true)] {
        let (idle, busy, failed) = (with(idle.clone()), with(busy.clone()), with(failed.clone()));
        // A conductor that takes longer than the call's timeout.
        let mut sent = false;
        proxy.rule(move |seen| {
            sent |= seen.is("PUT", "/states/power");
            match (seen.method.as_str(), sent) {
                ("PUT", _) => Deal::Answer(202, String::new(), String::new()),
                ("GET", true) => Deal::Answer(200, String::new(), busy.clone()),
                _ => Deal::Answer(200, String::new(), idle.clone()),
            }
        });
        machine.reset(reset).await.unwrap();
        assert!(machine.late_answer().await.is_none(), "the power change is still running");
        proxy.rule(move |_| Deal::Answer(200, String::new(), failed.clone()));
        let late = machine.late_answer().await.unwrap();
        assert!(late.to_string().contains("the PDU did not answer"), "{late}");
        assert_eq!(late.outcome_unknown(), unknown, "{late:?}");
        assert!(machine.late_answer().await.is_none(), "once");
    }
}
