//! The states of a maintenance; each carries what is true only in it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    drain::DrainRecord,
    gate::{GateRecord, PowerAfter},
    ids::{Attachment, Generation, LockKey, MaintenanceId, Runner, Uid},
    location::Location,
    machine::{BootOverride, MediaSlot, PowerState, PowerTarget},
    node::NodeRecord,
    operation::OperationOutcome,
    spec::Spec,
    step::{Attempt, Step},
    tolerated::{BootWrites, Tolerated},
    update::Update,
};

/// How a server was before anybody touched it for this maintenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorState {
    /// Its power.
    pub power: PowerState,
    /// Its boot override, where the BMC has one.
    pub boot: Option<BootOverride>,
    /// Its virtual drives; empty when the maintenance has no business with them.
    pub media: Vec<MediaSlot>,
    /// When it was reset last, in the BMC's own words.
    pub last_reset: Option<String>,
    /// When it was read, on the store's clock.
    pub recorded_at: Timestamp,
}

/// The state that manages a maintenance: no other one adopts it unasked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownTo {
    /// The random number that the state keeps.
    pub state: String,
    /// Since when, on the store's clock.
    pub since: Timestamp,
    /// The process that marked it, for people.
    pub by: String,
}

impl KnownTo {
    /// A state that manages a maintenance from now on.
    #[must_use]
    pub fn new(state: &str, since: Timestamp, by: &str) -> Self {
        Self { state: state.to_owned(), since, by: by.to_owned() }
    }
}

/// Where a sequence of steps has got to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// The step under way; equal to the number of steps when all are done.
    pub current: usize,
    /// What was tried for the step under way. Written before the call, completed after it.
    pub attempts: Vec<Attempt>,
    /// When the step under way began, on the store's clock.
    pub since: Timestamp,
    /// How often the sequence had to go back because the machine was changed by somebody else.
    pub restarts: u8,
    /// What came of an operation.
    pub outcome: Option<OperationOutcome>,
    /// How often something under the hold changed the server meanwhile. What was decided before
    /// that is outdated.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub disturbed: u32,
    /// What the process that acts on it has waited for in the step under way, for people. A version
    /// that does not know it drops it, which changes nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// The differences that the steps before tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerated: Vec<Tolerated>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Progress {
    /// A sequence that has not begun.
    #[must_use]
    pub fn new(steps: Vec<Step>, now: Timestamp) -> Self {
        Self {
            steps,
            current: 0,
            attempts: Vec::new(),
            since: now,
            restarts: 0,
            outcome: None,
            disturbed: 0,
            waits_for: None,
            tolerated: Vec::new(),
        }
    }

    /// The step under way.
    #[must_use]
    pub fn step(&self) -> Option<Step> {
        self.steps.get(self.current).copied()
    }

    /// Makes the next try begin the step under way afresh. A last look that found something else
    /// begins with the first step: looking again would put nothing back.
    pub fn begin_afresh(&mut self, now: Timestamp) {
        if self.step() == Some(Step::Verify) {
            self.current = 0;
        }
        self.attempts.clear();
        self.waits_for = None;
        self.since = now;
    }

    /// Returns the machine's last message about a call of the current step.
    #[must_use]
    pub fn last_message(&self) -> Option<&str> {
        self.attempts.iter().rev().find_map(|attempt| attempt.reply.message())
    }

    /// Adds that message to a failure that does not contain it.
    #[must_use]
    pub fn with_message(&self, cause: String) -> String {
        match self.last_message().filter(|message| !cause.contains(message)) {
            Some(message) => format!("{cause} (last message: {message})"),
            None => cause,
        }
    }

    /// `2/5: switching off`, for people.
    #[must_use]
    pub fn text(&self) -> String {
        match self.step() {
            Some(step) => format!("{}: {step}", self.place()),
            None => self.place(),
        }
    }

    /// `2/5`: the step under way, of all.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}/{}", (self.current + 1).min(self.steps.len()), self.steps.len())
    }

    /// `switching off: no answer within 10s`: what the step under way does and waits for.
    #[must_use]
    pub fn doing(&self) -> Option<String> {
        let step = self.step()?;
        Some(self.waits_for.as_ref().map_or_else(|| step.to_string(), |why| format!("{step}: {why}")))
    }
}

