//! The queue order.
//!
//! Requests are ordered by priority, then ticket number, never by wall clocks. An entry gains one
//! priority level per `aging` interval, which prevents starvation. Blocked requests do not block
//! later ones. A holder is never preempted.

pub use super::model::shown_time::{shown_duration, shown_time};

use std::{cmp::Reverse, collections::HashMap, fmt, ops::Deref, sync::OnceLock, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::{
    approval::{self, Consent, consent},
    blocker::{StartBlocker, changes_at, start_blockers},
    identity::shared_lock,
    ids::{Generation, MaintenanceId, Runner, Uid},
    limits,
    lock::place_kept_until,
    model::lock::{Leases, ServerLock},
    state::{Maintenance, Phase},
};

/// The holder or an entry ahead of a waiter, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// Name of the maintenance.
    pub id: MaintenanceId,
    /// The server's name in its configuration, if the lock has several names.
    pub server: Option<String>,
    /// Name of the state.
    pub state: &'static str,
    /// True if it owns the lock.
    pub holds: bool,
    /// Time of the admission for the holder, of the request for a waiter.
    pub since: Timestamp,
    /// The requesting run, host and person.
    pub by: Runner,
    /// The reason, for people.
    pub reason: Option<shown_text::OneLine>,
    /// When it becomes overdue, if ever.
    pub expires_at: Option<Timestamp>,
    /// When its queue position expires, while its process is disconnected.
    pub place_kept_until: Option<Timestamp>,
    /// A blocker that does not depend on the queue. Such an entry does not block later ones.
    pub blocker: Option<String>,
    /// Its generation.
    pub generation: Generation,
}

impl fmt::Display for QueueEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = self.server.as_ref().map(|server| format!(" on {server}")).unwrap_or_default();
        write!(f, "{}{on} (", self.id)?;
        if self.holds {
            write!(f, "{} since {}, {}", self.state, shown_time(self.since), self.by)?;
            match self.expires_at {
                Some(at) => write!(f, ", expires {}", shown_time(at))?,
                None => write!(f, ", never expires")?,
            }
        } else if let Some(until) = self.place_kept_until {
            write!(f, "{} disconnected, position reserved until {}", self.by, shown_time(until))?;
        } else {
            write!(f, "waiting since {}, {}", shown_time(self.since), self.by)?;
        }
        if let Some(blocker) = &self.blocker {
            write!(f, ", not blocking, gated by {blocker}")?;
        }
        write!(f, ")")
    }
}

/// The reason for a wait. Each reason contains the condition that ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// Blocked independently of the queue.
    NotYet {
        /// The blockers.
        blockers: Vec<StartBlocker>,
        /// The holder and the waiters ahead, in order.
        ahead: QueueAhead,
    },
    /// The holder and other waiters are ahead.
    Turn {
        /// The holder and the waiters ahead, in order.
        ahead: QueueAhead,
    },
    /// Other work under the same lock is active.
    SameHold {
        /// The active record.
        actor: Box<QueueEntry>,
    },
    /// The parent maintenance is not prepared yet.
    HoldNotReady {
        /// The parent.
        hold: MaintenanceId,
        /// Name of its state.
        state: &'static str,
    },
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYet { blockers, ahead } => {
                for (n, blocker) in blockers.iter().enumerate() {
                    let and = if n > 0 { "; and " } else { "" };
                    write!(f, "{and}{blocker}")?;
                }
                if ahead.is_empty() {
                    return Ok(());
                }
                write!(f, "; {} ahead: {ahead}", ahead.len())
            }
            Self::Turn { ahead } => {
                write!(f, "queued, {} ahead: {ahead}", ahead.len())
            }
            Self::SameHold { actor } => write!(f, "waiting until {actor} is done with this server"),
            Self::HoldNotReady { hold, state } => {
                write!(f, "waiting until {hold} is InMaintenance (now {state})")
            }
        }
    }
}

/// The entries ahead of a waiter: the first of them and their number. A complete list for each of
/// hundreds of waiters would cost too much and help no reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueAhead {
    /// The holder, if any, and the next waiters.
    pub first: Vec<QueueEntry>,
    /// Explanation, if the lock has several server names.
    pub shared: Option<String>,
    len: usize,
}

