//! The queue as shown to people and data sources.

use std::ops::Deref;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use shown_text::OneLine;

use super::{
    blocker::StartBlocker,
    hand_over,
    ids::{Generation, LockKey, MaintenanceId, Runner, RunnerId},
    model::{
        lock::{Leases, ServerLock},
        restrictions::Block,
        shown_time::shown_time,
        unreadable::Unreadable,
        update::Stage,
    },
    queue::{self, Queue, Turn, WaitReason},
    state::{Maintenance, Phase, Progress},
};

/// Result of searching for a process on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It exists, running or suspended.
    Alive,
    /// It has provably ended.
    Gone,
    /// It is not visible from this machine.
    Unknown,
}

/// The process that acts on a maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ProcessState {
    /// Active: its lease has not ended.
    Working,
    /// It provably ended before its work did.
    Killed,
    /// It exists on this machine with an ended lease, so it is suspended or cannot reach the store.
    Suspended,
    /// Its lease ended, and it is not visible from this machine.
    Silent,
    /// No process: the last process finished, or detached after an interrupt.
    Detached,
}

impl ProcessState {
    /// Every state.
    pub const ALL: [Self; 5] = [Self::Working, Self::Killed, Self::Suspended, Self::Silent, Self::Detached];

    fn of(record: &Maintenance, leases: &Leases, now: Timestamp, liveness: &dyn Fn(&Runner) -> Liveness) -> Self {
        let Some(attachment) = &record.attachment else { return Self::Detached };
        match (liveness(&attachment.runner), leases.alive(attachment, now)) {
            (Liveness::Gone, _) => Self::Killed,
            (_, true) => Self::Working,
            (Liveness::Alive, false) => Self::Suspended,
            (Liveness::Unknown, false) => Self::Silent,
        }
    }
}

/// One maintenance in a machine's queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueRow {
    /// Name of the server in the requesting configuration.
    pub server: OneLine,
    /// The machine's lock key.
    pub lock_key: LockKey,
    /// Name of the maintenance.
    pub id: MaintenanceId,
    /// Name of the state.
    pub state: &'static str,
    /// Queue position: 0 for the holder and work under its lock, 1 for the next waiter.
    pub position: usize,
    /// The blocker, or the current step's progress.
    pub waiting_for: Option<String>,
    /// The blocker in a few words, for a table that also lists the other entries.
    pub waiting_briefly: Option<String>,
    /// Why the release stopped.
    pub stuck: Option<OneLine>,
    /// Time of the request.
    pub requested_at: Timestamp,
    /// Time of the admission.
    pub admitted_at: Option<Timestamp>,
    /// The requesting run, host and person.
    pub by: Runner,
    /// True if its process is connected.
    pub attended: bool,
    /// The process that acts on it.
    pub process: ProcessState,
    /// The current step, for example `2/5`.
    pub step: Option<String>,
    /// The current step, with the last recorded cause of its delay.
    pub doing: Option<String>,
    /// The requesting owner.
    pub owner: OneLine,
    /// The reason, for people.
    pub reason: Option<OneLine>,
    /// Link to its discussion.
    pub ticket: Option<OneLine>,
    /// Its priority.
    pub priority: i64,
    /// When it becomes overdue.
    pub expires_at: Option<Timestamp>,
    /// When its queue position expires, while its process is disconnected.
    pub place_kept_until: Option<Timestamp>,
    /// The maintenance from which it receives or received the server unrestored. For the holder
    /// also its successor.
    pub hand_over: Option<String>,
    /// Its generation.
    pub generation: Generation,
}

impl QueueRow {
    /// Returns a sort key in natural order: node2 before node10.
    #[must_use]
    pub fn natural_order(&self) -> Vec<(Option<u64>, String)> {
        let parts = self.server.raw().as_bytes().chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
        parts.map(|part| String::from_utf8_lossy(part).into_owned()).map(|part| (part.parse().ok(), part)).collect()
    }
}

/// State name of a blocked server.
pub const BLOCKED: &str = "Blocked";

