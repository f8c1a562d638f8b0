//! What can change about a lock, as data: the engine and the model check apply the same.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

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

/// The moment at which a change is applied, as the store sees it.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// Which processes are alive.
    pub leases: &'a Leases,
    /// The store's time.
    pub now: Timestamp,
    /// After how long a waiter gains one step of priority.
    pub aging: Duration,
    /// How long things may take.
    pub limits: &'a Limits,
}

/// A change of a lock.
#[derive(Clone, Copy, Debug)]
pub enum LockChange<'a> {
    /// Ask for a place in the queue, or find that of an earlier run, and attach; a new record that
    /// only keeps a place is not attached to.
    Enqueue {
        /// The specification.
        request: &'a EnqueueRequest,
        /// The identifiers of the server that lead to this lock.
        claims: &'a [AliasClaim],
        /// The token of the attachment.
        token: Token,
    },
    /// Take the right to act on a record.
    Attach {
        /// The record.
        uid: &'a Uid,
        /// The process.
        runner: &'a Runner,
        /// The token of the attachment.
        token: Token,
        /// The number of the state for which it acts; empty: for none.
        state: &'a str,
        /// The owner for whom it acts; `None`: by the protocol alone.
        owner: Option<&'a str>,
    },
    /// Move a record to a state, whichever managed it before. Refused while a living process is
    /// attached.
    TakeOver {
        /// The record.
        uid: &'a Uid,
        /// The number of the state.
        state: &'a str,
        /// The owner of that state.
        owner: &'a str,
        /// The process, for people.
        by: &'a str,
    },
    /// Replace what is requested where the server need not change, without the right to act.
    Amend {
        /// The record.
        uid: &'a Uid,
        /// The number of the state for which it acts; empty: for none.
        state: &'a str,
        /// The owner for whom it acts.
        owner: &'a str,
        /// What is requested.
        spec: &'a Spec,
        /// The process, for people.
        by: &'a str,
    },
    /// Let a name that a person released ask again.
    Allow {
        /// The name.
        id: &'a MaintenanceId,
        /// The process, for people.
        by: &'a str,
    },
    /// Take the right to act from the process that has it, against its will.
    Seize {
        /// The record.
        uid: &'a Uid,
        /// The generation that a person saw.
        seen: Generation,
        /// The process.
        runner: &'a Runner,
        /// The owner for whom it acts; `None`: by the protocol alone.
        owner: Option<&'a str>,
        /// The token of the attachment.
        token: Token,
        /// Why the release begins at once; `None`: it does not.
        ending: Option<&'a Ending>,
        /// Why the name stays refused, for people.
        reason: &'a str,
        /// For how long nothing else is admitted.
        block: Option<Duration>,
    },
    /// Remove waiters that lost their place.
    DropAbsent,
    /// What the process that drives a record decided.
    Driven {
        /// The record.
        uid: &'a Uid,
        /// The proof that it may.
        fence: Fence,
        /// The change.
        change: &'a RecordChange,
    },
}

/// What came of a change that was not refused.
#[allow(clippy::large_enum_variant, reason = "few of them exist at a time")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It is made.
    Done,
    /// What allowed it when it was decided does not hold any more; nothing was changed.
    Outdated,
    /// The record has a place.
    Enqueued {
        /// The record.
        uid: Uid,
        /// Whether an earlier run made it.
        adopted: bool,
        /// The right to act on it.
        fence: Option<Fence>,
    },
    /// The right to act was taken.
    Attached {
        /// What proves it.
        fence: Fence,
        /// Until when a fenced process, or an earlier call, may still change the server.
        calls_until: Option<Timestamp>,
    },
    /// This was forbidden and is not any more.
    Allowed(Restrictions),
    /// These waiters were removed.
    Dropped(Vec<MaintenanceId>),
    /// The process is done.
    Finished(Finish),
    /// What follows from a machine that cannot be read.
    Unreadable(Unreadable),
}

/// What a machine that cannot be read means for its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Preparing failed; what it changed is restored.
    Undone,
    /// The release is stuck; the next destroy resumes it.
    Stuck,
    /// Waiting does not help: the waiter leaves the queue.
    LeavesQueue,
    /// Nothing changed: what is held stays held.
    Kept,
}