impl QueueAhead {
    /// Returns the number of all entries ahead.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no entry is ahead.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Display for QueueAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, entry) in self.first.iter().enumerate() {
            let comma = if n > 0 { ", " } else { "" };
            write!(f, "{comma}{entry}")?;
        }
        let more = self.len.saturating_sub(self.first.len());
        if more > 0 {
            write!(f, " and {more} more")?;
        }
        self.shared.as_ref().map_or(Ok(()), |shared| write!(f, ". {shared}"))
    }
}

/// Maximum number of entries shown.
const SHOWN: usize = 4;

/// The admission decision for a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Admitted now.
    Yours,
    /// The holder is overdue and disconnected, so the next waiter releases it.
    ReclaimOverdue(Uid),
    /// Not admitted yet.
    Wait {
        /// The condition that it waits for.
        reason: WaitReason,
        /// When time alone can change the decision.
        wake: Option<Timestamp>,
    },
}

/// Returns true if this record needs the lock and does not own it.
fn wants_slot(lock: &ServerLock, record: &Maintenance) -> bool {
    record.spec.parent.is_none()
        && !lock.has_slot(record)
        && (matches!(record.phase, Phase::Preparing(_) | Phase::Releasing { .. }) || record.awaiting_turn().is_some())
}

/// Returns the priority including age. The priority range limits how long later requests can
/// overtake.
fn effective_priority(record: &Maintenance, aging: Duration, now: Timestamp) -> i64 {
    let step = i64::try_from(aging.as_secs()).unwrap_or(i64::MAX).max(1);
    let age = now.duration_since(record.requested_at).as_secs().max(0);
    limits::counted(record.spec.priority).saturating_add(age / step)
}

/// Returns the waiters in queue order.
#[must_use]
pub fn waiting<'a>(lock: &'a ServerLock, aging: Duration, now: Timestamp) -> Vec<&'a Maintenance> {
    let mut entries: Vec<&'a Maintenance> =
        lock.active.iter().filter(|record| wants_slot(lock, record)).map(Deref::deref).collect();
    entries.sort_by_cached_key(|record| (Reverse(effective_priority(record, aging, now)), record.ticket_number));
    entries
}

/// Returns true if the waiter's process is connected.
fn is_present(entry: &Maintenance, leases: &Leases, now: Timestamp) -> bool {
    entry.attachment.as_ref().is_some_and(|attachment| leases.alive(attachment, now))
}

/// Returns true if a waiter is connected and unblocked. The first such waiter is admitted.
pub(super) fn is_served(lock: &ServerLock, leases: &Leases, entry: &Maintenance, now: Timestamp) -> bool {
    is_present(entry, leases, now) && start_blockers(lock, entry, now).is_empty()
}

/// A lock's queue at one time. It is computed once per view and shared, because hundreds of waiters
/// wake up at every change.
#[derive(Debug)]
struct QueueOrder {
    aging: Duration,
    /// Queue index of each record.
    places: HashMap<Uid, usize>,
    /// Effect of all earlier entries, for each queue index and for a new entry at the end.
    before: Vec<Before>,
    first: Vec<QueueEntry>,
    shared: Option<String>,
    held: bool,
}

/// How earlier entries affect a queue index.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// True if a connected and unblocked waiter is ahead.
    blocked: bool,
    /// The number of connected waiters; the others are skipped.
    present: usize,
    /// When time alone can change the effect.
    wake: Option<Timestamp>,
}

impl QueueOrder {
    fn new(lock: &ServerLock, leases: &Leases, aging: Duration, now: Timestamp) -> Self {
        let (holder, waiting) = (lock.holder(), waiting(lock, aging, now));
        let later = |at: Option<Timestamp>| at.filter(|at| *at > now);
        let lease = |entry: &Maintenance| later(entry.attachment.as_ref().and_then(|a| leases.until(a)));
        let earlier = |one: Option<Timestamp>, other: Option<Timestamp>| one.into_iter().chain(other).min();
        let mut so_far = Before {
            blocked: false,
            present: 0,
            wake: holder.and_then(|holder| earlier(lease(holder), later(holder.expires_at()))),
        };
        let mut before = vec![so_far];
        for entry in &waiting {
            so_far.blocked |= is_served(lock, leases, entry, now);
            so_far.present += usize::from(is_present(entry, leases, now));
            so_far.wake = earlier(so_far.wake, lease(entry));
            before.push(so_far);
        }
        let present = waiting.iter().copied().filter(|entry| is_present(entry, leases, now));
        let first = holder.into_iter().chain(present).take(SHOWN);
        Self {
            aging,
            first: first.map(|entry| describe(lock, entry, leases, now)).collect(),
            places: waiting.iter().enumerate().map(|(place, entry)| (entry.uid.clone(), place)).collect(),
            before,
            shared: shared_lock(&lock.key, names(lock)),
            // Includes an unreadable holder.
            held: lock.slot.is_some(),
        }
    }

