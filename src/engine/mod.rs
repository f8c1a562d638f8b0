//! Drives one record: load, decide, act, record. Depends on stores, machines and probes only
//! through their traits.

mod act;
mod addresses;
mod check;
mod consent;
mod drain;
mod drained;
mod drive;
mod driven;
mod entry;
mod error;
mod forecast;
mod gate;
mod gates_seen;
mod identity;
mod invoke;
mod late_gate;
mod lease;
mod liveness;
mod location;
mod look;
mod managed;
mod node;
mod open;
mod orphans;
mod ours;
mod owners;
mod patience;
mod planned;
pub mod process;
mod progress;
mod rebind;
mod reclaim;
mod recorded;
mod renames;
mod restored;
mod run_stores;
mod same_server;
mod service;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    backend::{Backend, GateKind, Machine, NodeDrain, NodeLeasing},
    clock::Clock,
    maintenance::{
        aliases::Alias,
        drain::DrainWish,
        ids::{LockKey, MaintenanceId, Runner, Uid},
        machine::ResetType,
        node::{NodeLease, NodeWish},
        power::Limits,
        spec::{MaintenanceKind, Policy, Spec},
        window::WindowSpec,
    },
    probe::Probe,
    store::{LockView, Store},
};

pub use check::ServerCheck;
pub use consent::{ApprovalWish, ClaimWish};
pub use drain::PrunedNodes;
pub use drive::ReconcileResult;
pub use entry::MaintenanceRequest;
pub use error::EngineError;
pub use forecast::{Intended, PlannedRun};
pub use gates_seen::GatesSeen;
pub use invoke::{EarlierInvocation, Invoked};
pub use location::Observed;
pub use look::{MaintenanceStatus, Observation};
pub use managed::Forbidden;
pub use orphans::{DeletionResult, PruneSummary, Remaining};
pub use owners::Claimed;
pub use planned::{Lasting, PlannedName, PlannedRequests};
pub use progress::Listening;
pub use rebind::Rebound;
pub use restored::{RAISED_BY, Restored, ToInspect};

use addresses::Addresses;
use lease::LeaseKeeper;
use open::OpenLocks;
use progress::Listeners;
use snapshot::PlanSnapshot;

/// Durations and limits that tune the engine.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// How long a process can be silent before its lease expires.
    pub lease: Duration,
    /// Waiting time after which a waiter's priority rises by one step.
    pub aging: Duration,
    /// How long the store keeps history; `None`: forever.
    pub history: Option<Duration>,
    /// Time limits for machines.
    pub limits: Limits,
    /// Longest pause between two reads of a changing machine.
    pub poll: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            aging: Duration::from_hours(24),
            history: None,
            limits: Limits::default(),
            poll: Duration::from_secs(2),
        }
    }
}

/// Time limits and cancellation of a drive.
#[derive(Clone, Debug)]
pub struct Control {
    /// Cancelled when the process must stop.
    pub stop: CancellationToken,
    /// Time limit for the operation (`timeouts.create` or `timeouts.delete`).
    pub timeout: Duration,
    /// Time limit for the restore after a failure.
    pub release_timeout: Duration,
}

/// Dependencies of an engine.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Stores the records.
    pub store: Arc<dyn Store>,
    /// Reaches the servers.
    pub backend: Arc<dyn Backend>,
    /// Checks URLs.
    pub probe: Arc<dyn Probe>,
    /// Provides the time.
    pub clock: Arc<dyn Clock>,
    /// Identifies this process.
    pub runner: Runner,
    /// The provider's `owner`.
    pub owner: String,
    /// The provider's windows by name.
    pub windows: BTreeMap<String, WindowSpec>,
    /// The provider's `always_perform_maintenance`: skips approvals by owners.
    pub always_perform: bool,
    /// Kubernetes Nodes of the servers.
    pub nodes: Nodes,
    /// Gates in front of servers of any backend, outermost first.
    pub gates: Vec<Arc<dyn GateKind>>,
    /// Durations and limits.
    pub tuning: Tuning,
}

/// Kubernetes Nodes of the servers: the provider's `node_leases` and `kubernetes_node`.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// Node Leases by server name.
    pub leases: BTreeMap<String, NodeLease>,
    /// True if a maintenance takes the Lease. Otherwise it only waits for the Lease to be free.
    pub take: bool,
    /// Reads and takes Leases.
    pub leasing: Option<Arc<dyn NodeLeasing>>,
    /// Drain settings by server name: the provider's `kubernetes_node`.
    pub drains: BTreeMap<String, DrainWish>,
    /// Drains Nodes.
    pub drainer: Option<Arc<dyn NodeDrain>>,
}

