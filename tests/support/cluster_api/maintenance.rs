//! The maintenance-controller with profiles for Machine maintenance. It cordons, drains and
//! approves a Node marked by the runtime extension, and uncordons it after the mark is removed.
//!
//! Its state is an annotation on the Node, so it survives restarts. A reconcile advances a Node by
//! at most one step. During a drain it ignores everything else, even a withdrawn request; up to
//! v1.9.4 the reconcile blocks until the drain is done.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client, ResourceExt as _,
    api::{Api, DynamicObject, EvictParams, ListParams},
};
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use super::{
    APPROVE_MAINTENANCE, DATA, KEEPS, MACHINE_MAINTENANCE, PROFILE, STATE, WITHHELD, WORLD,
    informer::{Cache, Pace, Rounds, Task, Turns, follow, work},
    objects::{Failure, api, difference, labelled, merge},
};

const OPERATIONAL: &str = "operational";
const REQUIRED: &str = "maintenance-required";
const IN_MAINTENANCE: &str = "in-maintenance";

/// Options of the maintenance-controller.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Interval between periodic reconciles (`intervals.requeue`). Minutes in production.
    pub requeue: Duration,
    /// True if a reconcile blocks during a drain, as up to v1.9.4.
    pub waits_for_drains: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { requeue: Duration::from_millis(200), waits_for_drains: false }
    }
}

/// The running maintenance-controller. It stops on drop.
pub struct MaintenanceController {
    pub rounds: Rounds,
    /// True while a reconcile blocks on a drain. No other reconcile starts until the drain ends.
    waits: Arc<AtomicBool>,
    _tasks: [Task; 2],
}

impl MaintenanceController {
    /// Starts it for one world's Nodes.
    pub fn start(client: Client, world: &str, options: Options) -> Self {
        let nodes = Cache::default();
        let (names, changed) = unbounded_channel();
        let (watching, _) = follow(api(&client, "Node", ""), &format!("{WORLD}={world}"), nodes.clone(), vec![names]);
        let pace = Pace { retry: Some(options.requeue), again: Some(options.requeue), ..Pace::default() };
        let (rounds, waits) = (Rounds::default(), Arc::new(AtomicBool::default()));
        let controller = Controller { client, nodes, options, waits: Arc::clone(&waits) };
        let working = Task::spawn(work(controller, changed, pace, rounds.clone()));
        Self { rounds, waits, _tasks: [watching, working] }
    }

    /// Waits until each Node was reconciled again, or a reconcile blocks on a drain.
    pub async fn settled(&self) {
        self.rounds.one_more(|| self.waits.load(Ordering::SeqCst)).await;
    }
}

struct Controller {
    client: Client,
    nodes: Cache,
    options: Options,
    waits: Arc<AtomicBool>,
}

/// A Node after a reconcile.
struct After {
    labels: BTreeMap<String, String>,
    cordoned: bool,
}

impl Turns for Controller {
    async fn turn(&self, name: &str) -> Result<(), Failure> {
        let Some(node) = self.nodes.get(name) else { return Ok(()) };
        let cordoned = node.data["spec"]["unschedulable"] == true;
        let mut after = After { labels: node.labels().clone(), cordoned };
        let profile = node.labels().get(PROFILE).map_or("default", String::as_str);
        let mut data = known(&node, profile)?;
        let state = if matches!(profile, "default" | KEEPS) {
            self.step(&node, profile, &mut data, &mut after).await?
        } else {
            OPERATIONAL.to_owned()
        };
        after.labels.insert(STATE.to_owned(), state);

        let mut annotations = node.annotations().clone();
        annotations.insert(DATA.to_owned(), data.to_string());
        let mut change = json!({});
        if let Some(labels) = difference(node.labels(), &after.labels) {
            change["metadata"]["labels"] = labels;
        }
        if let Some(annotations) = difference(node.annotations(), &annotations) {
            change["metadata"]["annotations"] = annotations;
        }
        if after.cordoned != cordoned {
            change["spec"]["unschedulable"] = if after.cordoned { json!(true) } else { Value::Null };
        }
        if change == json!({}) {
            return Ok(());
        }
        let written = merge(&api(&self.client, "Node", ""), name, change).await?;
        self.shown(&written).await;
        Ok(())
    }
}