/// Returns a block's row.
fn blocked(lock: &ServerLock, block: &Block) -> QueueRow {
    let end = format!("the block to end, {}", shown_time(block.until));
    QueueRow {
        server: block.server.clone(),
        lock_key: lock.key.clone(),
        id: block.id.clone(),
        state: BLOCKED,
        position: 0,
        waiting_for: Some(end.clone()),
        waiting_briefly: Some(end),
        stuck: None,
        requested_at: block.since,
        admitted_at: None,
        attended: false,
        process: ProcessState::Detached,
        step: None,
        doing: None,
        by: block.by.clone(),
        owner: block.owner.clone(),
        reason: Some(block.reason.clone()),
        ticket: None,
        priority: 0,
        expires_at: Some(block.until),
        place_kept_until: None,
        hand_over: None,
        generation: block.generation,
    }
}

/// Returns a machine's rows: the holder, work under its lock, then the waiters in order. `liveness`
/// searches for a process on this machine.
#[must_use]
pub fn lines(
    lock: &ServerLock,
    leases: &Leases,
    aging: Duration,
    now: Timestamp,
    liveness: &dyn Fn(&Runner) -> Liveness,
) -> Vec<QueueRow> {
    let waiting = queue::waiting(lock, aging, now);
    let waits = |record: &Maintenance| waiting.iter().any(|waiter| waiter.uid == record.uid);
    let shown = lock.active.iter().filter(|record| !waits(record) && !record.is_made());
    let mut holding: Vec<&Maintenance> = shown.map(Deref::deref).collect();
    holding.sort_by_key(|record| (record.spec.parent.is_some(), record.ticket_number));
    let holding = holding.into_iter().map(|record| (0, record));
    let waiting = waiting.iter().enumerate().map(|(n, record)| (n + 1, *record));
    let queue = Queue::default();
    let unreadable = lock.unreadable.iter().filter_map(|record| unreadable(lock, record, now));
    let shown = holding.chain(waiting);
    // Computed once, because it sorts the whole queue.
    let next = lock.holder().and_then(|holder| hand_over::successor(lock, leases, holder, aging, now));
    let lines = shown.map(|(position, record)| {
        let process = ProcessState::of(record, leases, now, liveness);
        QueueRow {
            hand_over: hand_over(lock, record, next),
            process,
            attended: process == ProcessState::Working,
            ..line(&queue, lock, leases, record, position, aging, now)
        }
    });
    lock.block(now).map(|block| blocked(lock, block)).into_iter().chain(lines).chain(unreadable).collect()
}

/// State name of an unreadable record.
pub const UNREADABLE: &str = "Unreadable";

/// Returns an unreadable record's row, with its readable fields.
fn unreadable(lock: &ServerLock, record: &Unreadable, now: Timestamp) -> Option<QueueRow> {
    let found: Value = serde_json::from_str(record.raw.raw()).unwrap_or_default();
    let time = |name: &str| found[name].as_str().and_then(|at| at.parse().ok());
    let holds = lock.slot.as_ref().is_some_and(|slot| slot.uid == record.uid);
    let id = record.id.clone().or_else(|| MaintenanceId::new("unreadable", "record").ok())?;
    Some(QueueRow {
        server: record.server.clone().unwrap_or_else(|| lock.key.raw().into()),
        lock_key: lock.key.clone(),
        id,
        state: UNREADABLE,
        position: usize::from(!holds),
        waiting_for: Some(format!(
            "a provider version that reads it: {}. This version leaves it unchanged; use the version that wrote it, and if \
             no version reads it, restore the store from a backup",
            record.why
        )),
        waiting_briefly: Some("a version that reads it".to_owned()),
        stuck: None,
        requested_at: time("requested_at").unwrap_or(now),
        admitted_at: time("admitted_at"),
        attended: false,
        process: ProcessState::Detached,
        step: None,
        doing: None,
        by: serde_json::from_value(found["requester"].clone()).unwrap_or_else(|_| Runner {
            id: RunnerId::new(String::new()),
            user: "unknown".into(),
            host: "unknown".into(),
            pid: 0,
            process: String::new(),
            run: None,
            url: None,
            commit: None,
        }),
        owner: found["owner"].as_str().unwrap_or_default().into(),
        reason: None,
        ticket: None,
        priority: 0,
        expires_at: None,
        place_kept_until: None,
        hand_over: None,
        generation: found["generation"].as_u64().unwrap_or(0),
    })
}