/// Drives records. All resources of a provider configuration share one engine.
#[derive(Debug)]
pub struct Engine {
    parts: Parts,
    lease: LeaseKeeper,
    snapshot: PlanSnapshot,
    /// Records that this run's states manage.
    managed: Mutex<HashSet<Uid>>,
    /// Names that this run replaces, with their servers.
    replaced: Mutex<HashSet<(MaintenanceId, String)>>,
    /// Planned requests.
    planned: PlannedRequests,
    /// The whole addresses of images.
    addresses: Addresses,
    /// Listeners to drive progress.
    listeners: Listeners,
    /// Locks that last for one run.
    open_locks: OpenLocks,
    /// Blocks whose unreachable Node cluster was already reported.
    unseen: Mutex<HashSet<&'static str>>,
    /// Servers that this process identified, by lock: each name with its address.
    sighted: Mutex<BTreeMap<LockKey, BTreeMap<Alias, Alias>>>,
    /// PID of the parent process.
    #[cfg(unix)]
    parent: u32,
}

impl Engine {
    /// Returns false if the parent process has ended. Windows does not report that.
    pub(crate) fn has_its_host(&self) -> bool {
        #[cfg(unix)]
        return std::os::unix::process::parent_id() == self.parent;
        #[cfg(not(unix))]
        true
    }

    /// Creates an engine. It does nothing until a method is called.
    #[must_use]
    pub fn new(mut parts: Parts) -> Self {
        parts.tuning.limits.call = parts.tuning.lease;
        let lease =
            LeaseKeeper::new(Arc::clone(&parts.store), Arc::clone(&parts.clock), parts.runner.clone(), parts.tuning);
        Self {
            parts,
            lease,
            snapshot: PlanSnapshot::default(),
            managed: Mutex::default(),
            replaced: Mutex::default(),
            planned: PlannedRequests::default(),
            addresses: Addresses::default(),
            listeners: Listeners::default(),
            open_locks: OpenLocks::default(),
            unseen: Mutex::default(),
            sighted: Mutex::default(),
            #[cfg(unix)]
            parent: std::os::unix::process::parent_id(),
        }
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.parts.store
    }

    /// Returns the backend.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.parts.backend
    }

    /// Returns this process's identity.
    #[must_use]
    pub fn runner(&self) -> &Runner {
        &self.parts.runner
    }

    /// Returns the provider's `owner`.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.parts.owner
    }

    /// Returns the provider's windows by name.
    #[must_use]
    pub fn windows(&self) -> &BTreeMap<String, WindowSpec> {
        &self.parts.windows
    }

    /// Returns true if maintenances skip approvals by owners, whatever their policy.
    #[must_use]
    pub fn always_performs(&self) -> bool {
        self.parts.always_perform
    }

    /// Returns a specification as its record stores it: with the provider's settings, and without
    /// signatures in image addresses. This process keeps the full addresses.
    #[must_use]
    pub fn as_asked_here(&self, spec: &Spec) -> Spec {
        let lease = self.parts.nodes.leases.get(spec.server.raw());
        let take = self.parts.nodes.take && spec.kind == MaintenanceKind::Maintenance;
        self.addresses.keep(spec);
        Spec {
            always_perform: self.parts.always_perform && spec.policy == Policy::OwnerApproval,
            node: lease.map(|lease| NodeWish { lease: lease.clone(), take }),
            drain: self.parts.nodes.drains.get(spec.server.raw()).filter(|_| stops_node(spec)).cloned().map(Box::new),
            ..spec.sealed()
        }
    }

    /// Keeps full addresses for images that records can contain without signatures.
    pub fn remember_addresses<'a>(&self, addresses: impl IntoIterator<Item = &'a str>) {
        addresses.into_iter().for_each(|address| self.addresses.keep_plain(address));
    }

    /// Planned requests.
    #[must_use]
    pub fn planned(&self) -> &PlannedRequests {
        &self.planned
    }

    /// The wall clock of this machine, for people.
    #[must_use]
    pub fn now(&self) -> jiff::Timestamp {
        self.parts.clock.now()
    }

    /// Returns the durations and limits.
    #[must_use]
    pub fn tuning(&self) -> &Tuning {
        &self.parts.tuning
    }

    /// Looks up the machine for a configured server name.
    pub fn machine(&self, server: &str) -> Result<Arc<dyn Machine>, EngineError> {
        Ok(self.parts.backend.machine(server)?)
    }

    /// Returns a lock's view for a plan. One plan reads the store once for all servers.
    pub async fn planned_view(&self, key: &LockKey) -> Result<LockView, EngineError> {
        self.snapshot.view(&self.parts.store, &self.parts.clock, key).await
    }

    /// Ends the lease, the BMC sessions and the store, in that order and within time limits.
    pub async fn close(&self) {
        self.lease.resign().await;
        self.parts.backend.close().await;
        self.parts.store.close().await;
        // Last: while the lease exists, other processes check whether this process lives.
        process::end_mark(&self.parts.runner.process);
    }
}

/// Returns true if a change stops the server's workload, so that its Node is drained first.
/// Switching a server on stops nothing. A boot configuration without a power state only affects the
/// next boot.
fn stops_node(spec: &Spec) -> bool {
    match spec.kind {
        MaintenanceKind::Maintenance => true,
        MaintenanceKind::Operation => spec.operation.as_ref().is_none_or(|operation| operation.reset != ResetType::On),
        MaintenanceKind::BootConfiguration => spec.server_power.is_some(),
    }
}
