//! Whose turn it is.
//!
//! Order: priority, then ticket number; never wall clocks. Age counts: an entry gains one step of priority per `aging`
//! interval, so that nobody starves. Who may not start yet does not block those behind. A holder is never evicted.

use std::{cmp::Reverse, fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::{
    ids::{Generation, MaintenanceId, Runner, Uid},
    lock::{Leases, ServerLock, place_kept_until},
    state::{Maintenance, Phase},
};

/// One entry ahead of a waiter, or the holder, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Its name.
    pub id: MaintenanceId,
    /// Its state's name.
    pub state: &'static str,
    /// Whether it has the server.
    pub holds: bool,
    /// Since when: taken for the holder, asked for a waiter.
    pub since: Timestamp,
    /// Who.
    pub by: Runner,
    /// Why.
    pub reason: Option<String>,
    /// When its hold becomes overdue, if ever.
    pub expires_at: Option<Timestamp>,
    /// Until when its place is kept, while its process is away.
    pub place_kept_until: Option<Timestamp>,
    /// Its generation.
    pub generation: Generation,
}

impl fmt::Display for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.id)?;
        if self.holds {
            write!(f, "{} since {}, {}", self.state, shown_time(self.since), self.by)?;
            match self.expires_at {
                Some(at) => write!(f, ", expires {}", shown_time(at))?,
                None => write!(f, ", never expires")?,
            }
        } else if let Some(until) = self.place_kept_until {
            write!(f, "{} is away, place kept until {}", self.by, shown_time(until))?;
        } else {
            write!(f, "waiting since {}, {}", shown_time(self.since), self.by)?;
        }
        write!(f, ")")
    }
}

/// A moment for people, in UTC to the second.
#[must_use]
pub fn shown_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// What a waiter waits for. Every reason names what would end it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// Others are before it: the holder first.
    Turn {
        /// The holder and the waiters before it, in order.
        ahead: Vec<Ahead>,
    },
    /// Something else acts under the same hold.
    SameHold {
        /// What acts.
        actor: Box<Ahead>,
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
            Self::Turn { ahead } => {
                write!(f, "waiting for turn, {} ahead: ", ahead.len())?;
                for (n, entry) in ahead.iter().enumerate() {
                    let comma = if n > 0 { ", " } else { "" };
                    write!(f, "{comma}{entry}")?;
                }
                Ok(())
            }
            Self::SameHold { actor } => write!(f, "waiting until {actor} is done with this server"),
            Self::HoldNotReady { hold, state } => {
                write!(f, "waiting until {hold} is InMaintenance (now {state})")
            }
        }
    }
}

/// Whether a record may take the server now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Now.
    Yours,
    /// The holder is overdue and nobody drives it: whoever is next gives the server back for it.
    ReclaimOverdue(Uid),
    /// Not yet.
    Wait {
        /// Why.
        reason: WaitReason,
        /// When the answer may change without anybody writing to the store.
        wake: Option<Timestamp>,
    },
}

/// Whether this record needs the slot and has not got it.
fn wants_slot(lock: &ServerLock, record: &Maintenance) -> bool {
    record.spec.parent.is_none()
        && !lock.has_slot(record)
        && matches!(record.phase, Phase::Pending | Phase::Preparing(_) | Phase::Releasing { .. })
}

/// Priority with age counted in.
fn effective_priority(record: &Maintenance, aging: Duration, now: Timestamp) -> i64 {
    let step = i64::try_from(aging.as_secs()).unwrap_or(i64::MAX).max(1);
    let age = now.duration_since(record.requested_at).as_secs().max(0);
    record.spec.priority.saturating_add(age / step)
}

/// The waiters in the order in which they are served.
#[must_use]
pub fn waiting<'a>(lock: &'a ServerLock, aging: Duration, now: Timestamp) -> Vec<&'a Maintenance> {
    let mut entries: Vec<&'a Maintenance> = lock.active.iter().filter(|record| wants_slot(lock, record)).collect();
    entries.sort_by_key(|record| (Reverse(effective_priority(record, aging, now)), record.ticket_number));
    entries
}

/// An entry as people see it.
#[must_use]
pub fn describe(lock: &ServerLock, record: &Maintenance, leases: &Leases, now: Timestamp) -> Ahead {
    let holds = lock.has_slot(record);
    Ahead {
        id: record.id.clone(),
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
        generation: record.generation,
    }
}

/// Whether it is this record's turn.
#[must_use]
pub fn turn(lock: &ServerLock, leases: &Leases, uid: &Uid, aging: Duration, now: Timestamp) -> Turn {
    let Some(record) = lock.get(uid) else {
        return Turn::Wait { reason: WaitReason::Turn { ahead: Vec::new() }, wake: None };
    };
    if record.spec.parent.is_some() {
        return turn_under_hold(lock, leases, record, now);
    }
    if lock.has_slot(record) {
        return match lock.other_actor(uid, leases, now) {
            None => Turn::Yours,
            Some(actor) => same_hold(lock, leases, actor, now),
        };
    }
    let mut ahead = Vec::new();
    if let Some(holder) = lock.holder() {
        let attended = holder.attachment.as_ref().is_some_and(|a| leases.alive(a, now));
        if holder.is_overdue(now) && !attended && lock.other_actor(&holder.uid, leases, now).is_none() {
            return Turn::ReclaimOverdue(holder.uid.clone());
        }
        ahead.push(holder);
    }
    let held = !ahead.is_empty();
    let mut absent_only = true;
    for entry in waiting(lock, aging, now).into_iter().take_while(|entry| entry.uid != *uid) {
        let present = entry.attachment.as_ref().is_some_and(|a| leases.alive(a, now));
        absent_only &= !present;
        ahead.push(entry);
    }
    if !held && absent_only {
        return Turn::Yours;
    }
    let wake = ahead
        .iter()
        .flat_map(|entry| {
            let lease = entry.attachment.as_ref().and_then(|a| leases.until(a));
            let expiry = if lock.has_slot(entry) { entry.expires_at() } else { None };
            [lease, expiry]
        })
        .flatten()
        .filter(|at| *at > now)
        .min();
    let ahead = ahead.into_iter().map(|entry| describe(lock, entry, leases, now)).collect();
    Turn::Wait { reason: WaitReason::Turn { ahead }, wake }
}

fn same_hold(lock: &ServerLock, leases: &Leases, actor: &Maintenance, now: Timestamp) -> Turn {
    let wake = actor.attachment.as_ref().and_then(|a| leases.until(a));
    Turn::Wait { reason: WaitReason::SameHold { actor: Box::new(describe(lock, actor, leases, now)) }, wake }
}

fn turn_under_hold(lock: &ServerLock, leases: &Leases, record: &Maintenance, now: Timestamp) -> Turn {
    if let Some(actor) = lock.other_actor(&record.uid, leases, now) {
        return same_hold(lock, leases, actor, now);
    }
    match lock.holder() {
        Some(hold) if !matches!(hold.phase, Phase::InMaintenance { .. }) => Turn::Wait {
            reason: WaitReason::HoldNotReady { hold: hold.id.clone(), state: hold.phase.name() },
            wake: hold
                .attachment
                .as_ref()
                .and_then(|a| leases.until(a))
                .map(|until| until.max(now + SignedDuration::from_secs(1))),
        },
        _ => Turn::Yours,
    }
}
