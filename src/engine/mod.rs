//! Drives one record: load → decide → act → record. Knows stores, machines and probes by their
//! traits only.

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
pub use drain::TidiedNodes;
pub use drive::ReconcileResult;
pub use entry::MaintenanceRequest;
pub use error::EngineError;
pub use forecast::{Intended, PlannedRun};
pub use gates_seen::GatesSeen;
pub use invoke::{EarlierInvocation, Invoked};
pub use location::Observed;
pub use look::{MaintenanceStatus, Observation};
pub use managed::Forbidden;
pub use orphans::{DeletionResult, Remaining, TidySummary};
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

/// Numbers that shape how the engine works.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// How long a process may be silent before it counts as gone.
    pub lease: Duration,
    /// After how long a waiter gains one step of priority.
    pub aging: Duration,
    /// For how long the store keeps history; `None`: forever.
    pub history: Option<Duration>,
    /// How long machines may take.
    pub limits: Limits,
    /// The longest pause between two looks at a machine that is changing.
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

/// How long a drive may take and who may stop it.
#[derive(Clone, Debug)]
pub struct Control {
    /// Cancelled when the process is asked to stop.
    pub stop: CancellationToken,
    /// Time limit for what was asked (`timeouts.create` or `timeouts.delete`).
    pub timeout: Duration,
    /// Time limit for giving the server back after a failure.
    pub release_timeout: Duration,
}

/// The parts that an engine is made of.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Where records live.
    pub store: Arc<dyn Store>,
    /// How servers are reached.
    pub backend: Arc<dyn Backend>,
    /// How URLs are asked.
    pub probe: Arc<dyn Probe>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Who we are.
    pub runner: Runner,
    /// The provider's `owner`.
    pub owner: String,
    /// The provider's windows by name.
    pub windows: BTreeMap<String, WindowSpec>,
    /// The provider's `always_perform_maintenance`: owners are not asked.
    pub always_perform: bool,
    /// The Kubernetes Nodes that run on the servers.
    pub nodes: Nodes,
    /// The gates before servers of any backend, the outermost first.
    pub gates: Vec<Arc<dyn GateKind>>,
    /// Numbers.
    pub tuning: Tuning,
}

/// Which Kubernetes Nodes run on which servers, where that is to be minded: the provider's
/// `node_leases`.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// The Lease of a server's Node, by the server's name.
    pub leases: BTreeMap<String, NodeLease>,
    /// Whether a maintenance takes it, and does not only wait until no other component holds it.
    pub take: bool,
    /// What reads and takes them.
    pub leasing: Option<Arc<dyn NodeLeasing>>,
    /// How a server's Node is drained, by the server's name: the provider's `kubernetes_node`.
    pub drains: BTreeMap<String, DrainWish>,
    /// What drains them.
    pub drainer: Option<Arc<dyn NodeDrain>>,
}

/// Drives records. Shared by every resource of a provider configuration.
#[derive(Debug)]
pub struct Engine {
    parts: Parts,
    lease: LeaseKeeper,
    snapshot: PlanSnapshot,
    /// The records that states of this run manage.
    managed: Mutex<HashSet<Uid>>,
    /// Names that this run replaces, with their servers.
    replaced: Mutex<HashSet<(MaintenanceId, String)>>,
    /// Planned requests.
    planned: PlannedRequests,
    /// The whole addresses of images.
    addresses: Addresses,
    /// Listeners to the progress of drives.
    listeners: Listeners,
    /// Locks for one run.
    open_locks: OpenLocks,
    /// The blocks whose cluster of Nodes was not reached, as was told.
    unseen: Mutex<HashSet<&'static str>>,
    /// The servers that this process identified, by lock: each name with its address.
    sighted: Mutex<BTreeMap<LockKey, BTreeMap<Alias, Alias>>>,
    /// The process that started this process.
    #[cfg(unix)]
    parent: u32,
}

impl Engine {
    /// Returns false if the process that started this process has ended. Windows does not report
    /// that.
    pub(crate) fn has_its_host(&self) -> bool {
        #[cfg(unix)]
        return std::os::unix::process::parent_id() == self.parent;
        #[cfg(not(unix))]
        true
    }

    /// An engine of these parts. Does nothing until it is asked.
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

    /// Where records live.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.parts.store
    }

    /// How servers are reached.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.parts.backend
    }

    /// Who we are.
    #[must_use]
    pub fn runner(&self) -> &Runner {
        &self.parts.runner
    }

    /// The provider's `owner`.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.parts.owner
    }

    /// The provider's windows by name.
    #[must_use]
    pub fn windows(&self) -> &BTreeMap<String, WindowSpec> {
        &self.parts.windows
    }

    /// Whether owners are not asked, whatever the policy says.
    #[must_use]
    pub fn always_performs(&self) -> bool {
        self.parts.always_perform
    }

    /// A wish with what the provider's configuration adds to it, as a record keeps it: without the
    /// signature of an image's address, which this process remembers.
    #[must_use]
    pub fn as_asked_here(&self, spec: &Spec) -> Spec {
        let lease = self.parts.nodes.leases.get(&spec.server);
        let take = self.parts.nodes.take && spec.kind == MaintenanceKind::Maintenance;
        self.addresses.keep(spec);
        Spec {
            always_perform: self.parts.always_perform && spec.policy == Policy::OwnerApproval,
            node: lease.map(|lease| NodeWish { lease: lease.clone(), take }),
            drain: self.parts.nodes.drains.get(&spec.server).filter(|_| stops_node(spec)).cloned().map(Box::new),
            ..spec.sealed()
        }
    }

    /// Remembers the whole addresses of images that a record may name without their signatures.
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

    /// Numbers.
    #[must_use]
    pub fn tuning(&self) -> &Tuning {
        &self.parts.tuning
    }

    /// The machine behind a configured name.
    pub fn machine(&self, server: &str) -> Result<Arc<dyn Machine>, EngineError> {
        Ok(self.parts.backend.machine(server)?)
    }

    /// What is known of a machine, for a plan: all the machines of one plan are read in one look at
    /// the store.
    pub async fn planned_view(&self, key: &LockKey) -> Result<LockView, EngineError> {
        self.snapshot.view(&self.parts.store, &self.parts.clock, key).await
    }

    /// Ends the lease, the sessions on the BMCs and the store, in that order. Bounded in time.
    pub async fn close(&self) {
        self.lease.resign().await;
        self.parts.backend.close().await;
        self.parts.store.close().await;
        // Last: whoever finds the lease still there may ask whether we live.
        process::end_mark(&self.parts.runner.process);
    }
}

/// Whether a wish stops what runs on the server, so that its Node is drained first. Switching a
/// server on stops nothing, and a boot configuration without a power state changes the next start
/// only.
fn stops_node(spec: &Spec) -> bool {
    match spec.kind {
        MaintenanceKind::Maintenance => true,
        MaintenanceKind::Operation => spec.operation.as_ref().is_none_or(|operation| operation.reset != ResetType::On),
        MaintenanceKind::BootConfiguration => spec.server_power.is_some(),
    }
}
