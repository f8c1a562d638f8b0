//! Gates: the external systems that must grant a start, in order. `gate_chain.rs` contains the
//! rules.
//!
//! The innermost gate is the server's own maintenance system, if any. Others precede it
//! (`cluster_api`). A gate receives its request after all outer gates grant the start. The server
//! leaves a gate after it left all inner gates.
//!
//! Some systems have their own queue, such as metal-operator's ServerMaintenance. That queue then
//! decides: the provider acquires the lock after the grant, and the waiting request does not block
//! others. Systems without a queue, such as metal-operator's parking, are entered and left under
//! the lock.

use shown_text::OneLine;

pub use super::model::gate::{
    Asks, AwaitedNode, BootReadiness, ExternalRequest, ExternalState, ExternalSystem, GateRecord, GateView, Loss,
    PowerAfter, QueueAuthority,
};

use super::state::{Maintenance, Phase};

/// Returns true if every system that grants before the lock precedes all systems entered under it.
#[must_use]
pub fn is_in_order(systems: &[ExternalSystem]) -> bool {
    systems.is_sorted_by_key(|system| system.order == QueueAuthority::Ours)
}

/// Returns the next gate to enter under the lock.
#[must_use]
pub fn entering(record: &Maintenance) -> Option<usize> {
    record
        .gates
        .iter()
        .position(|gate| gate.system.enters && gate.system.order == QueueAuthority::Ours && !gate.entered)
}

/// Returns the next gate to leave: the innermost gate with a remaining request.
#[must_use]
pub fn leaving(record: &Maintenance) -> Option<usize> {
    record.gates.iter().rposition(GateRecord::must_be_left)
}

/// Returns why an entered server was revoked, by its request's state.
#[must_use]
pub fn taken_away(standing: &ExternalState) -> Option<OneLine> {
    match standing {
        ExternalState::Granted => None,
        ExternalState::Lost(why) | ExternalState::Refused(why) | ExternalState::Failed(why) => Some(why.clone()),
        ExternalState::Waiting(why)
        | ExternalState::Entering(why)
        | ExternalState::Returning(why)
        | ExternalState::Leftovers(why) => Some(format!("it is out of maintenance again ({why})").into()),
        ExternalState::Taken(why) => Some(format!("it is in use for another purpose ({why})").into()),
        ExternalState::Absent => Some("the external request does not exist any more".into()),
    }
}

/// Returns true if the external system prepares the boot image.
#[must_use]
pub fn prepares_boot(gates: &[GateRecord]) -> bool {
    gates.iter().any(|gate| gate.system.boots)
}

/// Returns true if the external system prepares this record's boot image.
#[must_use]
pub fn boots(record: &Maintenance) -> bool {
    record.spec.boot.is_some() && prepares_boot(&record.gates)
}

/// Returns true if the external system controls the server's power.
#[must_use]
pub(super) fn keeps_power(record: &Maintenance) -> bool {
    record.gates.iter().any(|gate| gate.system.boots && gate.system.enters)
}

/// Returns the gate for the server's own maintenance system, if any.
#[must_use]
pub fn own(gates: &[GateRecord]) -> Option<&GateRecord> {
    gates.iter().find(|gate| gate.system.gate.is_none())
}

/// Returns the outer gates that grant the start and were not left since.
#[must_use]
pub fn outer(gates: &[GateRecord]) -> Vec<String> {
    gates.iter().filter(|gate| gate.granted && !gate.left).filter_map(|gate| gate.system.gate.clone()).collect()
}

/// Returns true if any external system can contain a request for this record.
#[must_use]
pub fn is_asked(record: &Maintenance) -> bool {
    record.gates.iter().any(|gate| gate.asked)
}

/// Returns why a revoked server must not be restored; `None` if it can be restored.
#[must_use]
pub fn lost(record: &Maintenance) -> Option<&OneLine> {
    record.gates.iter().filter(|gate| gate.system.loss == Loss::EndsHold).find_map(|gate| gate.lost.as_ref())
}

/// Returns true if the server can be restored: it entered its external systems, and none revoked
/// it.
#[must_use]
pub fn may_restore(record: &Maintenance) -> bool {
    let mut gates = record.gates.iter().filter(|gate| gate.system.loss == Loss::EndsHold);
    gates.all(|gate| gate.lost.is_none() && (gate.entered || !gate.system.enters || record.spec.parent.is_some()))
}

/// Returns true if an external system never granted the server, so it is unchanged.
#[must_use]
pub fn never_ours(record: &Maintenance) -> bool {
    !may_restore(record) && lost(record).is_none()
}

/// Returns how many gates still contain a request for this record.
#[must_use]
pub fn to_leave(record: &Maintenance) -> usize {
    let over = matches!(record.phase, Phase::Completed { .. } | Phase::Failed { .. });
    if over || record.spec.parent.is_some() {
        return 0;
    }
    record.gates.iter().filter(|gate| gate.must_be_left()).count()
}
