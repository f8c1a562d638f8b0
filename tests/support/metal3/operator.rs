//! Main loop of the stand-in: events and timers trigger one reconcile per host, one host at a
//! time.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use kube::{
    Client, ResourceExt as _,
    api::{Api, DynamicObject, Patch, PatchParams},
    core::ApiResource,
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{super::gate::Gate, first, turn};

/// Operator behaviour, named after the first version that has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// v0.11.0 to v0.12.6.
    V0_11,
    /// v0.13.0 to v0.13.2: delays the deletion of every detached host.
    V0_13,
    /// v0.14.0-rc.0: keyed reboot annotations survive a host's state change.
    V0_14,
    /// 02aa505: for a deletion, the annotation alone counts as detached.
    #[default]
    Newest,
}

impl Version {
    /// Returns true if a host's state change deletes every reboot annotation.
    pub fn deletes_keys(self) -> bool {
        self < Self::V0_14
    }

    /// Returns true if a reboot services the host's `spec.firmware`.
    pub fn services_firmware_of_the_host(self) -> bool {
        self < Self::Newest
    }
}

/// Operator options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interval between reconciles of a steady host. One minute in production.
    pub steady: Duration,
    /// Duration of an Ironic step.
    pub step: Duration,
    /// Operator version.
    pub version: Version,
    /// While closed, the operator does nothing.
    pub awake: Gate,
    /// While closed, registration fails because the BMC rejects it.
    pub registers: Gate,
    /// While closed, nodes cannot be deleted, so detaching fails.
    pub detaches: Gate,
    /// True if a service step boots the host's ramdisk, as with Ironic. The real operator's
    /// fixture boots nothing.
    pub boots_ramdisk: bool,
    /// While closed, live ISOs are unreadable, so provisioning fails.
    pub boots: Gate,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            steady: Duration::from_millis(300),
            step: Duration::from_millis(100),
            version: Version::default(),
            awake: Gate::default(),
            registers: Gate::default(),
            detaches: Gate::default(),
            boots_ramdisk: true,
            boots: Gate::default(),
        }
    }
}

/// Ironic's current operation on a node, which excludes others.
#[derive(Clone, Copy, Debug, Default)]
pub enum Call {
    #[default]
    None,
    /// Operation of another client.
    Foreign,
    /// Power change with its start.
    Power { on: bool, since: Instant },
}

/// An Ironic node.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub id: String,
    pub verified: bool,
    pub adopted: bool,
    pub serviced: bool,
    /// Current operation.
    pub call: Call,
}

/// State shared by all reconciles.
pub struct Operator {
    pub client: Client,
    pub namespace: String,
    pub options: Options,
    pub nodes: Mutex<HashMap<String, Node>>,
}

/// Returns a resource of the Metal3 group or of the core group.
pub fn resource(kind: &str) -> ApiResource {
    let (group, version) = if kind == "Secret" { ("", "v1") } else { ("metal3.io", "v1alpha1") };
    let plural = match kind {
        "HostUpdatePolicy" => "hostupdatepolicies".to_owned(),
        "HostFirmwareSettings" | "HostFirmwareComponents" => kind.to_lowercase(),
        _ => format!("{}s", kind.to_lowercase()),
    };
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
        kind: kind.to_owned(),
        plural,
    }
}

/// Reads a Secret in the operator's namespace.
pub async fn secret(operator: &Operator, name: &str) -> Result<Option<DynamicObject>, kube::Error> {
    operator.api("Secret").get_opt(name).await
}

impl Operator {
    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(kind))
    }

    /// Updates a host's status, unless the host changed since the read.
    pub async fn status(&self, host: &DynamicObject, status: Value) -> Result<(), kube::Error> {
        let mut status = status;
        status["lastUpdated"] = json!(jiff::Timestamp::now().to_string());
        let change = json!({"metadata": {"resourceVersion": host.resource_version()}, "status": status});
        self.api("BareMetalHost")
            .patch_status(&host.name_any(), &PatchParams::default(), &Patch::Merge(change))
            .await
            .map(drop)
    }

    /// Updates a host, unless it changed since the read.
    pub async fn update(&self, host: &DynamicObject, mut change: Value) -> Result<(), kube::Error> {
        change["metadata"]["resourceVersion"] = json!(host.resource_version());
        let api = self.api("BareMetalHost");
        api.patch(&host.name_any(), &PatchParams::default(), &Patch::Merge(change)).await.map(drop)
    }
}

/// Returns the host fields that trigger the real operator (`updateEventHandler`).
fn waking(host: &DynamicObject) -> String {
    let metadata = &host.metadata;
    format!(
        "{:?} {:?} {:?} {:?}",
        metadata.generation, metadata.finalizers, metadata.annotations, metadata.deletion_timestamp
    )
}

/// The running operator. It stops on drop.
pub struct Running {
    task: JoinHandle<()>,
    pub operator: Arc<Operator>,
}

impl Running {
    /// Starts it for one namespace. `before` contains the Ironic nodes of a stopped operator.
    pub fn start(client: Client, namespace: &str, options: Options, before: HashMap<String, Node>) -> Self {
        let operator =
            Arc::new(Operator { client, namespace: namespace.to_owned(), options, nodes: Mutex::new(before) });
        Self { task: tokio::spawn(run(Arc::clone(&operator))), operator }
    }

    /// Aborts it mid-work, as in a crash.
    pub fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn run(operator: Arc<Operator>) {
    let mut events = watcher(operator.api("BareMetalHost"), watcher::Config::default()).default_backoff().boxed();
    let (mut seen, mut due): (HashMap<String, String>, BTreeMap<String, Instant>) = (HashMap::new(), BTreeMap::new());
    loop {
        let (next, pause) = first(&due);
        tokio::select! {
            event = events.next() => {
                let Some(event) = event else { return };
                match event {
                    Ok(watcher::Event::Apply(host) | watcher::Event::InitApply(host)) => {
                        let (name, now) = (host.name_any(), waking(&host));
                        if seen.insert(name.clone(), now.clone()).as_ref() != Some(&now) {
                            due.insert(name, Instant::now());
                        }
                    }
                    Ok(watcher::Event::Delete(host)) => {
                        seen.remove(&host.name_any());
                        due.remove(&host.name_any());
                    }
                    _ => {}
                }
            }
            () = tokio::time::sleep(pause) => {
                let Some(name) = next else { continue };
                due.remove(&name);
                if operator.options.awake.is_closed() {
                    due.insert(name, Instant::now() + Duration::from_millis(50));
                    continue;
                }
                let turned = turn::turn(&operator, &name).await;
                if std::env::var_os("METAL3_LOG").is_some() {
                    eprintln!("{name}: {turned:?}");
                }
                match turned {
                    Ok(Some(after)) => { due.insert(name, Instant::now() + after); }
                    Ok(None) => {}
                    Err(_) => {
                        due.insert(name, Instant::now() + Duration::from_millis(100));
                    }
                }
            }
        }
    }
}