/// Why a maintenance is being ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// It did what it was for, or its resource is destroyed.
    Completed,
    /// `complete_when` came true, or somebody completed it from outside.
    CompletedBy(String),
    /// A person ended it against its holder's will.
    Released {
        /// The person or run that released it.
        by: String,
        /// The reason, for people.
        reason: String,
        /// The generation that was seen when it was decided.
        seen: Generation,
    },
    /// Its own `expires_after` passed and somebody else needed the server.
    Expired,
    /// It could not be prepared.
    Failed(String),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed => write!(f, "completed"),
            Self::CompletedBy(by) => write!(f, "completed by {by}"),
            Self::Released { by, reason, seen } => {
                write!(f, "released by {by} ({reason:?}, generation {seen})")
            }
            Self::Expired => write!(f, "expired"),
            Self::Failed(cause) => write!(f, "failed: {cause}"),
        }
    }
}

/// The state of a maintenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// In the queue.
    Pending,
    /// Admitted; the server is being prepared.
    Preparing(Progress),
    /// Held and prepared.
    InMaintenance {
        /// Since when, on the store's clock.
        since: Timestamp,
    },
    /// Being given back. The slot is held until everything is as it was.
    Releasing {
        /// Why it ends.
        ending: Ending,
        /// Where it has got to.
        progress: Progress,
        /// Why giving back could not go on; the next destroy resumes.
        stuck: Option<String>,
    },
    /// Over; the server was given back.
    Completed {
        /// When, on the store's clock.
        at: Timestamp,
        /// Why it ended.
        ending: Ending,
    },
    /// It could not be prepared; the server was given back.
    Failed {
        /// When, on the store's clock.
        at: Timestamp,
        /// The cause, for people.
        cause: String,
    },
}

impl Phase {
    /// The state's name as users and the seeds write it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Preparing(_) => "Preparing",
            Self::InMaintenance { .. } => "InMaintenance",
            Self::Releasing { .. } => "Releasing",
            Self::Completed { .. } => "Completed",
            Self::Failed { .. } => "Failed",
        }
    }

    /// The steps under way.
    #[must_use]
    pub fn progress(&self) -> Option<&Progress> {
        match self {
            Self::Preparing(progress) | Self::Releasing { progress, .. } => Some(progress),
            _ => None,
        }
    }

    /// Whether nothing more will happen.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Completed { .. } | Self::Failed { .. })
    }
}

/// The durable row of a maintenance: the truth. A state file is only a view of it.
///
/// A field that this version does not know makes a record unreadable ([`super::quarantine`]):
/// written back without the field, it would mean something else to the version that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Maintenance {
    /// This incarnation.
    pub uid: Uid,
    /// Its name.
    pub id: MaintenanceId,
    /// The machine.
    pub lock_key: LockKey,
    /// The provider's `owner`.
    pub owner: String,
    /// The specification.
    pub spec: Spec,
    /// Where the server is reached and its external request lies, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    /// The state of our requests to the gates before the server, the outermost first; the last
    /// one is the server's own maintenance system, where it has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateRecord>,
    /// The state of the Lease of the Kubernetes Node that runs on it.
    #[serde(default, skip_serializing_if = "NodeRecord::is_empty")]
    pub node: NodeRecord,
    /// The Kubernetes Node that may be cordoned by us.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<Box<DrainRecord>>,
    /// Digest of `spec` as it was asked.
    pub digest: String,
    /// Digest of the allowed actions ([`Spec::actions`]). `None` before the admission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<String>,
    /// A change of `spec` that is under way on a server that is held already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<Update>,
    /// The state that manages it. `None`: none is known to have it, as after a killed create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_to: Option<KnownTo>,
    /// Its number in the queue; smaller came first.
    pub ticket_number: u64,
    /// When it was asked, on the store's clock.
    pub requested_at: Timestamp,
    /// Who asked last.
    pub requester: Runner,
    /// When the slot was taken, on the store's clock.
    pub admitted_at: Option<Timestamp>,
    /// When the window closes in which the slot was taken, if its closing gives the server back.
    pub closes_at: Option<Timestamp>,
    /// When the server was prepared for the first time, on the store's clock.
    pub started_at: Option<Timestamp>,
    /// Where it is.
    pub phase: Phase,
    /// How the server was before. Written before the first change.
    pub prior: Option<PriorState>,
    /// The maintenance from which it took the server as that one left it; `prior` is of before that
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_over: Option<MaintenanceId>,
    /// The maintenance that took the server over as this one left it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_to: Option<MaintenanceId>,
    /// Whether the server may have been started under a boot configuration of this maintenance, so
    /// that it runs something else than before.
    pub booted: bool,
    /// The drives into which something may have been inserted, or from which something may have
    /// been ejected, by it or under it: those have to be seen again before it is over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<String>,
    /// Its writes to the boot override, including those under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_writes: Option<BootWrites>,
    /// The differences that its last preparation or release tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerated: Vec<Tolerated>,
    /// What came of an operation.
    pub outcome: Option<OperationOutcome>,
    /// The machine's last message about an operation that is not proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unproven_message: Option<String>,
    /// The power that was seen last, for people.
    pub last_power: Option<PowerState>,
    /// Who may act on it now.
    pub attachment: Option<Attachment>,
    /// The generation of the last attachment; 0 before the first.
    pub generation: Generation,
    /// Until when somebody from whom it was taken may be in the middle of a call, on the store's
    /// clock.
    pub calls_until: Option<Timestamp>,
    /// Since when nobody is attached, on the store's clock.
    pub detached_at: Option<Timestamp>,
    /// Enqueued on purpose without a process: keeps its place until its own expiry.
    pub keeps_place: bool,
}

