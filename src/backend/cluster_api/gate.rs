//! The gate that a server's Machine forms.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use kube::core::DynamicObject;

use crate::{
    backend::{BackendError, ExternalRequestRef, Gate, Outlook, Rejection, cluster},
    clock::within,
    maintenance::{
        aliases::SystemUuid,
        gate::{AwaitedNode, ExternalRequest, ExternalState, ExternalSystem, GateView, Loss, QueueAuthority},
    },
};

use super::{
    ID, MachineName, change,
    clusters::{Clusters, meaning, request},
    machine::{HOOK, LabelValue, MAINTENANCE, Machine, Node, SKIP_REMEDIATION},
    standing::{ClusterView, behind, standing},
};

/// Memory key: the Machine, as `namespace/name`.
pub(super) const MACHINE: &str = "machine";
/// Memory key: the UID of the management cluster.
const MANAGEMENT: &str = "management";
/// Memory key: the UID of the workload cluster.
const WORKLOAD: &str = "workload";

/// Memory key: set if the Node was Ready.
const READY: &str = "ready";

/// How long pruning waits for a free Node. The next pruning removes the rest.
const PRUNE: Duration = Duration::from_secs(20);

/// Poll interval for both clusters during that wait.
const PAUSE: Duration = Duration::from_secs(2);

pub(super) struct MachineGate {
    pub(super) clusters: Arc<Clusters>,
    pub(super) server: String,
    /// The machine that readers use, if this configuration has the server.
    pub(super) machine: Option<Arc<dyn crate::backend::Machine>>,
}

/// Both clusters' state for a request.
struct Read {
    place: MachineName,
    machine: Option<Arc<DynamicObject>>,
    node: Option<Arc<DynamicObject>>,
    used_by: Option<String>,
    is_other: bool,
    stays_outdated: bool,
}

impl Read {
    fn seen(&self) -> ClusterView<'_> {
        ClusterView {
            machine: self.machine.as_deref().map(Machine),
            node: self.node.as_deref().map(Node),
            used_by: self.used_by.as_deref(),
            is_other: self.is_other,
            stays_outdated: self.stays_outdated,
        }
    }
}

impl MachineGate {
    /// Returns the Machine that uses the server according to its backend. With `fresh`, the answer
    /// is not older than this call.
    async fn used_by(&self, fresh: bool) -> Result<Option<MachineName>, BackendError> {
        let Some(machine) = self.machine.as_ref().filter(|_| self.clusters.settings.follows) else { return Ok(None) };
        match machine.consumer().await? {
            Some(consumer) => self.clusters.metal3_machines.owner(&consumer, fresh).await,
            None => Ok(None),
        }
    }

    /// Returns the server's Machine: from the record, else from the configuration, else from the
    /// server's consumer.
    async fn place(&self, memory: &BTreeMap<String, String>, fresh: bool) -> Result<Option<MachineName>, BackendError> {
        if let Some(known) = memory.get(MACHINE).and_then(|text| MachineName::read(text)) {
            return Ok(Some(known));
        }
        if let Some(configured) = self.clusters.settings.machines.get(&self.server) {
            return Ok(Some(configured.clone()));
        }
        self.used_by(fresh).await
    }

    async fn read(&self, wish: &ExternalRequest, fresh: bool) -> Result<Read, BackendError> {
        self.reaches(wish).await?;
        let missing = || BackendError::Missing {
            address: self.clusters.settings.management.address().into(),
            what: format!("no Machine uses {}: name it in cluster_api.machines", self.server).into(),
        };
        let place = self.place(&wish.memory, fresh).await?.ok_or_else(missing)?;
        let machine = self.clusters.machine(&place, fresh).await?;
        let name = machine.as_deref().and_then(|object| Machine(object).node());
        let node = match name {
            Some(name) => self.clusters.node(name, fresh).await?,
            None => None,
        };
        // Our request stays ours even if another Machine starts to use the host. If a Machine is
        // configured, a consumer without a Machine does not contradict it.
        let named = self.clusters.settings.machines.contains_key(&self.server);
        let used_by = if wish.asked { Ok(None) } else { self.used_by(fresh).await };
        let used_by = match used_by {
            Err(BackendError::Missing { .. }) if named => None,
            used_by => used_by?,
        };
        let id = machine.as_deref().and_then(|object| Machine(object).provider_id());
        let is_other = match (&self.machine, id) {
            (Some(server), Some(id)) if !wish.asked => server.has_provider_id(id).await? == Some(false),
            _ => false,
        };
        let stays_outdated = match machine.as_deref().map(Machine).filter(|_| !wish.asked) {
            Some(machine) => self.clusters.stays_outdated(machine).await?,
            None => false,
        };
        Ok(Read { place, machine, node, used_by: used_by.map(|it| it.to_string()), is_other, stays_outdated })
    }

