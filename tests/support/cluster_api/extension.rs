//! The runtime extension: copies labels from a Machine to its Node, and the approval back.
//!
//! Two controllers do this in parallel, one triggered by Machines and one by Nodes. Each reads the
//! other object from a cache, so the later write can be outdated.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::{
    Client, Config, ResourceExt as _,
    api::DynamicObject,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use super::{
    super::gate::Gate,
    APPROVE_DELETION, APPROVE_MAINTENANCE, CLUSTER_NAME, CLUSTER_NAMESPACE, ENABLED, MACHINE, MACHINE_DELETED,
    MACHINE_MAINTENANCE, MAINTENANCE, PRE_DRAIN, STATE, WORLD,
    informer::{Cache, Pace, Rounds, Task, Turns, follow, work},
    metal3_reboot::Metal3Reboot,
    objects::{Failure, api, difference, labelled, merge, text},
};

/// Options of the extension.
#[derive(Clone, Debug)]
pub struct Options {
    /// `--enable-metal3-maintenance`.
    pub metal3: bool,
    /// Interval between periodic reconciles of Nodes. One minute in production.
    pub resync: Duration,
    /// While closed, only events trigger reconciles of Nodes.
    pub resyncs: Gate,
    /// While closed, decided approvals are not written, which simulates late approvals.
    pub approves: Gate,
    /// Number of approvals delayed by `approves`.
    pub held: Arc<AtomicUsize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            metal3: false,
            resync: Duration::from_millis(300),
            resyncs: Gate::default(),
            approves: Gate::default(),
            held: Arc::new(AtomicUsize::new(0)),
        }
    }
}

struct Shared {
    client: Client,
    namespace: String,
    machines: Cache,
    options: Options,
    rounds: Rounds,
    /// Locked during the first connection to a workload cluster. Reconciles of all Nodes wait for
    /// it.
    connecting: tokio::sync::Mutex<()>,
}

/// The running extension. Dropping it aborts it mid-work, like a kill.
pub struct Extension {
    shared: Arc<Shared>,
    _tasks: Vec<Task>,
}

impl Extension {
    /// Starts it for one namespace's Machines.
    pub fn start(client: Client, namespace: &str, options: Options) -> Self {
        let metal3 = options.metal3;
        let namespace = namespace.to_owned();
        let shared = Arc::new(Shared {
            client,
            namespace,
            machines: Cache::default(),
            options,
            rounds: Rounds::default(),
            connecting: tokio::sync::Mutex::default(),
        });
        let mut tasks = Vec::new();
        let mut listeners = Vec::new();
        let (names, machines) = unbounded_channel();
        listeners.push(names);
        let retry = Some(Duration::from_millis(50));
        let management = Management { shared: Arc::clone(&shared), workloads: Mutex::default() };
        tasks.push(Task::spawn(work(management, machines, Pace { retry, ..Pace::default() }, Rounds::default())));
        if metal3 {
            let (names, machines) = unbounded_channel();
            listeners.push(names);
            let controller = Metal3Reboot { client: shared.client.clone(), machines: shared.machines.clone() };
            tasks.push(Task::spawn(work(controller, machines, Pace { retry, ..Pace::default() }, Rounds::default())));
        }
        let machines = api(&shared.client, "Machine", &shared.namespace);
        tasks.push(follow(machines, "", shared.machines.clone(), listeners).0);
        Self { shared, _tasks: tasks }
    }

    /// Waits until each Node was reconciled again, unless that is impossible.
    pub async fn settled(&self) {
        let closed = || self.shared.options.resyncs.is_closed() || self.shared.connecting.try_lock().is_err();
        self.shared.rounds.one_more(closed).await;
    }
}

/// Connection to a workload cluster and its Node controller.
struct Workload {
    client: Client,
    nodes: Cache,
    _tasks: [Task; 2],
}

/// Controller triggered by Machines.
struct Management {
    shared: Arc<Shared>,
    workloads: Mutex<HashMap<String, Workload>>,
}

impl Turns for Management {
    async fn turn(&self, name: &str) -> Result<(), Failure> {
        let Some(machine) = self.shared.machines.get(name) else { return Ok(()) };
        let cluster = text(&machine, "/spec/clusterName").to_owned();
        if !labelled(&machine, ENABLED, "true") {
            return self.cleans_up(&machine, &cluster).await;
        }
        let (client, nodes) = self.connected(&cluster).await?;
        let node = text(&machine, "/status/nodeRef/name");
        if node.is_empty() {
            return Ok(());
        }
        let node = nodes.get(node).ok_or_else(|| format!("node {node} is not in the cache"))?;
        propagate(&self.shared, &client, &machine, &node).await
    }
}

impl Management {
    /// Cleans up after a disabled Machine, without reading its Node.
    async fn cleans_up(&self, machine: &DynamicObject, cluster: &str) -> Result<(), Failure> {
        if machine.annotations().contains_key(PRE_DRAIN) {
            let machines = api(&self.shared.client, "Machine", &self.shared.namespace);
            merge(&machines, &machine.name_any(), json!({"metadata": {"annotations": {PRE_DRAIN: null}}})).await?;
        }
        let others = self.shared.machines.all();
        let counts = |one: &DynamicObject| labelled(one, CLUSTER_NAME, cluster) && labelled(one, ENABLED, "true");
        if !others.iter().any(counts) && self.workloads.lock().unwrap().remove(cluster).is_some() {
            self.shared.rounds.clear();
        }
        Ok(())
    }

