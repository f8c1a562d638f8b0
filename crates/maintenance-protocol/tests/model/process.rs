//! Actions of a process: the work of `src/engine` around production `decide` and `apply`, one event
//! at a time.

use jiff::Timestamp;
use maintenance_protocol::{
    change::{Applied, LockChange, RecordChange},
    decide::{Decision, DecisionInput, Finish, Goal as Aim, Objective, decide},
    ids::{Fence, Uid},
    lock::{Leases, Refusal, ServerLock},
    prepare::Facts,
    queue::Queue,
    spec::WaitFor,
    state::{Ending, Maintenance, Phase, PriorState},
    step::{Action, Attempt, Reply},
    store_failure::StoreFailure,
};

use crate::{
    actions::Protocol,
    entering::apply,
    events::Broken,
    records::AGING,
    world::{At, Goal, Role, Told, World, number},
};

impl Protocol {
    /// Runs one round of `Reconciler::drive` up to the change or call. It reads the server now, but
    /// the reading can be old at the change.
    pub fn decide(&self, world: &mut World, n: usize) -> bool {
        if !self.reaches(world, n) {
            return true;
        }
        let actor = &world.actors[n];
        let goal = match actor.goal {
            Goal::Hold | Goal::Change => Aim::Hold(WaitFor::InMaintenance),
            Goal::Release | Goal::Seize | Goal::Over => Aim::Release(Ending::Completed),
        };
        let timed_out = timed_out(world, n);
        let intent = Objective { goal, stop: actor.told == Told::Stop, timed_out, waited: None };
        let (uid, limits) = (world.subject(n), self.about.limits());
        let mut facts = Facts::default();
        let decision = loop {
            let decision = decide(&DecisionInput {
                lock: &world.lock,
                leases: &world.leases,
                now: world.now,
                queue: &Queue::default(),
                uid: &uid,
                fence: actor.fence,
                intent: &intent,
                facts: &facts,
                limits: &limits,
                aging: AGING,
            });
            match decision {
                Decision::Look(_) if facts.machine.is_none() => facts = world.machine.facts(),
                decision => break decision,
            }
        };
        let change = match decision {
            Decision::Wait { .. } | Decision::Change(RecordChange::Reclaim(_)) => return false,
            Decision::Look(need) => panic!("{need:?} is not in this world"),
            Decision::Ask { place, .. } => panic!("gate {place} is not in this world"),
            Decision::Act(Action::Record) => RecordChange::Prior(Box::new(PriorState {
                power: world.machine.power(),
                boot: None,
                media: Vec::new(),
                recorded_at: Timestamp::UNIX_EPOCH,
            })),
            Decision::Act(action) => RecordChange::Intend { action, last_reset: None },
            Decision::Change(RecordChange::Undo(cause)) if self.broken == Broken::UpdateGivesBack => {
                RecordChange::BeginRelease(Ending::Failed(cause.into()))
            }
            Decision::Change(change) => change,
            Decision::Finished(finish) => {
                finished(world, n, &finish);
                return true;
            }
        };
        world.actors[n].at = At::Planned(change);
        true
    }

    /// Runs `Reconciler::change`, and the part of `Reconciler::act` before the call.
    pub fn commit(&self, world: &mut World, n: usize) -> bool {
        let At::Planned(change) = world.actors[n].at.clone() else { return false };
        if world.one_way {
            return self.rejected(world, n);
        }
        world.actors[n].at = At::Driving;
        if !self.reaches(world, n) {
            return true;
        }
        if let RecordChange::Intend { action, .. } = change {
            return self.intend(world, n, &action);
        }
        let (uid, fence, broken) = (world.subject(n), world.actors[n].fence, self.broken);
        let before = world.record(n).cloned();
        let lost = world.restored || world.here.line > 0;
        let applied = world.transact(|lock, leases, now| {
            if broken == Broken::DropsHolders && matches!(change, RecordChange::Admit(_)) {
                drop_absent_holder(lock, leases, now);
            }
            if let (Broken::NoMayActAtEnd, RecordChange::Finish(over)) = (broken, &change) {
                lock.finish(&uid, fence, over, now)?;
                return Ok(Applied::Finished(Finish::Over));
            }
            let applied =
                apply(self.about, lock, &LockChange::Driven { uid: &uid, fence, change: &change }, leases, now)?;
            self.leave_out(lock, &change, &applied);
            Ok(applied)
        });
        match applied {
            Ok(applied) => {
                if let Some(before) = before.filter(|_| applied != Applied::Outdated) {
                    note_change(world, n, &before, &change);
                }
                match applied {
                    Applied::Finished(finish) => finished(world, n, &finish),
                    Applied::Done if change == RecordChange::Detach => world.leave(n),
                    _ => {}
                }
            }
            Err(Refusal::Fenced { .. } | Refusal::Gone) => finished(world, n, &Finish::Lost),
            Err(_) if lost => finished(world, n, &Finish::Lost),
            Err(refusal) => panic!("{change:?} was refused: {refusal}"),
        }
        true
    }

