//! Claims and approvals of a server's own maintenance system, where it has them: words and the
//! capability.

use async_trait::async_trait;

use crate::maintenance::machine::{Ignition, PowerTarget};

use super::{BackendError, ExternalRequestRef};

/// A taint of servers that a claim puts up with, in the words of their own system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toleration {
    /// The taint's key.
    pub key: String,
    /// `Exists`, or `Equal`, which is also what is meant when nothing is said.
    pub operator: Option<String>,
    /// The taint's value, with `Equal`.
    pub value: Option<String>,
    /// The taint's effect; `None`: any.
    pub effect: Option<String>,
}

/// An object of a Kubernetes cluster that uses a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A claim as it shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalClaim {
    /// Where it is.
    pub namespace: String,
    /// What it is called there.
    pub name: String,
    /// The server that is wanted.
    pub server: String,
    /// The provider's `owner`.
    pub owner: String,
    /// Who asks: run, host, person.
    pub run: String,
    /// Where the owner is reached.
    pub contact: Option<String>,
    /// What the server boots.
    pub image: String,
    /// What configures the booted system.
    pub ignition: Option<Ignition>,
    /// The power that the owner wants.
    pub power: PowerTarget,
    /// The taints that the server may have.
    pub tolerations: Vec<Toleration>,
}

impl ExternalClaim {
    /// `namespace/name`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A claim as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalClaimView {
    /// `namespace/name`.
    pub id: String,
    /// This incarnation.
    pub uid: String,
    /// The provider's owner that made it; `None`: somebody else did.
    pub owner: Option<String>,
    /// Where the owner is reached.
    pub contact: Option<String>,
    /// The server that it names.
    pub server: Option<String>,
    /// Since when, in RFC 3339.
    pub since: Option<String>,
    /// What its system says of it.
    pub phase: Option<String>,
    /// What the server boots.
    pub image: Option<String>,
    /// The Secret with what configures the booted system.
    pub ignition_secret: Option<String>,
    /// The power that the owner wants, `On` or `Off`.
    pub power: Option<String>,
    /// The taints that the server may have.
    pub tolerations: Vec<Toleration>,
    /// Whether the owner is told that the server is needed.
    pub needed: bool,
    /// Whether the owner has said yes.
    pub approved: bool,
    /// Whether it is being deleted.
    pub leaving: bool,
}

/// How a server and a claim stand to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The server is the claim's.
    Bound,
    /// Not yet. The words complete "waiting for".
    Waiting(String),
    /// It will not be, as things are; why, and whose doing that is.
    Impossible(String),
}

/// What a server's own system says about it, in a few words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateState {
    /// Its state, in the system's own word.
    pub state: String,
    /// The claim to which it is bound, as `namespace/name`.
    pub claim: Option<String>,
    /// Whether it is kept out of use once its claim is gone, until somebody has looked after it.
    pub retained: bool,
}

/// A request for a server, as its own system knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalWaiter {
    /// The maintenance of this provider that it stands for, or what it is called there.
    pub id: String,
    /// The store that knows the maintenance, when it is of this provider.
    pub store: Option<String>,
    /// What it is called there.
    pub name: String,
    /// Whether it has started.
    pub started: bool,
    /// Whether the owner is asked, and not only told.
    pub asks: bool,
    /// Its priority.
    pub priority: i64,
    /// Who asks.
    pub by: String,
    /// The reason, for people.
    pub reason: Option<String>,
    /// Where it is discussed.
    pub ticket: Option<String>,
    /// Since when, in RFC 3339.
    pub since: Option<String>,
}

/// An approval, and where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalMarkRef {
    /// This incarnation: it is written beside the yes, so that nobody else's is taken back.
    pub uid: String,
    /// `namespace/name` of the claim.
    pub claim: String,
    /// The claim's incarnation, once that is known.
    pub claim_uid: Option<String>,
    /// The Node that is marked instead of the claim: a controller copies from there.
    pub node: Option<String>,
}

/// The state of an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalMarkState {
    /// The mark and where it is, for people.
    pub place: String,
    /// Whether the mark is there.
    pub present: bool,
    /// Whether it is the one that was written for this word.
    pub ours: bool,
}

/// What such a system calls things and what its approvals mean, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnershipTexts {
    /// The command line's flag for it, with its dashes.
    pub flag: &'static str,
    /// What it calls a claim.
    pub claim: &'static str,
    /// What its approvals do not know: a sentence without its full stop.
    pub limits: &'static str,
    /// For what an approval counts: completes "One approval on a claim".
    pub counts: &'static str,
}

/// The claims and approvals of servers' own maintenance system.
///
/// What somebody else wrote is never taken back.
#[async_trait]
pub trait ExternalOwnership: Send + Sync {
    /// Where they are, for people.
    fn address(&self) -> String;

    /// What it calls things.
    fn texts(&self) -> OwnershipTexts;

    /// What the system does with a server whose claim goes, a sentence each; `None`: how the server
    /// stands there is not known.
    fn after_claim(&self, state: Option<&GateState>) -> Vec<String>;

    /// How a server stands there. `fresh`: not older than this call.
    async fn state(&self, server: &str, fresh: bool) -> Result<GateState, BackendError>;

    /// Every claim.
    async fn claims(&self) -> Result<Vec<ExternalClaimView>, BackendError>;

    /// One claim by `namespace/name`. `fresh`: not older than this call.
    async fn claim_view(&self, id: &str, fresh: bool) -> Result<Option<ExternalClaimView>, BackendError>;

    /// Whether a claim can put up with taints there; `Err` inside: why not.
    async fn tolerates(&self) -> Result<Result<(), String>, BackendError>;

    /// How a server and the claim of this `namespace/name`, which puts up with these taints, stand
    /// to each other now.
    async fn binding(&self, id: &str, server: &str, tolerated: &[Toleration]) -> Result<Binding, BackendError>;

    /// Makes the claim as it shall be; `uid`: it must be this incarnation, whoever made it. Without
    /// it, a claim of that name that is not of the same owner is refused.
    async fn claim(&self, wanted: &ExternalClaim, uid: Option<&str>) -> Result<(), BackendError>;

    /// Gives exactly this incarnation of a claim up. Returns once that is accepted, not once the
    /// server is free.
    async fn unclaim(&self, id: &str, uid: &str) -> Result<(), BackendError>;

    /// What keeps a server with a claim that was given up, in words that complete "waiting for";
    /// `None`: nothing does.
    async fn kept(&self, id: &str, uid: &str, server: &str) -> Result<Option<String>, BackendError>;

    /// The name of the Secret that content with this SHA-256 gets for a claim.
    fn ignition_secret(&self, claim: &str, sha256: &str) -> String;

    /// Every request that one of our processes made, for any server.
    async fn requests(&self) -> Result<Vec<ExternalRequestRef>, BackendError>;

    /// The requests for a server, in no order.
    async fn asked(&self, server: &str) -> Result<Vec<ExternalWaiter>, BackendError>;

    /// Reads the state of an approval.
    async fn word(&self, word: &ApprovalMarkRef) -> Result<ApprovalMarkState, BackendError>;

    /// Writes an approval, unless there is one.
    async fn approve(&self, word: &ApprovalMarkRef) -> Result<(), BackendError>;

    /// Takes exactly this yes back.
    async fn withdraw(&self, word: &ApprovalMarkRef) -> Result<(), BackendError>;

    /// Returns when something about claims or servers may have changed.
    async fn changed(&self);
}
