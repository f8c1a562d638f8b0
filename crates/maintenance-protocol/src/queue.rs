//! Whose turn it is.
//!
//! Order: priority, then ticket number; never wall clocks. Age counts: an entry gains one step of
//! priority per `aging` interval, so that nobody starves. Who may not start yet does not block
//! those behind. A holder is never evicted.

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

/// One entry ahead of a waiter, or the holder, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// Its name.
    pub id: MaintenanceId,
    /// The server's name in its configuration, if the lock has several names.
    pub server: Option<String>,
    /// Its state's name.
    pub state: &'static str,
    /// Whether it has the server.
    pub holds: bool,
    /// Since when: taken for the holder, asked for a waiter.
    pub since: Timestamp,
    /// The requester: run, host, person.
    pub by: Runner,
    /// The reason, for people.
    pub reason: Option<String>,
    /// When its hold becomes overdue, if ever.
    pub expires_at: Option<Timestamp>,
    /// Until when its place is kept, while its process is away.
    pub place_kept_until: Option<Timestamp>,
    /// What keeps it from starting, whoever is before it; such an entry does not block those behind
    /// it.
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

/// What a waiter waits for. Every reason names what would end it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It may not start yet, whoever is before it.
    NotYet {
        /// What keeps it.
        blockers: Vec<StartBlocker>,
        /// The holder and the waiters before it, in order.
        ahead: QueueAhead,
    },
    /// Others are before it: the holder first.
    Turn {
        /// The holder and the waiters before it, in order.
        ahead: QueueAhead,
    },
    /// Something else acts under the same hold.
    SameHold {
        /// What acts.
        actor: Box<QueueEntry>,
    },
    /// The hold it acts under is not prepared yet.
    HoldNotReady {
        /// The hold.
        hold: MaintenanceId,
        /// Its state's name.
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

/// Those before a waiter: the first of them, and how many there are. With hundreds ahead nobody
/// reads more, and each of the hundreds that wait would describe all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueAhead {
    /// The holder, if there is one, and the waiters that are served next.
    pub first: Vec<QueueEntry>,
    /// Explains the several names, if the lock has them.
    pub shared: Option<String>,
    len: usize,
}

impl QueueAhead {
    /// How many are before the waiter, all of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody is.
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

/// How many of those ahead are named.
const SHOWN: usize = 4;

/// Whether a record may take the server now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Now.
    Yours,
    /// The holder is overdue and no process drives it: the next waiter releases it.
    ReclaimOverdue(Uid),
    /// Not yet.
    Wait {
        /// The condition that it waits for.
        reason: WaitReason,
        /// When the answer may change without anybody writing to the store.
        wake: Option<Timestamp>,
    },
}

/// Whether this record needs the slot and has not got it.
fn wants_slot(lock: &ServerLock, record: &Maintenance) -> bool {
    record.spec.parent.is_none()
        && !lock.has_slot(record)
        && (matches!(record.phase, Phase::Preparing(_) | Phase::Releasing { .. }) || record.awaiting_turn().is_some())
}

/// Priority with age counted in. The range of priorities bounds for how long later requests go
/// first.
fn effective_priority(record: &Maintenance, aging: Duration, now: Timestamp) -> i64 {
    let step = i64::try_from(aging.as_secs()).unwrap_or(i64::MAX).max(1);
    let age = now.duration_since(record.requested_at).as_secs().max(0);
    limits::counted(record.spec.priority).saturating_add(age / step)
}

/// The waiters in the order in which they are served.
#[must_use]
pub fn waiting<'a>(lock: &'a ServerLock, aging: Duration, now: Timestamp) -> Vec<&'a Maintenance> {
    let mut entries: Vec<&'a Maintenance> =
        lock.active.iter().filter(|record| wants_slot(lock, record)).map(Deref::deref).collect();
    entries.sort_by_cached_key(|record| (Reverse(effective_priority(record, aging, now)), record.ticket_number));
    entries
}

/// Whether a living process drives a waiter.
fn is_present(entry: &Maintenance, leases: &Leases, now: Timestamp) -> bool {
    entry.attachment.as_ref().is_some_and(|attachment| leases.alive(attachment, now))
}

