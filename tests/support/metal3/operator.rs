//! The loop of the stand-in: events and delays lead to one turn for one host after the other.

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

/// A version of the operator: the first one that does what is written here, and all after it up to
/// the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// v0.11.0 to v0.12.6.
    V0_11,
    /// v0.13.0 to v0.13.2: the deletion of every detached host is delayed.
    V0_13,
    /// v0.14.0-rc.0: keyed reboot annotations stay when a host changes its state.
    V0_14,
    /// 02aa505: a host counts as detached for a deletion as soon as it is annotated.
    #[default]
    Newest,
}

impl Version {
    /// Whether every reboot annotation is deleted when a host changes its state.
    pub fn deletes_keys(self) -> bool {
        self < Self::V0_14
    }

    /// Whether `spec.firmware` of the host is serviced at a reboot.
    pub fn services_firmware_of_the_host(self) -> bool {
        self < Self::Newest
    }
}

/// How the operator is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often a host in a steady state is looked at. A minute where people run it.
    pub steady: Duration,
    /// How long a step of Ironic takes.
    pub step: Duration,
    /// Which one it is.
    pub version: Version,
    /// While closed, the operator does nothing.
    pub awake: Gate,
    /// While closed, no host can be registered: the BMC is not accepted.
    pub registers: Gate,
    /// While closed, no node can be deleted: detaching ends in an error.
    pub detaches: Gate,
    /// Whether a service step boots the host's ramdisk, as it does through Ironic; the fixture of
    /// the real operator boots nothing.
    pub boots_ramdisk: bool,
    /// While closed, no live ISO can be read: provisioning ends in an error.
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

/// A call that Ironic makes for a node. It takes no other one meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub enum Call {
    #[default]
    None,
    /// One of another client.
    Foreign,
    /// A change of its power, and since when.
    Power { on: bool, since: Instant },
}

/// A node in Ironic.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub id: String,
    pub verified: bool,
    pub adopted: bool,
    pub serviced: bool,
    /// The call that is made for it.
    pub call: Call,
}

/// What the turns share.
pub struct Operator {
    pub client: Client,
    pub namespace: String,
    pub options: Options,
    pub nodes: Mutex<HashMap<String, Node>>,
}

/// A kind of the group, or of the core.
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

/// A Secret of the operator's namespace.
pub async fn secret(operator: &Operator, name: &str) -> Result<Option<DynamicObject>, kube::Error> {
    operator.api("Secret").get_opt(name).await
}

impl Operator {
    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(kind))
    }

    /// Changes the status of a host, if nobody wrote the host since it was read.
    pub async fn status(&self, host: &DynamicObject, status: Value) -> Result<(), kube::Error> {
        let mut status = status;
        status["lastUpdated"] = json!(jiff::Timestamp::now().to_string());
        let change = json!({"metadata": {"resourceVersion": host.resource_version()}, "status": status});
        self.api("BareMetalHost")
            .patch_status(&host.name_any(), &PatchParams::default(), &Patch::Merge(change))
            .await
            .map(drop)
    }

    /// Changes a host, if nobody wrote it since it was read.
    pub async fn update(&self, host: &DynamicObject, mut change: Value) -> Result<(), kube::Error> {
        change["metadata"]["resourceVersion"] = json!(host.resource_version());
        let api = self.api("BareMetalHost");
        api.patch(&host.name_any(), &PatchParams::default(), &Patch::Merge(change)).await.map(drop)
    }
}

/// What of a host wakes the real operator (`updateEventHandler`).
fn waking(host: &DynamicObject) -> String {
    let metadata = &host.metadata;
    format!(
        "{:?} {:?} {:?} {:?}",
        metadata.generation, metadata.finalizers, metadata.annotations, metadata.deletion_timestamp
    )
}

/// The operator, running. It stops when this is dropped.
pub struct Running {
    task: JoinHandle<()>,
    pub operator: Arc<Operator>,
}

impl Running {
    /// Starts it for one namespace. `before`: what an operator that was stopped had in Ironic.
    pub fn start(client: Client, namespace: &str, options: Options, before: HashMap<String, Node>) -> Self {
        let operator =
            Arc::new(Operator { client, namespace: namespace.to_owned(), options, nodes: Mutex::new(before) });
        Self { task: tokio::spawn(run(Arc::clone(&operator))), operator }
    }

    /// Ends it; what it was about to do is left undone, as after a crash.
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
