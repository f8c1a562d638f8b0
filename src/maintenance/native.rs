//! A server's own maintenance system, where it has one: words that rules and backends share, and the rules about it.
//!
//! Some of these systems have a queue of their own (metal-operator's ServerMaintenance). Then that queue orders: our slot is
//! taken only when it has granted our request, and until then our place blocks nobody. Others only know in and out
//! (metal-operator's parking); they are entered and left under our slot.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{
    change::Change,
    decide::{Decision, Finish, Situation},
    hindrance::{Hindrance, hindrances},
    ids::Uid,
    power::{Limits, Need, Verdict, after, pursue},
    prepare::Facts,
    queue,
    state::{Maintenance, Phase, Progress},
    step::{Action, Reply},
};
use crate::maintenance::machine::ResetType;
use jiff::Timestamp;

/// Who decides whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The server's own system has a queue: it is asked before our slot is taken.
    Theirs,
    /// It has none: our queue orders, and it is entered under our slot.
    Ours,
}

/// What a server's own system is like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    /// Its name, for people.
    pub name: String,
    /// Who orders.
    pub order: Order,
    /// Whether a maintenance enters it at all; an operation only asks whether it may go on beside it.
    pub enters: bool,
    /// Whether it prepares what is booted, and says when that is ready.
    pub boots: bool,
    /// Whether it knows the owners of its servers and asks them. Where it does not, claims and approvals are those of the
    /// coordination store.
    #[serde(default = "knows_owners", skip_serializing_if = "Clone::clone")]
    pub owners: bool,
}

/// What was true of every system before it was recorded.
fn knows_owners() -> bool {
    true
}

/// What is known of our request to a server's own system. Part of a maintenance's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Native {
    /// The system.
    pub system: System,
    /// Whether a request may be there: recorded before it is made.
    pub asked: bool,
    /// Whether it was seen to allow the start.
    pub granted: bool,
    /// Whether the server was entered under our slot, so that it has to be left.
    pub entered: bool,
    /// What it waits for, as seen last.
    pub said: Option<String>,
    /// Why it is ours no more, once that was seen: then the server is not touched again.
    pub lost: Option<String>,
    /// What the backend wants to know again when the server is left: how things were before it was entered.
    pub memory: BTreeMap<String, String>,
}

impl Native {
    /// Nothing was asked yet.
    #[must_use]
    pub fn new(system: System) -> Self {
        Self { system, asked: false, granted: false, entered: false, said: None, lost: None, memory: BTreeMap::new() }
    }
}

/// Who asks, and for what: what a request to a server's own system says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeWish {
    /// The coordination store that knows the maintenance, by its id.
    pub store: String,
    /// This incarnation of the maintenance.
    pub uid: String,
    /// `namespace/name` of the maintenance.
    pub id: String,
    /// The provider's `owner`.
    pub owner: String,
    /// Who asks: run, host, person.
    pub run: String,
    /// Whether the server's owner is asked.
    pub asks: Asks,
    /// Higher goes first.
    pub priority: i64,
    /// Why, for people.
    pub reason: Option<String>,
    /// Where it is discussed.
    pub ticket: Option<String>,
    /// Whether it may be there already.
    pub asked: bool,
    /// Whether the server was taken with it: see [`Native::entered`].
    pub entered: bool,
    /// See [`System::enters`].
    pub enters: bool,
    /// The namespace of our object, as the record keeps it; `None`: that of the configuration.
    pub namespace: Option<String>,
    /// See [`Native::memory`].
    pub memory: BTreeMap<String, String>,
}

/// Who is asked before a server is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// Nobody.
    Nobody,
    /// Its owner, if it has one.
    Owner,
    /// Its owner; a server that nobody owns is not taken.
    OwnerItMustHave,
}

/// Where our request stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing of ours is there, and the server may be asked for, or is as it was.
    Absent,
    /// Ours waits, or could not be made now. The words complete "waiting for".
    Waiting(String),
    /// Ours was made and the system acts on it by itself: it is not to be helped, and no limit but that of the maintenance
    /// ends it. The words complete "waiting for".
    Entering(String),
    /// The server is ours: every condition of the system holds.
    Granted,
    /// It was ours and is somebody else's, or nobody's.
    Lost(String),
    /// It will never be granted, and nothing of ours is there.
    Refused(String),
    /// It is there and holds nothing, now or ever: it is to be taken back.
    Failed(String),
    /// It is being taken back, or the server is on its way back; this ends by itself.
    Returning(String),
    /// Ours is gone, and left something behind that the next [`Action::LeaveNative`] removes.
    Leftovers(String),
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("the external request is not there"),
            Self::Waiting(why) | Self::Entering(why) => write!(f, "waiting for {why}"),
            Self::Granted => f.write_str("granted"),
            Self::Lost(why) | Self::Refused(why) | Self::Failed(why) | Self::Returning(why) | Self::Leftovers(why) => {
                f.write_str(why)
            }
        }
    }
}