/// Whether a waiter is present and may start: the server goes to the first of these.
pub(super) fn is_served(lock: &ServerLock, leases: &Leases, entry: &Maintenance, now: Timestamp) -> bool {
    is_present(entry, leases, now) && start_blockers(lock, entry, now).is_empty()
}

/// The queue of one lock at one moment. It is the same for everybody who waits in it, so it is
/// worked out once for all who look at the same view: hundreds wake up at every change.
#[derive(Debug)]
struct QueueOrder {
    aging: Duration,
    /// Whose place is which.
    places: HashMap<Uid, usize>,
    /// For each place, and for whoever comes last: what those before it mean.
    before: Vec<Before>,
    first: Vec<QueueEntry>,
    shared: Option<String>,
    held: bool,
}

/// What those before a place mean for it.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// Whether one of the waiters is present and may start.
    blocked: bool,
    /// The number of connected waiters; the others are skipped.
    present: usize,
    /// When that may change by itself.
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
            // Also by a record that this version cannot read.
            held: lock.slot.is_some(),
        }
    }

    /// How earlier waiters affect a waiter.
    fn before(&self, uid: &Uid) -> Before {
        self.before[self.places.get(uid).copied().unwrap_or(self.places.len())]
    }

    /// The holder, and so many present waiters.
    fn line(&self, waiting: usize) -> QueueAhead {
        let len = usize::from(self.held) + waiting;
        QueueAhead { first: self.first.iter().take(len).cloned().collect(), shared: self.shared.clone(), len }
    }
}

/// The queue of one view, for everybody who looks at that view.
#[derive(Debug, Default)]
pub struct Queue(OnceLock<QueueOrder>);

impl PartialEq for Queue {
    /// It says nothing that the view does not say.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Queue {}

/// The configured server names in a lock's queue.
fn names(lock: &ServerLock) -> impl Iterator<Item = &str> {
    lock.active.iter().map(|record| record.server())
}

/// An entry as people see it.
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

/// The holder and the connected waiters ahead of a waiter. Second, the disconnected waiters that it
/// passes.
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

/// The holder, if it is overdue and no living process acts for it: the next waiter may release it.
#[must_use]
pub fn reclaimable<'a>(lock: &'a ServerLock, leases: &Leases, now: Timestamp) -> Option<&'a Maintenance> {
    let holder = lock.holder().filter(|holder| holder.is_overdue(now))?;
    let attended = holder.attachment.as_ref().is_some_and(|a| leases.alive(a, now));
    let inspected = lock.awaits_inspection(holder).is_none();
    (!attended && inspected && lock.other_actor(&holder.uid, leases, now).is_none()).then_some(holder)
}

/// Whether it is this record's turn.
#[must_use]
pub fn turn(lock: &ServerLock, leases: &Leases, uid: &Uid, aging: Duration, now: Timestamp) -> Turn {
    turn_in(&Queue::default(), lock, leases, uid, aging, now)
}

/// The same, where many look at one view; `queue` belongs to this view and no other.
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

/// The holder, or what acts under its hold, cannot be read: nothing begins until a version that can
/// read it ends it.
fn unreadable_hold() -> Turn {
    Turn::Wait { reason: WaitReason::Turn { ahead: QueueAhead::default() }, wake: None }
}

fn turn_under_hold(lock: &ServerLock, leases: &Leases, record: &Maintenance, now: Timestamp) -> Turn {
    if let Some(actor) = lock.other_actor(&record.uid, leases, now) {
        return same_hold(lock, leases, actor, now);
    }
    match lock.holder() {
        // A hold that was left in the middle of a change waits for this one to end: its destroy
        // comes after this one's.
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

/// An approval of a maintenance does not cover the work under it.
fn own_policy(lock: &ServerLock, record: &Maintenance, now: Timestamp) -> Option<StartBlocker> {
    if !matches!(record.phase, Phase::Pending) {
        return None;
    }
    match consent(lock, record, now) {
        Consent::Missing(missing) => Some(StartBlocker::Approval(missing)),
        _ => None,
    }
}