fn line(
    queue: &Queue,
    lock: &ServerLock,
    leases: &Leases,
    record: &Maintenance,
    position: usize,
    aging: Duration,
    now: Timestamp,
) -> QueueRow {
    let shown = queue::describe(lock, record, leases, now);
    let stuck = match &record.phase {
        Phase::Releasing { stuck, .. } => stuck.clone(),
        _ => None,
    };
    let progress = record.phase.progress();
    let (waiting_for, waiting_briefly) = waiting_for(queue, lock, leases, record, aging, now);
    QueueRow {
        server: record.spec.server.clone(),
        lock_key: lock.key.clone(),
        id: record.id.clone(),
        state: record.phase.name(),
        position,
        waiting_for,
        waiting_briefly,
        stuck,
        requested_at: record.requested_at,
        admitted_at: record.admitted_at,
        attended: false,
        process: ProcessState::Detached,
        step: progress.map(Progress::place),
        doing: progress.and_then(Progress::doing),
        by: shown.by,
        owner: record.owner.clone(),
        reason: record.spec.reason.clone(),
        ticket: record.spec.ticket.clone(),
        priority: record.spec.priority,
        expires_at: shown.expires_at,
        place_kept_until: shown.place_kept_until,
        hand_over: None,
        generation: record.generation,
    }
}

/// Describes the current handover without a restore.
fn hand_over(lock: &ServerLock, record: &Maintenance, next: Option<&Maintenance>) -> Option<String> {
    let holder = lock.holder()?;
    if let Some(next) = next.filter(|_| holder.uid == record.uid) {
        return Some(format!("to {} unchanged", next.id));
    }
    if next.is_some_and(|next| next.uid == record.uid) {
        return Some(format!("from {} unchanged", holder.id));
    }
    record.took_over.as_ref().map(|before| format!("from {before} unchanged"))
}

/// Returns the condition that would end the wait, as far as the store contains it: in full and in
/// brief.
fn waiting_for(
    queue: &Queue,
    lock: &ServerLock,
    leases: &Leases,
    record: &Maintenance,
    aging: Duration,
    now: Timestamp,
) -> (Option<String>, Option<String>) {
    if let Some(inspection) = lock.awaits_inspection(record) {
        let full = format!(
            "an inspection, because the store was restored at {} ({}): store inspected {}",
            queue::shown_time(inspection.since),
            inspection.reason,
            record.id
        );
        return (Some(full), Some("inspection".to_owned()));
    }
    let attended = record.attachment.as_ref().is_some_and(|attachment| leases.alive(attachment, now));
    // A disconnected process's blocker is possibly outdated.
    let waits = |progress: &Progress| progress.waits_for.clone().filter(|_| attended);
    let (full, brief) = match &record.phase {
        Phase::Pending => match queue::turn_in(queue, lock, leases, &record.uid, aging, now) {
            Turn::Yours => ("an attached process: apply again".to_owned(), None),
            Turn::ReclaimOverdue(_) => ("an overdue maintenance that the next process releases".to_owned(), None),
            // The queue position shows the same in brief.
            Turn::Wait { reason: reason @ WaitReason::Turn { .. }, .. } => return (Some(reason.to_string()), None),
            Turn::Wait { reason, .. } => {
                let brief = match &reason {
                    WaitReason::NotYet { blockers, .. } => blockers.first().map(StartBlocker::brief),
                    WaitReason::Turn { .. } => None,
                    WaitReason::SameHold { actor } => Some(format!("{} to be done", actor.id)),
                    WaitReason::HoldNotReady { hold, .. } => Some(format!("{hold} to be prepared")),
                };
                (reason.to_string(), brief)
            }
        },
        Phase::Preparing(progress) => {
            let doing = match record.update.as_ref().map(|update| &update.stage) {
                None => "preparing",
                Some(Stage::Undoing { .. }) => "undoing a change",
                Some(Stage::Checking | Stage::Applying) => "updating",
            };
            in_step(doing, progress, waits(progress))
        }
        Phase::Releasing { stuck: Some(cause), .. } => (format!("destroy again: {cause}"), None),
        Phase::Releasing { progress, .. } => in_step("releasing", progress, waits(progress)),
        Phase::InMaintenance { .. } | Phase::Completed { .. } | Phase::Failed { .. } => return (None, None),
    };
    let brief = brief.unwrap_or_else(|| full.clone());
    (Some(full), Some(brief))
}

/// Describes the current step and its blocker: in full and in brief.
fn in_step(doing: &str, progress: &Progress, waits_for: Option<OneLine>) -> (String, Option<String>) {
    let text = progress.text();
    match waits_for {
        Some(why) => (format!("{doing} {text}: {why}"), Some(format!("{}: {why}", progress.place()))),
        None => (format!("{doing} {text}"), Some(text)),
    }
}

#[cfg(test)]
mod tests;