    /// Describes a mismatch between the Node's and the server's hardware UUID: the configured
    /// Machine could belong to another server. This proves nothing, because firmware can report
    /// different UUIDs to BMC and operating system.
    async fn other_hardware(&self, node: &DynamicObject) -> Option<String> {
        let of_node = cluster::text(node, "/status/nodeInfo/systemUUID")?;
        let of_server = self.machine.as_ref()?.identify().await.ok()?.uuid?;
        let (one, other) = (SystemUuid::read(of_node)?, SystemUuid::read(&of_server)?);
        (one.alias() != other.alias()).then(|| {
            format!(
                "{} runs on different hardware (system UUID {of_node}) than the server ({of_server}): check that \
                 cluster_api.machines names this server's Machine.",
                Node(node)
            )
        })
    }

    /// Rejects a record whose Machine is in clusters that this configuration does not reach.
    async fn reaches(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        if !wish.memory.contains_key(MANAGEMENT) && !wish.memory.contains_key(WORKLOAD) {
            return Ok(());
        }
        let (management, workload) = self.clusters.uids().await?;
        for (key, here, setting) in [(MANAGEMENT, management, "context"), (WORKLOAD, workload, "workload_context")] {
            if let (Some(theirs), Some(here)) = (wish.memory.get(key), here)
                && theirs != here
            {
                return Err(BackendError::Elsewhere {
                    message: format!(
                        "{} requested a Machine whose {key} cluster is {theirs}, but this configuration uses {here}: \
                         set cluster_api.{setting}",
                        wish.id
                    )
                    .into(),
                });
            }
        }
        Ok(())
    }

    async fn memory(&self, read: &Read) -> Result<BTreeMap<String, String>, BackendError> {
        let (management, workload) = self.clusters.uids().await?.clone();
        let ready = read.node.as_deref().filter(|node| cluster::node_is_ready(node)).map(|_| true.to_string());
        let place = Some(read.place.to_string());
        let all = [(MACHINE, place), (MANAGEMENT, management), (WORKLOAD, workload), (READY, ready)];
        Ok(all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect())
    }

    /// Returns the Node that must be Ready before the label is removed, because the maintenance
    /// controller then uncordons it.
    async fn awaited(&self, read: &Read, wish: &ExternalRequest) -> Result<Option<AwaitedNode>, BackendError> {
        let was_ready = wish.leaving && wish.entered && wish.memory.contains_key(READY);
        let Some(node) = read.node.as_deref().filter(|_| was_ready) else { return Ok(None) };
        // The runtime extension can keep a host off while the label exists.
        if let Some(machine) = &self.machine
            && machine.stays_off().await?
        {
            return Ok(None);
        }
        let ready = cluster::node_is_ready(node);
        // The kubelet's Lease is meaningless before the Node is Ready.
        let workload = &self.clusters.settings.workload;
        let heard = if ready { cluster::node_heard(workload, cluster::name(node), meaning).await? } else { None };
        Ok(Some(AwaitedNode {
            node: Node(node).to_string().into(),
            request: format!("the maintenance label of Machine {}", read.place).into(),
            ready,
            heard,
            timeout: self.clusters.settings.ready_timeout,
        }))
    }

    /// Repeats the withdrawal until the Machine lacks any trace of the request.
    async fn until_left(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        loop {
            match self.look(wish, true).await?.standing {
                ExternalState::Absent | ExternalState::Refused(_) | ExternalState::Taken(_) => return Ok(()),
                ExternalState::Returning(_) => {}
                _ => self.leave(wish).await?,
            }
            tokio::select! {
                () = self.changed() => {}
                () = self.clusters.clock.sleep(PAUSE) => {}
            }
        }
    }

