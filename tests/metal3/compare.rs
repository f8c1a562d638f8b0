//! Compares the stand-in with the table.
//!
//! `table.txt` was recorded with these steps from baremetal-operator 02aa505 (August 2026, after
//! v0.14.0-rc.0), built from its source with `-provisioner=fixture`, on a real API server. It
//! lists the state before, the event, and the states after. A state consists of provisioning
//! state, operational status, power as reported by the operator, and marks.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use kube::{
    Api,
    api::DynamicObject,
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};

use crate::support::{
    ironcore::patience,
    metal3::{
        operator::{Options, resource},
        world::{DETACHED, World},
    },
};

pub const PAUSED: &str = "baremetalhost.metal3.io/paused";
pub const PLAIN: &str = "reboot.metal3.io";
pub const KEY: &str = "reboot.metal3.io/ours";

fn line(host: &Value) -> String {
    let (status, metadata) = (&host["status"], &host["metadata"]);
    let text = |value: &Value, none: &str| value.as_str().filter(|text| !text.is_empty()).unwrap_or(none).to_owned();
    let mut words = vec![
        text(&status["provisioning"]["state"], "new"),
        text(&status["operationalStatus"], "-"),
        if status["poweredOn"] == true { "on" } else { "off" }.to_owned(),
    ];
    if let Some(error) = status["errorType"].as_str().filter(|error| !error.is_empty()) {
        words.push(format!("({error})"));
    }
    for (key, word) in [(DETACHED, "+detached"), (PAUSED, "+paused"), (KEY, "+key"), (PLAIN, "+reboot")] {
        if !metadata["annotations"][key].is_null() {
            words.push(word.to_owned());
        }
    }
    if !metadata["deletionTimestamp"].is_null() {
        words.push("+deleting".to_owned());
    }
    words.join(" ")
}

/// Observed states of a host since the last step, and the last state.
#[derive(Clone)]
pub struct Seen {
    all: Arc<Mutex<(Vec<String>, String)>>,
    /// True while changes are recorded.
    watches: Arc<AtomicBool>,
    line: fn(&Value) -> String,
}

impl Default for Seen {
    fn default() -> Self {
        Self { all: Arc::default(), watches: Arc::default(), line }
    }
}

impl Seen {
    pub async fn of(world: &World, name: &'static str) -> (Self, tokio::task::JoinHandle<()>) {
        Self::by(world, name, line).await
    }

    /// Starts watching a host, with a different format of states.
    pub async fn by(
        world: &World,
        name: &'static str,
        line: fn(&Value) -> String,
    ) -> (Self, tokio::task::JoinHandle<()>) {
        let seen = Self { line, ..Self::default() };
        let notes = seen.clone();
        let client = world.running.operator.client.clone();
        let hosts: Api<DynamicObject> = Api::namespaced_with(client, &world.namespace, &resource("BareMetalHost"));
        let watch = tokio::spawn(async move {
            let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
            let mut events = watcher(hosts, only).default_backoff().boxed();
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::Apply(host) | watcher::Event::InitApply(host)) => {
                        notes.note(line(&serde_json::to_value(host).unwrap()));
                    }
                    Ok(watcher::Event::Delete(_)) => notes.note("gone".to_owned()),
                    Ok(watcher::Event::InitDone) => notes.watches.store(true, Ordering::SeqCst),
                    _ => {}
                }
            }
        });
        patience::until("the watch has begun", async || seen.watches.load(Ordering::SeqCst).then_some(())).await;
        (seen, watch)
    }

    /// Returns the observed states since the last reset.
    pub fn now(&self) -> String {
        let seen = self.all.lock().unwrap().0.join(" -> ");
        if seen.is_empty() { "nothing".to_owned() } else { seen }
    }

    /// Waits without a change for longer than the operator's poll interval (one minute) and
    /// CAPM3's (30 s).
    pub async fn settled(&self) -> String {
        let mut last = String::new();
        while self.now() != last {
            last = self.now();
            tokio::time::sleep(Duration::from_secs(75)).await;
        }
        last
    }

    fn forget(&self) {
        self.all.lock().unwrap().0.clear();
    }

    /// Drops all observed states up to the host's current state.
    pub async fn begin(&self, world: &World, host: &str) {
        patience::until("the watch reports the host's current state", async || {
            let now = (self.line)(&world.host(host).await);
            (self.all.lock().unwrap().1 == now).then_some(())
        })
        .await;
        self.forget();
    }

    fn note(&self, line: String) {
        // State between our change and the reaction, too short for the recording's 20 ms poll
        // interval.
        if line.contains(" detached ") && !line.contains("+detached") {
            return;
        }
        let mut seen = self.all.lock().unwrap();
        if seen.1 != line {
            seen.0.push(line.clone());
            seen.1 = line;
        }
    }

    /// Waits until exactly these states were observed.
    pub async fn until(&self, step: &str, wanted: &str) {
        let what = format!("{step}: {wanted}");
        let as_wanted = patience::until(&what, async || {
            let now = self.now();
            (now == wanted || !wanted.starts_with(&now) && now != "nothing").then_some(now)
        });
        assert_eq!(as_wanted.await, wanted, "{step}");
        self.forget();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stand_in_does_what_the_operator_did() {
    let world = World::empty(1, Options::default()).await;
    world.simulator.set_power("node1", bmc_simulator::PowerState::Off).unwrap();
    let (seen, watch) = Seen::of(&world, "node1").await;
    let ours = json!({"deleteAction": "delay", "terraform-provider-metal": {"uid": "m1", "store": "s"}}).to_string();
    let image = json!({"image": {"url": "https://images.example/os.raw"}});
    let consumer = json!({"kind": "Maintenance", "name": "m1", "apiVersion": "terraform-provider-metal/v1"});
    let mut lines = include_str!("table.txt").lines();
    while let Some((step, wanted)) = lines.next().zip(lines.next()) {
        let host = |change: Value| world.merge("BareMetalHost", "node1", change);
        match step {
            "the host arrives" => world.add("node1", image.clone()).await,
            "detached with our value" | "a key and detached" => world.annotate("node1", json!({DETACHED: ours})).await,
            "detached: spec.online is changed" => host(json!({"spec": {"online": false}})).await,
            "detached: a consumer is named" => host(json!({"spec": {"consumerRef": consumer}})).await,
            "attached again" | "attached after a key" | "deleted and attached again" => {
                world.annotate("node1", json!({DETACHED: null})).await;
            }
            "spec.online is changed back" => host(json!({"spec": {"online": true, "consumerRef": null}})).await,
            "a key is set" => world.annotate("node1", json!({KEY: "{\"mode\":\"soft\"}"})).await,
            "detached: the key is removed" => world.annotate("node1", json!({KEY: null})).await,
            "paused and then detached" => world.annotate("node1", json!({PAUSED: "x", DETACHED: ours})).await,
            "no longer paused" => world.annotate("node1", json!({PAUSED: null})).await,
            "detached: the host is deleted" => world.delete("node1").await,
            step => panic!("unknown step {step}"),
        }
        seen.until(step, wanted.trim()).await;
    }
    watch.abort();
}
