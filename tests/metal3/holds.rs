//! The backend against the stand-in: entering, leaving and concurrent changes by others.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bmc_simulator::{Fault, FaultAction, FaultBody, PowerState};
use serde_json::{Value, json};
use terraform_provider_metal::{
    backend::{
        Backend, BackendError, Machine,
        metal3::{Hold, Metal3Backend, Metal3Settings},
        redfish::Trust,
    },
    clock::{Clock, SystemClock},
    kubernetes::{Cluster, ClusterSettings},
    maintenance::{
        gate::{Asks, ExternalRequest, ExternalState},
        machine::{self, BootOverride, ResetType},
    },
};

use crate::support::{
    ironcore::patience,
    metal3::{
        operator::Options,
        world::{DETACHED, World},
    },
};

/// Returns the backend for this namespace.
pub fn backend(world: &World, hold: Hold) -> Metal3Backend {
    backend_within(world, hold, Trust::Anything, &["127.0.0.0/8"])
}

fn backend_within(world: &World, hold: Hold, trust: Trust, networks: &[&str]) -> Metal3Backend {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let cluster = ClusterSettings { kubeconfig: Some(world.kubernetes.kubeconfig()), ..ClusterSettings::default() };
    let settings = Metal3Settings {
        cluster: Cluster::new(cluster, Arc::clone(&clock)),
        namespace: world.namespace.clone(),
        hold,
        trust,
        bmc_networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
        lock_keys: BTreeMap::new(),
    };
    Metal3Backend::new(settings, &clock)
}

