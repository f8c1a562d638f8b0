//! States of a maintenance. Each variant contains the data that is valid only in that state.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use shown_text::OneLine;

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

/// A server's state before the first change of this maintenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorState {
    /// Its power.
    pub power: PowerState,
    /// The boot override, if the BMC supports one.
    pub boot: Option<BootOverride>,
    /// The virtual drives; empty if the maintenance does not use them.
    pub media: Vec<MediaSlot>,
    /// Time of the reading, on the store's clock.
    pub recorded_at: Timestamp,
}

/// The Terraform state that manages a maintenance. Another state must adopt it explicitly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownTo {
    /// Random number that identifies the state.
    pub state: OneLine,
    /// Start of the management, on the store's clock.
    pub since: Timestamp,
    /// The process that set the mark, for people.
    pub by: OneLine,
}

impl KnownTo {
    /// Creates a mark that starts now.
    #[must_use]
    pub fn new(state: &str, since: Timestamp, by: &str) -> Self {
        Self { state: state.into(), since, by: by.into() }
    }
}

/// Progress through a step sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// Index of the current step; equals the number of steps after the last.
    pub current: usize,
    /// Calls of the current step. Each is written before the call and completed after it.
    pub attempts: Vec<Attempt>,
    /// Start of the current step, on the store's clock.
    pub since: Timestamp,
    /// Number of restarts after another author changed the machine.
    pub restarts: u8,
    /// The operation's outcome.
    pub outcome: Option<OperationOutcome>,
    /// Number of server changes by resources under this lock. A change invalidates earlier
    /// decisions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub disturbed: u32,
    /// The current step's wait reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<OneLine>,
    /// Differences that earlier steps tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerated: Vec<Tolerated>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Progress {
    /// Creates a sequence at its first step.
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

    /// Returns the current step.
    #[must_use]
    pub fn step(&self) -> Option<Step> {
        self.steps.get(self.current).copied()
    }

    /// Restarts the current step for the next attempt. A failed [`Step::Verify`] restarts the whole
    /// sequence, because verifying again would not restore anything.
    pub fn begin_afresh(&mut self, now: Timestamp) {
        if self.step() == Some(Step::Verify) {
            self.current = 0;
        }
        self.attempts.clear();
        self.waits_for = None;
        self.since = now;
    }

    /// Returns the machine's last message about the current step's calls.
    #[must_use]
    pub fn last_message(&self) -> Option<&OneLine> {
        self.attempts.iter().rev().find_map(|attempt| attempt.reply.message())
    }

    /// Adds that message to a failure that does not contain it.
    #[must_use]
    pub fn with_message(&self, cause: String) -> String {
        match self.last_message().filter(|message| !cause.contains(message.shown())) {
            Some(message) => format!("{cause} (last message: {message})"),
            None => cause,
        }
    }

    /// Returns the progress for people: `2/5: switching off`.
    #[must_use]
    pub fn text(&self) -> String {
        match self.step() {
            Some(step) => format!("{}: {step}", self.place()),
            None => self.place(),
        }
    }

    /// Returns the current step's number and the total: `2/5`.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}/{}", (self.current + 1).min(self.steps.len()), self.steps.len())
    }

    /// Returns the current step with its wait reason: `switching off: no answer within 10s`.
    #[must_use]
    pub fn doing(&self) -> Option<String> {
        let step = self.step()?;
        Some(self.waits_for.as_ref().map_or_else(|| step.to_string(), |why| format!("{step}: {why}")))
    }
}

/// The reason why a maintenance ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Its work is complete, or its resource is destroyed.
    Completed,
    /// `complete_when` was met, or another process completed it.
    CompletedBy(OneLine),
    /// A person forced its release.
    Released {
        /// The person or run that released it.
        by: OneLine,
        /// The reason, for people.
        reason: OneLine,
        /// The generation that this person specified.
        seen: Generation,
    },
    /// It was overdue, and another request needed the server.
    Expired,
    /// The preparation failed.
    Failed(OneLine),
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

/// A maintenance's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Waiting in the queue.
    Pending,
    /// Admitted; the provider prepares the server.
    Preparing(Progress),
    /// Locked and prepared.
    InMaintenance {
        /// Start of this state, on the store's clock.
        since: Timestamp,
    },
    /// Restoring the server. The lock stays until everything is restored.
    Releasing {
        /// The reason for the release.
        ending: Ending,
        /// Progress of the restore.
        progress: Progress,
        /// Why the restore stopped; the next destroy resumes it.
        stuck: Option<OneLine>,
    },
    /// Ended, and the server is released.
    Completed {
        /// End, on the store's clock.
        at: Timestamp,
        /// The reason for the release.
        ending: Ending,
    },
    /// The preparation failed, and the server is released.
    Failed {
        /// End, on the store's clock.
        at: Timestamp,
        /// The cause, for people.
        cause: OneLine,
    },
}

impl Phase {
    /// Returns the state's name in output and documentation.
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

