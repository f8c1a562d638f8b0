//! Stand-in for cluster-api-provider-metal3: it selects a host for each Metal3Machine and writes
//! its settings to the host on every event of either.
//!
//! It was compared with recordings of the real provider (`tests/metal3/claims.txt`). It shares no
//! code with it; quoted names are functions in `baremetal/metal3machine_manager.go`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};
use kube::{
    Client, ResourceExt as _,
    api::{Api, DynamicObject, Patch, PatchParams},
    core::ApiResource,
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{first, operator::resource};

const FINALIZER: &str = "metal3machine.infrastructure.cluster.x-k8s.io";
const HOST: &str = "metal3.io/BareMetalHost";
const REUSE: &str = "infrastructure.cluster.x-k8s.io/node-reuse";
const CLUSTER: &str = "cluster.x-k8s.io/cluster-name";
const PAUSED: &str = "baremetalhost.metal3.io/paused";
const UNHEALTHY: &str = "capm3.metal3.io/unhealthy";

/// Retry interval while no host is free or a host is being deprovisioned. 30 s in production.
const AGAIN: Duration = Duration::from_millis(300);

type Turn = Result<Option<Duration>, kube::Error>;

/// Provider behaviour, named after the first version that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// v1.13.2, and back to v1.12 by its source: a consumer always counts.
    V1_13,
    /// v1.14.0-rc.0: takes a host kept for reuse regardless of its consumer.
    V1_14,
}

/// Returns a Cluster API resource.
pub fn cluster_api(kind: &str) -> ApiResource {
    let group = match kind {
        "Metal3Machine" | "Metal3Cluster" | "Metal3MachineTemplate" => "infrastructure.cluster.x-k8s.io",
        "KubeadmControlPlane" => "controlplane.cluster.x-k8s.io",
        _ => "cluster.x-k8s.io",
    };
    ApiResource {
        group: group.to_owned(),
        version: "v1beta2".to_owned(),
        api_version: format!("{group}/v1beta2"),
        kind: kind.to_owned(),
        plural: format!("{}s", kind.to_lowercase()),
    }
}

/// The running provider. It stops on drop.
pub struct Capm3 {
    task: JoinHandle<()>,
    overlooked: Arc<Mutex<BTreeSet<String>>>,
}

impl Capm3 {
    pub fn start(client: Client, namespace: &str, version: Version) -> Self {
        let overlooked = Arc::default();
        let world = World { client, namespace: namespace.to_owned(), version, overlooked: Arc::clone(&overlooked) };
        Self { task: tokio::spawn(world.run()), overlooked }
    }

    /// Ignores this host until its next event. A real provider polls every 30 s, so it is later
    /// than any immediate action of an operator.
    pub fn overlook(&self, host: &str) {
        self.overlooked.lock().unwrap().insert(host.to_owned());
    }

    pub fn see(&self, host: &str) {
        self.overlooked.lock().unwrap().remove(host);
    }
}

impl Drop for Capm3 {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct World {
    client: Client,
    namespace: String,
    version: Version,
    overlooked: Arc<Mutex<BTreeSet<String>>>,
}

fn text<'a>(object: &'a DynamicObject, pointer: &str) -> &'a str {
    object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the Metal3Machine that is a host's consumer (`consumerRefMatches`).
fn consumer(host: &DynamicObject) -> Option<&str> {
    let group = text(host, "/spec/consumerRef/apiVersion").split('/').next();
    let its =
        text(host, "/spec/consumerRef/kind") == "Metal3Machine" && group == Some("infrastructure.cluster.x-k8s.io");
    its.then(|| text(host, "/spec/consumerRef/name"))
}