impl Maintenance {
    /// The power in which the server is once this is over: what an operation leaves, else what was
    /// before. `None`: it is not known.
    #[must_use]
    pub fn final_power(&self) -> Option<PowerTarget> {
        match &self.spec.operation {
            Some(operation) => Some(operation.target().unwrap_or(PowerTarget::On)),
            // The external system switches it off.
            None if self.ends_off() => Some(PowerTarget::Off),
            None => self.restored_power(),
        }
    }

    /// The power that a release restores: the one that the server's owner wants by now, where its
    /// external system says so, else the recorded one. `None`: none.
    #[must_use]
    pub fn restored_power(&self) -> Option<PowerTarget> {
        let recorded = self.prior.as_ref()?.power.restored()?;
        match self.power_after() {
            Some(PowerAfter::Wanted(power)) => Some(power),
            Some(PowerAfter::EndsOff) => None,
            None => Some(recorded),
        }
    }

    /// Returns true if a server with this power counts as restored. A server that was
    /// `Paused` before and still is counts as restored.
    #[must_use]
    pub fn is_power_restored(&self, power: PowerState) -> bool {
        let was_paused = self.prior.as_ref().is_some_and(|prior| prior.power == PowerState::Paused);
        let unchanged = was_paused && power == PowerState::Paused && self.power_after().is_none();
        unchanged || self.restored_power().is_none_or(|target| power.settled() == Some(target))
    }

    /// Returns true if the server was `Paused` before and ends `On`, because this maintenance
    /// changes its power.
    #[must_use]
    pub fn leaves_pause(&self) -> bool {
        let was_paused = self.prior.as_ref().is_some_and(|prior| prior.power == PowerState::Paused);
        was_paused
            && (self.booted || self.spec.server_power.is_some())
            && self.restored_power() == Some(PowerTarget::On)
    }

    /// See [`GateRecord::power_after`].
    #[must_use]
    pub fn power_after(&self) -> Option<PowerAfter> {
        self.gates.iter().find_map(|gate| gate.power_after)
    }

    /// Whether the external system ends the use of the server, and switches it off.
    #[must_use]
    pub fn ends_off(&self) -> bool {
        self.power_after() == Some(PowerAfter::EndsOff)
    }

    /// When the hold becomes overdue, if ever: its own time is over, or its window closes and says
    /// `release`.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        let after = self.spec.expires_after.and_then(|after| jiff::SignedDuration::try_from(after).ok());
        let expires = self.admitted_at.zip(after).and_then(|(at, after)| at.checked_add(after).ok());
        [expires, self.closes_at].into_iter().flatten().min()
    }

    /// Whether that moment has passed.
    #[must_use]
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.expires_at().is_some_and(|at| at <= now)
    }

    /// The server's name in the configuration that asked.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.spec.server
    }
}
