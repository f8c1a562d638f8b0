//! Detached hosts that Cluster API claims. Compares the stand-in for cluster-api-provider-metal3
//! with the recorded real provider, and tests maintenance on such hosts.
//!
//! `PROVIDER=PROGRAM OPERATOR="PROGRAM -provisioner=fixture" CRDS="FOLDER FOLDER …" cargo test
//! --test metal3 claims::theirs -- --ignored --nocapture` records the real programs. Both run in
//! the foreground and read `KUBECONFIG`; the folders contain their CRDs and those of Cluster API
//! and the IP address manager.

use std::{fs, process::Stdio};

use futures_util::future::join_all;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use terraform_provider_metal::{
    backend::metal3::{Hold, Metal3Backend},
    maintenance::gate::ExternalState,
};

use super::{
    compare::Seen,
    holds::{Held, backend},
};
use crate::support::{
    ironcore::patience,
    metal3::{
        capm3::{Capm3, Version, cluster_api},
        operator::Options,
        world::{DETACHED, World},
    },
};

/// Hosts with their steps in order. Each host has a Metal3Machine of the same name, which can use
/// only this host.
const CHAINS: [(&str, &[&str]); 4] = [
    (
        "node1",
        &["detached without a consumer: a Metal3Machine wants the host", "claimed while detached: attached again"],
    ),
    ("node2", &["held host: a Metal3Machine wants it", "the maintenance releases the host"]),
    (
        "node3",
        &[
            "a Metal3Machine has the host: a maintenance detaches it",
            "claimed and detached: spec.online becomes false",
            "claimed and detached: spec.image goes",
            "claimed and detached: the consumer goes",
            "claimed and detached: the Metal3Machine is changed",
            "claimed and detached: the Metal3Machine is deleted",
            "the maintenance releases a deleted Metal3Machine's host",
        ],
    ),
    (
        "node4",
        &[
            "held host for reuse: another control plane's Metal3Machine wants it",
            "held host for reuse: a Metal3Machine wants it",
            "the maintenance releases the host for reuse",
        ],
    ),
];

/// Describes a host: provisioning state, operational status, `spec.online`, image, consumer.
fn line(host: &Value) -> String {
    let text = |pointer: &str| host.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut words = vec![text("/status/provisioning/state"), text("/status/operationalStatus")];
    words.push(if host["spec"]["online"] == true { "online" } else { "offline" }.to_owned());
    words.push(if host["spec"]["image"].is_null() { "no-image" } else { "image" }.to_owned());
    words.push(match text("/spec/consumerRef/kind").as_str() {
        "" => "free".to_owned(),
        "Maintenance" => "consumer=ours".to_owned(),
        kind => format!("consumer={kind}"),
    });
    if !host["metadata"]["annotations"][DETACHED].is_null() {
        words.push("+detached".to_owned());
    }
    words.join(" ")
}

/// The Cluster API objects of a namespace.
struct Stage<'a>(&'a World);

