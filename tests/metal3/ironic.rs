//! Compares the stand-in with recordings of the operator on a real Ironic and BMCs. Covers
//! features missing in the operator's fixture: `spec.disablePowerOff` and a detached host's power.
//!
//! `OPERATOR=PROGRAM CRDS=FOLDER cargo test --test metal3 ironic::theirs -- --ignored --nocapture`
//! records a real operator, as in `versions::theirs`, with an Ironic started by this test.

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use bmc_simulator::{JournalQuery, PowerState};
use futures_util::future::join_all;
use serde_json::{Value, json};
use terraform_provider_metal::{
    backend::metal3::{Hold, Metal3Backend},
    maintenance::{
        gate::ExternalState,
        machine::{BootOverride, ResetType},
    },
};

use super::{
    compare::{KEY, PLAIN, Seen},
    holds::{Held, backend},
};
use crate::support::{
    ironcore::patience,
    ironic::{self, Ironic},
    metal3::{
        operator::{Call, Options},
        world::World,
    },
};

/// Hosts with `disablePowerOff` and their steps in order. They are externally provisioned and on.
const CHAINS: [(&str, bool, &[&str]); 9] = [
    ("node1", true, &["never off: a soft key is set", "never off: the soft key goes", "never off: a soft reboot"]),
    ("node2", true, &["never off: a hard key is set", "never off: the hard key goes", "never off: a hard reboot"]),
    ("node3", true, &["never off: spec.online becomes false", "never off: spec.online becomes true"]),
    (
        "node4",
        false,
        &["a soft key is set", "kept off: disablePowerOff is set", "never off: the key goes while the host is off"],
    ),
    ("node5", true, &["never off: the host is deleted"]),
    (
        "node6",
        false,
        &[
            "a maintenance detaches the host",
            "detached: power cycle, boot override, off",
            "the maintenance releases the host that is off",
            "a maintenance detaches the host again",
            "detached: boot override for all starts, power cycle",
            "the maintenance releases the host that is on",
        ],
    ),
    (
        "node7",
        true,
        &[
            "never off: a maintenance detaches the host",
            "never off: detached and switched off",
            "never off: the maintenance releases the host",
        ],
    ),
    ("node8", true, &["never off: a soft reboot while Ironic locks the node", "never off: Ironic unlocks the node"]),
    ("node9", false, &["a soft reboot while Ironic locks the node", "Ironic unlocks the node"]),
];

/// Brings a new host to its chain's initial state.
async fn begin(world: &World, host: &str, never_off: bool) {
    world.add(host, json!({"externallyProvisioned": true, "disablePowerOff": never_off})).await;
    begins(world, host, "externally provisioned", true).await;
}

