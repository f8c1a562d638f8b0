//! Effects of a change on other records.

use super::*;
use crate::{
    ids::{LockKey, Runner, Token},
    model::{
        lock::{EnqueueRequest, Leases, LockHolder},
        verdict::Limits,
    },
    spec::{BootMethod, BootSpec, MaintenanceKind, Spec},
};

/// Returns true if the holder counts as booted after work under its lock sent this reset.
fn booted_by(reset: ResetType, boot: Option<BootSpec>) -> bool {
    let (now, limits, runner) = (Timestamp::UNIX_EPOCH, Limits::default(), Runner::new("r", "ada", "desk", 1));
    let leases = Leases([(runner.id.clone(), Timestamp::MAX)].into());
    let mut lock = ServerLock::new(LockKey::new("k"));
    let hold = lock.enqueue(EnqueueRequest::sample("hold"), &leases, now).unwrap().uid().clone();
    lock.active[0].spec.boot = boot;
    lock.active[0].phase = Phase::InMaintenance { since: now };
    lock.slot = Some(LockHolder { uid: hold.clone(), since: now, acting: None });
    let spec = Spec { parent: Some(hold), ..Spec::new(MaintenanceKind::Operation, "node") };
    let request = EnqueueRequest { spec, ..EnqueueRequest::sample("operation") };
    let uid = lock.enqueue(request, &leases, now).unwrap().uid().clone();
    let fence = lock.attach(&uid, runner, Token(uuid::Uuid::nil()), &leases, now).unwrap();
    lock.slot = Some(LockHolder { uid: lock.active[0].uid.clone(), since: now, acting: Some(uid.clone()) });
    lock.active[1].phase = Phase::Preparing(Progress::new(vec![Step::Operate], now));
    let at = Moment { leases: &leases, now, limits: &limits, aging: std::time::Duration::from_secs(1) };
    assert_eq!(
        lock.intend_call(&uid, fence, Attempt::intended(Action::Reset(reset), at.now), &at).unwrap(),
        Applied::Done
    );
    lock.active[0].booted
}

#[test]
fn a_restart_under_a_hold_boots_what_the_hold_has_set() {
    let boot = BootSpec::new(BootMethod::Pxe);
    for reset in [ResetType::ForceRestart, ResetType::PowerCycle, ResetType::On] {
        assert!(booted_by(reset, Some(boot.clone())), "{reset}");
        assert!(!booted_by(reset, None), "{reset}");
    }
    assert!(!booted_by(ResetType::GracefulShutdown, Some(boot)));
}