    /// Returns the current steps.
    #[must_use]
    pub fn progress(&self) -> Option<&Progress> {
        match self {
            Self::Preparing(progress) | Self::Releasing { progress, .. } => Some(progress),
            _ => None,
        }
    }

    /// Returns true if the maintenance has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Completed { .. } | Self::Failed { .. })
    }
}

/// A maintenance's stored record. It is authoritative; a state file is a view of it.
///
/// A record with unknown fields is unreadable ([`super::quarantine`]). Writing it without those
/// fields would change its meaning for the version that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Maintenance {
    /// UID of this record.
    pub uid: Uid,
    /// Name of the maintenance.
    pub id: MaintenanceId,
    /// The locked machine.
    pub lock_key: LockKey,
    /// The provider's `owner`.
    pub owner: OneLine,
    /// The specification.
    pub spec: Spec,
    /// Location of the server and of its external request, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    /// Requests to the gates, outermost first. The server's own maintenance system, if any, is
    /// last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateRecord>,
    /// Lease state of the server's Kubernetes Node.
    #[serde(default, skip_serializing_if = "NodeRecord::is_empty")]
    pub node: NodeRecord,
    /// The Kubernetes Node that this maintenance possibly cordoned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<Box<DrainRecord>>,
    /// Digest of `spec` as requested.
    pub digest: OneLine,
    /// Digest of the allowed actions ([`Spec::actions`]). `None` before the admission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<OneLine>,
    /// A change of `spec` in progress on a locked server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<Update>,
    /// The state that manages it. `None` if unknown, for example after a killed create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_to: Option<KnownTo>,
    /// Ticket number; smaller numbers are earlier.
    pub ticket_number: u64,
    /// Time of the request, on the store's clock.
    pub requested_at: Timestamp,
    /// The latest requesting process.
    pub requester: Runner,
    /// Time of the admission, on the store's clock.
    pub admitted_at: Option<Timestamp>,
    /// End of the maintenance window, if that end triggers a release.
    pub closes_at: Option<Timestamp>,
    /// First completion of the preparation, on the store's clock.
    pub started_at: Option<Timestamp>,
    /// The state.
    pub phase: Phase,
    /// The prior state, written before the first change.
    pub prior: Option<PriorState>,
    /// The maintenance that handed the server over unrestored. `prior` is then its prior state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_over: Option<MaintenanceId>,
    /// The maintenance that received the server unrestored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_to: Option<MaintenanceId>,
    /// True if the server possibly booted under this maintenance's boot configuration, so its
    /// running system can differ.
    pub booted: bool,
    /// Drives that this maintenance or work under it possibly loaded or ejected. They must be read
    /// again before it ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<OneLine>,
    /// Writes to the boot override, including work under this maintenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_writes: Option<BootWrites>,
    /// Differences that the last preparation or release tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerated: Vec<Tolerated>,
    /// The operation's outcome.
    pub outcome: Option<OperationOutcome>,
    /// The machine's last message about an operation with unknown outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unproven_message: Option<OneLine>,
    /// The last observed power, for people.
    pub last_power: Option<PowerState>,
    /// The process that is allowed to act on it.
    pub attachment: Option<Attachment>,
    /// The last attachment's generation; 0 before the first.
    pub generation: Generation,
    /// Time until which a fenced process can still be inside a call, on the store's clock.
    pub calls_until: Option<Timestamp>,
    /// Start of the period without a process, on the store's clock.
    pub detached_at: Option<Timestamp>,
    /// True if it was enqueued without a process. It keeps its queue position until it expires.
    pub keeps_place: bool,
}

impl Maintenance {
    /// Returns the server's power after this maintenance: the operation's target, otherwise the
    /// restored power. `None` if unknown.
    #[must_use]
    pub fn final_power(&self) -> Option<PowerTarget> {
        match &self.spec.operation {
            Some(operation) => Some(operation.target().unwrap_or(PowerTarget::On)),
            // The external system powers the server off.
            None if self.ends_off() => Some(PowerTarget::Off),
            None => self.restored_power(),
        }
    }

    /// Returns the power that a release restores. The owner's current desired power, as the
    /// external system reports it, overrides the recorded power. `None` restores nothing.
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

    /// Returns true if the external system ends the server's use and powers it off.
    #[must_use]
    pub fn ends_off(&self) -> bool {
        self.power_after() == Some(PowerAfter::EndsOff)
    }

    /// Returns when the maintenance becomes overdue: after `expires_after`, or at the end of a
    /// window with `release`.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        let after = self.spec.expires_after.and_then(|after| jiff::SignedDuration::try_from(after).ok());
        let expires = self.admitted_at.zip(after).and_then(|(at, after)| at.checked_add(after).ok());
        [expires, self.closes_at].into_iter().flatten().min()
    }

    /// Returns true if the maintenance is overdue.
    #[must_use]
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.expires_at().is_some_and(|at| at <= now)
    }

    /// Returns the server's configured name as one line. Valid names are already one line.
    #[must_use]
    pub fn server(&self) -> &str {
        self.spec.server.shown()
    }
}
