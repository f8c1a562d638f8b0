//! The backend with each deviating operator version (`versions.txt`).

use serde_json::{Value, json};
use terraform_provider_metal::{
    backend::metal3::Hold,
    maintenance::{gate::ExternalState, machine::ResetType},
};

use super::holds::{Held, backend, status};
use crate::support::{
    ironcore::patience,
    metal3::{
        operator::{Options, Version},
        world::{DETACHED, World},
    },
};

const VERSIONS: [Version; 4] = [Version::V0_11, Version::V0_13, Version::V0_14, Version::Newest];

fn lost(standing: &ExternalState) -> bool {
    matches!(standing, ExternalState::Lost(_))
}

/// Starts an operator version with a host.
async fn of(version: Version, more: Value) -> World {
    let world = World::empty(1, Options { version, ..Options::default() }).await;
    let settled = if more["image"].is_null() { "available" } else { "provisioned" };
    world.add("node1", more).await;
    let ready = |host: &Value| status(host) == (settled, "OK") && host["status"]["poweredOn"] == true;
    world.until("node1", settled, ready).await;
    world
}

fn image() -> Value {
    json!({"image": {"url": "https://images.example/os.raw"}})
}

/// Asserts that the loss is reported, the machine is not touched, and no marks remain.
async fn ends_as_lost(world: &World, held: &Held) {
    let said = held.until("lost", lost).await.to_string();
    assert!(said.contains("despite its annotation to delay this"), "{said}");
    assert!(held.under().reset(ResetType::On).await.is_err(), "it is not ours");
    held.call_leave().await;
    patience::until("deleted", async || world.find("node1").await.is_none().then_some(())).await;
    assert_eq!(held.standing().await, ExternalState::Absent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_free_host_is_lost_where_the_operator_deletes_it_at_once() {
    for version in VERSIONS {
        let world = of(version, json!({})).await;
        let backend = backend(&world, Hold::Detach);
        let mut held = Held::new(&backend, "node1", "m1");
        let outlook = held.machine.maintenance_system().unwrap().outlook(&held.wish).await.unwrap().lines.join("\n");
        assert!(outlook.contains("up to v0.12 does not delay the deletion of an available host"), "{outlook}");
        held.enter().await;
        world.delete("node1").await;
        if version == Version::V0_11 {
            ends_as_lost(&world, &held).await;
            continue;
        }
        let options = &world.running.operator.options;
        tokio::time::sleep(options.step * 5).await;
        assert_eq!(held.standing().await, ExternalState::Granted, "{version:?}");
        held.call_leave().await;
        patience::until("deleted", async || world.find("node1").await.is_none().then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_deleted_while_it_is_entered_is_lost_or_ours() {
    for version in VERSIONS {
        let world = of(version, image()).await;
        let backend = backend(&world, Hold::Detach);
        let mut held = Held::new(&backend, "node1", "m1");
        let awake = world.running.operator.options.awake.clone();
        awake.close();
        assert_eq!(held.standing().await, ExternalState::Absent);
        held.wish.asked = true;
        held.call_enter().await;
        world.delete("node1").await;
        awake.open();
        if version != Version::Newest {
            ends_as_lost(&world, &held).await;
            continue;
        }
        held.until("granted", |standing| *standing == ExternalState::Granted).await;
        held.call_leave().await;
        patience::until("deleted", async || world.find("node1").await.is_none().then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_does_not_outlive_a_change_of_state_unseen() {
    for version in VERSIONS {
        let world = of(version, image()).await;
        let backend = backend(&world, Hold::PowerOff);
        let mut held = Held::new(&backend, "node1", "m1");
        held.enter().await;
        world.merge("BareMetalHost", "node1", json!({"spec": {"image": null}})).await;
        world.until("node1", "deprovisioned", |host| status(host).0 == "available").await;
        let said = held.until("lost", lost).await.to_string();
        let keeps = version >= Version::V0_14;
        assert!(said.contains(if keeps { "left its provisioning state" } else { "v0.13.2" }), "{version:?}: {said}");
        let keys = world.traces("node1").await.into_iter().filter(|key| key.starts_with("reboot")).count();
        assert_eq!(keys, usize::from(keeps), "{version:?}: it is not written again");
        held.call_leave().await;
        held.until("left", |standing| matches!(standing, ExternalState::Leftovers(_))).await;
        held.call_leave().await;
        assert_eq!(world.traces("node1").await, Vec::<String>::new(), "{version:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn firmware_of_the_host_itself_is_refused_or_told_as_a_loss() {
    let world = of(Version::V0_14, image()).await;
    let backend = backend(&world, Hold::PowerOff);
    let mut held = Held::new(&backend, "node1", "m1");
    let firmware = json!({"spec": {"firmware": {"virtualizationEnabled": true}}});
    world.merge("BareMetalHost", "node1", firmware.clone()).await;
    assert_eq!(
        held.standing().await,
        ExternalState::Absent,
        "without a policy, the operator does not update at a reboot"
    );
    world.create("HostUpdatePolicy", "node1", json!({"spec": {"firmwareSettings": "onReboot"}})).await;
    let ExternalState::Refused(why) = held.standing().await else { panic!("{:?}", held.standing().await) };
    assert!(why.raw().contains("spec.firmware"), "{why}");
    held.wish.asked = true;
    assert!(held.machine.maintenance_system().unwrap().enter(&held.wish).await.is_err());
    held.wish.asked = false;
    assert!(world.traces("node1").await.is_empty());
    // With hold = "detach" the operator does not service the host.
    let other = self::backend(&world, Hold::Detach);
    assert_eq!(Held::new(&other, "node1", "m2").standing().await, ExternalState::Absent);

    world.merge("BareMetalHost", "node1", json!({"spec": {"firmware": null}})).await;
    held.until("free", |standing| *standing == ExternalState::Absent).await;
    held.enter().await;
    world.merge("BareMetalHost", "node1", firmware).await;
    let said = held.until("lost", lost).await.to_string();
    assert!(said.contains("services"), "{said}");
    assert!(world.host("node1").await["metadata"]["annotations"][DETACHED].is_null());
}
