//! Gates: the external systems between a request and its start, in order. What a record says of
//! them; `gate_chain.rs` has the rules.
//!
//! The innermost gate is the server's own maintenance system, where it has one; others stand before
//! it (`cluster_api`). A gate is asked once all before it allow the start, and left once all behind
//! it are left.
//!
//! Some of these systems have a queue of their own (metal-operator's ServerMaintenance). Then that
//! queue orders: our slot is taken only when it has granted our request, and until then our place
//! blocks nobody. Others only know in and out (metal-operator's parking); they are entered and left
//! under our slot.

pub use super::model::gate::{
    Asks, AwaitedNode, BootReadiness, ExternalRequest, ExternalState, ExternalSystem, GateRecord, GateView, Loss,
    PowerAfter, QueueAuthority,
};

use super::state::{Maintenance, Phase};

/// Whether all systems that are asked before our slot is taken stand before those that are entered
/// under it: a chain is entered in its order.
#[must_use]
pub fn is_in_order(systems: &[ExternalSystem]) -> bool {
    systems.is_sorted_by_key(|system| system.order == QueueAuthority::Ours)
}

/// The gate that is entered next under our slot.
#[must_use]
pub fn entering(record: &Maintenance) -> Option<usize> {
    record
        .gates
        .iter()
        .position(|gate| gate.system.enters && gate.system.order == QueueAuthority::Ours && !gate.entered)
}

/// The gate that is left next: the innermost one that still has something of ours.
#[must_use]
pub fn leaving(record: &Maintenance) -> Option<usize> {
    record.gates.iter().rposition(GateRecord::must_be_left)
}

/// Why a server that was entered is ours no more, by where its request stands; `None`: it is.
#[must_use]
pub fn taken_away(standing: &ExternalState) -> Option<String> {
    match standing {
        ExternalState::Granted => None,
        ExternalState::Lost(why) | ExternalState::Refused(why) | ExternalState::Failed(why) => Some(why.clone()),
        ExternalState::Waiting(why)
        | ExternalState::Entering(why)
        | ExternalState::Returning(why)
        | ExternalState::Leftovers(why) => Some(format!("it is out of maintenance again ({why})")),
        ExternalState::Taken(why) => Some(format!("it is in use for another purpose ({why})")),
        ExternalState::Absent => Some("the external request is gone".to_owned()),
    }
}

/// Whether the server's own system prepares what is booted.
#[must_use]
pub fn prepares_boot(gates: &[GateRecord]) -> bool {
    gates.iter().any(|gate| gate.system.boots)
}

/// Whether the server's own system prepares what a record boots.
#[must_use]
pub fn boots(record: &Maintenance) -> bool {
    record.spec.boot.is_some() && prepares_boot(&record.gates)
}

/// Whether the server's own system keeps the power that a record asks for.
#[must_use]
pub(super) fn keeps_power(record: &Maintenance) -> bool {
    record.gates.iter().any(|gate| gate.system.boots && gate.system.enters)
}

/// The server's own maintenance system, where it has one: the innermost gate.
#[must_use]
pub fn own(gates: &[GateRecord]) -> Option<&GateRecord> {
    gates.iter().find(|gate| gate.system.gate.is_none())
}

/// The gates that stand before the server's own system and allow the start, and were not left
/// since.
#[must_use]
pub fn outer(gates: &[GateRecord]) -> Vec<String> {
    gates.iter().filter(|gate| gate.granted && !gate.left).filter_map(|gate| gate.system.gate.clone()).collect()
}

/// Whether a request of a record may be in an external system.
#[must_use]
pub fn is_asked(record: &Maintenance) -> bool {
    record.gates.iter().any(|gate| gate.asked)
}

/// Why a server that was taken away is not restored; `None`: it is ours to restore.
#[must_use]
pub fn lost(record: &Maintenance) -> Option<&str> {
    record.gates.iter().filter(|gate| gate.system.loss == Loss::EndsHold).find_map(|gate| gate.lost.as_deref())
}

/// Whether the server may be put back as it was: not when it is not ours any more, nor when it
/// never was.
#[must_use]
pub fn may_restore(record: &Maintenance) -> bool {
    let mut gates = record.gates.iter().filter(|gate| gate.system.loss == Loss::EndsHold);
    gates.all(|gate| gate.lost.is_none() && (gate.entered || !gate.system.enters || record.spec.parent.is_some()))
}

/// Whether the server never was ours: an external system did not grant it before the end, so that
/// nothing was changed.
#[must_use]
pub fn never_ours(record: &Maintenance) -> bool {
    !may_restore(record) && lost(record).is_none()
}

/// How many gates still have a request of a record in this state.
#[must_use]
pub fn to_leave(record: &Maintenance) -> usize {
    let over = matches!(record.phase, Phase::Completed { .. } | Phase::Failed { .. });
    if over || record.spec.parent.is_some() {
        return 0;
    }
    record.gates.iter().filter(|gate| gate.must_be_left()).count()
}