/// Waits for a new host's state, with a limit for a busy Ironic.
pub async fn begins(world: &World, host: &str, state: &str, on: bool) {
    let end = Instant::now() + Duration::from_mins(8);
    loop {
        let status = world.host(host).await["status"].clone();
        let settled = status["provisioning"]["state"] == state && status["operationalStatus"] == "OK";
        if settled && (status["poweredOn"] == true) == on {
            return;
        }
        assert!(Instant::now() < end, "{host}: {status:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Locks or unlocks the host's Ironic node, as another call would.
async fn lock(world: &World, ironic: Option<&Ironic>, host: &str, locked: bool) {
    let by = if locked { "'conductor-1'" } else { "NULL" };
    if let Some(ironic) = ironic {
        return ironic.sql(&format!("UPDATE nodes SET reservation = {by} WHERE name LIKE '%~{host}'")).await;
    }
    let call = if locked { Call::Foreign } else { Call::None };
    world.running.operator.nodes.lock().unwrap().get_mut(host).unwrap().call = call;
}

/// Same as [`Held::leave`], with a limit for a busy Ironic.
async fn release(held: &Held) {
    held.call_leave().await;
    let end = Instant::now() + Duration::from_mins(10);
    while !matches!(held.standing().await, ExternalState::Leftovers(_)) {
        assert!(Instant::now() < end, "{:?}", held.standing().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    held.call_leave().await;
}

async fn play(world: &World, ironic: Option<&Ironic>, host: &str, held: &mut Held, step: &str) {
    let spec = |change: Value| world.merge("BareMetalHost", host, json!({"spec": change}));
    let mode = |mode: &str| json!({ "mode": mode }).to_string();
    let device = |target: &str, enabled: &str| BootOverride {
        enabled: Some(enabled.into()),
        target: Some(target.into()),
        ..BootOverride::default()
    };
    let power = async |state| world.simulator.wait_power(host, state, Duration::from_mins(1)).await.unwrap();
    match step.trim_start_matches("never off: ") {
        "a soft key is set" => world.annotate(host, json!({KEY: mode("soft")})).await,
        "a hard key is set" => world.annotate(host, json!({KEY: mode("hard")})).await,
        "the soft key goes" | "the hard key goes" | "the key goes while the host is off" => {
            world.annotate(host, json!({KEY: null})).await;
        }
        "a soft reboot while Ironic locks the node" => {
            lock(world, ironic, host, true).await;
            world.annotate(host, json!({PLAIN: mode("soft")})).await;
        }
        "Ironic unlocks the node" => lock(world, ironic, host, false).await,
        "a soft reboot" => world.annotate(host, json!({PLAIN: mode("soft")})).await,
        "a hard reboot" => world.annotate(host, json!({PLAIN: mode("hard")})).await,
        "spec.online becomes false" => spec(json!({"online": false})).await,
        "spec.online becomes true" => spec(json!({"online": true})).await,
        "kept off: disablePowerOff is set" => spec(json!({"disablePowerOff": true})).await,
        "the host is deleted" => world.delete(host).await,
        "a maintenance detaches the host" | "a maintenance detaches the host again" => {
            held.wish.asked = false;
            held.wish.entered = false;
            held.enter().await;
        }
        "detached: power cycle, boot override, off" => {
            held.reset(ResetType::ForceOff).await;
            power(PowerState::Off).await;
            held.set_boot_override(&device("Pxe", "Once")).await;
            held.reset(ResetType::On).await;
            power(PowerState::On).await;
            held.reset(ResetType::ForceOff).await;
            power(PowerState::Off).await;
        }
        "detached: boot override for all starts, power cycle" => {
            held.set_boot_override(&device("Pxe", "Continuous")).await;
            held.reset(ResetType::ForceOff).await;
            power(PowerState::Off).await;
            held.reset(ResetType::On).await;
            power(PowerState::On).await;
        }
        "detached and switched off" => {
            held.reset(ResetType::ForceOff).await;
            power(PowerState::Off).await;
        }
        "the maintenance releases the host that is off"
        | "the maintenance releases the host that is on"
        | "the maintenance releases the host" => release(held).await,
        step => panic!("unknown step {step}"),
    }
}

/// Returns the resets and boot overrides sent to a host's BMC by other clients since then.
pub fn told(world: &World, host: &str, since: u64) -> Vec<(u64, String)> {
    let all = world.simulator.journal(&JournalQuery::system(host).since(since));
    let others = all.iter().filter(|entry| !entry.user_agent.as_deref().unwrap_or_default().starts_with("terraform"));
    let what = |entry: &bmc_simulator::JournalEntry| {
        let body = entry.body.clone().unwrap_or_default();
        match entry.method.as_str() {
            "POST" if entry.path.ends_with("ComputerSystem.Reset") => body["ResetType"].as_str().map(str::to_owned),
            "POST" if entry.path.ends_with("InsertMedia") => Some("insert".to_owned()),
            "POST" if entry.path.ends_with("EjectMedia") => Some("eject".to_owned()),
            "PATCH" => {
                let boot = |part: &str| {
                    body["Boot"][format!("BootSourceOverride{part}")].as_str().unwrap_or_default().to_owned()
                };
                Some(format!("boot {} {}", boot("Target"), boot("Enabled")))
            }
            _ => None,
        }
    };
    others.filter_map(|entry| Some((entry.finished_micros.unwrap_or_default() / 1_000_000, what(entry)?))).collect()
}

/// Summarises the calls: three or more equal calls form a loop.
pub fn summary(told: &[(u64, String)]) -> String {
    let mut runs: Vec<(&str, usize)> = Vec::new();
    for (_, what) in told {
        match runs.last_mut() {
            Some((last, count)) if last == what => *count += 1,
            _ => runs.push((what, 1)),
        }
    }
    let words = runs.iter().map(|(what, count)| match count {
        1 => (*what).to_owned(),
        2 => format!("{what}, {what}"),
        _ => format!("{what} again and again"),
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

/// Records a chain with the real operator.
async fn record(
    (world, ironic, backend): (&World, &Ironic, &Metal3Backend),
    chain: (&'static str, bool, &[&str]),
) -> String {
    let (host, never_off, steps) = chain;
    begin(world, host, never_off).await;
    let mut held = Held::new(backend, host, &format!("m-{host}"));
    let mut text = String::new();
    for step in steps {
        let (seen, watch) = Seen::of(world, host).await;
        seen.begin(world, host).await;
        let since = world.simulator.sequence();
        play(world, Some(ironic), host, &mut held, step).await;
        let last = seen.settled().await;
        let told = told(world, host, since);
        eprintln!("{host} {step}: {last}\n    {told:?}");
        let system = world.simulator.system(host).unwrap();
        eprintln!("    {:?} {:?}", system.power, system.boot);
        text += &format!("{step}\n    {last}\n    {}\n", summary(&told));
        watch.abort();
        if last.ends_with("gone") {
            break;
        }
    }
    text
}

/// Returns a table's entries for a step: host and BMC.
pub fn wanted(table: &'static str, step: &str) -> (&'static str, &'static str) {
    let mut lines = table.lines().skip_while(|line| *line != step).skip(1);
    lines.next().map(str::trim).zip(lines.next().map(str::trim)).unwrap_or_else(|| panic!("nothing about {step}"))
}

/// Compares a chain with the stand-in.
async fn compare(world: &World, backend: &Metal3Backend, chain: (&'static str, bool, &[&str])) {
    let (host, never_off, steps) = chain;
    begin(world, host, never_off).await;
    let mut held = Held::new(backend, host, &format!("m-{host}"));
    let (seen, watch) = Seen::of(world, host).await;
    seen.begin(world, host).await;
    for step in steps {
        let (line, bmc) = wanted(include_str!("ironic.txt"), step);
        let since = world.simulator.sequence();
        play(world, None, host, &mut held, step).await;
        if line != "nothing" {
            seen.until(step, line).await;
        }
        let now = async || summary(&told(world, host, since));
        patience::until(&format!("{step}: {bmc}"), async || (now().await == bmc).then_some(())).await;
        if bmc.ends_with("again and again") {
            continue;
        }
        // Longer than the poll interval of a settled host.
        tokio::time::sleep(world.running.operator.options.steady * 3).await;
        assert_eq!((seen.now().as_str(), now().await.as_str()), ("nothing", bmc), "{step}: later");
    }
    watch.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stand_in_does_what_the_operator_did_with_ironic() {
    let world = World::empty(CHAINS.len(), Options::default()).await;
    let backend = backend(&world, Hold::Detach);
    join_all(CHAINS.map(|chain| compare(&world, &backend, chain))).await;
}

/// Starts BMCs, an Ironic and the real operator with its own CRDs. The stand-in exists but does
/// nothing.
pub async fn real(hosts: usize) -> (World, Ironic, tokio::process::Child) {
    let options = Options::default();
    options.awake.close();
    let world = World::empty(hosts, options).await;
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    for file in fs::read_dir(variable("CRDS")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        tokio::task::block_in_place(|| world.kubernetes.apply(&text));
    }
    let ironic = Ironic::start(ironic::Options { sync_power: 30, operator: true, ..ironic::Options::default() }).await;
    let operator = tokio::process::Command::new(variable("OPERATOR"))
        .args(["-namespace", &world.namespace, "-webhook-port", "0"])
        .args(["-metrics-addr", "127.0.0.1:0", "-health-addr", "127.0.0.1:0"])
        .env("KUBECONFIG", world.kubernetes.kubeconfig())
        .env("IRONIC_ENDPOINT", format!("{}/v1/", ironic.url()))
        .env("DEPLOY_KERNEL_URL", "http://127.0.0.1:1/kernel")
        .env("DEPLOY_RAMDISK_URL", "http://127.0.0.1:1/ramdisk")
        .env("BMO_CONCURRENCY", "8")
        .env("METAL3_AUTH_ROOT_DIR", ironic.folder().join("no-authentication"))
        .stdout(Stdio::null())
        .stderr(fs::File::create(std::env::temp_dir().join(format!("operator-{}.log", world.namespace))).unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    (world, ironic, operator)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real operator; only records"]
async fn theirs() {
    let (world, ironic, mut operator) = real(CHAINS.len()).await;
    let backend = backend(&world, Hold::Detach);
    let texts = join_all(CHAINS.map(|chain| record((&world, &ironic, &backend), chain))).await;
    println!("{}", texts.concat());
    if std::env::var_os("IRONIC_LOG").is_some() {
        println!("{}", ironic.log());
    }
    operator.kill().await.unwrap();
}