    async fn connected(&self, cluster: &str) -> Result<(Client, Cache), Failure> {
        if let Some(found) = self.workloads.lock().unwrap().get(cluster) {
            return Ok((found.client.clone(), found.nodes.clone()));
        }
        let secrets = api(&self.shared.client, "Secret", &self.shared.namespace);
        let secret = secrets.get(&format!("{cluster}-kubeconfig")).await?;
        let kubeconfig = String::from_utf8(BASE64_STANDARD.decode(text(&secret, "/data/value"))?)?;
        let kubeconfig = Kubeconfig::from_yaml(&kubeconfig)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        let _waiting = self.shared.connecting.lock().await;
        let nodes = Cache::default();
        let (names, changed) = unbounded_channel();
        let own = format!("{WORLD}={}", self.shared.namespace);
        let (watching, mut filled) = follow(api(&client, "Node", ""), &own, nodes.clone(), vec![names]);
        filled.wait_for(|filled| *filled).await?;
        let controller = Nodes { shared: Arc::clone(&self.shared), client: client.clone(), cache: nodes.clone() };
        let options = &self.shared.options;
        let pace = Pace { retry: None, again: Some(options.resync), resyncs: options.resyncs.clone() };
        let working = Task::spawn(work(controller, changed, pace, self.shared.rounds.clone()));
        let workload = Workload { client: client.clone(), nodes: nodes.clone(), _tasks: [watching, working] };
        self.workloads.lock().unwrap().insert(cluster.to_owned(), workload);
        Ok((client, nodes))
    }
}

/// Controller triggered by one workload cluster's Nodes. It retries only on the next event or
/// resync.
struct Nodes {
    shared: Arc<Shared>,
    client: Client,
    cache: Cache,
}

impl Turns for Nodes {
    async fn turn(&self, name: &str) -> Result<(), Failure> {
        drop(self.shared.connecting.lock().await);
        let Some(node) = self.cache.get(name) else { return Ok(()) };
        let named = |key: &str| node.annotations().get(key).cloned().ok_or_else(|| format!("{name} lacks {key}"));
        let (machine, namespace) = (named(MACHINE)?, named(CLUSTER_NAMESPACE)?);
        let own = (namespace == self.shared.namespace).then(|| self.shared.machines.get(&machine)).flatten();
        let machine = own.ok_or_else(|| format!("{namespace}/{machine} is not in the cache"))?;
        propagate(&self.shared, &self.client, &machine, &node).await
    }
}

/// Updates a Node's labels and a Machine's marks from the cached objects, the Node first.
async fn propagate(
    shared: &Shared,
    workload: &Client,
    machine: &DynamicObject,
    node: &DynamicObject,
) -> Result<(), Failure> {
    if text(machine, "/status/nodeRef/name").is_empty() {
        return Ok(());
    }
    let acts = node.labels().contains_key(STATE) && labelled(machine, ENABLED, "true");
    let asked = machine.labels().get(MAINTENANCE).map(String::as_str);
    let deleting = machine.metadata.deletion_timestamp.is_some();

    let mut annotations = machine.annotations().clone();
    if acts && !labelled(node, APPROVE_DELETION, "true") {
        annotations.insert(PRE_DRAIN.to_owned(), "runtime-extension-maintenance-controller".to_owned());
    } else {
        annotations.remove(PRE_DRAIN);
    }
    let mut on_node = node.labels().clone();
    for (key, wanted) in [
        (MACHINE_DELETED, acts && deleting),
        (MACHINE_MAINTENANCE, acts && matches!(asked, Some("requested" | "approved"))),
    ] {
        if wanted {
            on_node.insert(key.to_owned(), "true".to_owned());
        } else {
            on_node.remove(key);
        }
    }
    let approves = acts && asked == Some("requested") && labelled(node, APPROVE_MAINTENANCE, "true");

    if let Some(labels) = difference(node.labels(), &on_node) {
        merge(&api(workload, "Node", ""), &node.name_any(), json!({"metadata": {"labels": labels}})).await?;
    }
    let mut metadata = serde_json::Map::new();
    if let Some(annotations) = difference(machine.annotations(), &annotations) {
        metadata.insert("annotations".to_owned(), annotations);
    }
    if approves {
        hold(&shared.options).await;
        metadata.insert("labels".to_owned(), json!({MAINTENANCE: "approved"}));
    }
    if !metadata.is_empty() {
        let machines = api(&shared.client, "Machine", &shared.namespace);
        merge(&machines, &machine.name_any(), json!({"metadata": Value::Object(metadata)})).await?;
    }
    Ok(())
}

async fn hold(options: &Options) {
    if !options.approves.is_closed() {
        return;
    }
    options.held.fetch_add(1, Ordering::SeqCst);
    while options.approves.is_closed() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    options.held.fetch_sub(1, Ordering::SeqCst);
}