/// Returns the stored data for a profile. A new profile starts as operational; others are dropped.
fn known(node: &DynamicObject, profile: &str) -> Result<Value, Failure> {
    let mut data: Value = node.annotations().get(DATA).map_or(Ok(json!({})), |text| serde_json::from_str(text))?;
    let found = data["Profiles"][profile].take();
    let new = json!({
        "Transition": jiff::Timestamp::now().to_string(), "Current": OPERATIONAL, "Previous": OPERATIONAL,
    });
    data["Profiles"] = json!({profile: if found.is_null() { new } else { found }});
    if data["Notifications"].is_null() {
        data["Notifications"] = json!({});
    }
    Ok(data)
}

impl Controller {
    /// Runs a state's entry action, then at most one transition. Returns the new state.
    async fn step(
        &self,
        node: &DynamicObject,
        profile: &str,
        data: &mut Value,
        after: &mut After,
    ) -> Result<String, Failure> {
        let data = &mut data["Profiles"][profile];
        let current = data["Current"].as_str().unwrap_or(OPERATIONAL).to_owned();
        if data["Previous"] != current.as_str() && current == IN_MAINTENANCE {
            after.cordoned = true;
            while !self.drained(&node.name_any()).await? {
                if !self.options.waits_for_drains {
                    return Ok(current);
                }
                self.waits.store(true, Ordering::SeqCst);
                tokio::time::sleep(self.options.requeue).await;
            }
            self.waits.store(false, Ordering::SeqCst);
            after.labels.insert(APPROVE_MAINTENANCE.to_owned(), "true".to_owned());
        }
        let asked = labelled(node, MACHINE_MAINTENANCE, "true");
        let next = match current.as_str() {
            OPERATIONAL if asked => REQUIRED,
            REQUIRED if !asked => OPERATIONAL,
            REQUIRED if !labelled(node, WITHHELD, "true") => {
                after.cordoned = true;
                IN_MAINTENANCE
            }
            IN_MAINTENANCE if !asked => {
                after.cordoned = false;
                if profile != KEEPS {
                    after.labels.remove(APPROVE_MAINTENANCE);
                }
                OPERATIONAL
            }
            unchanged => unchanged,
        }
        .to_owned();
        if next != current {
            data["Transition"] = json!(jiff::Timestamp::now().to_string());
            data["Current"] = json!(next);
        }
        data["Previous"] = json!(current);
        Ok(next)
    }

    /// Requests the eviction of each Pod once. Returns true if no Pods remain.
    async fn drained(&self, node: &str) -> Result<bool, Failure> {
        let all: Api<Pod> = Api::all(self.client.clone());
        let pods = all.list(&ListParams::default().fields(&format!("spec.nodeName={node}"))).await?;
        let counts = |pod: &&Pod| {
            let daemon = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
            !daemon && !pod.annotations().contains_key("kubernetes.io/config.mirror")
        };
        let pods: Vec<&Pod> = pods.items.iter().filter(counts).collect();
        for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            let here: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
            // A refused eviction is retried in a later reconcile.
            let _ = here.evict(&pod.name_any(), &EvictParams::default()).await;
        }
        Ok(pods.is_empty())
    }

    /// Waits up to a second until the cache contains this write.
    async fn shown(&self, written: &DynamicObject) {
        let revision = |object: &DynamicObject| object.resource_version().and_then(|text| text.parse::<u64>().ok());
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            let Some(cached) = self.nodes.get(&written.name_any()) else { return };
            if revision(&cached) >= revision(written) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
