//! The maintenance flag: its owner, coexisting flags, and its removal.

use reqwest::Method;
use serde_json::{Value, json};
use terraform_provider_metal::{
    backend::{Backend as _, BackendError, ExternalRequestRef},
    maintenance::{
        gate::{ExternalRequest, ExternalState},
        location::{BackendKind, ClusterIdentity, Location},
    },
};

use crate::{
    bench::{Bench, RedfishBench, asked, backend, entered, wish},
    proxy::{Deal, Proxy},
    support::ironic::Options,
};

#[tokio::test]
async fn a_node_is_entered_held_and_left_as_it_was() {
    let bench = Bench::active().await;
    let wish = wish();
    assert_eq!(bench.standing(&wish).await, ExternalState::Absent);
    bench.enter(&wish).await.unwrap();
    assert_eq!(bench.standing(&asked(&wish)).await, ExternalState::Granted);
    let node = bench.ironic.node("n1").await;
    assert_eq!(node["maintenance"], true);
    let reason = node["maintenance_reason"].as_str().unwrap();
    for words in ["ops/bios", "team-storage", "BIOS 2.19", "https://tickets/7", "ci-1 (alice)"] {
        assert!(reason.contains(words), "{reason}");
    }
    bench.enter(&wish).await.unwrap();
    assert_eq!(bench.ironic.node("n1").await["maintenance_reason"], reason, "ours is not written again");
    bench.leave(&entered(&wish)).await.unwrap();
    let node = bench.ironic.node("n1").await;
    assert_eq!(
        (&node["maintenance"], &node["maintenance_reason"], &node["fault"]),
        (&json!(false), &Value::Null, &Value::Null)
    );
    assert_eq!(node["power_state"], "power on");
    assert_eq!(bench.standing(&entered(&wish)).await, ExternalState::Absent);
    bench.leave(&entered(&wish)).await.unwrap();
}

#[tokio::test]
async fn maintenance_of_others_and_faults_stay_as_they_are() {
    let bench = Bench::active().await;
    bench.ironic.maintenance("n1", Some("disk swap by carol")).await;
    let ExternalState::Refused(why) = bench.standing(&wish()).await else { panic!() };
    assert!(why.raw().contains("disk swap by carol"), "{why}");
    for wish in [wish(), asked(&wish())] {
        let refused = bench.enter(&wish).await.unwrap_err();
        assert!(matches!(&refused, BackendError::Rejected { transient: false, .. }), "{refused}");
        assert!(refused.to_string().contains("disk swap by carol"), "{refused}");
    }
    bench.leave(&entered(&wish())).await.unwrap();
    assert_eq!(bench.ironic.node("n1").await["maintenance_reason"], "disk swap by carol");
    bench.ironic.maintenance("n1", None).await;
    bench
        .ironic
        .sql("update nodes set maintenance = 1, fault = 'power failure', maintenance_reason = 'sync failed'")
        .await;
    let ExternalState::Refused(why) = bench.standing(&wish()).await else { panic!() };
    assert!(why.raw().contains("power failure") && why.raw().contains("sync failed"), "{why}");
    assert!(bench.enter(&wish()).await.is_err());
}

#[tokio::test]
async fn an_operator_who_clears_or_replaces_the_flag_is_seen() {
    let bench = Bench::active().await;
    let held = bench.held(&wish()).await;
    bench.ironic.maintenance("n1", None).await;
    assert_eq!(bench.standing(&entered(&wish())).await, ExternalState::Absent);
    let refused = held.reset(terraform_provider_metal::maintenance::machine::ResetType::ForceOff).await.unwrap_err();
    assert!(refused.to_string().contains("our maintenance flag was removed"), "{refused}");
    assert_eq!(bench.ironic.node("n1").await["power_state"], "power on");
    bench.ironic.maintenance("n1", Some("mine now")).await;
    let ExternalState::Refused(why) = bench.standing(&entered(&wish())).await else { panic!() };
    assert!(why.raw().contains("mine now"), "{why}");
    bench.leave(&entered(&wish())).await.unwrap();
    assert_eq!(bench.ironic.node("n1").await["maintenance_reason"], "mine now");
}

#[tokio::test]
async fn a_fault_between_our_look_and_our_flag_is_left_to_ironic() {
    let bench = Bench::active().await;
    bench.enter(&wish()).await.unwrap();
    bench.ironic.sql("update nodes set fault = 'power failure'").await;
    assert!(matches!(bench.standing(&asked(&wish())).await, ExternalState::Failed(_)));
    assert!(matches!(bench.standing(&entered(&wish())).await, ExternalState::Lost(_)));
    bench.leave(&asked(&wish())).await.unwrap();
    let node = bench.ironic.node("n1").await;
    assert_eq!((&node["maintenance"], &node["fault"]), (&json!(true), &json!("power failure")), "the fault was hidden");
    assert!(node["maintenance_reason"].as_str().unwrap().contains("power failure"));
    assert!(
        matches!(bench.standing(&entered(&wish())).await, ExternalState::Refused(_)),
        "our request was not removed"
    );
}

