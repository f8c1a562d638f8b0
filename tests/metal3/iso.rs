//! Live ISOs on available hosts, booted by the operator through a real Ironic. `hold = "image"`
//! depends on this.
//!
//! Recorded like `ironic.txt`, with `iso::theirs`.

use std::{fs, process::Stdio};

use bmc_simulator::PowerState;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{
    compare::Seen,
    ironic::{begins, real, summary, told, wanted},
};
use crate::support::{
    ironcore::patience,
    metal3::{operator::Options, world::World},
    server::free_port,
};

const CHAINS: [(&str, bool, &[&str]); 2] = [
    ("node1", true, &["a host that is on gets a live ISO", "the host loses its live ISO"]),
    (
        "node2",
        false,
        &[
            "a host that is off gets a live ISO and spec.online",
            "spec.online becomes false",
            "the host that is off loses its live ISO",
        ],
    ),
];

/// Brings a new host to its chain's initial state: available.
async fn begin(world: &World, host: &str, online: bool) {
    let mac = format!("52:54:00:00:00:0{}", host.trim_start_matches("node"));
    world.add(host, json!({"online": online, "automatedCleaningMode": "disabled", "bootMACAddress": mac})).await;
    world.annotate(host, json!({"inspect.metal3.io": "disabled"})).await;
    begins(world, host, "available", online).await;
}

async fn play(world: &World, host: &str, image: &str, step: &str) {
    let spec = |change: Value| world.merge("BareMetalHost", host, json!({"spec": change}));
    let image = json!({"url": image, "format": "live-iso"});
    match step {
        "a host that is on gets a live ISO" => spec(json!({ "image": image })).await,
        "a host that is off gets a live ISO and spec.online" => spec(json!({"image": image, "online": true})).await,
        "spec.online becomes false" => spec(json!({"online": false})).await,
        "the host loses its live ISO" | "the host that is off loses its live ISO" => spec(json!({"image": null})).await,
        step => panic!("unknown step {step}"),
    }
}

async fn record(world: &World, image: &str, chain: (&'static str, bool, &[&str])) -> String {
    let (host, online, steps) = chain;
    begin(world, host, online).await;
    let mut text = String::new();
    for step in steps {
        let (seen, watch) = Seen::of(world, host).await;
        seen.begin(world, host).await;
        let since = world.simulator.sequence();
        play(world, host, image, step).await;
        let last = seen.settled().await;
        let told = told(world, host, since);
        let system = world.simulator.system(host).unwrap();
        eprintln!("{host} {step}: {last}\n    {told:?}\n    {:?} {:?} {:?}", system.power, system.boot, system.media);
        text += &format!("{step}\n    {last}\n    {}\n", summary(&told));
        watch.abort();
    }
    text
}

/// Compares a chain with the stand-in.
async fn compare(world: &World, chain: (&'static str, bool, &[&str])) {
    let (host, online, steps) = chain;
    begin(world, host, online).await;
    let (seen, watch) = Seen::of(world, host).await;
    seen.begin(world, host).await;
    for step in steps {
        let (line, bmc) = wanted(include_str!("iso.txt"), step);
        let since = world.simulator.sequence();
        play(world, host, "https://images.example/rescue.iso", step).await;
        seen.until(step, line).await;
        let now = async || summary(&told(world, host, since));
        patience::until(&format!("{step}: {bmc}"), async || (now().await == bmc).then_some(())).await;
        // Longer than the poll interval of a settled host.
        tokio::time::sleep(world.running.operator.options.steady * 2).await;
        assert_eq!((seen.now().as_str(), now().await.as_str()), ("nothing", bmc), "{step}: later");
    }
    // Ironic removes the image, and leaves the override that it set.
    let system = world.simulator.system(host).unwrap();
    assert!(system.media.is_empty(), "{:?}", system.media);
    assert_eq!(format!("{:?} {:?}", system.boot.enabled, system.boot.target), "Continuous Cd");
    watch.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stand_in_boots_as_ironic_did() {
    let world = World::empty(CHAINS.len(), Options::default()).await;
    for (host, online, _) in CHAINS {
        let power = if online { PowerState::On } else { PowerState::Off };
        world.simulator.set_power(host, power).unwrap();
    }
    join_all(CHAINS.map(|chain| compare(&world, chain))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real operator; only records"]
async fn theirs() {
    let (world, ironic, mut operator) = real(CHAINS.len()).await;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rescue.iso"), vec![0; 1 << 20]).unwrap();
    let port = free_port().to_string();
    let mut images = tokio::process::Command::new("python3")
        .args(["-m", "http.server", "--bind", "127.0.0.1", &port])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let image = format!("http://127.0.0.1:{port}/rescue.iso");
    let texts = join_all(CHAINS.map(|chain| record(&world, &image, chain))).await;
    println!("{}", texts.concat());
    println!("{}", ironic.log());
    images.kill().await.unwrap();
    operator.kill().await.unwrap();
}
