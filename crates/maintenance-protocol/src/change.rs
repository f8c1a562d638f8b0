//! Changes of a lock, as data. The engine and the model check apply the same changes.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use shown_text::OneLine;

use super::{
    identity::AliasClaim,
    ids::{Fence, Generation, MaintenanceId, Runner, Token, Uid},
    model::{
        effects::PendingEffect,
        finish::Finish,
        gate::PowerAfter,
        lock::{EnqueueRequest, Leases},
        restrictions::Restrictions,
        verdict::Limits,
    },
    spec::{MaintenanceKind, Spec},
    state::{Ending, Phase, PriorState, Progress},
    step::{Action, Reply},
};

/// Time and environment of a change, as the store provides them.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// The current process leases.
    pub leases: &'a Leases,
    /// The store's time.
    pub now: Timestamp,
    /// Waiting time after which a waiter gains one priority level.
    pub aging: Duration,
    /// Time limits.
    pub limits: &'a Limits,
}

/// A lock change.
#[derive(Clone, Copy, Debug)]
pub enum LockChange<'a> {
    /// Enqueue a request or adopt an earlier run's record, and attach. A new record that only
    /// reserves a queue position is not attached.
    Enqueue {
        /// The request.
        request: &'a EnqueueRequest,
        /// The server's identifiers that lead to this lock.
        claims: &'a [AliasClaim],
        /// Token of the attachment.
        token: Token,
    },
    /// Attach a process to a record.
    Attach {
        /// The record.
        uid: &'a Uid,
        /// The process.
        runner: &'a Runner,
        /// Token of the attachment.
        token: Token,
        /// Random number of the process's state; empty without a state.
        state: &'a str,
        /// The owner that the process represents; `None` for actions of the protocol itself.
        owner: Option<&'a str>,
    },
    /// Move a record to a state, regardless of its previous state. Rejected while a connected
    /// process works on it.
    TakeOver {
        /// The record.
        uid: &'a Uid,
        /// Random number of the state.
        state: &'a str,
        /// Owner of that state.
        owner: &'a str,
        /// The process, for people.
        by: &'a str,
    },
    /// Replace a specification without attaching, if the server does not need to change.
    Amend {
        /// The record.
        uid: &'a Uid,
        /// Random number of the process's state; empty without a state.
        state: &'a str,
        /// The owner that the process represents.
        owner: &'a str,
        /// The new specification.
        spec: &'a Spec,
        /// The process, for people.
        by: &'a str,
    },
    /// Allow a name that a person released.
    Allow {
        /// The name.
        id: &'a MaintenanceId,
        /// The process, for people.
        by: &'a str,
    },
    /// Force an attachment, which fences the connected process.
    Seize {
        /// The record.
        uid: &'a Uid,
        /// The generation that a person specified.
        seen: Generation,
        /// The process.
        runner: &'a Runner,
        /// The owner that the process represents; `None` for actions of the protocol itself.
        owner: Option<&'a str>,
        /// Token of the attachment.
        token: Token,
        /// Reason for an immediate release; `None` does not release.
        ending: Option<&'a Ending>,
        /// Why the name stays rejected, for people.
        reason: &'a str,
        /// Period during which no other maintenance is admitted.
        block: Option<Duration>,
    },
    /// Remove waiters whose reserved queue position expired.
    DropAbsent,
    /// A decision by the process that drives a record.
    Driven {
        /// The record.
        uid: &'a Uid,
        /// Proof that the process is allowed to act.
        fence: Fence,
        /// The change.
        change: &'a RecordChange,
    },
}

/// Result of an accepted change.
#[allow(clippy::large_enum_variant, reason = "few of them exist at a time")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The change is applied.
    Done,
    /// The change was decided on outdated data and is not applied.
    Outdated,
    /// The record is in the queue.
    Enqueued {
        /// The record.
        uid: Uid,
        /// True if it is an earlier run's record.
        adopted: bool,
        /// Proof of the attachment, if the process attached.
        fence: Option<Fence>,
    },
    /// The process is attached.
    Attached {
        /// Proof of the attachment.
        fence: Fence,
        /// Time until which a fenced process or an earlier call can still change the server.
        calls_until: Option<Timestamp>,
    },
    /// The restrictions that were lifted.
    Allowed(Restrictions),
    /// The waiters that were removed.
    Dropped(Vec<MaintenanceId>),
    /// The process has finished.
    Finished(Finish),
    /// An unreadable machine was handled.
    Unreadable(Unreadable),
}

/// How a record continues if its machine is unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The preparation failed, and its changes are being restored.
    Undone,
    /// The release stopped; the next destroy resumes it.
    Stuck,
    /// The failure is permanent, so the waiter leaves the queue.
    LeavesQueue,
    /// The record and its lock are unchanged.
    Kept,
}