/// Whether what shall be booted is ready, as the system says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootReadiness {
    /// Not yet; with its progress.
    Pending(String),
    /// It is.
    Ready,
    /// It cannot be.
    Error(String),
}

/// What is seen of our request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeView {
    /// Where it stands.
    pub standing: Standing,
    /// What shall be booted, where the system prepares that.
    pub boot: Option<BootReadiness>,
    /// See [`Native::memory`]: what is to be remembered from before the server is entered.
    pub memory: BTreeMap<String, String>,
    /// The maintenance of ours, by its UID, whose request has the server, where the end of that is all that ours waits for.
    pub behind: Option<Uid>,
}

/// What a waiter has to do about the server's own system before its turn counts; `None`: nothing.
#[must_use]
pub(super) fn ask(at: &Situation<'_>, record: &Maintenance, native: &Native) -> Option<Decision> {
    // What acts under a hold was granted with it.
    if record.spec.parent.is_some() {
        return None;
    }
    let Some(view) = &at.facts.native else { return Some(Decision::Look(Need::Native)) };
    let own = hindrances(at.lock, record, at.now).iter().any(|hindrance| !matches!(hindrance, Hindrance::Native(_)));
    let theirs = native.system.order == Order::Theirs;
    if own && theirs {
        // Granted outside its window, or before what else it waits for, it would hold the server for nothing.
        let there = matches!(view.standing, Standing::Waiting(_) | Standing::Entering(_) | Standing::Granted);
        return there.then_some(Decision::Act(Action::LeaveNative));
    }
    let (granted, said) = match &view.standing {
        Standing::Refused(why) | Standing::Failed(why) => {
            return Some(Decision::Finished(Finish::Refused(why.clone())));
        }
        Standing::Absent if theirs => return Some(Decision::Act(Action::EnterNative)),
        Standing::Leftovers(_) if theirs => return Some(Decision::Act(Action::LeaveNative)),
        Standing::Absent | Standing::Granted | Standing::Leftovers(_) => (true, None),
        Standing::Waiting(why) | Standing::Entering(why) => (false, Some(why.clone())),
        Standing::Lost(why) | Standing::Returning(why) => (false, Some(format!("the server: {why}"))),
    };
    if native.granted != granted || native.said != said {
        return Some(Decision::Change(Change::Native { granted, said, memory: view.memory.clone() }));
    }
    let said = said?;
    // The external system grants nothing while the overdue hold has its request there: it has to be released first.
    let overdue =
        queue::reclaimable(at.lock, at.leases, at.now).filter(|holder| view.behind.as_ref() == Some(&holder.uid));
    if let Some(holder) = overdue.filter(|_| !own && !at.intent.timed_out) {
        return Some(Decision::Change(Change::Reclaim(holder.uid.clone())));
    }
    let reason = format!("waiting for {said}");
    Some(if at.intent.timed_out {
        Decision::Finished(Finish::TimedOut(reason))
    } else {
        let wake = at.lock.holder().and_then(Maintenance::expires_at).filter(|expires| *expires > at.now);
        Decision::Wait { reason, poll: true, wake }
    })
}

/// Whether the server's own system still says that it is ours; `None`: it does, or there is none, or it was not entered.
#[must_use]
pub(super) fn check(at: &Situation<'_>, record: &Maintenance) -> Option<Decision> {
    let holder = record.spec.parent.as_ref().map_or(Some(record), |parent| at.lock.get(parent))?;
    let native = holder.native.as_ref()?;
    if !native.entered || native.lost.is_some() {
        return None;
    }
    let Some(view) = &at.facts.native else { return Some(Decision::Look(Need::Native)) };
    taken_away(&view.standing).map(|why| Decision::Change(Change::NativeLost(why)))
}

/// Why a server that was entered is ours no more, by where its request stands; `None`: it is.
#[must_use]
pub fn taken_away(standing: &Standing) -> Option<String> {
    match standing {
        Standing::Granted => None,
        Standing::Lost(why) | Standing::Refused(why) | Standing::Failed(why) => Some(why.clone()),
        Standing::Waiting(why) | Standing::Entering(why) | Standing::Returning(why) | Standing::Leftovers(why) => {
            Some(format!("it is out of maintenance again ({why})"))
        }
        Standing::Absent => Some("our request is gone".to_owned()),
    }
}