#[tokio::test]
async fn nodes_of_baremetal_operator_are_refused() {
    let bench = Bench::new(Options::default()).await;
    bench.ironic.active_node("metal3~host-1").await;
    let machine = bench.backend.machine("metal3~host-1").unwrap();
    let ExternalState::Refused(why) = machine.maintenance_system().unwrap().look(&wish(), true).await.unwrap().standing
    else {
        panic!()
    };
    assert!(why.raw().contains("baremetal-operator"), "{why}");
}

#[tokio::test]
async fn what_a_proxy_says_of_a_path_ends_no_hold() {
    let bench = Bench::active().await;
    let memory = bench.memory(&wish()).await;
    bench.enter(&wish()).await.unwrap();
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let behind = backend(&proxy.url(), terraform_provider_metal::backend::ironic::IronicAccess::Open, |_| {});
    let machine = behind.machine("n1").unwrap();
    let system = machine.maintenance_system().unwrap();
    proxy.rule(|seen| match seen.path.as_str() {
        "/v1" => Deal::Pass,
        _ => Deal::Answer(404, String::new(), "404 page not found".into()),
    });
    let held = ExternalRequest { memory, ..entered(&wish()) };
    let unknown = system.look(&held, true).await.unwrap_err();
    assert!(unknown.is_transient() && unknown.to_string().contains("the answer is not from Ironic"), "{unknown}");
    assert!(system.leave(&held).await.unwrap_err().is_transient());
    assert_eq!(bench.ironic.node("n1").await["maintenance"], true);
}

#[tokio::test]
async fn a_node_that_was_renamed_is_found_and_left() {
    let bench = Bench::active().await;
    let memory = bench.memory(&wish()).await;
    bench.enter(&wish()).await.unwrap();
    let uuid = memory["node"].clone();
    let patch = json!([{ "op": "replace", "path": "/name", "value": "n2" }]);
    bench.ironic.call(Method::PATCH, "/v1/nodes/n1", Some(patch)).await;
    // A process with only the record's data.
    let other = backend(&bench.ironic.url(), terraform_provider_metal::backend::ironic::IronicAccess::Open, |_| {});
    assert!(matches!(other.location("n1").await, Err(BackendError::NoServer { .. })));
    let cluster =
        ClusterIdentity { uid: None, server_uid: Some(uuid.clone().into()), address: bench.ironic.url().into() };
    let backend = BackendKind::named("ironic");
    other.remember("n1", &Location { backend, cluster: Some(cluster), namespace: None, system: None });
    let reached = other.location("n1").await.unwrap();
    assert_eq!(reached.cluster.unwrap().server_uid, Some(uuid.into()));
    let held = ExternalRequest { memory, ..entered(&wish()) };
    assert_eq!(bench.standing(&held).await, ExternalState::Granted);
    bench.leave(&held).await.unwrap();
    assert_eq!(bench.ironic.node("n2").await["maintenance"], false);
}

#[tokio::test]
async fn a_node_that_is_undeployed_meanwhile_is_let_go_to_be_cleaned() {
    let bench = Bench::active().await;
    bench.ironic.sql("update nodes set instance_uuid = '7d5e2d5f-2f3f-4a57-8b0e-3c1f2b1a9d11'").await;
    let memory = bench.memory(&wish()).await;
    bench.enter(&wish()).await.unwrap();
    let held = ExternalRequest { memory, ..entered(&wish()) };
    assert_eq!(bench.standing(&held).await, ExternalState::Granted);
    // As left by Ironic after `undeploy`, which ignores the agent while the flag is set.
    bench.ironic.sql("update nodes set instance_uuid = null, provision_state = 'clean wait'").await;
    let ExternalState::Lost(why) = bench.standing(&held).await else { panic!() };
    assert!(why.raw().contains("7d5e2d5f"), "{why}");
    bench.leave(&held).await.unwrap();
    let node = bench.ironic.node("n1").await;
    assert_eq!((&node["maintenance"], &node["provision_state"]), (&json!(false), &json!("clean wait")));
}

#[tokio::test]
async fn a_reserved_node_is_waited_for_and_told_apart() {
    let bench = Bench::active().await;
    bench.ironic.sql("update nodes set reservation = 'conductor-1'").await;
    let ExternalState::Waiting(why) = bench.standing(&wish()).await else { panic!() };
    assert!(why.raw().contains("conductor-1"), "{why}");
    let locked = bench.enter(&wish()).await.unwrap_err();
    assert!(locked.is_transient() && !locked.outcome_unknown(), "{locked}");
    assert!(locked.to_string().contains("is locked by host"), "{locked}");
    assert!(matches!(bench.standing(&asked(&wish())).await, ExternalState::Entering(_)), "without further calls");
    // The lock is released while a call waits for it.
    let patient =
        backend(&bench.ironic.url(), terraform_provider_metal::backend::ironic::IronicAccess::Open, |settings| {
            settings.lock_patience = std::time::Duration::from_secs(30);
        });
    let machine = patient.machine("n1").unwrap();
    let wish = wish();
    let (entered, ()) = tokio::join!(machine.maintenance_system().unwrap().enter(&wish), async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        bench.ironic.sql("update nodes set reservation = null").await;
    });
    entered.unwrap();
    assert_eq!(bench.standing(&asked(&wish)).await, ExternalState::Granted);
}