impl Stage<'_> {
    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let client = self.0.running.operator.client.clone();
        Api::namespaced_with(client, &self.0.namespace, &cluster_api(kind))
    }

    async fn create(&self, kind: &str, name: &str, mut object: Value) -> Value {
        object["apiVersion"] = json!(cluster_api(kind).api_version);
        object["kind"] = json!(kind);
        object["metadata"]["name"] = json!(name);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        serde_json::to_value(self.api(kind).create(&PostParams::default(), &object).await.unwrap()).unwrap()
    }

    async fn merge_status(&self, kind: &str, name: &str, status: Value) {
        let change = Patch::Merge(json!({ "status": status }));
        self.api(kind).patch_status(name, &PatchParams::default(), &change).await.unwrap();
    }

    /// Creates a cluster with ready infrastructure.
    async fn cluster(&self) {
        let infrastructure =
            json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Metal3Cluster", "name": "c"});
        let endpoint = json!({"host": "10.0.0.1", "port": 6443});
        let spec = json!({"infrastructureRef": infrastructure, "controlPlaneEndpoint": endpoint});
        let cluster = self.create("Cluster", "c", json!({ "spec": spec })).await;
        let owner = json!([{
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": cluster["metadata"]["uid"],
        }]);
        let metadata = json!({"ownerReferences": owner, "labels": {"cluster.x-k8s.io/cluster-name": "c"}});
        self.create("Metal3Cluster", "c", json!({"metadata": metadata, "spec": {"controlPlaneEndpoint": endpoint}}))
            .await;
        let ready =
            json!([{"type": "InfrastructureReady", "status": "True", "lastTransitionTime": jiff::Timestamp::now()}]);
        let status = json!({
            "initialization": {"infrastructureProvisioned": true},
            "deprecated": {"v1beta1": {"conditions": ready}},
        });
        self.merge_status("Cluster", "c", status).await;
    }

    /// Creates the Machines' control plane, whose template does not keep hosts for reuse.
    async fn control_plane(&self) {
        let image = json!({"url": "https://images.example/os.raw", "checksum": "auto", "diskFormat": "raw"});
        let template = json!({"spec": {"template": {"spec": {"image": image}}}});
        self.create("Metal3MachineTemplate", "plane", template).await;
        let template =
            json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Metal3MachineTemplate", "name": "plane"});
        let spec = json!({
            "version": "v1.36.0", "machineTemplate": {"spec": {"infrastructureRef": template}},
            "kubeadmConfigSpec": {"format": "cloud-config"},
        });
        self.create("KubeadmControlPlane", "plane", json!({ "spec": spec })).await;
    }

    /// Creates a bootstrapped control plane Machine, with a Metal3Machine for one host.
    async fn machine(&self, name: &str, host: &str, control_plane: &str) {
        let infrastructure =
            json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Metal3Machine", "name": name});
        let labels = json!({"cluster.x-k8s.io/cluster-name": "c", "cluster.x-k8s.io/control-plane": ""});
        let owner = json!([{
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
            "name": control_plane, "uid": "1", "controller": true,
        }]);
        let spec = json!({
            "clusterName": "c", "bootstrap": {"dataSecretName": "boot"}, "infrastructureRef": infrastructure,
        });
        let metadata = json!({"labels": labels, "ownerReferences": owner});
        let machine = self.create("Machine", name, json!({"metadata": metadata, "spec": spec})).await;
        // As if its Node had joined.
        self.merge_status("Machine", name, json!({"nodeRef": {"name": name}})).await;
        let owner = json!([{
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name,
            "uid": machine["metadata"]["uid"], "controller": true,
        }]);
        let image = json!({"url": "https://images.example/os.raw", "checksum": "auto", "diskFormat": "raw"});
        let spec = json!({"image": image, "hostSelector": {"matchLabels": {"host": host}}});
        let metadata = json!({"labels": labels, "ownerReferences": owner});
        self.create("Metal3Machine", name, json!({"metadata": metadata, "spec": spec})).await;
    }
}

async fn until(world: &World, host: &str, wanted: &str) {
    world.until(host, wanted, |host| line(host) == wanted).await;
}

/// Brings a host to its chain's initial state.
async fn begin(world: &World, host: &str, held: &mut Held) {
    world.add(host, json!({})).await;
    let labels = json!({"metadata": {"labels": {"host": host}}});
    world.merge("BareMetalHost", host, labels).await;
    until(world, host, "available OK online no-image free").await;
    match host {
        "node1" => {
            world.annotate(host, json!({DETACHED: json!({"deleteAction": "delay"}).to_string()})).await;
            until(world, host, "available detached online no-image free +detached").await;
        }
        "node2" => held.enter().await,
        "node3" => {
            Stage(world).machine(host, host, "plane").await;
            until(world, host, "provisioned OK online image consumer=Metal3Machine").await;
        }
        _ => {
            let labels = json!({"infrastructure.cluster.x-k8s.io/node-reuse": "cp-plane"});
            world.merge("BareMetalHost", host, json!({"metadata": {"labels": labels}})).await;
            held.enter().await;
        }
    }
}

async fn play(world: &World, host: &str, held: &mut Held, step: &str) {
    let stage = Stage(world);
    let spec = |change: Value| world.merge("BareMetalHost", host, json!({"spec": change}));
    match step {
        "detached without a consumer: a Metal3Machine wants the host"
        | "held host: a Metal3Machine wants it"
        | "held host for reuse: a Metal3Machine wants it" => stage.machine(host, host, "plane").await,
        "held host for reuse: another control plane's Metal3Machine wants it" => {
            stage.machine("other", host, "other").await;
        }
        "claimed while detached: attached again" => world.annotate(host, json!({DETACHED: null})).await,
        "a Metal3Machine has the host: a maintenance detaches it" => held.enter().await,
        "claimed and detached: spec.online becomes false" => spec(json!({"online": false})).await,
        "claimed and detached: spec.image goes" => spec(json!({"image": null})).await,
        "claimed and detached: the consumer goes" => spec(json!({"consumerRef": null})).await,
        "claimed and detached: the Metal3Machine is changed" => {
            let change = Patch::Merge(json!({"metadata": {"annotations": {"example/changed": "1"}}}));
            stage.api("Metal3Machine").patch(host, &PatchParams::default(), &change).await.unwrap();
        }
        "claimed and detached: the Metal3Machine is deleted" => {
            stage.api("Metal3Machine").delete(host, &DeleteParams::default()).await.unwrap();
        }
        "the maintenance releases the host"
        | "the maintenance releases a deleted Metal3Machine's host"
        | "the maintenance releases the host for reuse" => held.call_leave().await,
        step => panic!("unknown step {step}"),
    }
}

