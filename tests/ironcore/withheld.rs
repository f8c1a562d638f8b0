//! Attacks on BMC credentials: a cluster's users name addresses and accounts that are not theirs.
//!
//! The operators are stopped, because they would send the credentials themselves.

use std::{collections::BTreeMap, sync::Arc};

use bmc_simulator::{JournalQuery, Simulator, SimulatorConfig, SystemConfig};
use serde_json::{Value, json};
use terraform_provider_metal::{
    backend::{
        Backend as _, BackendError, Machine,
        metal_operator::{MetalOperatorBackend, MetalOperatorSettings},
        redfish::Trust,
    },
    clock::{Clock, SystemClock},
    kubernetes::{Cluster, ClusterSettings},
    maintenance::gate::{Asks, ExternalRequest},
};
use tokio::net::{TcpListener, TcpStream};

use crate::support::ironcore::{
    Options,
    api::{Key, Kind},
    family::Family,
    world::World,
};

/// Starts a cluster without running operators, whose only server `node1` works.
async fn world() -> (World, Simulator) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let simulator = Simulator::start(SimulatorConfig::with_systems(1)).await.unwrap();
    let mut world = World::empty(Family::Parked, Options::default(), &simulator).await;
    world.operators.stop();
    world.add_server("node1").await;
    (world, simulator)
}

/// Returns the BMC access fields for an address.
fn access(world: &World, address: Value, scheme: &str, port: u16) -> Value {
    let mut bmc = address;
    bmc["bmcSecretRef"] = json!({"name": account(world)});
    bmc["protocol"] = json!({"name": "Redfish", "port": port, "scheme": scheme});
    bmc
}

/// Returns the `BMCSecret` of `node1`'s BMC.
fn account(world: &World) -> String {
    world.simulator.bmc_of("node1").unwrap()
}

/// Adds a server whose BMC object has these access fields.
async fn add(world: &World, name: &str, bmc: Value) {
    world.cluster.create(Kind::Bmc, json!({"metadata": {"name": name}, "spec": bmc})).await.unwrap();
    add_server(world, name, json!({"bmcRef": {"name": name}})).await;
}

async fn add_server(world: &World, name: &str, mut spec: Value) {
    spec["systemUUID"] = SystemConfig::default_uuid(name).to_string().into();
    world.cluster.create(Kind::Server, json!({"metadata": {"name": name}, "spec": spec})).await.unwrap();
}

fn backend(world: &World, trust: Trust, networks: &[&str]) -> MetalOperatorBackend {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let cluster = ClusterSettings { kubeconfig: Some(world.kubernetes.kubeconfig()), ..ClusterSettings::default() };
    let settings = MetalOperatorSettings {
        cluster: Cluster::new(cluster, Arc::clone(&clock)),
        namespace: "default".to_owned(),
        trust,
        bmc_networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
        nodes: None,
    };
    MetalOperatorBackend::new(settings, &clock)
}

fn wish() -> ExternalRequest {
    ExternalRequest {
        store: "store".to_owned(),
        uid: "m1".to_owned(),
        id: "ops/m1".to_owned(),
        owner: "team".into(),
        run: "ci-1".into(),
        asks: Asks::Nobody,
        priority: 0,
        reason: None,
        ticket: None,
        asked: false,
        entered: false,
        enters: true,
        leaving: false,
        namespace: None,
        memory: BTreeMap::new(),
        outer: Vec::new(),
    }
}

/// Returns the plan's lines about a server.
async fn outlook(machine: &Arc<dyn Machine>) -> String {
    machine.maintenance_system().unwrap().outlook(&wish()).await.unwrap().lines.join("\n")
}

/// Returns how often the account of `node1`'s BMC was read.
fn reads(world: &World) -> usize {
    let all = world.requests().into_iter();
    all.filter(|one| one.verb == "get" && one.resource.starts_with("bmcsecrets.")).count()
}