#[tokio::test]
async fn a_lost_reply_is_told_and_found_by_looking() {
    let bench = Bench::active().await;
    let proxy = Proxy::to(&bench.ironic.url()).await;
    let lossy = backend(&proxy.url(), terraform_provider_metal::backend::ironic::IronicAccess::Open, |_| {});
    let machine = lossy.machine("n1").unwrap();
    let system = machine.maintenance_system().unwrap();
    proxy.rule(|seen| if seen.is("PUT", "/maintenance") { Deal::LoseReply } else { Deal::Pass });
    let lost = system.enter(&wish()).await.unwrap_err();
    assert!(matches!(lost, BackendError::ReplyLost { .. }), "{lost}");
    assert_eq!(proxy.count("PUT", "/maintenance"), 1, "not sent again");
    assert_eq!(system.look(&asked(&wish()), true).await.unwrap().standing, ExternalState::Granted);
    proxy.rule(|seen| if seen.method == "DELETE" { Deal::LoseReply } else { Deal::Pass });
    let lost = system.leave(&entered(&wish())).await.unwrap_err();
    assert!(matches!(lost, BackendError::ReplyLost { .. }), "{lost}");
    assert_eq!(proxy.count("DELETE", "/maintenance"), 1);
    assert_eq!(system.look(&entered(&wish()), true).await.unwrap().standing, ExternalState::Absent);
}

#[tokio::test]
async fn a_flag_of_an_ended_run_is_found_and_discarded() {
    let bench = Bench::active().await;
    bench.ironic.active_node("n2").await;
    bench.ironic.maintenance("n2", Some("of a person")).await;
    bench.enter(&wish()).await.unwrap();
    let found = bench.backend.external_requests().await.unwrap().unwrap();
    let expected = ExternalRequestRef {
        store: wish().store,
        uid: wish().uid,
        name: "the maintenance flag of node n1".into(),
        server: "n1".into(),
        parks: true,
        gate: None,
        memory: std::collections::BTreeMap::new(),
    };
    assert_eq!(found, std::slice::from_ref(&expected));
    let system = bench.machine();
    let system = system.maintenance_system().unwrap();
    assert_eq!(system.requests().await.unwrap(), found);
    // Another maintenance's flag is not touched.
    system.discard(&ExternalRequestRef { uid: "another".into(), ..expected.clone() }).await.unwrap();
    assert_eq!(bench.ironic.node("n1").await["maintenance"], true);
    system.discard(&expected).await.unwrap();
    assert_eq!(bench.ironic.node("n1").await["maintenance"], false);
    assert_eq!(bench.ironic.node("n2").await["maintenance_reason"], "of a person");
}

#[tokio::test]
async fn the_flag_outlives_an_ironic_that_is_killed() {
    let mut bench = Bench::active().await;
    bench.enter(&wish()).await.unwrap();
    bench.ironic.kill();
    let away = bench.machine().maintenance_system().unwrap().look(&asked(&wish()), true).await.unwrap_err();
    assert!(matches!(away, BackendError::Unreachable { .. }), "{away}");
    assert!(bench.leave(&entered(&wish())).await.unwrap_err().is_transient());
    bench.ironic.restart().await;
    assert_eq!(bench.standing(&entered(&wish())).await, ExternalState::Granted);
    bench.leave(&entered(&wish())).await.unwrap();
    assert_eq!(bench.standing(&entered(&wish())).await, ExternalState::Absent);
}

#[tokio::test]
async fn the_database_of_ironic_agrees_with_the_hardware_before_the_flag_goes() {
    let redfish = RedfishBench::new().await;
    let bench = &redfish.bench;
    let _held = bench.held(&wish()).await;
    // Powered off at the machine: Ironic does not notice during maintenance.
    redfish.simulator.set_power(&redfish.system, bmc_simulator::PowerState::Off).unwrap();
    assert_eq!(bench.ironic.node("n1").await["power_state"], "power on");
    let wish = ExternalRequest { memory: bench.look(&wish()).await.memory, ..entered(&wish()) };
    // Leaving is repeated until the machine has reacted.
    for _ in 0..20 {
        match bench.leave(&wish).await {
            Ok(()) => break,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
    assert_eq!(redfish.simulated_power(), bmc_simulator::PowerState::On, "the power differs from the recorded state");
    let node = bench.ironic.node("n1").await;
    assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
}
