//! Whose turn it is.
//!
//! Order: priority, then ticket number; never wall clocks. Age counts: an entry gains one step of priority per `aging`
//! interval, so that nobody starves. Who may not start yet does not block those behind. A holder is never evicted.

use std::{cmp::Reverse, fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::{
    approval::{self, Consent, Missing, consent},
    ids::{Generation, MaintenanceId, Runner, Uid},
    lock::{Leases, ServerLock, place_kept_until},
    state::{Maintenance, Phase},
    window::{Start, WindowSpec},
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
    /// What keeps it from starting, whoever is before it; such an entry does not block those behind it.
    pub hindrance: Option<String>,
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
        if let Some(hindrance) = &self.hindrance {
            write!(f, ", does not block: waits for {hindrance}")?;
        }
        write!(f, ")")
    }
}

/// A moment for people, in UTC to the second.
#[must_use]
pub fn shown_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// What keeps a waiter from starting, whoever is before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// The owner's approval is missing.
    Approval(Box<Missing>),
    /// Its window is closed, or too little of it is left.
    Window {
        /// When it may start, on its wall clock and in UTC; `None`: never.
        opens: Option<(String, Timestamp)>,
        /// Whether it is open, but will not be for long enough.
        closing: bool,
    },
}

impl Hindrance {
    /// In a few words.
    #[must_use]
    pub fn brief(&self) -> String {
        match self {
            Self::Approval(missing) => missing.brief(),
            Self::Window { opens: Some((shown, _)), .. } => format!("window, opens {shown}"),
            Self::Window { opens: None, .. } => "window, never opens again".to_owned(),
        }
    }
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Approval(missing) => missing.fmt(f),
            Self::Window { opens: Some((shown, _)), closing } => {
                let why = if *closing { ": too little of this opening is left" } else { "" };
                write!(f, "waiting for its window, opens {shown}{why}")
            }
            Self::Window { opens: None, .. } => {
                write!(f, "waiting for its window, which never opens again: change window and apply again")
            }
        }
    }
}

/// Everything that keeps a waiter from starting now, besides those before it.
#[must_use]
pub fn hindrances(lock: &ServerLock, record: &Maintenance, now: Timestamp) -> Vec<Hindrance> {
    // What has started goes on, and what acts under a hold was allowed with it.
    if !matches!(record.phase, Phase::Pending) || record.spec.parent.is_some() {
        return Vec::new();
    }
    let mut found = Vec::new();
    if let Some(closed) = record.spec.window.as_ref().and_then(|window| closed(window, now)) {
        found.push(closed);
    }
    if let Consent::Missing(missing) = consent(lock, record, now) {
        found.push(Hindrance::Approval(missing));
    }
    found
}

/// What a window says against a start now.
#[must_use]
pub fn closed(spec: &WindowSpec, now: Timestamp) -> Option<Hindrance> {
    // It was read when it was asked for; a zone that is gone since opens no more.
    let Ok(window) = spec.compile() else { return Some(Hindrance::Window { opens: None, closing: false }) };
    match window.may_start(now) {
        Start::Now(_) => None,
        Start::At(next) => Some(Hindrance::Window {
            opens: Some((window.shown(next.start), next.start)),
            closing: window.open_at(now).is_some(),
        }),
        Start::Never => Some(Hindrance::Window { opens: None, closing: false }),
    }
}

/// When the answer of [`hindrances`] may change although nobody says anything.
fn changes_at(lock: &ServerLock, record: &Maintenance, now: Timestamp) -> Option<Timestamp> {
    let window = record.spec.window.as_ref().and_then(|window| window.changes_at(now));
    [approval::changes_at(lock, record, now), window].into_iter().flatten().min()
}

/// What a waiter waits for. Every reason names what would end it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It may not start yet, whoever is before it.
    NotYet {
        /// What keeps it.
        hindrances: Vec<Hindrance>,
        /// The holder and the waiters before it, in order.
        ahead: Vec<Ahead>,
    },
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
            Self::NotYet { hindrances, ahead } => {
                for (n, hindrance) in hindrances.iter().enumerate() {
                    let and = if n > 0 { "; and " } else { "" };
                    write!(f, "{and}{hindrance}")?;
                }
                if ahead.is_empty() {
                    return Ok(());
                }
                write!(f, "; {} ahead: ", ahead.len())?;
                entries(f, ahead)
            }
            Self::Turn { ahead } => {
                write!(f, "waiting for turn, {} ahead: ", ahead.len())?;
                entries(f, ahead)
            }
            Self::SameHold { actor } => write!(f, "waiting until {actor} is done with this server"),
            Self::HoldNotReady { hold, state } => {
                write!(f, "waiting until {hold} is InMaintenance (now {state})")
            }
        }
    }
}

fn entries(f: &mut fmt::Formatter<'_>, ahead: &[Ahead]) -> fmt::Result {
    // With hundreds ahead, nobody reads more; and each of them would say as much.
    for (n, entry) in ahead.iter().take(SHOWN).enumerate() {
        let comma = if n > 0 { ", " } else { "" };
        write!(f, "{comma}{entry}")?;
    }
    match ahead.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}

/// How many of those ahead are named.
const SHOWN: usize = 4;

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
    let hindrances = hindrances(lock, record, now);
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
        hindrance: hindrances.first().map(Hindrance::brief),
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
    let hindrances = hindrances(lock, record, now);
    let mut ahead = Vec::new();
    if let Some(holder) = lock.holder() {
        let attended = holder.attachment.as_ref().is_some_and(|a| leases.alive(a, now));
        if hindrances.is_empty()
            && holder.is_overdue(now)
            && !attended
            && lock.other_actor(&holder.uid, leases, now).is_none()
        {
            return Turn::ReclaimOverdue(holder.uid.clone());
        }
        ahead.push(holder);
    }
    let held = !ahead.is_empty();
    let mut unblocked = true;
    for entry in waiting(lock, aging, now).into_iter().take_while(|entry| entry.uid != *uid) {
        let present = entry.attachment.as_ref().is_some_and(|a| leases.alive(a, now));
        unblocked &= !present || !self::hindrances(lock, entry, now).is_empty();
        ahead.push(entry);
    }
    if !held && unblocked && hindrances.is_empty() {
        return Turn::Yours;
    }
    let by_itself = changes_at(lock, record, now);
    let wake = ahead
        .iter()
        .flat_map(|entry| {
            let lease = entry.attachment.as_ref().and_then(|a| leases.until(a));
            let expiry = if lock.has_slot(entry) { entry.expires_at() } else { None };
            [lease, expiry]
        })
        .flatten()
        .chain(by_itself)
        .filter(|at| *at > now)
        .min();
    let ahead: Vec<Ahead> = ahead.into_iter().map(|entry| describe(lock, entry, leases, now)).collect();
    let reason =
        if hindrances.is_empty() { WaitReason::Turn { ahead } } else { WaitReason::NotYet { hindrances, ahead } };
    Turn::Wait { reason, wake }
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
