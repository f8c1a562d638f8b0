//! Compares the stand-in with the table of differences between operator versions.
//!
//! `OPERATOR="PROGRAM -test-mode" CRDS=FOLDER cargo test --test metal3 versions::theirs --
//! --ignored --nocapture` records a real operator, which runs in the foreground and reads
//! `KUBECONFIG`; the folder contains its CRDs. Newer versions need `-provisioner=fixture` instead.

use std::{fs, process::Stdio, time::Duration};

use serde_json::{Value, json};

use super::compare::{KEY, PAUSED, Seen};
use crate::support::metal3::{
    operator::{Options, Version},
    world::{DETACHED, World},
};

/// The steps, each with a separate host.
const STEPS: [(&str, &str); 7] = [
    ("node1", "an available host that is detached is deleted"),
    ("node2", "a provisioned host is deleted before it is detached"),
    ("node3", "an externally provisioned host that is detached is deleted"),
    ("node4", "a host with a key is deprovisioned"),
    ("node5", "an available host gets a live ISO"),
    ("node6", "a host that is switched off loses its live ISO"),
    ("node7", "a host whose firmware shall change gets a key"),
];

const VERSIONS: [Version; 4] = [Version::V0_11, Version::V0_13, Version::V0_14, Version::Newest];

/// Brings a host to the initial state of a step and plays the step.
async fn play(world: &World, seen: &Seen, host: &str, step: &str) {
    let ours = json!({"deleteAction": "delay", "terraform-provider-metal": {"uid": "m1", "store": "s"}}).to_string();
    let image = json!({"image": {"url": "https://images.example/os.raw", "checksum": "auto"}});
    let live = json!({"image": {"url": "https://images.example/rescue.iso", "format": "live-iso"}});
    let (more, settled) = match host {
        "node1" => (json!({}), "available"),
        "node5" => (json!({"automatedCleaningMode": "disabled"}), "available"),
        "node6" => (json!({"automatedCleaningMode": "disabled", "image": live["image"]}), "provisioned"),
        "node3" => (json!({"externallyProvisioned": true}), "externally provisioned"),
        _ => (image, "provisioned"),
    };
    let status = |host: &Value| host["status"].clone();
    world.add(host, more).await;
    let begins = |host: &Value| status(host)["provisioning"]["state"] == settled && status(host)["poweredOn"] == true;
    world.until(host, settled, begins).await;
    if host == "node4" {
        world.annotate(host, json!({KEY: "{\"mode\":\"soft\"}"})).await;
        world.until(host, "off", |host| status(host)["poweredOn"] == false).await;
        seen.begin(world, host).await;
        return world.merge("BareMetalHost", host, json!({"spec": {"image": null}})).await;
    }
    if host == "node7" {
        world.create("HostUpdatePolicy", host, json!({"spec": {"firmwareSettings": "onReboot"}})).await;
        let firmware = json!({"spec": {"firmware": {"virtualizationEnabled": true}}});
        world.merge("BareMetalHost", host, firmware).await;
        seen.begin(world, host).await;
        return world.annotate(host, json!({KEY: "{\"mode\":\"soft\"}"})).await;
    }
    if host == "node5" {
        seen.begin(world, host).await;
        return world.merge("BareMetalHost", host, json!({"spec": live})).await;
    }
    if host == "node6" {
        world.merge("BareMetalHost", host, json!({"spec": {"online": false}})).await;
        world.until(host, "off", |host| status(host)["poweredOn"] == false).await;
        seen.begin(world, host).await;
        return world.merge("BareMetalHost", host, json!({"spec": {"image": null}})).await;
    }
    if step.contains("before") {
        world.annotate(host, json!({PAUSED: "x", DETACHED: ours})).await;
        world.delete(host).await;
        seen.begin(world, host).await;
        return world.annotate(host, json!({PAUSED: null})).await;
    }
    world.annotate(host, json!({DETACHED: ours})).await;
    world.until(host, "detached", |host| status(host)["operationalStatus"] == "detached").await;
    seen.begin(world, host).await;
    world.delete(host).await;
}

/// Returns the table's entry for a step and a version.
fn wanted(step: &str, version: Version) -> &'static str {
    let mut lines = include_str!("versions.txt").lines().skip_while(|line| *line != step).skip(1);
    let found = lines.find_map(|line| {
        let (versions, seen) = line.trim().split_once(": ")?;
        versions.split(' ').any(|one| one == format!("{version:?}")).then_some(seen)
    });
    found.unwrap_or_else(|| panic!("{step}: nothing about {version:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stand_in_does_what_each_version_did() {
    for version in VERSIONS {
        let world = World::empty(STEPS.len(), Options { version, boots_ramdisk: false, ..Options::default() }).await;
        let mut all = Vec::new();
        for (host, step) in STEPS {
            world.simulator.set_power(host, bmc_simulator::PowerState::Off).unwrap();
            let (seen, watch) = Seen::of(&world, host).await;
            play(&world, &seen, host, step).await;
            seen.until(&format!("{version:?}: {step}"), wanted(step, version)).await;
            all.push((step, seen, watch));
        }
        // Changes that arrived during the following steps.
        for (step, seen, watch) in all {
            assert_eq!(seen.now(), "nothing", "{version:?}: {step}");
            watch.abort();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real operator; only records"]
async fn theirs() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let options = Options::default();
    // The stand-in exists but does nothing.
    options.awake.close();
    let world = World::empty(STEPS.len(), options).await;
    for file in fs::read_dir(variable("CRDS")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        tokio::task::block_in_place(|| world.kubernetes.apply(&text));
    }
    let command = variable("OPERATOR");
    let mut words = command.split(' ');
    let mut operator = tokio::process::Command::new(words.next().unwrap())
        .args(words)
        .args(["-namespace", &world.namespace, "-webhook-port", "0"])
        .args(["-metrics-addr", "127.0.0.1:0", "-health-addr", "127.0.0.1:0"])
        .env("KUBECONFIG", world.kubernetes.kubeconfig())
        .stdout(Stdio::null())
        .stderr(fs::File::create(std::env::temp_dir().join("baremetal-operator.log")).unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    for (host, step) in STEPS {
        let (seen, watch) = Seen::of(&world, host).await;
        play(&world, &seen, host, step).await;
        let mut last = String::new();
        // Longer than any delay of the fixture.
        while seen.now() != last {
            last = seen.now();
            tokio::time::sleep(Duration::from_secs(25)).await;
        }
        println!("{step}\n    {last}");
        watch.abort();
    }
    operator.kill().await.unwrap();
}
