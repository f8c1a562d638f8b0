//! Machines. This room knows no queue, lock or window.
//!
//! A backend turns a server's name into a [`Machine`]; a machine is a handful of small
//! capabilities. None of them repeats a call whose reply was lost: that is said with
//! [`BackendError::ReplyLost`], and the caller observes.

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

/// What a server says it is, in its own spelling. The rules that follow are those of maintenance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HardwareIdentity {
    /// The lock key of the configuration.
    pub lock_key: Option<String>,
    /// The system UUID.
    pub uuid: Option<String>,
    /// The manufacturer.
    pub manufacturer: Option<String>,
    /// The serial number.
    pub serial_number: Option<String>,
    /// Whether more systems are behind the same BMC, which may report one serial number for all.
    pub has_siblings: bool,
    /// Host and port of the BMC or API server.
    pub authority: String,
    /// The path of the system there.
    pub path: String,
}

impl HardwareIdentity {
    /// The id of the system behind its BMC: the end of its path.
    #[must_use]
    pub fn system_id(&self) -> Option<String> {
        let last = self.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        (!last.is_empty()).then(|| last.to_owned())
    }
}

/// A server as the configuration lists it. No secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The address of its BMC, where it has one of its own.
    pub endpoint: Option<String>,
    /// Its configured system id.
    pub system_id: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The backend that reaches it, as the provider block names it.
    pub backend: &'static str,
}

/// What an external system says of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUse {
    /// Its state there.
    pub state: String,
    /// What uses it there, as the system names it.
    pub user: Option<String>,
}

/// A way to reach servers.
#[async_trait]
pub trait Backend: Send + Sync + Debug {
    /// The names of all configured servers, sorted.
    fn servers(&self) -> Vec<String>;

    /// What the configuration lists of a server. Does no I/O; empty for one that it does not list.
    fn listed(&self, _server: &str) -> Listed {
        Listed::default()
    }

    /// All servers. Asks no BMC; the cluster where it alone knows them.
    async fn inventory(&self) -> Result<BTreeMap<String, Listed>, BackendError> {
        Ok(self.servers().into_iter().map(|name| (name.clone(), self.listed(&name))).collect())
    }

    /// These servers as an inventory file in JSON, which names passwords and holds none. Empty
    /// where the servers of this backend come from no file.
    fn inventory_file(&self, _servers: &BTreeSet<String>) -> String {
        "{}".to_owned()
    }

    /// The machine behind a configured name, without I/O; else [`BackendError::UnknownServer`].
    fn machine(&self, server: &str) -> Result<Arc<dyn Machine>, BackendError>;

    /// Where a server is reached, as records keep it. Asks what identifies the cluster, where there
    /// is one.
    async fn location(&self, server: &str) -> Result<Location, BackendError>;

    /// Receives a record's location. The server's name or its neighbors can have changed since.
    fn remember(&self, _server: &str, _location: &Location) {}

    /// Keeps what the configuration gave for booted systems, by its SHA-256 in hexadecimal digits,
    /// for as long as the process lives: records name it, and never hold it.
    fn keep(&self, _sha256: String, _content: SecretString) {}

    /// Every external request that one of our processes made, for any server; `None`: servers of
    /// this backend have no external system.
    async fn external_requests(&self) -> Option<Result<Vec<ExternalRequestRef>, BackendError>> {
        Some(self.ownership()?.requests().await)
    }

    /// The state of a server in its external system, in the words of that system. `None`: it is
    /// part of none, or that one does not answer.
    async fn external_state(&self, server: &str) -> Option<ServerUse> {
        let found = self.ownership()?.state(server, false).await.ok()?;
        Some(ServerUse { state: found.state, user: found.claim })
    }

    /// The claims and approvals of the servers' own maintenance system, where they have one.
    fn ownership(&self) -> Option<&dyn ExternalOwnership> {
        None
    }

    /// Ends what is open on the BMCs (sessions). Called once, on every way out of the process;
    /// bounded in time.
    async fn close(&self);
}

/// One physical machine.
#[async_trait]
pub trait Machine: PowerControl + BootControl + MediaControl + Send + Sync + Debug {
    /// Where it is reached, for people: a URL without credentials.
    fn address(&self) -> String;

    /// Its hardware identity.
    async fn identify(&self) -> Result<HardwareIdentity, BackendError>;