    /// Removes the data that a disabled rule would have kept.
    fn leave_out(&self, lock: &mut ServerLock, change: &RecordChange, applied: &Applied) {
        let over = matches!(applied, Applied::Finished(Finish::Over));
        match self.broken {
            Broken::ForgetsGenerations if over => lock.generation = 0,
            Broken::ForgetsEffects => lock.extension.effects.clear(),
            Broken::StepsForgetOtherCalls if matches!(change, RecordChange::Progress(_)) => {
                lock.extension.effects.clear();
            }
            Broken::ForgetsEffectsAtEnd if over => lock.extension.effects.clear(),
            Broken::HandOverForgetsPrior => {
                if let RecordChange::HandOver(next, _) = change
                    && let Some(record) = lock.active.iter_mut().find(|record| record.uid == *next)
                {
                    record.prior = None;
                }
            }
            Broken::ReleaseForgetsCalls if matches!(change, RecordChange::BeginRelease(_)) => {
                lock.extension.effects.clear();
            }
            _ => {}
        }
    }

    /// The store's half of the check: records the intent in the transaction that checks the
    /// attachment.
    fn intend(&self, world: &mut World, n: usize, action: &Action) -> bool {
        let (uid, fence) = (world.subject(n), world.actors[n].fence);
        let renewed = world.process(n).renewed;
        // `keep` renews before the intent is recorded. Without a renewal, nothing is recorded.
        if !world.is_safe(renewed) {
            return false;
        }
        let broken = self.broken;
        let applied = world.transact(|lock, leases, now| {
            if broken == Broken::NoMayAct {
                return intend_unasked(lock, &uid, fence, action, now);
            }
            let acting = lock.slot.as_ref().and_then(|slot| slot.acting.clone());
            let change = RecordChange::Intend { action: action.clone(), last_reset: None };
            let applied =
                apply(self.about, lock, &LockChange::Driven { uid: &uid, fence, change: &change }, leases, now)?;
            if let (Broken::SilentKeepsTurn, Some(slot)) = (broken, &mut lock.slot) {
                slot.acting = acting;
            }
            Ok(applied)
        });
        if applied == Ok(Applied::Done) {
            world.wrong.stale |= world.is_behind(world.actors[n].fenced_at);
            world.actors[n].at = At::Intended { action: action.clone(), bound: renewed + self.about.lease() };
        }
        true
    }

    /// The process's half of the check, right before the call.
    pub fn begin(&self, world: &mut World, n: usize) -> bool {
        let At::Intended { action, bound } = world.actors[n].at.clone() else { return false };
        let renewed = world.process(n).renewed;
        let (safe, until) = match self.broken {
            Broken::NoClock => (true, world.now + self.about.lease()),
            Broken::NoBound => (world.is_safe(bound - self.about.lease()), world.now + self.about.lease()),
            Broken::LaterRenewalCounts => (world.is_safe(renewed), renewed + self.about.lease()),
            _ => (world.is_safe(bound - self.about.lease()), bound),
        };
        if safe {
            world.actors[n].at = At::Calling { action, until };
            world.actors[n].called = world.backup.is_some();
        } else {
            // The run ends with an error.
            self.detach(world, n);
            world.leave(n);
        }
        true
    }

