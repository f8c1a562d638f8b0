//! Machines and the backends that reach them. This layer does not depend on queues, locks or
//! windows.
//!
//! A backend maps a server's name to a [`Machine`], which consists of small capabilities. No
//! capability repeats a change without a reply: it returns [`BackendError::ReplyLost`], and the
//! caller observes the machine.

mod block;
mod bulk;
mod cluster;
pub mod cluster_api;
mod cluster_block;
mod drain;
mod error;
pub mod gate_plug;
mod guard;
mod inspection;
pub mod ironic;
pub mod kubernetes_node;
mod machines;
pub mod metal3;
pub mod metal_operator;
mod node_lease;
mod outlook;
mod ownership;
pub mod plug;
pub mod redfish;
mod share;
mod web;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use async_trait::async_trait;
use secrecy::SecretString;

use crate::maintenance::{
    gate::{Asks, ExternalRequest, ExternalSystem, GateView, QueueAuthority},
    location::Location,
    machine::{BootOption, BootOverride, Capabilities, MachineView, MediaSlot, ResetType},
    service::{ServiceSpec, ServiceView},
};

pub use drain::{Cordon, FollowedNode, NodeDrain, UncordonOutcome};
pub use error::BackendError;
pub use guard::{StillOurs, before_change, guarded};
pub use inspection::{Account, BmcInspection, Certificate, Timing};
pub use node_lease::NodeLeasing;
pub use outlook::{Outlook, PlanWarning, Rejection, UnaskedConsumer};
pub use ownership::{
    ApprovalMarkRef, ApprovalMarkState, Binding, Consumer, ExternalClaim, ExternalClaimView, ExternalOwnership,
    ExternalWaiter, GateState, OwnershipTexts, Toleration,
};
pub use share::planning;

/// A server's reported identity, in its own spelling. The maintenance layer interprets it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HardwareIdentity {
    /// The configured lock key.
    pub lock_key: Option<String>,
    /// The system UUID.
    pub uuid: Option<String>,
    /// The manufacturer.
    pub manufacturer: Option<String>,
    /// The serial number.
    pub serial_number: Option<String>,
    /// True if the BMC manages several systems, which can all report the same serial number.
    pub has_siblings: bool,
    /// Host and port of the BMC or API server.
    pub authority: String,
    /// The system's path at that address.
    pub path: String,
}

impl HardwareIdentity {
    /// Returns the system ID behind the BMC: the last segment of the path.
    #[must_use]
    pub fn system_id(&self) -> Option<String> {
        let last = self.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        (!last.is_empty()).then(|| last.to_owned())
    }
}

/// A server as listed in the configuration, without secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The server's own BMC address, if any.
    pub endpoint: Option<String>,
    /// The configured system ID.
    pub system_id: Option<String>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The backend that reaches the server, as named in the provider block.
    pub backend: &'static str,
}

/// An external system's view of a server's use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUse {
    /// The server's state there.
    pub state: String,
    /// The server's user there, in the system's terms.
    pub user: Option<String>,
}

/// Access to servers of one kind.
#[async_trait]
pub trait Backend: Send + Sync + Debug {
    /// Returns the names of all configured servers, sorted.
    fn servers(&self) -> Vec<String>;

    /// Returns a server's configuration entry without I/O; empty if the server is not listed.
    fn listed(&self, _server: &str) -> Listed {
        Listed::default()
    }

    /// Returns all servers. Queries no BMC, but the cluster if only the cluster has the list.
    async fn inventory(&self) -> Result<BTreeMap<String, Listed>, BackendError> {
        Ok(self.servers().into_iter().map(|name| (name.clone(), self.listed(&name))).collect())
    }

    /// Returns these servers as a JSON inventory file that references passwords without containing
    /// them. Empty for a backend without an inventory file.
    fn inventory_file(&self, _servers: &BTreeSet<String>) -> String {
        "{}".to_owned()
    }

    /// Returns the machine for a configured name without I/O, or [`BackendError::UnknownServer`].
    fn machine(&self, server: &str) -> Result<Arc<dyn Machine>, BackendError>;

    /// Returns the server's location in the form that records store. Queries the cluster's identity
    /// if there is a cluster.
    async fn location(&self, server: &str) -> Result<Location, BackendError>;

    /// Receives a record's location. The server's name or its neighbors can have changed since.
    fn remember(&self, _server: &str, _location: &Location) {}

    /// Stores configuration content for booted systems by SHA-256 (hexadecimal) until the process
    /// ends. Records contain only the hash.
    fn keep(&self, _sha256: String, _content: SecretString) {}

    /// Returns every external request of our processes, for any server; `None` if the backend has
    /// no external system.
    async fn external_requests(&self) -> Option<Result<Vec<ExternalRequestRef>, BackendError>> {
        Some(self.ownership()?.requests().await)
    }