    /// What it is now. One request where sessions are warm.
    async fn observe(&self) -> Result<MachineView, BackendError>;

    /// Both of them, where one answer tells both in one request.
    async fn recognize(&self) -> (Result<HardwareIdentity, BackendError>, Result<MachineView, BackendError>) {
        (self.identify().await, self.observe().await)
    }

    /// Why the last change was not made, where that is known only after its call was accepted and
    /// had returned. Told once.
    ///
    /// Each machine says for itself: one in front of another has to pass on what that one learns.
    async fn late_answer(&self) -> Option<BackendError>;

    /// What it can be told to do.
    async fn capabilities(&self) -> Result<Capabilities, BackendError>;

    /// Its BMC, where it is asked directly.
    fn bmc(&self) -> Option<&dyn BmcInspection> {
        None
    }

    /// Work that its external system carries out by itself, where there is such a system.
    fn service(&self) -> Option<&dyn ServiceControl> {
        None
    }

    /// The maintenance system that the server itself is part of, where there is one.
    fn maintenance_system(&self) -> Option<&dyn MaintenanceSystem> {
        None
    }

    /// The object of a cluster that uses the server, where its backend knows one.
    async fn consumer(&self) -> Result<Option<Consumer>, BackendError> {
        Ok(None)
    }

    /// Whether a provider ID of Kubernetes names the server; `None`: its backend cannot tell.
    async fn has_provider_id(&self, _id: &str) -> Result<Option<bool>, BackendError> {
        Ok(None)
    }

    /// Whether another author keeps the server off once it is released, or its system has it no
    /// more, where its backend knows that.
    async fn stays_off(&self) -> Result<bool, BackendError> {
        Ok(false)
    }
}

/// A request to a server's own maintenance system that one of our processes made, wherever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalRequestRef {
    /// The coordination store that knows the maintenance, by its id; empty where the request does
    /// not say it.
    pub store: String,
    /// The incarnation of the maintenance that it was made for.
    pub uid: String,
    /// What it is and what it is called there.
    pub name: String,
    /// The server that it is for.
    pub server: String,
    /// Whether it is no object of its own, but written on the server, which is out of service by
    /// it.
    pub parks: bool,
    /// The gate before the server that it was made to; `None`: the server's own maintenance system.
    pub gate: Option<&'static str>,
    /// What of the record's memory is needed to find it again, for a record that is gone.
    pub memory: BTreeMap<String, String>,
}

impl ExternalRequestRef {
    /// The wish of a maintenance whose record is gone: only the request tells of it.
    fn wish(&self) -> ExternalRequest {
        ExternalRequest { memory: self.memory.clone(), ..wish_of_ended(&self.store, &self.uid) }
    }
}