    /// `Reconciler::wait_for_store`: the store rejected a change, and the run pauses or ends.
    fn rejected(&self, world: &mut World, n: usize) -> bool {
        let second = std::time::Duration::from_secs(1);
        let failure = StoreFailure {
            in_a_row: 0,
            left: if timed_out(world, n) { std::time::Duration::ZERO } else { second },
            stop: world.actors[n].told == Told::Stop,
            longest: second,
        };
        if failure.pause().is_some() || self.broken == Broken::RepeatsForever {
            (world.actors[n].at, world.actors[n].replaced) = (At::Driving, None);
        } else {
            world.leave(n);
        }
        true
    }

    /// Returns true if the run of `n` ends by its own steps, while the store rejects changes.
    pub fn stops(&self, world: &World, n: usize) -> bool {
        let mut world = world.clone();
        for _ in 0..8 {
            let moved = match world.actors[n].at.clone() {
                // A wait has a fixed end.
                At::Away | At::Waiting { .. } => return true,
                At::Driving => self.decide(&mut world, n),
                At::Planned(_) => self.commit(&mut world, n),
                At::Intended { .. } => self.begin(&mut world, n),
                At::Calling { .. } => {
                    world.actors[n].at = At::Called(Reply::Unknown);
                    true
                }
                At::Called(_) => self.note(&mut world, n),
            };
            if !moved {
                return false;
            }
        }
        false
    }

    /// Detaches, if the process still has the same store.
    pub fn detach(&self, world: &mut World, n: usize) {
        if self.reaches(world, n) && !world.one_way {
            detach(world, n);
        }
    }

    /// Records the call's outcome, if the process is still attached.
    pub fn note(&self, world: &mut World, n: usize) -> bool {
        let At::Called(reply) = world.actors[n].at.clone() else { return false };
        if world.one_way {
            return self.rejected(world, n);
        }
        world.actors[n].at = At::Driving;
        if self.reaches(world, n) {
            let (uid, fence) = (world.subject(n), world.actors[n].fence);
            let change = RecordChange::Replied(reply);
            let _ = world.transact(|lock, leases, now| {
                let applied =
                    apply(self.about, lock, &LockChange::Driven { uid: &uid, fence, change: &change }, leases, now)?;
                self.leave_out(lock, &change, &applied);
                Ok(applied)
            });
        }
        true
    }

    /// `Engine::end_dead_leases`: ends a process's lease after proof of its end.
    pub fn settle_dead(&self, world: &mut World, n: usize) -> bool {
        let uid = crate::world::uid(n);
        let Some(attachment) = world.lock.get(&uid).and_then(|record| record.attachment.clone()) else { return false };
        let gone = !world.process_exists(&attachment.runner.id) || self.broken == Broken::UnknownCountsAsGone;
        let ended = gone && world.leases.alive(&attachment, world.now);
        world.resign(&attachment.runner.id);
        ended
    }
}

/// Records an intent without checking permission.
fn intend_unasked(
    lock: &mut ServerLock,
    uid: &Uid,
    fence: Fence,
    action: &Action,
    now: Timestamp,
) -> Result<Applied, Refusal> {
    lock.update(uid, fence, |record| {
        if let Phase::Preparing(progress) | Phase::Releasing { progress, .. } = &mut record.phase {
            progress.attempts.push(Attempt::intended(action.clone(), now));
        }
    })?;
    Ok(Applied::Done)
}

fn drop_absent_holder(lock: &mut ServerLock, leases: &Leases, now: Timestamp) {
    let alive = |holder: &Maintenance| holder.attachment.as_ref().is_some_and(|a| leases.alive(a, now));
    if let Some(uid) = lock.holder().filter(|holder| !alive(holder)).map(|holder| holder.uid.clone()) {
        lock.active.retain(|record| record.uid != uid);
        lock.slot = None;
    }
}

