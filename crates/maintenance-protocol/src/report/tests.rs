//! Queue rows of prepared and releasing maintenances.

use super::*;
use crate::{
    change::{LockChange, Moment, RecordChange},
    ids::{Fence, Token, Uid},
    model::{
        lock::EnqueueRequest,
        verdict::{Limits, after},
    },
    step::Step,
};

fn now() -> Timestamp {
    "2026-11-21T10:00:00Z".parse().unwrap()
}

/// A maintenance in preparation with a connected process.
fn preparing() -> (ServerLock, Leases, Uid, Fence) {
    let mut lock = ServerLock::new(LockKey::new("k"));
    let request = EnqueueRequest::sample("a");
    let leases = Leases([(request.runner.id.clone(), after(now(), Duration::from_secs(30)))].into());
    let uid = lock.enqueue(request.clone(), &leases, now()).unwrap().uid().clone();
    let fence = lock.attach(&uid, request.runner, Token(uuid::Uuid::nil()), &leases, now()).unwrap();
    let steps = Phase::Preparing(Progress::new(vec![Step::DrainNode, Step::SwitchOff], now()));
    lock.admit(&uid, fence, steps, now()).unwrap();
    (lock, leases, uid, fence)
}

fn apply(lock: &mut ServerLock, leases: &Leases, uid: &Uid, fence: Fence, change: &RecordChange) {
    let limits = Limits::default();
    let at = Moment { leases, now: now(), aging: Duration::from_mins(10), limits: &limits };
    lock.apply(&LockChange::Driven { uid, fence, change }, &at).unwrap();
}

fn told(lock: &ServerLock, leases: &Leases) -> (String, String) {
    let row = lines(lock, leases, Duration::from_mins(10), now(), &|_| Liveness::Unknown).remove(0);
    (row.waiting_for.unwrap(), row.waiting_briefly.unwrap())
}

#[test]
fn what_a_step_waits_for_is_told_while_its_process_is_there_and_until_the_next_step() {
    let (mut lock, leases, uid, fence) = preparing();
    let nothing = ("preparing 1/2: draining its Node".to_owned(), "1/2: draining its Node".to_owned());
    assert_eq!(told(&lock, &leases), nothing);

    let why = "remaining: y/db (its disruption budget)".to_owned();
    apply(&mut lock, &leases, &uid, fence, &RecordChange::NoteWait(why.clone()));
    let noted = (format!("preparing 1/2: draining its Node: {why}"), format!("1/2: {why}"));
    assert_eq!(told(&lock, &leases), noted);
    assert_eq!(told(&lock, &Leases::default()), nothing, "its process has ended");

    let mut progress = lock.active[0].phase.progress().unwrap().clone();
    progress.begin_afresh(now());
    assert_eq!(progress.waits_for, None);
    apply(&mut lock, &leases, &uid, fence, &RecordChange::Detach);
    lock.attach(&uid, EnqueueRequest::sample("a").runner, Token(uuid::Uuid::nil()), &leases, now()).unwrap();
    assert_eq!(told(&lock, &leases), nothing, "another process has not waited yet");
}

#[test]
fn a_process_is_judged_by_its_lease_and_by_what_this_machine_knows() {
    let (lock, leases, ..) = preparing();
    for (leases, liveness, process) in [
        (&leases, Liveness::Unknown, ProcessState::Working),
        (&leases, Liveness::Alive, ProcessState::Working),
        (&leases, Liveness::Gone, ProcessState::Killed),
        (&Leases::default(), Liveness::Gone, ProcessState::Killed),
        (&Leases::default(), Liveness::Alive, ProcessState::Suspended),
        (&Leases::default(), Liveness::Unknown, ProcessState::Silent),
    ] {
        let row = lines(&lock, leases, Duration::from_mins(10), now(), &|_| liveness).remove(0);
        assert_eq!((row.process, row.attended), (process, process == ProcessState::Working), "{liveness:?}");
    }
    let (mut lock, leases, uid, fence) = preparing();
    apply(&mut lock, &leases, &uid, fence, &RecordChange::Detach);
    let row = lines(&lock, &leases, Duration::from_mins(10), now(), &|_| Liveness::Gone).remove(0);
    assert_eq!((row.process, row.step.as_deref()), (ProcessState::Detached, Some("1/2")));
}