/// Entering under our slot.
#[must_use]
pub(super) fn enter(progress: &Progress, facts: &Facts, limits: &Limits, now: Timestamp) -> Verdict {
    let Some(view) = &facts.native else { return Verdict::Look(Need::Native) };
    let entered = progress.attempts.iter().rev().find(|attempt| attempt.action == Action::EnterNative);
    match &view.standing {
        Standing::Granted => Verdict::Done,
        Standing::Refused(why) | Standing::Failed(why) | Standing::Lost(why) => Verdict::Fail(why.clone()),
        Standing::Returning(why) => Verdict::Wait { why: why.clone(), until: None },
        Standing::Entering(why) => Verdict::Wait { why: format!("waiting for {why}"), until: None },
        Standing::Waiting(why) => {
            let Some(entered) = entered.filter(|attempt| !matches!(attempt.reply, Reply::Refused { .. })) else {
                return match entered {
                    None => Verdict::Wait { why: why.clone(), until: None },
                    Some(_) => pursue(Action::EnterNative, &progress.attempts, limits.settle, limits, now),
                };
            };
            // The system asks the operating system and has no patience that ends: ours does.
            let until = after(entered.at, limits.graceful_shutdown);
            if now < until {
                return Verdict::Wait { why: why.clone(), until: Some(until) };
            }
            match &facts.capabilities {
                None => Verdict::Look(Need::Capabilities),
                Some(can) if can.can(ResetType::ForceOff) => {
                    let forced = Action::Reset(ResetType::ForceOff);
                    pursue(forced, &progress.attempts, limits.power_change, limits, now)
                }
                Some(_) => Verdict::Fail(format!("it was not entered in time ({why}), and it cannot be forced off")),
            }
        }
        Standing::Absent | Standing::Leftovers(_) => {
            pursue(Action::EnterNative, &progress.attempts, limits.settle, limits, now)
        }
    }
}

/// Leaving: the last step of giving back.
#[must_use]
pub(super) fn leave(progress: &Progress, facts: &Facts, limits: &Limits, now: Timestamp) -> Verdict {
    let Some(view) = &facts.native else { return Verdict::Look(Need::Native) };
    match &view.standing {
        // A request that was refused was never ours to take back.
        Standing::Absent | Standing::Refused(_) => Verdict::Done,
        Standing::Returning(why) => Verdict::Wait { why: why.clone(), until: None },
        // Leaving can take several calls, each of which finds what the one before left.
        Standing::Leftovers(_) if goes_on(progress, limits) => Verdict::Act(Action::LeaveNative),
        Standing::Waiting(_)
        | Standing::Entering(_)
        | Standing::Granted
        | Standing::Lost(_)
        | Standing::Failed(_)
        | Standing::Leftovers(_) => {
            match pursue(Action::LeaveNative, &progress.attempts, limits.graceful_shutdown, limits, now) {
                Verdict::Fail(what) => Verdict::Fail(format!("{what}: {}", view.standing)),
                verdict => verdict,
            }
        }
    }
}

/// Whether the last call to leave was accepted, and another one may follow.
fn goes_on(progress: &Progress, limits: &Limits) -> bool {
    let mut calls = progress.attempts.iter().filter(|attempt| attempt.action == Action::LeaveNative).rev();
    let accepted = calls.next().is_some_and(|last| last.reply == Reply::Accepted);
    accepted && calls.count() + 1 < limits.attempts
}

/// Whether what shall be booted is ready; `None` where the system does not prepare it.
#[must_use]
pub(super) fn ready(record: &Maintenance, facts: &Facts) -> Option<Verdict> {
    if !boots(record) {
        return None;
    }
    let Some(view) = &facts.native else { return Some(Verdict::Look(Need::Native)) };
    match &view.boot {
        Some(BootReadiness::Ready) => None,
        Some(BootReadiness::Error(message)) => Some(Verdict::Fail(message.clone())),
        Some(BootReadiness::Pending(progress)) => Some(Verdict::Wait { why: progress.clone(), until: None }),
        None => Some(Verdict::Wait { why: "the boot configuration is not there yet".to_owned(), until: None }),
    }
}

/// Whether the server's own system prepares what a record boots.
#[must_use]
pub fn boots(record: &Maintenance) -> bool {
    record.spec.boot.is_some() && record.native.as_ref().is_some_and(|native| native.system.boots)
}

/// Whether the server's own system keeps the power that a record asks for.
#[must_use]
pub(super) fn keeps_power(record: &Maintenance) -> bool {
    record.native.as_ref().is_some_and(|native| native.system.boots && native.system.enters)
}

/// Whether the server may be put back as it was: not when it is not ours any more, nor when it never was.
#[must_use]
pub fn may_restore(record: &Maintenance) -> bool {
    record.native.as_ref().is_none_or(|native| {
        native.lost.is_none() && (native.entered || !native.system.enters || record.spec.parent.is_some())
    })
}

/// Whether a record in this state still has something to take back from the server's own system.
#[must_use]
pub fn must_leave(record: &Maintenance) -> bool {
    record.spec.parent.is_none()
        && record.native.as_ref().is_some_and(|native| native.system.enters && native.asked)
        && !matches!(record.phase, Phase::Completed { .. } | Phase::Failed { .. })
}