    /// Returns a fingerprint that changes with the Machine or its Node.
    async fn mark(&self, place: &MachineName) -> Option<String> {
        let machine = self.clusters.machine(place, false).await.ok()?;
        let name = machine.as_deref().and_then(|object| Machine(object).node()).map(str::to_owned);
        let node = match &name {
            Some(name) => self.clusters.node(name, false).await.ok()?,
            None => None,
        };
        let version = |object: &Option<Arc<DynamicObject>>| object.as_ref()?.metadata.resource_version.clone();
        let labels = node.as_ref().map(|object| object.metadata.labels.clone());
        Some(format!("{:?} {labels:?}", version(&machine)))
    }
}

#[async_trait]
impl Gate for MachineGate {
    async fn system(&self, _operation: bool) -> Result<Option<ExternalSystem>, BackendError> {
        if self.place(&BTreeMap::new(), false).await?.is_none() {
            return Ok(None);
        }
        Ok(Some(ExternalSystem {
            gate: Some(ID.to_owned()),
            loss: Loss::Restore,
            ..ExternalSystem::own("Cluster API", QueueAuthority::OnTurn, true)
        }))
    }

    async fn look(&self, wish: &ExternalRequest, fresh: bool) -> Result<GateView, BackendError> {
        let read = self.read(wish, fresh).await?;
        let seen = read.seen();
        let standing = standing(&seen, &read.place.to_string(), wish, self.clusters.now());
        // The prior state matters only before the request.
        let memory = if standing == ExternalState::Absent { self.memory(&read).await? } else { BTreeMap::new() };
        let awaited = if standing == ExternalState::Granted { self.awaited(&read, wish).await? } else { None };
        Ok(GateView { behind: behind(&seen, wish), memory, awaited, ..GateView::of(standing) })
    }

    async fn enter(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        let read = self.read(wish, true).await?;
        let place = read.place.to_string();
        let address = self.clusters.settings.management.address();
        match change::enter(&read.seen(), &place, &self.server, wish, self.clusters.now()) {
            Ok(Some(change)) => match &read.machine {
                Some(object) => self.clusters.patch(object, change).await,
                None => Ok(()),
            },
            Ok(None) => Ok(()),
            // Waiting cannot help: the Machine was deleted since the first request, for example.
            Err(ExternalState::Refused(what)) => {
                Err(BackendError::Missing { address: address.into(), what: what.to_string().into() })
            }
            Err(standing) => {
                let what = format!("request maintenance of Machine {place}");
                Err(cluster::not_now(address, what, standing.to_string()))
            }
        }
    }

    async fn leave(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        let read = self.read(&ExternalRequest { asked: true, ..wish.clone() }, true).await?;
        let change = change::leave(&read.seen(), &read.place.to_string(), wish, self.clusters.now());
        match (change, &read.machine) {
            (Some(change), Some(object)) => self.clusters.patch(object, change).await,
            _ => Ok(()),
        }
    }

    async fn requests(&self) -> Result<Vec<ExternalRequestRef>, BackendError> {
        let Some(place) = self.place(&BTreeMap::new(), false).await? else { return Ok(Vec::new()) };
        let machine = self.clusters.machine(&place, false).await?;
        let of_this = |found: ExternalRequestRef| ExternalRequestRef { server: self.server.clone(), ..found };
        Ok(machine.iter().filter_map(|object| request(object)).map(of_this).collect())
    }

    async fn discard(&self, request: &ExternalRequestRef) -> Result<(), BackendError> {
        let wish = request.wish();
        if let Some(left) = within(PRUNE, self.until_left(&wish)).await {
            return left;
        }
        tracing::warn!("{}: the Node of its Machine is not free yet; the next prune removes the rest", self.server);
        Ok(())
    }

