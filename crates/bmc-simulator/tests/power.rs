//! Power transitions and resets.

#![allow(clippy::unwrap_used, reason = "tests may stop")]

mod common;

use std::time::Duration;

use bmc_simulator::{
    Accepted, AlreadyThere, Behaviour, BootProgress, BootSource, BootTarget, EventKind, Personality, PowerState,
    ResetType, SimulatorConfig, ToldBy,
};
use common::{Bench, LONG, SYSTEM, messages};
use serde_json::json;

/// Returns the power states that a machine went through.
fn edges(bench: &Bench, since: u64) -> Vec<PowerState> {
    let events = bench.simulator.events("node1", since).unwrap();
    events
        .into_iter()
        .filter_map(|event| match event.kind {
            EventKind::Power { to, .. } => Some(to),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn off_and_on_take_their_time_and_show_the_way() {
    use PowerState::{Off, On, PoweringOff, PoweringOn};

    let behaviour = Behaviour {
        power_on: Duration::from_millis(300),
        power_off: Duration::from_millis(300),
        ..Behaviour::default()
    };
    let config = SimulatorConfig::with_systems(1).without_tls().with_behaviour(behaviour);
    let bench = Bench::start(config).await;
    assert_eq!(bench.reset("ForceOff").await, 204);
    assert_eq!(bench.get(SYSTEM).await["PowerState"], "PoweringOff");
    bench.simulator.wait_power("node1", Off, LONG).await.unwrap();
    assert_eq!(bench.reset("On").await, 204);
    let system = bench.get(SYSTEM).await;
    assert_eq!(system["PowerState"], "PoweringOn");
    assert_eq!(system["BootProgress"]["LastState"], "None");
    bench.simulator.wait_progress("node1", BootProgress::OSRunning, LONG).await.unwrap();
    assert_eq!(edges(&bench, 0), [PoweringOff, Off, PoweringOn, On]);
    let events = bench.simulator.events("node1", 0).unwrap();
    let at = |wanted: PowerState| {
        events.iter().find(|event| matches!(event.kind, EventKind::Power { to, .. } if to == wanted)).unwrap().at.micros
    };
    assert_eq!(at(Off) - at(PoweringOff), 300_000);
    assert_eq!(at(On) - at(PoweringOn), 300_000);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_hung_operating_system_ignores_graceful_requests_only() {
    let behaviour = Behaviour { ignores_shutdown: true, ..Behaviour::instant() };
    let config = SimulatorConfig::with_systems(1).without_tls().with_behaviour(behaviour);
    let bench = Bench::start(config).await;
    assert_eq!(bench.reset("GracefulShutdown").await, 204);
    assert_eq!(bench.get(SYSTEM).await["PowerState"], "On");
    let events = bench.simulator.events("node1", 0).unwrap();
    let last = events.last().unwrap();
    assert_eq!(last.kind, EventKind::ShutdownIgnored { reset_type: ResetType::GracefulShutdown });
    assert_eq!(bench.reset("ForceOff").await, 204);
    assert_eq!(bench.get(SYSTEM).await["PowerState"], "Off");
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_state_already_reached_is_answered_as_the_personality_says() {
    for (rule, status) in
        [(AlreadyThere::NoContent, 204), (AlreadyThere::Conflict, 409), (AlreadyThere::BadRequest, 400)]
    {
        let mut personality = Personality::generic();
        personality.power.already_there = rule;
        let bench = Bench::with(personality).await;
        assert_eq!(bench.reset("On").await, status);
        assert_eq!(bench.simulator.events("node1", 0).unwrap(), []);
        bench.simulator.stop().await;
    }
}

#[tokio::test]
async fn on_is_refused_while_the_machine_is_on_its_way_down() {
    let behaviour = Behaviour { graceful_shutdown: LONG, ..Behaviour::default() };
    let config = SimulatorConfig::with_systems(1).without_tls().with_behaviour(behaviour);
    let bench = Bench::start(config).await;
    assert_eq!(bench.reset("GracefulShutdown").await, 204);
    assert_eq!(bench.reset("On").await, 409);
    assert_eq!(bench.reset("ForceOff").await, 204);
    let off = PowerState::Off;
    bench.simulator.wait_power("node1", off, LONG).await.unwrap();
    assert_eq!(bench.reset("ForceRestart").await, 409);
    assert_eq!(bench.reset("Nmi").await, 409);
    assert_eq!(bench.reset("On").await, 204);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_machine_that_is_paused_accepts_on_and_starts_only_by_a_restart() {
    let mut personality = Personality::generic();
    personality.power.shutdown_pauses = true;
    let bench = Bench::with(personality).await;
    assert_eq!(bench.reset("GracefulShutdown").await, 204);
    bench.simulator.wait_power("node1", PowerState::Paused, LONG).await.unwrap();
    assert_eq!(bench.get(SYSTEM).await["Status"]["State"], "StandbyOffline");
    for without_effect in ["On", "GracefulShutdown", "GracefulRestart"] {
        assert_eq!(bench.reset(without_effect).await, 204);
    }
    assert_eq!(bench.get(SYSTEM).await["PowerState"], "Paused");
    assert_eq!(bench.reset("ForceRestart").await, 204);
    bench.simulator.wait_power("node1", PowerState::On, LONG).await.unwrap();
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_restart_boots_without_a_power_edge_and_a_cycle_with_one() {
    use PowerState::{Off, On, PoweringOff, PoweringOn};

    let bench = Bench::one().await;
    let before = bench.get(SYSTEM).await["LastResetTime"].clone();
    assert_eq!(bench.reset("ForceRestart").await, 204);
    let boots = || bench.simulator.boots("node1").unwrap().len();
    bench.simulator.wait_until("a boot", LONG, || (boots() == 1).then_some(())).await.unwrap();
    assert_eq!(edges(&bench, 0), []);
    assert_ne!(bench.get(SYSTEM).await["LastResetTime"], before);
    assert_eq!(bench.reset("PowerCycle").await, 204);
    bench.simulator.wait_until("a second boot", LONG, || (boots() == 2).then_some(())).await.unwrap();
    assert_eq!(edges(&bench, 0), [PoweringOff, Off, PoweringOn, On]);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn an_unknown_reset_type_is_refused_with_extended_information() {
    let bench = Bench::one().await;
    let path = format!("{SYSTEM}/Actions/ComputerSystem.Reset");
    for (body, message) in [
        (json!({"ResetType": "Explode"}), "ActionParameterValueNotInList"),
        (json!({"ResetType": 1}), "ActionParameterValueNotInList"),
        (json!({}), "ActionParameterMissing"),
        (json!({"ResetType": "On", "Hard": 1}), "ActionParameterUnknown"),
    ] {
        let response = bench.send("POST", &path, body).await;
        assert_eq!(response.status(), 400);
        assert_eq!(messages(response).await, [message]);
    }
    assert_eq!(bench.simulator.events("node1", 0).unwrap(), []);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn reset_types_can_be_told_by_an_action_info() {
    let mut personality = Personality::generic();
    personality.power.reset_types_told_by = ToldBy::ActionInfo;
    personality.power.reset_types = vec![ResetType::On, ResetType::ForceOff];
    let bench = Bench::with(personality).await;
    let system = bench.get(SYSTEM).await;
    let action = &system["Actions"]["#ComputerSystem.Reset"];
    assert!(action.get("ResetType@Redfish.AllowableValues").is_none());
    let info = bench.get(action["@Redfish.ActionInfo"].as_str().unwrap()).await;
    assert_eq!(info["Parameters"][0]["AllowableValues"], json!(["On", "ForceOff"]));
    assert_eq!(bench.reset("GracefulShutdown").await, 400);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_task_is_done_when_the_machine_has_arrived() {
    let mut personality = Personality::generic();
    personality.power.accepted = Accepted::Task;
    let behaviour = Behaviour { power_off: Duration::from_millis(200), ..Behaviour::default() };
    let config = SimulatorConfig::with_systems(1).without_tls().with_personality(personality).with_behaviour(behaviour);
    let bench = Bench::start(config).await;
    let path = format!("{SYSTEM}/Actions/ComputerSystem.Reset");
    let response = bench.send("POST", &path, json!({"ResetType": "ForceOff"})).await;
    assert_eq!(response.status(), 202);
    let monitor = response.headers()["location"].to_str().unwrap().to_owned();
    let bench = &bench;
    let status = |path: String| async move { bench.request("GET", &path).send().await.unwrap().status().as_u16() };
    assert_eq!(status(monitor.clone()).await, 202);
    let off = PowerState::Off;
    bench.simulator.wait_power("node1", off, LONG).await.unwrap();
    assert_eq!(status(monitor).await, 204);
    bench.simulator.clone().stop().await;
}

#[tokio::test]
async fn software_from_an_image_works_and_switches_off_but_the_disk_runs_on() {
    let behaviour = Behaviour { image_works_then_off: Some(Duration::from_millis(50)), ..Behaviour::default() };
    let config = SimulatorConfig::with_systems(1).without_tls().with_behaviour(behaviour);
    let bench = Bench::start(config).await;
    assert_eq!(bench.set_boot("Once", "Pxe").await, 200);
    assert_eq!(bench.reset("ForceRestart").await, 204);
    let (off, running) = (PowerState::Off, BootProgress::OSRunning);
    bench.simulator.wait_power("node1", off, LONG).await.unwrap();
    assert_eq!(bench.reset("On").await, 204);
    bench.simulator.wait_progress("node1", running, LONG).await.unwrap();
    let boots = bench.simulator.boots("node1").unwrap();
    let sources: Vec<_> = boots.iter().map(|boot| &boot.booted_from).collect();
    assert_eq!(sources, [&BootSource::Pxe, &BootSource::Disk]);
    assert_eq!(boots[0].requested.target, BootTarget::Pxe);
    bench.simulator.stop().await;
}

#[tokio::test]
async fn a_change_behind_the_back_is_seen_and_told_as_such() {
    let bench = Bench::one().await;
    let off = PowerState::Off;
    bench.simulator.set_power("node1", off).unwrap();
    assert_eq!(bench.get(SYSTEM).await["PowerState"], "Off");
    let events = bench.simulator.events("node1", 0).unwrap();
    let told = serde_json::to_value(&events[0]).unwrap();
    assert_eq!(told["event"], "power");
    assert_eq!(told["cause"], "outside");
    bench.simulator.stop().await;
}