/// Returns the state of the Metal3Machine that uses a host.
async fn machine(world: &World, host: &str) -> &'static str {
    match Stage(world).api("Metal3Machine").get_opt(host).await.unwrap() {
        None => "none",
        Some(machine) if machine.metadata.deletion_timestamp.is_some() => "being deleted",
        Some(_) => "there",
    }
}

/// Records a chain with the real programs.
async fn record(world: &World, backend: &Metal3Backend, chain: (&'static str, &[&str])) -> String {
    let (host, steps) = chain;
    let mut held = Held::new(backend, host, &format!("m-{host}"));
    begin(world, host, &mut held).await;
    let mut text = String::new();
    for step in steps {
        let (seen, watch) = Seen::by(world, host, line).await;
        seen.begin(world, host).await;
        play(world, host, &mut held, step).await;
        let last = seen.settled().await;
        eprintln!("{host} {step}: {last}");
        text += &format!("{step}\n    {last}\n    Metal3Machine: {}\n", machine(world, host).await);
        watch.abort();
    }
    text
}

/// Returns the table's entries for a step and a version: host and Metal3Machine.
fn wanted(step: &str, version: Version) -> (&'static str, &'static str) {
    let mut lines = include_str!("claims.txt").lines().skip_while(|line| *line != step).skip(1);
    let mut said = || {
        let other = if version == Version::V1_13 { "V1_14: " } else { "V1_13: " };
        let line = lines.by_ref().map(str::trim).find(|line| !line.starts_with(other))?;
        Some(line.trim_start_matches(&format!("{version:?}: ")))
    };
    said().zip(said()).unwrap_or_else(|| panic!("{step}: nothing about {version:?}"))
}

/// Compares a chain with the stand-ins.
async fn compare(
    world: &World,
    provider: &Capm3,
    backend: &Metal3Backend,
    version: Version,
    chain: (&'static str, &[&str]),
) {
    let (host, steps) = chain;
    let mut held = Held::new(backend, host, &format!("m-{host}"));
    begin(world, host, &mut held).await;
    let (seen, watch) = Seen::by(world, host, line).await;
    seen.begin(world, host).await;
    for step in steps {
        let (line, of_machine) = wanted(step, version);
        // A release frees a host for CAPM3 and its operator in one write.
        let free = line.split_once(" -> ").map(|(first, _)| first).filter(|first| first.ends_with(" free"));
        if free.is_some() {
            provider.overlook(host);
        }
        play(world, host, &mut held, step).await;
        if let Some(free) = free {
            patience::until(&format!("{step}: {free}"), async || (seen.now() == free).then_some(())).await;
            provider.see(host);
        }
        if line != "nothing" {
            seen.until(&format!("{version:?}: {step}"), line).await;
        }
        patience::until(&format!("{step}: {of_machine}"), async || {
            (format!("Metal3Machine: {}", machine(world, host).await) == of_machine).then_some(())
        })
        .await;
        // Longer than the stand-in's poll interval.
        tokio::time::sleep(world.running.operator.options.steady * 2).await;
        assert_eq!(seen.now(), "nothing", "{version:?}: {step}: later");
    }
    watch.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stand_in_does_what_the_provider_did() {
    for version in [Version::V1_13, Version::V1_14] {
        let world = World::empty(CHAINS.len(), Options::default()).await;
        for host in world.simulator.systems() {
            world.simulator.set_power(&host, bmc_simulator::PowerState::Off).unwrap();
        }
        let kinds = include_str!("../support/cluster_api/crds.yaml");
        tokio::task::block_in_place(|| world.kubernetes.apply(kinds));
        let provider = Capm3::start(world.running.operator.client.clone(), &world.namespace, version);
        let backend = backend(&world, Hold::Detach);
        join_all(CHAINS.map(|chain| compare(&world, &provider, &backend, version, chain))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_for_reuse_is_told_and_boots_no_image() {
    let world = World::empty(1, Options::default()).await;
    world.add("node1", json!({"automatedCleaningMode": "disabled"})).await;
    until(&world, "node1", "available OK online no-image free").await;
    let held = |hold| Held::new(&backend(&world, hold), "node1", "m1");
    assert_eq!(held(Hold::Image).standing().await, ExternalState::Absent);
    let labels = json!({"infrastructure.cluster.x-k8s.io/node-reuse": "cp-plane"});
    world.merge("BareMetalHost", "node1", json!({"metadata": {"labels": labels}})).await;
    let ExternalState::Refused(why) = held(Hold::Image).standing().await else { panic!("not refused") };
    assert!(why.raw().contains("cp-plane") && why.raw().contains("detach"), "{why}");
    let detach = held(Hold::Detach);
    assert_eq!(detach.standing().await, ExternalState::Absent);
    let outlook = detach.machine.maintenance_system().unwrap().outlook(&detach.wish).await.unwrap().lines.join("\n");
    assert!(outlook.contains("cp-plane") && outlook.contains("v1.14"), "{outlook}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real provider and operator; only records"]
async fn theirs() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let options = Options::default();
    // The stand-in exists but does nothing.
    options.awake.close();
    let world = World::empty(CHAINS.len(), options).await;
    for folder in variable("CRDS").split(' ') {
        for file in fs::read_dir(folder).unwrap() {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            // Labels with the supported contract versions, as in their installation.
            let labels = "\n  labels:\n    cluster.x-k8s.io/v1beta1: v1beta1\n    cluster.x-k8s.io/v1beta2: v1beta2\n";
            let (there, with) = if text.contains("\n  labels:\n") {
                ("\n  labels:\n", labels.to_owned())
            } else {
                ("\nmetadata:\n", format!("\nmetadata:{labels}"))
            };
            let text = text.replacen(there, &with, 1);
            tokio::task::block_in_place(|| world.kubernetes.apply(&text));
        }
    }
    let stage = Stage(&world);
    world.create("Secret", "boot", json!({"stringData": {"value": "#cloud-config"}})).await;
    stage.cluster().await;
    stage.control_plane().await;
    // The created cluster is the cluster in which it runs.
    let kubeconfig = fs::read_to_string(world.kubernetes.kubeconfig()).unwrap();
    let labels = json!({"cluster.x-k8s.io/cluster-name": "c"});
    world
        .create("Secret", "c-kubeconfig", json!({"metadata": {"labels": labels}, "stringData": {"value": kubeconfig}}))
        .await;
    let start = |name: &str, arguments: &[&str]| {
        let command = variable(name);
        let mut words = command.split(' ');
        let log = std::env::temp_dir().join(format!("{}-{}.log", name.to_lowercase(), world.namespace));
        tokio::process::Command::new(words.next().unwrap())
            .args(words)
            .args(["--namespace", &world.namespace])
            .args(arguments)
            .env("KUBECONFIG", world.kubernetes.kubeconfig())
            .stdout(Stdio::null())
            .stderr(fs::File::create(log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    };
    let certificates = tempfile::tempdir().unwrap();
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(certificates.path().join("tls.crt"), cert.pem()).unwrap();
    fs::write(certificates.path().join("tls.key"), signing_key.serialize_pem()).unwrap();
    let port = crate::support::server::free_port().to_string();
    let folder = certificates.path().to_str().unwrap().to_owned();
    let mut provider = start(
        "PROVIDER",
        &[
            "--webhook-port",
            &port,
            "--webhook-cert-dir",
            &folder,
            "--health-addr",
            "127.0.0.1:0",
            "--diagnostics-address",
            "127.0.0.1:0",
            "--insecure-diagnostics",
            "-v",
            "4",
        ],
    );
    let mut operator =
        start("OPERATOR", &["--webhook-port", "0", "--metrics-addr", "127.0.0.1:0", "--health-addr", "127.0.0.1:0"]);
    let backend = backend(&world, Hold::Detach);
    let texts = join_all(CHAINS.map(|chain| record(&world, &backend, chain))).await;
    println!("{}", texts.concat());
    operator.kill().await.unwrap();
    provider.kill().await.unwrap();
}