    /// Returns the effect of earlier waiters on a record.
    fn before(&self, uid: &Uid) -> Before {
        self.before[self.places.get(uid).copied().unwrap_or(self.places.len())]
    }

    /// Returns the holder and this number of connected waiters.
    fn line(&self, waiting: usize) -> QueueAhead {
        let len = usize::from(self.held) + waiting;
        QueueAhead { first: self.first.iter().take(len).cloned().collect(), shared: self.shared.clone(), len }
    }
}

/// A view's queue, shared by all waiters with the same view.
#[derive(Debug, Default)]
pub struct Queue(OnceLock<QueueOrder>);

impl PartialEq for Queue {
    /// It is derived from the view, so it does not affect equality.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Queue {}

/// Returns the configured server names in a lock's queue.
fn names(lock: &ServerLock) -> impl Iterator<Item = &str> {
    lock.active.iter().map(|record| record.server())
}

/// Describes an entry for people.
#[must_use]
pub fn describe(lock: &ServerLock, record: &Maintenance, leases: &Leases, now: Timestamp) -> QueueEntry {
    let holds = lock.has_slot(record);
    let blockers = start_blockers(lock, record, now);
    QueueEntry {
        id: record.id.clone(),
        server: names(lock).any(|name| name != record.server()).then(|| record.server().to_owned()),
        state: record.phase.name(),
        holds,
        since: if holds { record.admitted_at.unwrap_or(record.requested_at) } else { record.requested_at },
        by: record
            .attachment
            .as_ref()
            .filter(|attachment| leases.alive(attachment, now))
            .map_or_else(|| record.requester.clone(), |attachment| attachment.runner.clone()),
        reason: record.spec.reason.clone(),
        expires_at: record.expires_at(),
        place_kept_until: if holds { None } else { place_kept_until(record, leases, now) },
        blocker: blockers.first().map(StartBlocker::brief),
        generation: record.generation,
    }
}

/// Returns the holder and the connected waiters ahead, then the disconnected waiters that are
/// skipped.
#[must_use]
pub fn ahead(
    lock: &ServerLock,
    leases: &Leases,
    uid: &Uid,
    aging: Duration,
    now: Timestamp,
) -> (Vec<QueueEntry>, Vec<QueueEntry>) {
    let entry = |record: &&Maintenance| describe(lock, record, leases, now);
    let holder = lock.holder().filter(|holder| holder.uid != *uid);
    let before: Vec<&Maintenance> =
        waiting(lock, aging, now).into_iter().take_while(|record| record.uid != *uid).collect();
    let (present, skipped): (Vec<_>, Vec<_>) = before.into_iter().partition(|record| is_present(record, leases, now));
    (holder.iter().chain(&present).map(entry).collect(), skipped.iter().map(entry).collect())
}

/// Returns the holder if it is overdue and its lock is idle. The next waiter then releases it.
#[must_use]
pub fn reclaimable<'a>(lock: &'a ServerLock, leases: &Leases, now: Timestamp) -> Option<&'a Maintenance> {
    let holder = lock.holder().filter(|holder| holder.is_overdue(now))?;
    let attended = holder.attachment.as_ref().is_some_and(|a| leases.alive(a, now));
    let inspected = lock.awaits_inspection(holder).is_none();
    (!attended && inspected && lock.other_actor(&holder.uid, leases, now).is_none()).then_some(holder)
}

/// Returns the admission decision for a record.
#[must_use]
pub fn turn(lock: &ServerLock, leases: &Leases, uid: &Uid, aging: Duration, now: Timestamp) -> Turn {
    turn_in(&Queue::default(), lock, leases, uid, aging, now)
}