fn wish(uid: &str) -> ExternalRequest {
    ExternalRequest {
        store: "store".to_owned(),
        uid: uid.to_owned(),
        id: format!("ops/{uid}"),
        owner: "team".into(),
        run: "ci-1".into(),
        asks: Asks::Nobody,
        priority: 0,
        reason: Some("BIOS 2.19".into()),
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

/// Retries after conflicts with the operator's writes, like the rules.
async fn until_it_works(call: impl AsyncFn() -> Result<(), BackendError>) {
    let works = tokio::time::timeout(Duration::from_mins(1), async {
        while let Err(error) = call().await {
            assert!(error.is_transient(), "{error}");
        }
    });
    works.await.expect("it works within a minute");
}

/// One host with a maintenance, in the form in which the engine passes them to the backend.
pub struct Held {
    pub machine: Arc<dyn Machine>,
    pub wish: ExternalRequest,
}

impl Held {
    pub fn new(backend: &Metal3Backend, host: &str, uid: &str) -> Self {
        Self { machine: backend.machine(host).unwrap(), wish: wish(uid) }
    }

    pub async fn standing(&self) -> ExternalState {
        self.machine.maintenance_system().unwrap().look(&self.wish, true).await.unwrap().standing
    }

    pub async fn until(&self, what: &str, wanted: impl Fn(&ExternalState) -> bool) -> ExternalState {
        let mut last = None;
        let found = tokio::time::timeout(Duration::from_mins(3), async {
            loop {
                let now = self.standing().await;
                if wanted(&now) {
                    return now;
                }
                last = Some(now);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        found.await.unwrap_or_else(|_| panic!("not {what}: {last:?}"))
    }

    pub async fn enter(&mut self) {
        assert_eq!(self.standing().await, ExternalState::Absent);
        self.wish.asked = true;
        self.call_enter().await;
        self.until("granted", |standing| *standing == ExternalState::Granted).await;
        self.wish.entered = true;
    }

    pub async fn call_enter(&self) {
        until_it_works(async || self.machine.maintenance_system().unwrap().enter(&self.wish).await).await;
    }

    pub async fn call_leave(&self) {
        until_it_works(async || self.machine.maintenance_system().unwrap().leave(&self.wish).await).await;
    }

    pub async fn reset(&self, kind: ResetType) {
        until_it_works(async || self.under().reset(kind).await).await;
    }

    pub async fn set_boot_override(&self, boot: &BootOverride) {
        until_it_works(async || self.under().set_boot_override(boot, false).await).await;
    }

    /// Leaves until the host carries no marks, like the rules.
    pub async fn leave(&self) {
        while self.standing().await != ExternalState::Absent {
            self.call_leave().await;
            self.until("left or leftovers", |standing| {
                matches!(standing, ExternalState::Absent | ExternalState::Leftovers(_))
            })
            .await;
        }
    }

    pub fn under(&self) -> Arc<dyn Machine> {
        self.machine.maintenance_system().unwrap().under(&self.wish)
    }
}

pub fn status(host: &Value) -> (&str, &str) {
    let status = &host["status"];
    (
        status["provisioning"]["state"].as_str().unwrap_or_default(),
        status["operationalStatus"].as_str().unwrap_or_default(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_the_bmc_gives_up_later_is_told() {
    let world = World::start(1, Options::default()).await;
    let backend = backend(&world, Hold::Detach);
    let mut held = Held::new(&backend, "node1", "m1");
    held.enter().await;
    let task = "/redfish/v1/TaskService/Tasks/77";
    let answer = |status, body: Value| FaultAction::Answer {
        status,
        body: FaultBody::Json(body),
        headers: vec![("Location".to_owned(), task.to_owned())],
        apply: false,
    };
    let inject = |action, method: &str, path: &str| {
        let _ = world.simulator.inject(Fault::new(action).on_request(method, path));
    };
    inject(answer(202, json!({"@odata.id": task, "TaskState": "Running"})), "POST", "*Reset");
    inject(answer(200, json!({"@odata.id": task, "TaskState": "Running"})), "GET", task);
    let driven = held.under();
    until_it_works(async || driven.reset(ResetType::ForceOff).await).await;
    assert!(driven.late_answer().await.is_none(), "the task is still running");
    world.simulator.clear_faults();
    let messages = json!([{"MessageId": "Base.1.12.InternalError", "Message": "the fan tray is missing"}]);
    inject(answer(200, json!({"@odata.id": task, "TaskState": "Exception", "Messages": messages})), "GET", task);
    let error = driven.late_answer().await.unwrap().to_string();
    assert!(error.contains("the fan tray is missing"), "{error}");
    world.simulator.clear_faults();
    held.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_detached_driven_by_redfish_and_managed_again() {
    let world = World::start(1, Options::default()).await;
    let backend = backend(&world, Hold::Detach);
    let mut held = Held::new(&backend, "node1", "m1");
    let identity = held.machine.identify().await.unwrap();
    assert_eq!(identity.uuid, Some(bmc_simulator::SystemConfig::default_uuid("node1").to_string()));
    let node = world.host("node1").await["status"]["provisioning"]["ID"].clone();

    held.enter().await;
    let host = world.host("node1").await;
    assert_eq!(status(&host), ("provisioned", "detached"));
    let value: Value = serde_json::from_str(host["metadata"]["annotations"][DETACHED].as_str().unwrap()).unwrap();
    assert_eq!(value["deleteAction"], "delay");
    assert!(world.running.operator.nodes.lock().unwrap().is_empty(), "Ironic has a node for the host");

    // The provider controls power now; the operator does not switch it on again.
    held.reset(ResetType::ForceOff).await;
    world.simulator.wait_power("node1", PowerState::Off, Duration::from_secs(30)).await.unwrap();
    tokio::time::sleep(world.running.operator.options.steady * 3).await;
    assert_eq!(held.under().observe().await.unwrap().power, machine::PowerState::Off);
    assert_eq!(
        world.host("node1").await["status"]["poweredOn"],
        true,
        "the operator must not observe the power change"
    );

    // Leaving first waits until the operator has restored `spec.online`.
    held.call_leave().await;
    assert_eq!(held.machine.maintenance_system().unwrap().requests().await.unwrap().len(), 1, "marks stay");
    held.leave().await;
    let host = world.host("node1").await;
    assert_eq!((status(&host), &host["status"]["poweredOn"]), (("provisioned", "OK"), &json!(true)));
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
    assert_ne!(host["status"]["provisioning"]["ID"], node);
    assert_eq!(world.traces("node1").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_host_is_kept_from_others_and_a_consumer_stays() {
    let world = World::empty(2, Options::default()).await;
    world.add("node1", json!({})).await;
    let consumer = json!({"kind": "Metal3Machine", "name": "worker", "namespace": "c", "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1"});
    world.add("node2", json!({"consumerRef": consumer})).await;
    let backend = backend(&world, Hold::Detach);
    for name in ["node1", "node2"] {
        world
            .until(name, "available and on", |host| {
                status(host) == ("available", "OK") && host["status"]["poweredOn"] == true
            })
            .await;
        let mut held = Held::new(&backend, name, name);
        held.enter().await;
        let kind = world.host(name).await["spec"]["consumerRef"]["kind"].clone();
        assert_eq!(kind, if name == "node1" { "Maintenance" } else { "Metal3Machine" });
        held.leave().await;
        let kept = world.host(name).await["spec"]["consumerRef"].clone();
        assert_eq!(kept, if name == "node1" { Value::Null } else { consumer.clone() });
        assert_eq!(world.traces(name).await, Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_do_to_a_host_is_waited_for_and_stays() {
    let world = World::start(1, Options::default()).await;
    let backend = backend(&world, Hold::Detach);
    let held = Held::new(&backend, "node1", "m1");
    for (annotations, word) in [
        (json!({DETACHED: ""}), "detached"),
        (json!({"baremetalhost.metal3.io/paused": "metal3.io/capm3"}), "paused"),
        (json!({"reboot.metal3.io/other": ""}), "reboot.metal3.io/other"),
        (json!({"inspect.metal3.io": ""}), "inspection"),
    ] {
        world.annotate("node1", annotations.clone()).await;
        let ExternalState::Waiting(why) = held.standing().await else { panic!("{word}: {:?}", held.standing().await) };
        assert!(why.raw().contains(word), "{why}");
        let refused = held.machine.maintenance_system().unwrap().enter(&held.wish).await.unwrap_err();
        assert!(refused.is_transient(), "{refused}");
        let there = world.host("node1").await["metadata"]["annotations"].clone();
        let mut gone = json!({});
        for (key, value) in annotations.as_object().unwrap() {
            assert_eq!(&there[key], value);
            gone[key] = Value::Null;
        }
        world.annotate("node1", gone).await;
        held.until("free again", |standing| *standing == ExternalState::Absent).await;
    }
    // The host is in transition.
    world.merge("BareMetalHost", "node1", json!({"spec": {"image": null}})).await;
    held.until("waiting", |standing| matches!(standing, ExternalState::Waiting(_))).await;
    held.until("available", |standing| *standing == ExternalState::Absent).await;
    world.delete("node1").await;
    held.until("refused", |standing| matches!(standing, ExternalState::Refused(_))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_others_take_back_is_lost_and_not_touched() {
    let world = World::start(1, Options::default()).await;
    let backend = backend(&world, Hold::Detach);
    let ours = json!({"terraform-provider-metal/uid": null});
    // Ways to lose the host, and the annotations that remain after the maintenance ends.
    for (n, (change, left)) in
        [(json!({DETACHED: null}), Vec::new()), (json!({DETACHED: "by hand"}), vec![DETACHED]), (ours, Vec::new())]
            .into_iter()
            .enumerate()
    {
        let mut held = Held::new(&backend, "node1", &format!("m{n}"));
        held.until("free", |standing| *standing == ExternalState::Absent).await;
        held.enter().await;
        world.annotate("node1", change.clone()).await;
        held.until("lost", |standing| matches!(standing, ExternalState::Lost(_))).await;
        let refused = held.under().reset(ResetType::ForceOff).await.unwrap_err();
        assert!(matches!(refused, BackendError::Rejected { status: 409, .. }), "{refused}");
        held.call_leave().await;
        held.until("left", |standing| matches!(standing, ExternalState::Absent | ExternalState::Leftovers(_))).await;
        held.call_leave().await;
        held.until("gone", |standing| *standing == ExternalState::Absent).await;
        let mut traces = world.traces("node1").await;
        traces.retain(|key| !key.starts_with("terraform-provider-metal/"));
        assert_eq!(traces, left, "{change}");
        let all = world.host("node1").await["metadata"]["annotations"].clone();
        let rest: serde_json::Map<String, Value> =
            all.as_object().into_iter().flatten().map(|(key, _)| (key.clone(), Value::Null)).collect();
        world.annotate("node1", Value::Object(rest)).await;
    }
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_cannot_register_again_is_not_called_returned() {
    let world = World::start(1, Options::default()).await;
    let backend = backend(&world, Hold::Detach);
    let mut held = Held::new(&backend, "node1", "m1");
    held.enter().await;
    world.running.operator.options.registers.close();
    held.call_leave().await;
    // The operator writes the new node's ID before Ironic verifies the BMC, and fails afterwards.
    let failed = loop {
        let next = held.until("failed or over", |standing| {
            matches!(standing, ExternalState::Failed(_) | ExternalState::Leftovers(_) | ExternalState::Absent)
        });
        match next.await {
            ExternalState::Leftovers(_) => held.call_leave().await,
            over => break over,
        }
    };
    assert!(matches!(failed, ExternalState::Failed(_)), "{failed}");
    assert!(failed.to_string().contains("registration error"), "{failed}");
    assert!(!world.traces("node1").await.is_empty(), "the annotations that prune needs were removed");
    world.running.operator.options.registers.open();
    held.leave().await;
    assert_eq!(world.traces("node1").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_operator_is_waited_for_on_both_ways() {
    let mut world = World::start(1, Options::default()).await;
    let backend = backend(&world, Hold::Detach);
    let mut held = Held::new(&backend, "node1", "m1");
    world.running.stop();
    held.wish.asked = true;
    held.call_enter().await;
    // After a lost reply the second call changes nothing.
    let version = world.host("node1").await["metadata"]["resourceVersion"].clone();
    held.call_enter().await;
    assert_eq!(world.host("node1").await["metadata"]["resourceVersion"], version);
    assert!(matches!(held.standing().await, ExternalState::Entering(_)), "{:?}", held.standing().await);
    assert!(held.under().reset(ResetType::ForceOff).await.is_err(), "it is not ours yet");
    world.restart();
    held.until("granted", |standing| *standing == ExternalState::Granted).await;
    held.wish.entered = true;
    world.running.stop();
    held.call_leave().await;
    assert!(matches!(held.standing().await, ExternalState::Returning(_)));
    world.restart();
    held.leave().await;
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_a_held_host_is_delayed_until_it_is_left() {
    let world = World::start(1, Options::default()).await;
    let backend = backend(&world, Hold::Detach);
    let mut held = Held::new(&backend, "node1", "m1");
    held.enter().await;
    world.delete("node1").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(held.standing().await, ExternalState::Granted);
    held.call_leave().await;
    patience::until("deleted", async || world.find("node1").await.is_none().then_some(())).await;
    assert_eq!(held.standing().await, ExternalState::Absent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_run_s_hold_is_found_and_discarded() {
    let world = World::start(1, Options::default()).await;
    let backend = backend(&world, Hold::Detach);
    let mut held = Held::new(&backend, "node1", "m1");
    held.enter().await;
    // Another process that has only the host's own data.
    let other = self::backend(&world, Hold::PowerOff);
    let requests = other.external_requests().await.unwrap().unwrap();
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!((request.uid.as_str(), request.store.as_str(), request.server.as_str()), ("m1", "store", "node1"));
    let node = other.machine("node1").unwrap();
    until_it_works(async || node.maintenance_system().unwrap().discard(request).await).await;
    assert_eq!(world.traces("node1").await, Vec::<String>::new());
    world.until("node1", "managed", |host| status(host) == ("provisioned", "OK")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_kept_off_by_our_own_key() {
    let world = World::start(1, Options::default()).await;
    let backend = backend(&world, Hold::PowerOff);
    let mut held = Held::new(&backend, "node1", "m1");
    let can = held.machine.capabilities().await.unwrap();
    assert!(!can.can(ResetType::On) && can.boot_targets.is_empty(), "{can:?}");
    held.enter().await;
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
    assert!(world.traces("node1").await.contains(&"reboot.metal3.io/terraform-provider-metal.m1".to_owned()));
    assert_eq!(held.under().observe().await.unwrap().power, machine::PowerState::Off);
    held.leave().await;
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
    assert_eq!(world.traces("node1").await, Vec::<String>::new());

    // The provider does not restore a key deleted by an old operator or a person.
    let mut held = Held::new(&backend, "node1", "m2");
    held.enter().await;
    world.annotate("node1", json!({"reboot.metal3.io/terraform-provider-metal.m2": null})).await;
    let lost = held.until("lost", |standing| matches!(standing, ExternalState::Lost(_))).await;
    assert!(lost.to_string().contains("v0.13.2"), "{lost}");
    held.leave().await;
    assert_eq!(world.traces("node1").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_a_key_would_not_hold_it_is_refused() {
    let world = World::start(1, Options::default()).await;
    let backend = backend(&world, Hold::PowerOff);
    let held = Held::new(&backend, "node1", "m1");
    let refused = async |word: &str| {
        let ExternalState::Refused(why) = held.standing().await else { panic!("{word}: {:?}", held.standing().await) };
        assert!(why.raw().contains(word), "{why}");
        let mut asked = wish("m1");
        asked.asked = true;
        assert!(held.machine.maintenance_system().unwrap().enter(&asked).await.is_err());
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    };
    world.merge("BareMetalHost", "node1", json!({"spec": {"disablePowerOff": true}})).await;
    refused("disablePowerOff").await;
    world.merge("BareMetalHost", "node1", json!({"spec": {"disablePowerOff": null}})).await;

    world.create("HostUpdatePolicy", "node1", json!({"spec": {"firmwareSettings": "onReboot"}})).await;
    world.create("HostFirmwareSettings", "node1", json!({"spec": {"settings": {"Boot": "x"}}})).await;
    assert_eq!(held.standing().await, ExternalState::Absent);
    let conditions = json!([{"type": "ChangeDetected", "status": "True"}, {"type": "Valid", "status": "True"}]);
    world.merge_status("HostFirmwareSettings", "node1", json!({"conditions": conditions})).await;
    refused("HostFirmwareSettings").await;
    let outlook = held.machine.maintenance_system().unwrap().outlook(&held.wish).await.unwrap();
    assert!(outlook.lines.join("\n").contains("onReboot") && outlook.rejection.is_some(), "{outlook:?}");
    world.merge_status("HostFirmwareSettings", "node1", json!({"conditions": []})).await;

    world.create("DataImage", "node1", json!({"spec": {"url": "https://images.example/tools.iso"}})).await;
    refused("DataImage").await;
}

/// Like the real operator, the stand-in services firmware changes that arrive during a reboot key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servicing_under_a_key_is_told_as_a_loss() {
    let world = World::start(1, Options::default()).await;
    let backend = backend(&world, Hold::PowerOff);
    let mut held = Held::new(&backend, "node1", "m1");
    held.enter().await;
    world.create("HostUpdatePolicy", "node1", json!({"spec": {"firmwareSettings": "onReboot"}})).await;
    world.create("HostFirmwareSettings", "node1", json!({"spec": {"settings": {"Boot": "x"}}})).await;
    let conditions = json!([{"type": "ChangeDetected", "status": "True"}, {"type": "Valid", "status": "True"}]);
    world.merge_status("HostFirmwareSettings", "node1", json!({"conditions": conditions})).await;
    let lost = held.until("lost", |standing| matches!(standing, ExternalState::Lost(_))).await;
    assert!(lost.to_string().contains("services"), "{lost}");
    held.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_of_another_protocol_is_held_and_not_driven() {
    let world = World::empty(1, Options::default()).await;
    world.add("node1", json!({"bmc": {"address": "ipmi://10.0.0.1", "credentialsName": "x"}})).await;
    let backend = backend(&world, Hold::Detach);
    let held = Held::new(&backend, "node1", "m1");
    let refused = held.machine.identify().await.unwrap_err().to_string();
    assert!(refused.contains("ipmi") && refused.contains("lock_keys"), "{refused}");
    let can = held.machine.capabilities().await.unwrap();
    assert!(can.resets.is_empty() && can.boot_targets.is_empty(), "{can:?}");
    let outlook = held.machine.maintenance_system().unwrap().outlook(&held.wish).await.unwrap().lines.join("\n");
    assert!(outlook.contains("Redfish only"), "{outlook}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_who_names_a_secret_and_an_address_gets_no_password() {
    let world = World::empty(1, Options::default()).await;
    // The operator connects to every host. Without it, each connection would be the provider's.
    world.running.stop();
    let theirs = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = theirs.local_addr().unwrap().port();
    let secret = json!({"stringData": {"username": "admin", "password": "hunter2"}});
    world.create("Secret", "stolen", secret).await;
    let system = "redfish/v1/Systems/1";
    let attacks = [
        (format!("redfish+http://127.0.0.2:{port}/{system}"), false),
        (format!("redfish://127.0.0.2:{port}/{system}"), false),
        (format!("redfish://127.0.0.2:{port}/{system}"), true),
        (format!("redfish+http://0.0.0.0:{port}/{system}"), true),
    ];
    for (networks, trust, words) in [
        (&[][..], Trust::Anything, "metal3.bmc_networks, which is not set"),
        (&["127.0.0.1/32"], Trust::Anything, "is not within metal3.bmc_networks"),
        (&["127.0.0.1/32"], Trust::System, "no credentials were sent"),
    ] {
        for (n, (address, insecure)) in attacks.iter().enumerate() {
            let name = format!("node{n}-{}-{}", networks.len(), trust == Trust::System);
            let bmc = json!({
                "address": address, "credentialsName": "stolen", "disableCertificateVerification": insecure,
            });
            world.create("BareMetalHost", &name, json!({"spec": {"online": true, "bmc": bmc}})).await;
            let backend = backend_within(&world, Hold::Detach, trust.clone(), networks);
            let refused = backend.machine(&name).unwrap().identify().await.unwrap_err();
            assert!(matches!(refused, BackendError::Withheld { .. }), "{address}: {refused}");
            assert!(refused.to_string().contains(words), "{address}: {refused}");
        }
    }
    let nobody = tokio::time::timeout(Duration::from_millis(100), theirs.accept()).await;
    assert!(nobody.is_err(), "a connection arrived");
    let outlook = Held::new(&backend(&world, Hold::Detach), "node0-0-false", "m1");
    let lines = outlook.machine.maintenance_system().unwrap().outlook(&outlook.wish).await.unwrap().lines.join("\n");
    assert!(lines.contains("has not logged in with Secret stolen"), "{lines}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn within_the_networks_plain_text_and_unverified_certificates_need_a_second_setting() {
    let world = World::empty(1, Options::default()).await;
    for (name, address, insecure) in
        [("plain", "redfish+http://192.0.2.1/redfish/v1/Systems/1", false), ("unverified", "redfish://192.0.2.1", true)]
    {
        let bmc = json!({"address": address, "credentialsName": "x", "disableCertificateVerification": insecure});
        world.create("BareMetalHost", name, json!({"spec": {"online": true, "bmc": bmc}})).await;
        let backend = backend_within(&world, Hold::Detach, Trust::System, &["192.0.2.0/24"]);
        let refused = backend.machine(name).unwrap().identify().await.unwrap_err().to_string();
        assert!(refused.contains("metal3.bmc_insecure = true"), "{refused}");
    }
    let backend = backend_within(&world, Hold::Detach, Trust::Anything, &["192.0.2.0/24"]);
    let held = Held::new(&backend, "plain", "m1");
    let outlook = held.machine.maintenance_system().unwrap().outlook(&held.wish).await.unwrap().lines.join("\n");
    assert!(outlook.contains("the password is sent unencrypted to 192.0.2.1"), "{outlook}");
}
