//! Blockers that do not depend on the queue: window, owner, external system.

use std::fmt;

use jiff::Timestamp;
use shown_text::OneLine;

use super::{
    approval::{self, Consent, Missing, consent},
    model::{gate::QueueAuthority, lock::ServerLock, restrictions::Block, shown_time::shown_time},
    state::{Maintenance, Phase},
    window::{Start, WindowSpec},
};

/// A blocker that does not depend on the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartBlocker {
    /// A person blocked the server for a period.
    Block(Box<Block>),
    /// The owner's approval is missing.
    Approval(Box<Missing>),
    /// An external system has not granted the start, with its blocker if known.
    Gate(Option<OneLine>),
    /// Another component owns the Lease of the server's Node: the Node, and that holder.
    Node(OneLine, OneLine),
    /// The window is closed, or its remaining time is too short.
    Window {
        /// Next possible start, in the window's zone and in UTC; `None` if never.
        opens: Option<(String, Timestamp)>,
        /// True if the window is open but closes too soon.
        closing: bool,
    },
}

impl StartBlocker {
    /// Describes the blocker in a few words.
    #[must_use]
    pub fn brief(&self) -> String {
        match self {
            Self::Block(block) => format!("the block to end, {}", shown_time(block.until)),
            Self::Approval(missing) => missing.brief(),
            Self::Gate(said) => said.as_ref().map_or("the external system", OneLine::shown).to_owned(),
            Self::Node(node, by) => format!("Node {node}, held by {by}"),
            Self::Window { opens: Some((shown, _)), .. } => format!("window, opens {shown}"),
            Self::Window { opens: None, .. } => "window, never opens again".to_owned(),
        }
    }
}

impl fmt::Display for StartBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(block) => write!(f, "blocked {block}"),
            Self::Approval(missing) => missing.fmt(f),
            Self::Gate(Some(said)) => write!(f, "waiting for {said}"),
            Self::Gate(None) => write!(f, "waiting for the external system"),
            Self::Node(node, by) => write!(f, "waiting for its Node {node}, held by {by}"),
            Self::Window { opens: Some((shown, _)), closing } => {
                let why = if *closing { ": this opening ends too soon" } else { "" };
                write!(f, "waiting for its window, opens {shown}{why}")
            }
            Self::Window { opens: None, .. } => {
                write!(f, "waiting for its window, which never opens again: change window and apply again")
            }
        }
    }
}

/// Returns all current blockers that do not depend on the queue.
#[must_use]
pub fn start_blockers(lock: &ServerLock, record: &Maintenance, now: Timestamp) -> Vec<StartBlocker> {
    let mut found = Vec::new();
    let waiter = record.awaiting_turn();
    let wants_lock = waiter.is_some() || matches!(record.phase, Phase::Preparing(_) | Phase::Releasing { .. });
    if wants_lock
        && record.spec.parent.is_none()
        && !lock.has_slot(record)
        && let Some(block) = lock.block(now)
    {
        found.push(StartBlocker::Block(Box::new(block.clone())));
    }
    // Started maintenances continue. Work under a lock was allowed with it.
    let Some(record) = waiter.as_deref().filter(|record| record.spec.parent.is_none()) else { return found };
    if let Some(closed) = record.spec.window.as_ref().and_then(|window| closed(window, now)) {
        found.push(closed);
    }
    if let Consent::Missing(missing) = consent(lock, record, now) {
        found.push(StartBlocker::Approval(missing));
    }
    if let Some((wish, by)) = record.spec.node.as_ref().zip(record.node.held_by.clone()) {
        found.push(StartBlocker::Node(wish.lease.node.clone(), by));
    }
    // An `OnTurn` gate receives the request when it is next in the queue, and does not block
    // earlier.
    let next = record.gates.iter().find(|gate| !gate.granted);
    if let Some(gate) =
        next.filter(|gate| gate.asked || gate.said.is_some() || gate.system.order != QueueAuthority::OnTurn)
    {
        found.push(StartBlocker::Gate(gate.said.clone()));
    }
    found
}

/// Returns the missing approval and the closed window that block the record's actions.
///
/// Windows do not apply to a record with a parent.
#[must_use]
pub fn unallowed(lock: &ServerLock, record: &Maintenance, now: Timestamp) -> Vec<StartBlocker> {
    let Some(asks) = record.awaiting_consent() else { return Vec::new() };
    let window = asks.spec.window.as_ref().filter(|_| asks.spec.parent.is_none());
    let closed = window.and_then(|window| closed(window, now));
    let missing = match consent(lock, &asks, now) {
        Consent::Missing(missing) => Some(StartBlocker::Approval(missing)),
        _ => None,
    };
    closed.into_iter().chain(missing).collect()
}

/// Returns the blocker if the window does not allow a start now.
#[must_use]
pub fn closed(spec: &WindowSpec, now: Timestamp) -> Option<StartBlocker> {
    // The window was valid at request time. It cannot open if its time zone no longer exists.
    let Ok(window) = spec.compile() else { return Some(StartBlocker::Window { opens: None, closing: false }) };
    match window.may_start(now) {
        Start::Now(_) => None,
        Start::At(next) => Some(StartBlocker::Window {
            opens: Some((window.shown(next.start), next.start)),
            closing: window.open_at(now).is_some(),
        }),
        Start::Never => Some(StartBlocker::Window { opens: None, closing: false }),
    }
}

/// Returns when time alone can change the result of [`start_blockers`].
pub(super) fn changes_at(lock: &ServerLock, record: &Maintenance, now: Timestamp) -> Option<Timestamp> {
    let asks = record.awaiting_turn().or_else(|| record.awaiting_consent());
    let record = asks.as_deref().unwrap_or(record);
    let window = record.spec.window.as_ref().and_then(|window| window.changes_at(now));
    let block = lock.block(now).map(|block| block.until);
    [approval::changes_at(lock, record, now), window, block].into_iter().flatten().min()
}
