//! Handing a server to the next maintenance without a restore.
//!
//! A maintenance that ends hands its server to the next waiter if both set `hand_over = "direct"`.
//! The prior state moves along, and the last maintenance of the chain restores it. A waiter that
//! wants a restored server is never skipped. Servers with an external system or a Node Lease are
//! always restored first.

pub use super::model::hand_over::HandOver;

use std::time::Duration;

use jiff::Timestamp;

use super::{
    ids::{Fence, Uid},
    machine::PowerState,
    model::lock::{Leases, Refusal, ServerLock},
    prepare, queue,
    spec::MaintenanceKind,
    state::{Ending, Maintenance, Phase, Progress},
};

/// Returns true if this maintenance can hand over or receive a server unrestored.
fn is_direct(record: &Maintenance) -> bool {
    let node = record.node.taken.is_some()
        || record.spec.node.as_ref().is_some_and(|node| node.take)
        || record.drained.is_some()
        || record.spec.drain.is_some();
    record.spec.hand_over == HandOver::Direct
        && record.spec.kind == MaintenanceKind::Maintenance
        && record.gates.is_empty()
        && !node
}

/// Returns the waiter that receives the server unrestored if its holder ends now; `None` if the
/// holder restores it.
#[must_use]
pub fn successor<'a>(
    lock: &'a ServerLock,
    leases: &Leases,
    holder: &Maintenance,
    aging: Duration,
    now: Timestamp,
) -> Option<&'a Maintenance> {
    let rests = matches!(holder.phase, Phase::InMaintenance { .. }) && holder.prior.is_some();
    if !rests || !is_direct(holder) || !lock.has_slot(holder) || lock.awaits_inspection(holder).is_some() {
        return None;
    }
    let next = queue::waiting(lock, aging, now).into_iter().find(|entry| queue::is_served(lock, leases, entry, now))?;
    (is_direct(next) && next.phase == Phase::Pending).then_some(next)
}

/// Returns the power in which a maintenance ends, if configured or observed.
fn power_left(record: &Maintenance) -> Option<PowerState> {
    record.spec.server_power.map(PowerState::from).or(record.last_power)
}

/// Returns true if this ending hands the server over. A forced release or a failure does not.
#[must_use]
pub fn is_passed_on(ending: &Ending) -> bool {
    matches!(ending, Ending::Completed | Ending::CompletedBy(_))
}

impl ServerLock {
    /// Ends a maintenance and admits the next in the same transaction. In that transaction, the
    /// caller has already selected `next` with [`successor`].
    pub(super) fn hand_over(
        &mut self,
        uid: &Uid,
        fence: Fence,
        next: &Uid,
        ending: &Ending,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let to = self.get(next).ok_or(Refusal::Gone)?.id.clone();
        let booted = self.booted_under(uid);
        let record = self.ours(uid, fence)?;
        record.booted |= booted;
        record.update = None;
        record.handed_to = Some(to);
        let before = record.clone();
        self.finish(uid, fence, &Phase::Completed { at: now, ending: ending.clone() }, now)?;
        let record = self.get_mut(next)?;
        record.prior.clone_from(&before.prior);
        record.booted = before.booted;
        record.drives.clone_from(&before.drives);
        record.boot_writes.clone_from(&before.boot_writes);
        record.last_power = power_left(&before);
        record.took_over = Some(before.id);
        let steps = prepare::steps(&record.spec, &record.gates);
        self.admit_record(next, Phase::Preparing(Progress::new(steps, now)), now)
    }
}