/// A change of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// Take the slot, or the turn to act under a hold, and go on in this phase.
    Admit(Phase),
    /// Give an overdue holder's server back for it.
    Reclaim(Uid),
    /// Leave the queue.
    Withdraw,
    /// Replace the progress of the phase.
    Progress(Progress),
    /// Note what the step under way waits for, for people.
    NoteWait(String),
    /// The server is prepared.
    Prepared,
    /// Begin to give it back.
    BeginRelease(Ending),
    /// End it and leave the server as it is to that waiter.
    HandOver(Uid, Ending),
    /// Giving back cannot go on.
    Stuck(String),
    /// Owner and window allow a specification that changed during the preparation.
    AllowActions,
    /// What can be checked of a change in place was: the server may be changed.
    BeginUpdate,
    /// A check of a change in place failed; nothing was changed.
    RefuseUpdate(String),
    /// A step of a change in place failed: the server goes back to its previous specification.
    Undo(String),
    /// The server is as its previous specification asks, after a change that failed for this
    /// reason.
    Undone(String),
    /// Undoing cannot go on, and why.
    StopUndoing(String),
    /// It is over.
    Finish(Phase),
    /// Note what a gate says of our request.
    Gate {
        /// The gate, by its place in the record.
        place: usize,
        /// Its name, for people.
        by: String,
        /// Whether it allows the start.
        granted: bool,
        /// What it waits for.
        said: Option<String>,
        /// What is to be remembered from before the server is entered.
        memory: BTreeMap<String, String>,
        /// Whether that is of now, although something was remembered before: nothing of ours is
        /// there.
        again: bool,
    },
    /// Note the holder and the cluster of the Lease of its Kubernetes Node.
    NodeSeen {
        /// Who holds it; `None`: it is free.
        held_by: Option<String>,
        /// Its cluster, where the Lease is going to be taken and a role does not hide the cluster.
        cluster: Option<String>,
    },
    /// A gate, by its place in the record, does not hold the server for us any more, and why.
    GateLost(usize, String),
    /// Note the power that a gate, by its place in the record, wants the server to have afterwards:
    /// what was restored already is restored again.
    PowerAfter(usize, Option<PowerAfter>),
    /// Record the intent of a call, before it is made.
    Intend(Action),
    /// Record what came of the last call.
    Replied(Reply),
    /// Record how the server is, before the first change. Once recorded it stays.
    Prior(Box<PriorState>),
    /// Calls that could still change the server were observed to have done so.
    Settled(Vec<PendingEffect>),
    /// The machine cannot be read.
    Unreadable {
        /// The cause, for people.
        cause: String,
        /// Whether it may pass by itself.
        transient: bool,
    },
    /// Note that a request to a gate may be there, before it is made; by its place in the record.
    AskExternal(usize),
    /// Replace what is asked; an admitted record is prepared again where the server is concerned.
    Respecify(Box<Spec>),
    /// Prepare the server for the specification in force once more.
    PrepareAgain,
    /// End it without a restore.
    Abandon(Ending),
    /// Give the right to act back. Record, lock and place stay.
    Detach,
    /// The last commit of a create: mark a record that stays in its state, and detach.
    Conclude {
        /// The state's random number.
        state: String,
        /// True if the create ends with a store or lease error.
        failed: bool,
    },
}

impl RecordChange {
    /// What it means to whoever waits for it; `None`: nothing that has to be said.
    #[must_use]
    pub fn told(&self, kind: MaintenanceKind) -> Option<String> {
        Some(match self {
            Self::Admit(_) => "lock acquired".to_owned(),
            Self::Withdraw => "left the queue".to_owned(),
            Self::Prepared if kind == MaintenanceKind::Operation => "made".to_owned(),
            Self::Prepared => "in maintenance".to_owned(),
            Self::BeginRelease(ending) => format!("releasing the server ({ending})"),
            Self::HandOver(_, ending) => format!("handing the server over as it is ({ending})"),
            Self::Stuck(cause) => format!("releasing failed: {cause}"),
            Self::Finish(over) => format!("over ({})", over.name()),
            Self::BeginUpdate => "checked; the server is brought to the changed configuration".to_owned(),
            Self::RefuseUpdate(cause) => format!("the change is refused: {cause}"),
            Self::Undo(cause) => format!("the change failed and is undone: {cause}"),
            Self::Undone(_) => "the change is undone; in maintenance".to_owned(),
            Self::StopUndoing(why) => format!("the change could not be undone: {why}"),
            Self::Progress(progress) if progress.step().is_some() => format!("step {}", progress.text()),
            Self::GateLost(_, why) => format!("the external system revoked the server: {why}"),
            Self::Gate { granted: true, by, .. } => format!("granted by {by}"),
            Self::PowerAfter(_, Some(PowerAfter::Wanted(power))) => {
                format!("the power to restore is {power}, as the external system says by now")
            }
            Self::PowerAfter(_, Some(PowerAfter::EndsOff)) => {
                "the power is not restored: the external system switches the server off after the release".to_owned()
            }
            Self::PowerAfter(_, None) => "the power to restore is the recorded one again".to_owned(),
            Self::Progress(_)
            | Self::NoteWait(_)
            | Self::AllowActions
            | Self::Reclaim(_)
            | Self::Gate { .. }
            | Self::NodeSeen { .. }
            | Self::Intend(_)
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
