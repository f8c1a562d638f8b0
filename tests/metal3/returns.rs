//! Restored parts of a host, and the proof that the operator manages it again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use bmc_simulator::PowerState;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use terraform_provider_metal::{
    backend::{
        Backend as _,
        metal3::{Hold, Metal3Backend, Metal3Settings},
        redfish::Trust,
    },
    clock::{Clock, SystemClock},
    kubernetes::{Cluster, ClusterSettings},
    maintenance::{
        gate::ExternalState,
        machine::{BootOverride, ResetType},
    },
};

use super::holds::{Held, backend, status};
use crate::support::metal3::{operator::Options, world::World};

/// A clock that runs ahead.
#[derive(Debug)]
struct Ahead(SystemClock, SignedDuration);

#[async_trait]
impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        self.0.now() + self.1
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    async fn sleep(&self, duration: Duration) {
        self.0.sleep(duration).await;
    }
}

/// Returns a process's view of the maintenance at a later time.
fn later(world: &World, held: &Held, after: SignedDuration) -> Held {
    let clock: Arc<dyn Clock> = Arc::new(Ahead(SystemClock::default(), after));
    let cluster = ClusterSettings { kubeconfig: Some(world.kubernetes.kubeconfig()), ..ClusterSettings::default() };
    let settings = Metal3Settings {
        cluster: Cluster::new(cluster, Arc::clone(&clock)),
        namespace: world.namespace.clone(),
        hold: Hold::Detach,
        trust: Trust::Anything,
        bmc_networks: vec!["127.0.0.0/8".parse().unwrap()],
        lock_keys: BTreeMap::new(),
    };
    let machine = Metal3Backend::new(settings, &clock).machine("node1").unwrap();
    Held { machine, wish: held.wish.clone() }
}

/// Returns a host that was requested and released while its operator was stopped.
async fn released_unseen(world: &World) -> Held {
    let mut held = Held::new(&backend(world, Hold::Detach), "node1", "m1");
    assert_eq!(held.standing().await, ExternalState::Absent);
    world.running.operator.options.awake.close();
    held.wish.asked = true;
    held.call_enter().await;
    held.call_leave().await;
    held
}

fn says(standing: &ExternalState, word: &str) {
    assert!(matches!(standing, ExternalState::Returning(why) if why.raw().contains(word)), "{word}: {standing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_a_stopped_operator_had_half_detached_is_back_with_another_node() {
    let world = World::start(1, Options::default()).await;
    let held = released_unseen(&world).await;
    // The operator had deleted its Ironic node, but was stopped before it wrote the status.
    world.running.operator.nodes.lock().unwrap().clear();
    let minute = later(&world, &held, SignedDuration::from_mins(1));
    says(&minute.standing().await, "the operator has written nothing since");
    world.running.operator.options.registers.close();
    world.running.operator.options.awake.open();
    held.until(
        "failed",
        |standing| matches!(standing, ExternalState::Failed(why) if why.raw().contains("could not register")),
    )
    .await;
    world.running.operator.options.registers.open();
    // Long before the timeout.
    held.leave().await;
    assert_eq!(world.traces("node1").await, Vec::<String>::new());
    assert!(!world.running.operator.nodes.lock().unwrap().is_empty(), "the node was deleted from Ironic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_operator_writes_after_the_release_proves_that_it_manages_the_host() {
    let world = World::start(1, Options::default()).await;
    let held = released_unseen(&world).await;
    says(&held.standing().await, "the operator has written nothing since");
    // The host is powered off, so the operator powers it on and writes its status.
    world.simulator.set_power("node1", PowerState::Off).unwrap();
    world.running.operator.options.awake.open();
    held.leave().await;
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
    assert_eq!(world.traces("node1").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_of_which_nothing_proves_anything_is_believed_after_minutes() {
    let world = World::start(1, Options::default()).await;
    let held = released_unseen(&world).await;
    says(&later(&world, &held, SignedDuration::from_secs(170)).standing().await, "assumed to manage the host");
    let late = later(&world, &held, SignedDuration::from_secs(185));
    assert!(matches!(late.standing().await, ExternalState::Leftovers(_)), "{:?}", late.standing().await);
    late.call_leave().await;
    assert_eq!(late.standing().await, ExternalState::Absent);
    assert_eq!(world.traces("node1").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_could_not_detach_a_host_is_waited_for() {
    let world = World::start(1, Options::default()).await;
    let mut held = Held::new(&backend(&world, Hold::Detach), "node1", "m1");
    assert_eq!(held.standing().await, ExternalState::Absent);
    world.running.operator.options.detaches.close();
    held.wish.asked = true;
    held.call_enter().await;
    held.until(
        "a retry",
        |standing| matches!(standing, ExternalState::Entering(why) if why.raw().contains("which the operator retries")),
    )
    .await;
    world.running.operator.options.awake.close();
    held.call_leave().await;
    // The node was never deleted, so the operator only needs to read it.
    says(&held.standing().await, "still detach error");
    world.running.operator.options.awake.open();
    world.until("node1", "OK", |host| status(host) == ("provisioned", "OK")).await;
    says(&held.standing().await, "assumed to manage the host");
    let late = later(&world, &held, SignedDuration::from_mins(4));
    late.leave().await;
    assert_eq!(world.traces("node1").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_that_we_set_is_given_back_beside_an_image_of_another_author() {
    const THEIRS: &str = "https://images.example/theirs.iso";
    let image = || json!({"image": {"url": THEIRS, "format": "live-iso"}});
    let online = |online: bool| json!({ "online": online });
    let cases = [
        (true, true, vec![image()], true),
        (false, false, vec![image()], false),
        // The owner's later change wins.
        (false, false, vec![image(), online(false), online(true)], true),
        (true, true, vec![image(), online(true), online(false)], false),
        // Without an image the operator deprovisions it, not the provider.
        (false, false, vec![json!({"image": null})], false),
    ];
    for (before, off, theirs, after) in cases {
        let world = World::empty(1, Options::default()).await;
        world.add("node1", json!({"automatedCleaningMode": "disabled", "online": before})).await;
        let shows_power = |host: &Value| host["status"]["poweredOn"].as_bool().unwrap_or_default() == before;
        world.until("node1", "available", |host| status(host) == ("available", "OK") && shows_power(host)).await;
        let mut held = Held::new(&backend(&world, Hold::Image), "node1", "m1");
        held.enter().await;
        let iso = BootOverride {
            enabled: Some("Once".into()),
            target: Some("UefiHttp".into()),
            http_boot_uri: Some("https://images.example/rescue.iso".into()),
            ..BootOverride::default()
        };
        held.set_boot_override(&iso).await;
        world.until("node1", "booted", |host| status(host) == ("provisioned", "OK")).await;
        if off {
            held.reset(ResetType::ForceOff).await;
        }
        for change in &theirs {
            world.merge("BareMetalHost", "node1", json!({ "spec": change })).await;
        }
        let lost = held.until("lost", |standing| matches!(standing, ExternalState::Lost(_))).await.to_string();
        let ours = theirs.len() == 1;
        assert_eq!(lost.contains(&format!("and restores {before} at its end")), ours, "{lost}");
        held.leave().await;
        let host = world.host("node1").await;
        let url = &host["spec"]["image"]["url"];
        assert_eq!(host["spec"]["online"], after, "{theirs:?}: {host}");
        assert_eq!(url, &theirs[0]["image"]["url"], "{host}");
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}