/// The wish of a maintenance that asks for nothing any more, known by its store and incarnation.
fn wish_of_ended(store: &str, uid: &str) -> ExternalRequest {
    ExternalRequest {
        store: store.to_owned(),
        uid: uid.to_owned(),
        id: String::new(),
        owner: String::new(),
        run: String::new(),
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

/// An external system between a request and its start: it says when the server may be taken.
///
/// A request is found again by the incarnation of its maintenance, never by its name alone, and one
/// of somebody else is never touched.
#[async_trait]
pub trait Gate: Send + Sync {
    /// What there is; `None`: the server is not part of it. `operation`: for a power operation.
    async fn system(&self, operation: bool) -> Result<Option<ExternalSystem>, BackendError>;

    /// Where a request stands. `fresh`: not older than this call; otherwise what the last word of
    /// the system was.
    async fn look(&self, wish: &ExternalRequest, fresh: bool) -> Result<GateView, BackendError>;

    /// Makes the request, or does nothing where it is there.
    async fn enter(&self, wish: &ExternalRequest) -> Result<(), BackendError>;

    /// Takes it back, or removes what it left. Returns once that is accepted, not once the server
    /// is back.
    async fn leave(&self, wish: &ExternalRequest) -> Result<(), BackendError>;

    /// Requests of ours for this server.
    async fn requests(&self) -> Result<Vec<ExternalRequestRef>, BackendError>;

    /// Takes back a request whose maintenance is no more.
    async fn discard(&self, request: &ExternalRequestRef) -> Result<(), BackendError>;

    /// How a person takes a request back, for when we cannot. Asks nobody.
    fn by_hand(&self, wish: &ExternalRequest, order: QueueAuthority) -> String;

    /// What follows, for people, where a request is withdrawn of a server that was not restored;
    /// `None`: nothing of its own.
    fn after_no_restore(&self) -> Option<&'static str> {
        None
    }

    /// Returns when something about this server or its requests may have changed.
    async fn changed(&self);

    /// What a reviewer of a plan should know.
    async fn outlook(&self, wish: &ExternalRequest) -> Result<Outlook, BackendError>;

    /// How the server is there, for people; `None`: it is not part of it, or that is told
    /// elsewhere.
    async fn state(&self) -> Result<Option<String>, BackendError> {
        Ok(None)
    }
}

/// Gates of one kind that stand before the servers of any backend.
#[async_trait]
pub trait GateKind: Send + Sync + Debug {
    /// Its name, as records keep it.
    fn id(&self) -> &'static str;

    /// The gate of a server, whether it is configured or only known from a record. `machine`: as
    /// every reader has it. Does no I/O.
    fn of(&self, server: &str, machine: Option<Arc<dyn Machine>>) -> Arc<dyn Gate>;

    /// Every request that one of our processes made, for any configured server; `None`: none is
    /// configured.
    async fn requests(&self) -> Option<Result<Vec<ExternalRequestRef>, BackendError>>;
}

/// The maintenance system that a server itself is part of: the innermost gate.
#[async_trait]
pub trait MaintenanceSystem: Gate {
    /// The machine, as far as a granted request may change it. What it shows is not older than the
    /// question.
    fn under(&self, wish: &ExternalRequest) -> Arc<dyn Machine>;

    /// The machine of a request, for a reader: the last known state of the system is enough.
    fn shown(&self, wish: &ExternalRequest) -> Arc<dyn Machine>;

    /// The machine, where the system itself makes an operation in its own turn; `None`: the server
    /// is told directly.
    fn operating(&self, _wish: &ExternalRequest) -> Option<Arc<dyn Machine>> {
        None
    }

    /// Whether an operation in its own turn would last.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] where the system would undo it at once.
    async fn would_last(&self, _reset: ResetType) -> Result<(), BackendError> {
        Ok(())
    }
}

/// Work of an external system, which ends by itself.
#[async_trait]
pub trait ServiceControl: Send + Sync {
    /// What keeps the server from it now, a sentence each; empty: nothing. For a plan.
    async fn problems(&self, service: &ServiceSpec) -> Result<Vec<String>, BackendError>;

    /// Where it stands. `since`: the stamp from before it was begun; `None`: it was not.
    async fn look(&self, service: &ServiceSpec, since: Option<&str>) -> Result<ServiceView, BackendError>;

    /// Lets it begin, and returns once that is accepted. Refused where the stamp is not that of the
    /// server any more.
    async fn begin(&self, service: &ServiceSpec, stamp: &str) -> Result<(), BackendError>;
}

/// Power.
#[async_trait]
pub trait PowerControl {
    /// Asks for one power change and returns once it is accepted, not once it is done.
    async fn reset(&self, reset: ResetType) -> Result<(), BackendError>;
}

/// Boot override.
#[async_trait]
pub trait BootControl {
    /// Makes the boot override equal to `wanted` in every property that `wanted` names and that
    /// differs now; other properties are not sent. `clear_http_boot_uri` says that a listed
    /// `HttpBootUri` is to be emptied.
    async fn set_boot_override(&self, wanted: &BootOverride, clear_http_boot_uri: bool) -> Result<(), BackendError>;

    /// The firmware's boot menu; empty where it is not listed.
    async fn boot_menu(&self) -> Result<Vec<BootOption>, BackendError> {
        Ok(Vec::new())
    }
}

/// Virtual media.
#[async_trait]
pub trait MediaControl {
    /// Every virtual drive and what is in it; empty where the machine has none. `known` are drives
    /// that were listed before, by this process or by another one: while they are all there, a
    /// machine need not be asked which drives it has.
    async fn media(&self, known: &[MediaSlot]) -> Result<Vec<MediaSlot>, BackendError>;

    /// Inserts the image at `image` into the drive `slot`.
    async fn insert_medium(&self, slot: &str, image: &str, write_protected: bool) -> Result<(), BackendError>;

    /// Empties the drive `slot`.
    async fn eject_medium(&self, slot: &str) -> Result<(), BackendError>;
}