    /// Returns a server's state in its external system's terms. `None` without such a system or
    /// without its answer.
    async fn external_state(&self, server: &str) -> Option<ServerUse> {
        let found = self.ownership()?.state(server, false).await.ok()?;
        Some(ServerUse { state: found.state, user: found.claim })
    }

    /// Returns access to the claims and approvals of the servers' own maintenance system, if it has
    /// them.
    fn ownership(&self) -> Option<&dyn ExternalOwnership> {
        None
    }

    /// Ends open BMC sessions within a time limit. Called once, on every exit path of the process.
    async fn close(&self);
}

/// One physical machine.
#[async_trait]
pub trait Machine: PowerControl + BootControl + MediaControl + Send + Sync + Debug {
    /// Returns the address for display: a URL without credentials.
    fn address(&self) -> String;

    /// Reads the hardware identity.
    async fn identify(&self) -> Result<HardwareIdentity, BackendError>;

    /// Reads the current state. Costs one request if a session exists.
    async fn observe(&self) -> Result<MachineView, BackendError>;

    /// Reads identity and state, in one request if a single answer contains both.
    async fn recognize(&self) -> (Result<HardwareIdentity, BackendError>, Result<MachineView, BackendError>) {
        (self.identify().await, self.observe().await)
    }

    /// Returns once why the last change failed, if the failure appeared after its call had
    /// returned.
    ///
    /// This method lacks a default on purpose: a wrapping machine must forward the inner machine's
    /// answer.
    async fn late_answer(&self) -> Option<BackendError>;

    /// Reads the machine's supported operations.
    async fn capabilities(&self) -> Result<Capabilities, BackendError>;

    /// Returns the BMC if the backend talks to it directly.
    fn bmc(&self) -> Option<&dyn BmcInspection> {
        None
    }

    /// Returns access to work that an external system performs automatically, if there is one.
    fn service(&self) -> Option<&dyn ServiceControl> {
        None
    }

    /// Returns the server's own maintenance system, if it has one.
    fn maintenance_system(&self) -> Option<&dyn MaintenanceSystem> {
        None
    }

    /// Returns the cluster object that uses the server, if the backend supports this.
    async fn consumer(&self) -> Result<Option<Consumer>, BackendError> {
        Ok(None)
    }

    /// Returns true if a Kubernetes provider ID names this server; `None` if the backend cannot
    /// decide.
    async fn has_provider_id(&self, _id: &str) -> Result<Option<bool>, BackendError> {
        Ok(None)
    }

    /// Returns true if another author keeps the server off after its release, or if its system no
    /// longer has it.
    async fn stays_off(&self) -> Result<bool, BackendError> {
        Ok(false)
    }
}

/// One of our requests to a server's own maintenance system, from any process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalRequestRef {
    /// The ID of the coordination store with the maintenance; empty if the request does not contain
    /// it.
    pub store: String,
    /// The maintenance incarnation behind the request.
    pub uid: String,
    /// The object's kind and name.
    pub name: String,
    /// The requested server.
    pub server: String,
    /// True if the request is not a separate object but written on the server, which it takes out
    /// of service.
    pub parks: bool,
    /// The gate that received the request; `None` for the server's own maintenance system.
    pub gate: Option<&'static str>,
    /// The record's memory entries that locate the request after the record was deleted.
    pub memory: BTreeMap<String, String>,
}

impl ExternalRequestRef {
    /// Rebuilds the maintenance's request from this object alone, after its record was deleted.
    fn wish(&self) -> ExternalRequest {
        ExternalRequest { memory: self.memory.clone(), ..wish_of_ended(&self.store, &self.uid) }
    }
}

/// Returns an ended maintenance's request, identified only by store and incarnation.
fn wish_of_ended(store: &str, uid: &str) -> ExternalRequest {
    ExternalRequest {
        store: store.to_owned(),
        uid: uid.to_owned(),
        id: String::new(),
        owner: String::new().into(),
        run: String::new().into(),
        asks: Asks::Nobody,
        priority: 0,
        reason: None,
        ticket: None,
        asked: true,
        entered: true,
        enters: true,
        leaving: false,
        namespace: None,
        memory: BTreeMap::new(),
        outer: Vec::new(),
    }
}

/// An external system that decides when a requested maintenance can start.
///
/// A request is identified by its maintenance's incarnation, never by name alone. Requests of other
/// authors are never touched.
#[async_trait]
pub trait Gate: Send + Sync {
    /// Returns the external system; `None` if the server is not part of it. `operation` is true for
    /// a power operation.
    async fn system(&self, operation: bool) -> Result<Option<ExternalSystem>, BackendError>;

    /// Reads a request's progress. With `fresh`, the result is not older than this call; otherwise
    /// it is the system's last known answer.
    async fn look(&self, wish: &ExternalRequest, fresh: bool) -> Result<GateView, BackendError>;

    /// Creates the request, or does nothing if it exists.
    async fn enter(&self, wish: &ExternalRequest) -> Result<(), BackendError>;