/// A record's change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// Acquire the lock, or start work under a parent's lock, and enter this phase.
    Admit(Phase),
    /// Release an overdue holder.
    Reclaim(Uid),
    /// Leave the queue.
    Withdraw,
    /// Replace the phase's progress.
    Progress(Progress),
    /// Record the current step's wait reason, for people.
    NoteWait(String),
    /// The preparation is complete.
    Prepared,
    /// Start the release.
    BeginRelease(Ending),
    /// End the record and hand the server over unrestored to this waiter.
    HandOver(Uid, Ending),
    /// The release stopped for this reason.
    Stuck(String),
    /// Owner and window allow a specification that changed during the preparation.
    AllowActions,
    /// All checks for a change in place passed: start changing the server.
    BeginUpdate,
    /// A check for a change in place failed; the server is unchanged.
    RefuseUpdate(String),
    /// A step failed during a change in place: start the rollback to the previous specification.
    Undo(String),
    /// The rollback after this failure is complete.
    Undone(String),
    /// The rollback stopped for this reason.
    StopUndoing(String),
    /// End the record in this phase.
    Finish(Phase),
    /// Record a gate's answer.
    Gate {
        /// Index of the gate in the record.
        place: usize,
        /// Name of the gate, for people.
        by: OneLine,
        /// True if the gate grants the start.
        granted: bool,
        /// The gate's current blocker.
        said: Option<OneLine>,
        /// Prior state to record before the server enters.
        memory: BTreeMap<String, String>,
        /// True if `memory` replaces an earlier value, because no request exists.
        again: bool,
    },
    /// Record holder and cluster of the Lease for the server's Node.
    NodeSeen {
        /// The Lease's other holder; `None` if it is free.
        held_by: Option<OneLine>,
        /// Its cluster, if the Lease will be acquired and a role does not hide the cluster.
        cluster: Option<OneLine>,
    },
    /// A gate, by index in the record, revoked its grant for this reason.
    GateLost(usize, String),
    /// Record the power that a gate, by index in the record, wants after the release. The release
    /// restores it again if it already restored the power.
    PowerAfter(usize, Option<PowerAfter>),
    /// Record a call's intent before the call is sent.
    Intend {
        /// The call.
        action: Action,
        /// `LastResetTime` in the reading that the call was decided on.
        last_reset: Option<OneLine>,
    },
    /// Record the last call's reply.
    Replied(Reply),
    /// Record the prior state before the first change. A recorded state is never replaced.
    Prior(Box<PriorState>),
    /// The effects of these pending calls were observed.
    Settled(Vec<PendingEffect>),
    /// The machine is unreadable.
    Unreadable {
        /// The cause, for people.
        cause: OneLine,
        /// True if a later read can succeed.
        transient: bool,
    },
    /// Record that a request to the gate can exist, before it is sent. By index in the record.
    AskExternal(usize),
    /// Replace the specification. An admitted record is prepared again if the server must change.
    Respecify(Box<Spec>),
    /// Prepare the server again for the current specification.
    PrepareAgain,
    /// End it without a restore.
    Abandon(Ending),
    /// Detach the process. Record, lock and queue position stay.
    Detach,
    /// The last commit of a create: mark a record that stays in its state, and detach.
    Conclude {
        /// The state's random number.
        state: OneLine,
        /// True if the create ends with a store or lease error.
        failed: bool,
    },
}

impl RecordChange {
    /// Returns the log text for the change; `None` for changes that are not logged.
    #[must_use]
    pub fn told(&self, kind: MaintenanceKind) -> Option<String> {
        Some(match self {
            Self::Admit(_) => "lock acquired".to_owned(),
            Self::Withdraw => "left the queue".to_owned(),
            Self::Prepared if kind == MaintenanceKind::Operation => "performed".to_owned(),
            Self::Prepared => "in maintenance".to_owned(),
            Self::BeginRelease(ending) => format!("releasing the server ({ending})"),
            Self::HandOver(_, ending) => format!("handing the server over unchanged ({ending})"),
            Self::Stuck(cause) => format!("releasing failed: {cause}"),
            Self::Finish(over) => format!("ended ({})", over.name()),
            Self::BeginUpdate => "checked; the changed configuration is applied to the server".to_owned(),
            Self::RefuseUpdate(cause) => format!("the change is refused: {cause}"),
            Self::Undo(cause) => format!("the change failed and is undone: {cause}"),
            Self::Undone(_) => "the change is undone; in maintenance".to_owned(),
            Self::StopUndoing(why) => format!("the change could not be undone: {why}"),
            Self::Progress(progress) if progress.step().is_some() => format!("step {}", progress.text()),
            Self::GateLost(_, why) => format!("the external system revoked the server: {why}"),
            Self::Gate { granted: true, by, .. } => format!("granted by {by}"),
            Self::PowerAfter(_, Some(PowerAfter::Wanted(power))) => {
                format!("the power to restore is {power} now, as the external system requests")
            }
            Self::PowerAfter(_, Some(PowerAfter::EndsOff)) => {
                "the power is not restored: the external system switches the server off after the release".to_owned()
            }
            Self::PowerAfter(_, None) => "the power to restore is the recorded power again".to_owned(),
            Self::Progress(_)
            | Self::NoteWait(_)
            | Self::AllowActions
            | Self::Reclaim(_)
            | Self::Gate { .. }
            | Self::NodeSeen { .. }
            | Self::Intend { .. }
            | Self::Replied(_)
            | Self::Prior(_)
            | Self::Settled(_)
            | Self::Unreadable { .. }
            | Self::AskExternal(_)
            | Self::Respecify(_)
            | Self::PrepareAgain
            | Self::Abandon(_)
            | Self::Detach
            | Self::Conclude { .. } => return None,
        })
    }
}