/// Returns the same decision with a queue that several waiters of one view share. `queue` must not
/// be reused for another view.
#[must_use]
pub fn turn_in(queue: &Queue, lock: &ServerLock, leases: &Leases, uid: &Uid, aging: Duration, now: Timestamp) -> Turn {
    let Some(record) = lock.get(uid) else {
        return Turn::Wait { reason: WaitReason::Turn { ahead: QueueAhead::default() }, wake: None };
    };
    if record.spec.parent.is_some() {
        return turn_under_hold(lock, leases, record, now);
    }
    if lock.has_slot(record) {
        return match lock.other_actor(uid, leases, now) {
            None if lock.unreadable_acts() => unreadable_hold(),
            None => Turn::Yours,
            Some(actor) => same_hold(lock, leases, actor, now),
        };
    }
    let blockers = start_blockers(lock, record, now);
    if let Some(holder) = reclaimable(lock, leases, now).filter(|_| blockers.is_empty()) {
        return Turn::ReclaimOverdue(holder.uid.clone());
    }
    let own;
    let shared = queue.0.get_or_init(|| QueueOrder::new(lock, leases, aging, now));
    let order = if shared.aging == aging {
        shared
    } else {
        own = QueueOrder::new(lock, leases, aging, now);
        &own
    };
    let before = order.before(uid);
    if !order.held && !before.blocked && blockers.is_empty() {
        return Turn::Yours;
    }
    let wake = before.wake.into_iter().chain(changes_at(lock, record, now)).filter(|at| *at > now).min();
    let ahead = order.line(before.present);
    let reason = if blockers.is_empty() { WaitReason::Turn { ahead } } else { WaitReason::NotYet { blockers, ahead } };
    Turn::Wait { reason, wake }
}

fn same_hold(lock: &ServerLock, leases: &Leases, actor: &Maintenance, now: Timestamp) -> Turn {
    let wake = actor.attachment.as_ref().and_then(|a| leases.until(a));
    Turn::Wait { reason: WaitReason::SameHold { actor: Box::new(describe(lock, actor, leases, now)) }, wake }
}

/// Returns the wait for an unreadable holder, or unreadable work under its lock. Nothing starts
/// until a version that can read it ends it.
fn unreadable_hold() -> Turn {
    Turn::Wait { reason: WaitReason::Turn { ahead: QueueAhead::default() }, wake: None }
}

fn turn_under_hold(lock: &ServerLock, leases: &Leases, record: &Maintenance, now: Timestamp) -> Turn {
    if let Some(actor) = lock.other_actor(&record.uid, leases, now) {
        return same_hold(lock, leases, actor, now);
    }
    match lock.holder() {
        // A parent that was interrupted during a change waits for this record, because its destroy
        // runs later.
        Some(hold) if matches!(hold.phase, Phase::Preparing(_)) && matches!(record.phase, Phase::Releasing { .. }) => {
            Turn::Yours
        }
        Some(hold) if !matches!(hold.phase, Phase::InMaintenance { .. }) => Turn::Wait {
            reason: WaitReason::HoldNotReady { hold: hold.id.clone(), state: hold.phase.name() },
            wake: hold
                .attachment
                .as_ref()
                .and_then(|a| leases.until(a))
                .map(|until| until.max(now + SignedDuration::from_secs(1))),
        },
        None if lock.slot.is_some() => unreadable_hold(),
        _ if lock.unreadable_acts() => unreadable_hold(),
        _ => match own_policy(lock, record, now) {
            Some(missing) => Turn::Wait {
                reason: WaitReason::NotYet { blockers: vec![missing], ahead: QueueAhead::default() },
                wake: approval::changes_at(lock, record, now),
            },
            None => Turn::Yours,
        },
    }
}

/// Returns a missing approval for work under a lock, which the parent's approval does not cover.
fn own_policy(lock: &ServerLock, record: &Maintenance, now: Timestamp) -> Option<StartBlocker> {
    if !matches!(record.phase, Phase::Pending) {
        return None;
    }
    match consent(lock, record, now) {
        Consent::Missing(missing) => Some(StartBlocker::Approval(missing)),
        _ => None,
    }
}
