//! Claims and approvals of a server's own maintenance system.

use async_trait::async_trait;

use crate::{
    maintenance::machine::{Ignition, PowerTarget},
    shown::OneLine,
};

use super::{BackendError, ExternalRequestRef};

/// A server taint that a claim tolerates, in the system's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toleration {
    /// The taint's key.
    pub key: String,
    /// `Exists` or `Equal`; absent means `Equal`.
    pub operator: Option<String>,
    /// The taint's value, with `Equal`.
    pub value: Option<String>,
    /// The taint's effect; `None` means any.
    pub effect: Option<String>,
}

/// A Kubernetes object that uses a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// The kind.
    pub kind: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// A claim's desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalClaim {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The requested server.
    pub server: String,
    /// The provider's `owner`.
    pub owner: String,
    /// The requesting run, host and person.
    pub run: String,
    /// The owner's contact.
    pub contact: Option<String>,
    /// The image to boot.
    pub image: String,
    /// The booted system's configuration.
    pub ignition: Option<Ignition>,
    /// The owner's desired power state.
    pub power: PowerTarget,
    /// The tolerated taints.
    pub tolerations: Vec<Toleration>,
}

impl ExternalClaim {
    /// Returns `namespace/name`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A claim's observed state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalClaimView {
    /// `namespace/name`.
    pub id: String,
    /// The claim's incarnation.
    pub uid: String,
    /// The provider owner that created the claim; `None` if another author did.
    pub owner: Option<OneLine>,
    /// The owner's contact.
    pub contact: Option<OneLine>,
    /// The claimed server.
    pub server: Option<String>,
    /// The creation time in RFC 3339.
    pub since: Option<String>,
    /// The phase that the system reports.
    pub phase: Option<String>,
    /// The image to boot.
    pub image: Option<String>,
    /// The Secret with the booted system's configuration.
    pub ignition_secret: Option<String>,
    /// The owner's desired power state, `On` or `Off`.
    pub power: Option<String>,
    /// The tolerated taints.
    pub tolerations: Vec<Toleration>,
    /// True if the owner is notified that a maintenance needs the server.
    pub needed: bool,
    /// True if the owner has approved.
    pub approved: bool,
    /// True if the claim is being deleted.
    pub leaving: bool,
}

/// The binding between a server and a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The claim has the server.
    Bound,
    /// Not bound yet. The text completes "waiting for".
    Waiting(String),
    /// Binding is impossible in the current state; reason and responsible party.
    Impossible(String),
}

/// A short summary of a server's state in its own system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateState {
    /// The state in the system's terms.
    pub state: String,
    /// The bound claim, as `namespace/name`.
    pub claim: Option<String>,
    /// True if the server stays out of use after its claim is deleted, until a person releases it.
    pub retained: bool,
}

/// A request for a server, as its own system has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalWaiter {
    /// This provider's maintenance, or the request's name there.
    pub id: String,
    /// The maintenance's store, if it belongs to this provider.
    pub store: Option<String>,
    /// The request's name there.
    pub name: String,
    /// True if the maintenance has started.
    pub started: bool,
    /// True if the owner must approve; false if the owner is only notified.
    pub asks: bool,
    /// The priority.
    pub priority: i64,
    /// The requester.
    pub by: String,
    /// The reason, for display.
    pub reason: Option<String>,
    /// The ticket.
    pub ticket: Option<String>,
    /// The creation time in RFC 3339.
    pub since: Option<String>,
}

/// An approval and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalMarkRef {
    /// This approval's incarnation, stored with it so that other authors' approvals are never
    /// revoked.
    pub uid: String,
    /// The claim, as `namespace/name`.
    pub claim: String,
    /// The claim's incarnation, if already known.
    pub claim_uid: Option<String>,
    /// The Node that carries the mark instead of the claim; a controller copies it from there.
    pub node: Option<String>,
}

/// An approval's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalMarkState {
    /// The mark and its location, for display.
    pub place: String,
    /// True if the mark exists.
    pub present: bool,
    /// True if the mark belongs to this approval.
    pub ours: bool,
}

/// Display texts for a system's terms and its approvals' meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnershipTexts {
    /// The command-line flag for it, including dashes.
    pub flag: &'static str,
    /// The system's term for a claim.
    pub claim: &'static str,
    /// Its approvals' limits: a sentence without its full stop.
    pub limits: &'static str,
    /// An approval's scope: completes "One approval on a claim".
    pub counts: &'static str,
}

/// The claims and approvals in the servers' own maintenance system.
///
/// Approvals of other authors are never revoked.
#[async_trait]
pub trait ExternalOwnership: Send + Sync {
    /// Returns the system's address for display.
    fn address(&self) -> String;

    /// Returns the system's terms.
    fn texts(&self) -> OwnershipTexts;

    /// Returns the consequences for a server when its claim is deleted, a sentence each. `state` is
    /// `None` if the server's state is unknown.
    fn after_claim(&self, state: Option<&GateState>) -> Vec<String>;

    /// Reads a server's state. With `fresh`, it is not older than this call.
    async fn state(&self, server: &str, fresh: bool) -> Result<GateState, BackendError>;

    /// Lists every claim.
    async fn claims(&self) -> Result<Vec<ExternalClaimView>, BackendError>;

    /// Reads a claim by `namespace/name`. With `fresh`, it is not older than this call.
    async fn claim_view(&self, id: &str, fresh: bool) -> Result<Option<ExternalClaimView>, BackendError>;

    /// Returns `Ok` if claims can tolerate taints there; the inner `Err` is the reason why not.
    async fn tolerates(&self) -> Result<Result<(), String>, BackendError>;

    /// Reads the binding between a server and a claim, by `namespace/name`, that tolerates these
    /// taints.
    async fn binding(&self, id: &str, server: &str, tolerated: &[Toleration]) -> Result<Binding, BackendError>;

    /// Creates or updates the claim. With `uid`, it must be this incarnation, whatever its owner.
    /// Without `uid`, a claim with the same name but another owner is rejected.
    async fn claim(&self, wanted: &ExternalClaim, uid: Option<&str>) -> Result<(), BackendError>;

    /// Deletes exactly this incarnation of a claim. Returns after acceptance, possibly before the
    /// server is free.
    async fn unclaim(&self, id: &str, uid: &str) -> Result<(), BackendError>;

    /// Returns the reason why a deleted claim still blocks its server; completes "waiting for".
    /// `None` if the server is free.
    async fn kept(&self, id: &str, uid: &str, server: &str) -> Result<Option<String>, BackendError>;

    /// Returns a claim's Secret name for content with this SHA-256.
    fn ignition_secret(&self, claim: &str, sha256: &str) -> String;

    /// Lists every request of our processes, for any server.
    async fn requests(&self) -> Result<Vec<ExternalRequestRef>, BackendError>;

    /// Lists the requests for a server, unordered.
    async fn asked(&self, server: &str) -> Result<Vec<ExternalWaiter>, BackendError>;

    /// Reads an approval's state.
    async fn word(&self, word: &ApprovalMarkRef) -> Result<ApprovalMarkState, BackendError>;

    /// Writes an approval unless one exists.
    async fn approve(&self, word: &ApprovalMarkRef) -> Result<(), BackendError>;

    /// Revokes exactly this approval.
    async fn withdraw(&self, word: &ApprovalMarkRef) -> Result<(), BackendError>;

    /// Returns when claims or servers could have changed.
    async fn changed(&self);
}