impl World {
    fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }

    fn hosts(&self) -> Api<DynamicObject> {
        self.api(&resource("BareMetalHost"))
    }

    async fn merge(&self, api: &Api<DynamicObject>, name: &str, change: Value) -> Result<(), kube::Error> {
        api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.map(drop)
    }

    async fn run(self) {
        let events = |api| watcher(api, watcher::Config::default()).default_backoff().applied_objects().boxed();
        let machines = self.api(&cluster_api("Metal3Machine"));
        let mut events = stream::select(events(self.hosts()), events(machines));
        let mut due: BTreeMap<String, Instant> = BTreeMap::new();
        let mut named: BTreeMap<String, String> = BTreeMap::new();
        loop {
            let (next, pause) = first(&due);
            tokio::select! {
                event = events.next() => {
                    let Some(event) = event else { return };
                    let Ok(object) = event else { continue };
                    if object.types.as_ref().is_some_and(|types| types.kind == "Metal3Machine") {
                        due.insert(object.name_any(), Instant::now());
                        continue;
                    }
                    // `BareMetalHostToMetal3Machines`: a host's event triggers its current and its
                    // previous consumer.
                    let before = match consumer(&object) {
                        Some(now) => named.insert(object.name_any(), now.to_owned()).or(Some(now.to_owned())),
                        None => named.remove(&object.name_any()),
                    };
                    for name in consumer(&object).map(str::to_owned).into_iter().chain(before) {
                        due.insert(name, Instant::now());
                    }
                }
                () = tokio::time::sleep(pause) => {
                    let Some(name) = next else { continue };
                    due.remove(&name);
                    match self.turn(&name).await {
                        Ok(None) => {}
                        Ok(Some(after)) => { due.insert(name, Instant::now() + after); }
                        Err(_) => { due.insert(name, Instant::now() + AGAIN); }
                    }
                }
            }
        }
    }

    async fn turn(&self, name: &str) -> Turn {
        let machines = self.api(&cluster_api("Metal3Machine"));
        let Some(machine) = machines.get_opt(name).await? else { return Ok(None) };
        let host = match machine.annotations().get(HOST).and_then(|at| at.split_once('/')) {
            Some((_, host)) => self.hosts().get_opt(host).await?,
            None => None,
        };
        if machine.metadata.deletion_timestamp.is_some() {
            return self.delete(&machine, host).await;
        }
        if machine.finalizers().is_empty() {
            self.merge(&machines, name, json!({"metadata": {"finalizers": [FINALIZER]}})).await?;
        }
        if let Some(host) = host {
            self.want(&machine, &host).await?;
            return Ok(None);
        }
        let Some(host) = self.choose(&machine).await? else { return Ok(Some(AGAIN)) };
        self.want(&machine, &host).await?;
        let at = format!("{}/{}", self.namespace, host.name_any());
        self.merge(&machines, name, json!({"metadata": {"annotations": {HOST: at}}})).await?;
        Ok(None)
    }

    /// `chooseHost`, which ignores the detached annotation and the operational status.
    async fn choose(&self, machine: &DynamicObject) -> Result<Option<DynamicObject>, kube::Error> {
        let selector = &machine.data["spec"]["hostSelector"]["matchLabels"];
        let labels = selector.as_object().cloned().unwrap_or_default();
        let reuses = self.control_plane(machine).await?;
        for host in self.hosts().list(&kube::api::ListParams::default()).await?.items {
            let label = |key: &str| host.labels().get(key).map(String::as_str);
            if !labels.iter().all(|(key, value)| label(key) == value.as_str()) {
                continue;
            }
            if consumer(&host) == Some(&machine.name_any()) {
                return Ok(Some(host));
            }
            if self.overlooked.lock().unwrap().contains(&host.name_any()) {
                continue;
            }
            let used = host.data.pointer("/spec/consumerRef").is_some_and(Value::is_object);
            match label(REUSE) {
                Some(reuse) if Some(reuse) != reuses.as_deref() => continue,
                Some(_) if used && self.version < Version::V1_14 => continue,
                None if used => continue,
                _ => {}
            }
            let marked = [PAUSED, UNHEALTHY].iter().any(|key| host.annotations().contains_key(*key));
            let troubled = !text(&host, "/status/errorMessage").is_empty();
            let free = matches!(text(&host, "/status/provisioning/state"), "ready" | "available");
            if host.metadata.deletion_timestamp.is_none() && !troubled && !marked && free {
                return Ok(Some(host));
            }
        }
        Ok(None)
    }

    /// `getControlPlaneName`: the label that reserves a host for reuse by a Metal3Machine's owner.
    async fn control_plane(&self, machine: &DynamicObject) -> Result<Option<String>, kube::Error> {
        let owner = machine.owner_references().iter().find(|owner| owner.kind == "Machine");
        let Some(owner) = owner else { return Ok(None) };
        let Some(owner) = self.api(&cluster_api("Machine")).get_opt(&owner.name).await? else { return Ok(None) };
        let planes = owner.owner_references().iter();
        Ok(planes.map(|plane| format!("cp-{}", plane.name)).next())
    }

    /// `setHostConsumerRef` and `setHostSpec`: writes a host's settings if they differ.
    async fn want(&self, machine: &DynamicObject, host: &DynamicObject) -> Result<(), kube::Error> {
        let (name, spec) = (machine.name_any(), &host.data["spec"]);
        let mut change = json!({});
        if consumer(host) != Some(&name) {
            change["consumerRef"] = json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3Machine",
                "name": name, "namespace": self.namespace,
            });
        }
        if spec["image"].is_null() {
            let image = &machine.data["spec"]["image"];
            change["image"] = json!({"url": image["url"], "checksum": image["checksum"]});
        }
        if spec["online"] != true {
            change["online"] = json!(true);
        }
        if change.as_object().is_some_and(serde_json::Map::is_empty) {
            return Ok(());
        }
        let labels = json!({CLUSTER: "c", REUSE: null});
        self.merge(&self.hosts(), &host.name_any(), json!({"metadata": {"labels": labels}, "spec": change})).await
    }

    /// `Delete`: removes the image and powers off; removes the consumer after deprovisioning.
    async fn delete(&self, machine: &DynamicObject, host: Option<DynamicObject>) -> Turn {
        let name = machine.name_any();
        if let Some(host) = host.filter(|host| consumer(host) == Some(&name)) {
            let spec = &host.data["spec"];
            let online = spec["disablePowerOff"] == true;
            if !spec["image"].is_null() || spec["online"] != online {
                let change = json!({"spec": {"image": null, "online": online}});
                self.merge(&self.hosts(), &host.name_any(), change).await?;
                return Ok(Some(Duration::ZERO));
            }
            let waits = match text(&host, "/status/provisioning/state") {
                "" | "registering" | "inspecting" | "ready" | "available" | "unmanaged" => false,
                "externally provisioned" => host.data["status"]["poweredOn"] == true,
                _ => true,
            };
            if waits {
                return Ok(Some(AGAIN));
            }
            let change = json!({"metadata": {"labels": {CLUSTER: null}}, "spec": {"consumerRef": null}});
            self.merge(&self.hosts(), &host.name_any(), change).await?;
        }
        let machines = self.api(&cluster_api("Metal3Machine"));
        self.merge(&machines, &name, json!({"metadata": {"finalizers": null}})).await?;
        Ok(None)
    }
}