/// Tracks a change's meaning and any violation.
fn note_change(world: &mut World, n: usize, before: &Maintenance, change: &RecordChange) {
    let subject = number(&before.uid);
    let bit = 1 << subject;
    match change {
        RecordChange::Admit(_) => world.held |= bit,
        RecordChange::BeginRelease(_) if matches!(world.actors[n].goal, Goal::Hold | Goal::Change) => {
            world.wrong.gave_up |= world.reached & bit != 0;
        }
        RecordChange::Prior(prior) if before.prior.is_none() && before.spec.parent.is_none() => {
            let was = crate::machine::Machine::new().power();
            // A separate boot configuration's effect remains next to a maintenance.
            let beside = world.roles.iter().any(|role| matches!(role, Role::Boot | Role::BootThenChange));
            world.wrong.false_prior |= prior.power != was && world.abandoned == 0 && !world.restored && !beside;
            // No process can detect an earlier process's action that the store has lost.
            world.wrong.false_prior &= world.here.line == 0 || world.actors[n].called;
        }
        RecordChange::HandOver(next, _) => {
            world.held |= 1 << number(next);
            ended(world, subject);
            // The first maintenance's prior state is handed over.
            let was = crate::machine::Machine::new().power();
            let kept = world.lock.get(next).and_then(|record| record.prior.as_ref());
            world.wrong.false_prior |= kept.is_none_or(|prior| prior.power != was);
        }
        RecordChange::Finish(_) => {
            let left = before.prior.as_ref().is_some_and(|prior| prior.power != world.machine.power());
            world.wrong.unrestored |= left && before.spec.parent.is_none() && !world.restored;
            ended(world, subject);
        }
        RecordChange::Abandon(_) => {
            world.abandoned |= bit;
            ended(world, subject);
        }
        _ => {}
    }
}

/// Marks a record and its children as ended.
fn ended(world: &mut World, subject: usize) {
    world.over |= 1 << subject;
    for (n, role) in world.roles.iter().enumerate() {
        if *role == Role::Under(subject) {
            world.over |= 1 << n;
        }
    }
}

/// Returns true if a run's time limit has ended. A restore or undo after a failure has a separate
/// limit.
pub fn timed_out(world: &World, n: usize) -> bool {
    let ends = world
        .record(n)
        .is_some_and(|record| matches!(record.phase, Phase::Releasing { .. }) || record.undoing().is_some());
    let holds = matches!(world.actors[n].goal, Goal::Hold | Goal::Change);
    world.actors[n].told == Told::TimeIsOver && !(ends && holds)
}

pub fn detach(world: &mut World, n: usize) {
    if world.one_way {
        return;
    }
    let (uid, fence) = (world.subject(n), world.actors[n].fence);
    let (about, change) = (world.about, RecordChange::Detach);
    // Rejected if another process is attached.
    let _ = world.transact(|lock, leases, now| {
        apply(about, lock, &LockChange::Driven { uid: &uid, fence, change: &change }, leases, now)
    });
}

/// A drive ended, and the resource with it.
fn finished(world: &mut World, n: usize, finish: &Finish) {
    let (goal, role, bit) = (world.actors[n].goal, world.roles[n], 1u8 << world.roles[n].subject(n));
    let generation = world.actors[n].fence.generation;
    let admitted = world.record(n).is_some_and(|record| record.phase != Phase::Pending);
    if *finish != Finish::Lost {
        detach(world, n);
    }
    world.leave(n);
    let holds = matches!(goal, Goal::Hold | Goal::Change);
    let actor = &mut world.actors[n];
    actor.goal = match finish {
        Finish::Reached => {
            world.reached |= bit;
            actor.remembers = Some(generation);
            if goal == Goal::Hold && matches!(role, Role::HoldThenChange | Role::BootThenChange) {
                Goal::Change
            } else {
                Goal::Release
            }
        }
        Finish::Over | Finish::Withdrawn => Goal::Over,
        // The next run destroys an admitted maintenance.
        Finish::Interrupted | Finish::TimedOut(_) if holds && admitted => Goal::Release,
        Finish::Stuck(_) | Finish::NotUpdated { .. } if holds => Goal::Release,
        // Another process has the record, or it has ended. A run that was still queued requests the
        // server again.
        Finish::Lost if world.over & bit != 0 || world.held & bit != 0 && goal == Goal::Hold => Goal::Over,
        _ => goal,
    };
}