    /// Withdraws the request, or removes its leftovers. Returns after acceptance, possibly before
    /// the server is usable again.
    async fn leave(&self, wish: &ExternalRequest) -> Result<(), BackendError>;

    /// Lists our requests for this server.
    async fn requests(&self) -> Result<Vec<ExternalRequestRef>, BackendError>;

    /// Withdraws a request whose maintenance no longer exists.
    async fn discard(&self, request: &ExternalRequestRef) -> Result<(), BackendError>;

    /// Returns instructions for withdrawing a request manually, without I/O.
    fn by_hand(&self, wish: &ExternalRequest, order: QueueAuthority) -> String;

    /// Returns the consequence of withdrawing a request before the server was restored, for
    /// display; `None` without a specific consequence.
    fn after_no_restore(&self) -> Option<&'static str> {
        None
    }

    /// Returns when this server or its requests could have changed.
    async fn changed(&self);

    /// Returns the facts that a plan's reviewer needs.
    async fn outlook(&self, wish: &ExternalRequest) -> Result<Outlook, BackendError>;

    /// Returns the server's state there, for display; `None` if the server is not part of the
    /// system or another output shows it.
    async fn state(&self) -> Result<Option<String>, BackendError> {
        Ok(None)
    }
}

/// A kind of gate that applies to servers of any backend.
#[async_trait]
pub trait GateKind: Send + Sync + Debug {
    /// Returns the kind's name in records.
    fn id(&self) -> &'static str;

    /// Returns a server's gate without I/O, even if it appears only in a record. `machine` is the
    /// machine that readers use.
    fn of(&self, server: &str, machine: Option<Arc<dyn Machine>>) -> Arc<dyn Gate>;

    /// Lists every request of our processes for any configured server; `None` if no server is
    /// configured.
    async fn requests(&self) -> Option<Result<Vec<ExternalRequestRef>, BackendError>>;
}

/// The maintenance system that a server itself belongs to: the innermost gate.
#[async_trait]
pub trait MaintenanceSystem: Gate {
    /// Returns the machine, limited to changes that a granted request allows. Its observations are
    /// fresh.
    fn under(&self, wish: &ExternalRequest) -> Arc<dyn Machine>;

    /// Returns the machine for readers, who accept the system's last known state.
    fn shown(&self, wish: &ExternalRequest) -> Arc<dyn Machine>;

    /// Returns the machine if the system performs operations itself; `None` if the server receives
    /// them directly.
    fn operating(&self, _wish: &ExternalRequest) -> Option<Arc<dyn Machine>> {
        None
    }

    /// Returns `Ok` if an operation that the system performs would last.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if the system would revert it immediately.
    async fn would_last(&self, _reset: ResetType) -> Result<(), BackendError> {
        Ok(())
    }
}

/// Work of an external system that ends automatically.
#[async_trait]
pub trait ServiceControl: Send + Sync {
    /// Returns the current blockers for a plan, a sentence each; empty without blockers.
    async fn problems(&self, service: &ServiceSpec) -> Result<Vec<String>, BackendError>;

    /// Reads the progress. `since` is the stamp from before the start; `None` if it was not
    /// started.
    async fn look(&self, service: &ServiceSpec, since: Option<&str>) -> Result<ServiceView, BackendError>;

    /// Starts the work and returns after acceptance. Rejected if the server's stamp has changed.
    async fn begin(&self, service: &ServiceSpec, stamp: &str) -> Result<(), BackendError>;
}

/// Power control.
#[async_trait]
pub trait PowerControl {
    /// Requests a power change and returns after acceptance, possibly before completion.
    async fn reset(&self, reset: ResetType) -> Result<(), BackendError>;
}

/// Boot override control.
#[async_trait]
pub trait BootControl {
    /// Sets the boot override to `wanted`. Sends only properties that `wanted` names and that
    /// differ. With `clear_http_boot_uri`, a listed `HttpBootUri` is cleared.
    async fn set_boot_override(&self, wanted: &BootOverride, clear_http_boot_uri: bool) -> Result<(), BackendError>;

    /// Returns the firmware's boot menu; empty if the machine does not list it.
    async fn boot_menu(&self) -> Result<Vec<BootOption>, BackendError> {
        Ok(Vec::new())
    }
}

/// Virtual media control.
#[async_trait]
pub trait MediaControl {
    /// Returns every virtual drive and its medium; empty without drives. `known` are drives that
    /// any process listed before: while all of them exist, the machine can skip the search for
    /// drives.
    async fn media(&self, known: &[MediaSlot]) -> Result<Vec<MediaSlot>, BackendError>;

    /// Inserts `image` into the drive `slot`.
    async fn insert_medium(&self, slot: &str, image: &str, write_protected: bool) -> Result<(), BackendError>;

    /// Ejects the medium from the drive `slot`.
    async fn eject_medium(&self, slot: &str) -> Result<(), BackendError>;
}