/// Fails if another connection than our own is the listener's first.
async fn nobody_came(theirs: &TcpListener) {
    let own = TcpStream::connect(theirs.local_addr().unwrap()).await.unwrap();
    let (_, first) = theirs.accept().await.unwrap();
    assert_eq!(first, own.local_addr().unwrap(), "a connection arrived");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_names_another_bmcs_secret_and_an_address_gets_no_password() {
    let (world, _simulator) = world().await;
    let theirs = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = theirs.local_addr().unwrap().port();
    let ip = |ip: &str| json!({"access": {"ip": ip}});
    let host = |host: &str| json!({"hostname": host, "access": {"ip": "127.0.0.1"}});
    let attacks = [
        (ip("127.0.0.2"), "https"),
        (ip("127.0.0.2"), "http"),
        (ip("0.0.0.0"), "http"),
        (ip("::ffff:127.0.0.2"), "https"),
        (ip("0x7f000002"), "http"),
        // The host name has precedence over an address within the networks.
        (host("127.0.0.2"), "https"),
        // The text before `@` is a user name.
        (host("127.0.0.1@127.0.0.2"), "http"),
        (host("127.0.0.2/"), "http"),
        // This URL's query contains the address.
        (ip("127.0.0.1"), &format!("http://127.0.0.2:{port}/?")),
    ];
    let mut names = Vec::new();
    for (n, (address, scheme)) in attacks.into_iter().enumerate() {
        let name = format!("attack{n}");
        add(&world, &name, access(&world, address, scheme, port)).await;
        names.push(name);
    }
    let inline = access(&world, json!({"address": "127.0.0.2"}), "http", port);
    add_server(&world, "inline", json!({"bmc": inline})).await;
    names.push("inline".to_owned());

    for (networks, trust, words) in [
        (&[][..], Trust::Anything, "metal_operator.bmc_networks, which is not set"),
        (&["127.0.0.1/32"], Trust::Anything, "is not within metal_operator.bmc_networks"),
        (&["127.0.0.1/32"], Trust::System, "no credentials were sent"),
    ] {
        let backend = backend(&world, trust, networks);
        for name in &names {
            let machine = backend.machine(name).unwrap();
            let under = machine.maintenance_system().unwrap().under(&wish());
            for refused in [machine.capabilities().await.map(drop), under.observe().await.map(drop)] {
                let refused = refused.unwrap_err();
                assert!(matches!(refused, BackendError::Withheld { .. }), "{name}: {refused}");
                assert!(refused.to_string().contains(words), "{name}: {refused}");
            }
            let lines = outlook(&machine).await;
            assert!(lines.contains("no credentials were sent"), "{name}: {lines}");
        }
    }
    nobody_came(&theirs).await;
    assert_eq!(reads(&world), 0, "the account was read for an address outside the networks");
    // The account's own BMC receives it.
    backend(&world, Trust::Anything, &["127.0.0.1/32"]).machine("node1").unwrap().capabilities().await.unwrap();
    assert_eq!(reads(&world), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bmc_whose_address_leaves_the_networks_gets_no_more_passwords() {
    let (world, simulator) = world().await;
    let theirs = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let trust = || Trust::Authority(simulator.trust().unwrap().ca_pem.clone());
    let networks = ["127.0.0.1/32"];
    let connected = backend(&world, trust(), &networks);
    let machine = connected.machine("node1").unwrap();
    machine.capabilities().await.unwrap();
    let port = theirs.local_addr().unwrap().port();
    let moved = json!({"spec": {"hostname": "127.0.0.2", "protocol": {"port": port}}});
    world.cluster.merge(Kind::Bmc, &Key::cluster(&account(&world)), moved).await.unwrap();
    let refused = backend(&world, trust(), &networks).machine("node1").unwrap().capabilities().await.unwrap_err();
    assert!(matches!(refused, BackendError::Withheld { .. }), "{refused}");
    // The connected process stays with the checked address.
    let heard = simulator.journal(&JournalQuery::default()).len();
    machine.capabilities().await.unwrap();
    machine.media(&[]).await.unwrap();
    assert!(simulator.journal(&JournalQuery::default()).len() > heard);
    nobody_came(&theirs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn within_the_networks_plain_text_and_unverified_certificates_need_a_second_setting() {
    let (world, simulator) = world().await;
    let networks = ["192.0.2.0/24", "127.0.0.0/8"];
    add(&world, "plain", access(&world, json!({"access": {"ip": "192.0.2.1"}}), "http", 80)).await;
    let verifying = backend(&world, Trust::System, &networks);
    let refused = verifying.machine("plain").unwrap().capabilities().await.unwrap_err().to_string();
    assert!(refused.contains("metal_operator.bmc_insecure = true"), "{refused}");
    assert_eq!(reads(&world), 0);

    let refused = verifying.machine("node1").unwrap().capabilities().await.unwrap_err();
    assert!(matches!(refused, BackendError::Untrusted { .. }), "{refused}");
    let heard = simulator.journal(&JournalQuery::default());
    assert!(heard.is_empty(), "unexpected requests: {heard:?}");

    let insecure = backend(&world, Trust::Anything, &networks);
    let lines = outlook(&insecure.machine("plain").unwrap()).await;
    assert!(lines.contains("the password is sent unencrypted to 192.0.2.1"), "{lines}");
    insecure.machine("node1").unwrap().capabilities().await.unwrap();
}