    fn by_hand(&self, wish: &ExternalRequest, _order: QueueAuthority) -> String {
        let configured = || self.clusters.settings.machines.get(&self.server).cloned();
        let place = wish.memory.get(MACHINE).and_then(|text| MachineName::read(text)).or_else(configured);
        let Some(MachineName { namespace, name }) = place else {
            return format!("kubectl get machines -A -l {MAINTENANCE} shows it; remove that label");
        };
        format!(
            "kubectl label machine -n {namespace} {name} {MAINTENANCE}- && kubectl annotate machine -n {namespace} {name} {HOOK}- \
             {SKIP_REMEDIATION}-"
        )
    }

    fn after_no_restore(&self) -> Option<&'static str> {
        Some(
            "the maintenance label of its Machine was removed without waiting for the Node to be Ready: the \
             maintenance controller can uncordon the Node now, even if it was cordoned by hand. Taint the Node if Pods \
             must not run on this server",
        )
    }

    async fn changed(&self) {
        let Ok(Some(place)) = self.place(&BTreeMap::new(), false).await else { return std::future::pending().await };
        let Ok(machines) = self.clusters.machines(&place.namespace).await else {
            return std::future::pending().await;
        };
        let (mut machines, mut nodes) = (machines.changes(), self.clusters.nodes.changes());
        let before = self.mark(&place).await;
        if before.is_none() {
            // Waiters poll while a cluster is unreachable.
            return std::future::pending().await;
        }
        loop {
            let told = tokio::select! {
                told = machines.changed() => told,
                told = nodes.changed() => told,
            };
            if told.is_err() || self.mark(&place).await != before {
                return;
            }
        }
    }

    async fn state(&self) -> Result<Option<String>, BackendError> {
        let Some(place) = self.place(&BTreeMap::new(), false).await? else { return Ok(None) };
        let Some(object) = self.clusters.machine(&place, false).await? else {
            return Ok(Some(format!("Machine {place} does not exist")));
        };
        let machine = Machine(&object);
        let node = match machine.node() {
            Some(name) => self.clusters.node(name, false).await?,
            None => None,
        };
        let node = node.as_deref().map_or_else(|| "no Node".to_owned(), |object| Node(object).shown());
        let asked = match machine.asked() {
            LabelValue::No => "",
            LabelValue::Requested => ", maintenance requested",
            LabelValue::Approved => ", maintenance approved",
            LabelValue::Other(_) => ", maintenance label with another value",
        };
        Ok(Some(format!("{machine}: {}{asked}; {node}", machine.phase())))
    }

    async fn outlook(&self, wish: &ExternalRequest) -> Result<Outlook, BackendError> {
        if self.place(&BTreeMap::new(), false).await?.is_none() {
            return Ok(Outlook::default());
        }
        let read = self.read(wish, false).await?;
        let seen = read.seen();
        let mut outlook = Outlook::default();
        if let Some(machine) = seen.machine {
            let node = seen.node.map_or_else(|| "no Node".to_owned(), Node::shown);
            outlook.lines.push(format!("Cluster API: {machine}, {}, {node}.", machine.phase()));
            outlook.lines.push(
                "Drain: the maintenance controller drains the Node and approves before the server is locked; the \
                 Machine's deletion waits until the release, and health checks skip it."
                    .to_owned(),
            );
        }
        if let Some(machine) = seen.machine.filter(|_| seen.stays_outdated) {
            outlook.lines.push(format!(
                "{machine} is not up to date and is replaced only after a manual action; the maintenance does not wait \
                 for that."
            ));
        }
        if let Some(node) = &read.node {
            outlook.lines.extend(self.other_hardware(node).await);
        }
        match standing(&seen, &read.place.to_string(), wish, self.clusters.now()) {
            ExternalState::Refused(why) | ExternalState::Failed(why) => {
                outlook.rejection = Some(Rejection::for_now(why.to_string()));
            }
            ExternalState::Taken(why) | ExternalState::Waiting(why) => {
                outlook.lines.push(format!("It would wait for {why}."));
                let other = seen.machine.and_then(Machine::marked_by).filter(|id| *id != wish.id);
                outlook.ahead = other.map(|id| format!("the maintenance {id} has its Machine"));
            }
            _ => {}
        }
        Ok(outlook)
    }
}
