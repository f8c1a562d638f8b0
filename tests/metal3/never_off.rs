//! Hosts that the operator cannot power off (`spec.disablePowerOff`), compared with `ironic.txt`.

use std::time::Duration;

use bmc_simulator::PowerState;
use serde_json::json;
use terraform_provider_metal::{
    backend::metal3::Hold,
    maintenance::{gate::ExternalState, machine::ResetType},
};

use super::holds::{Held, backend};
use crate::support::metal3::{operator::Options, world::World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_kept_off_is_lost_only_once_it_is_on() {
    let world = World::start(1, Options::default()).await;
    let backend = backend(&world, Hold::PowerOff);
    let mut held = Held::new(&backend, "node1", "m1");
    held.enter().await;
    world.merge("BareMetalHost", "node1", json!({"spec": {"disablePowerOff": true}})).await;
    tokio::time::sleep(world.running.operator.options.steady * 3).await;
    assert_eq!(held.standing().await, ExternalState::Granted, "it is off as before");
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);

    world.simulator.set_power("node1", PowerState::On).unwrap();
    let lost = held.until("lost", |standing| matches!(standing, ExternalState::Lost(_))).await.to_string();
    assert!(lost.contains("disablePowerOff") && lost.contains("restarts"), "{lost}");
    held.leave().await;
    assert_eq!(world.traces("node1").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reboot_that_nothing_would_show_is_refused() {
    let world = World::start(1, Options::default()).await;
    world.merge("BareMetalHost", "node1", json!({"spec": {"disablePowerOff": true}})).await;
    let backend = backend(&world, Hold::PowerOff);
    let held = Held::new(&backend, "node1", "m1");
    let system = held.machine.maintenance_system().unwrap();
    let refused = system.would_last(ResetType::ForceRestart).await.unwrap_err().to_string();
    assert!(refused.contains("removes the annotation") && refused.contains("Ironic refused"), "{refused}");

    let outlook = system.outlook(&held.wish).await.unwrap().lines.join("\n");
    assert!(outlook.contains("spec.disablePowerOff") && !outlook.contains("spec.online is also false"), "{outlook}");
    world.merge("BareMetalHost", "node1", json!({"spec": {"online": false}})).await;
    let told = tokio::time::timeout(Duration::from_mins(1), async {
        while !system.outlook(&held.wish).await.unwrap().lines.join("\n").contains("spec.online is also false") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    told.await.expect("the outlook reports the loop");
}
