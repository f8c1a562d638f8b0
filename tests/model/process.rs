//! What a process does: the glue of `src/engine` around the real transitions, one event at a time.

use jiff::Timestamp;
use terraform_provider_metal::maintenance::{
    ids::{Fence, Uid},
    lock::{Leases, Refusal, ServerLock},
    machine::ResetType,
    queue::{Turn, turn},
    state::{Ending, Maintenance, Phase, Progress},
    step::{Action, Attempt, Reply, Step},
};

use crate::{
    actions::{Broken, Protocol},
    records::AGING,
    world::{Actor, At, Goal, Plan, Role, TTL, World, number},
};

impl Protocol {
    /// `Engine::hold`, `release`, `force_release` and `abandon` up to their drive.
    pub fn enter(&self, world: &mut World, n: usize) -> bool {
        let uid = world.subject(n);
        if world.over & 1 << number(&uid) != 0 {
            // Done, by whomever.
            world.actors[n].goal = Goal::Over;
            return true;
        }
        world.actors[n].run += 1;
        world.renew(n, world.now, world.now);
        let runner = world.runner(n);
        match world.actors[n].goal {
            Goal::Hold => {
                let request = world.request(n);
                let entered = world.transact(|lock, leases, now| {
                    lock.drop_absent(leases, now);
                    let uid = lock.enqueue(request, leases, now)?.uid().clone();
                    lock.attach(&uid, runner, crate::records::token(), leases, now)
                });
                match entered {
                    Ok(generation) => drive(&mut world.actors[n], generation),
                    // There is no hold any more, and there will not be another one: the run fails for good.
                    Err(Refusal::ParentNotHolding) => {
                        let Role::Under(hold) = world.roles[number(&uid)] else { return false };
                        world.actors[n].goal = Goal::Over;
                        world.over & 1 << hold != 0
                    }
                    Err(_) => false,
                }
            }
            Goal::Release => match world
                .transact(|lock, leases, now| lock.attach(&uid, runner, crate::records::token(), leases, now))
            {
                Ok(generation) => drive(&mut world.actors[n], generation),
                Err(_) => false,
            },
            Goal::Seize => self.seize(world, n),
            Goal::Over => false,
        }
    }

    /// `Engine::seize`: takes the hold as it is seen now, and begins what comes next.
    fn seize(&self, world: &mut World, n: usize) -> bool {
        let (uid, runner, now) = (world.subject(n), world.runner(n), world.now);
        let Some(record) = world.lock.get(&uid).cloned() else {
            // Nothing to take yet.
            return false;
        };
        let release = matches!(world.roles[n], Role::ForceRelease(_));
        let back = world.steps(n, Step::RestorePower);
        let broken = self.broken;
        let seized = world.transact(|lock, leases, now| {
            let (generation, _) = lock.seize(&uid, record.generation, runner, crate::records::token(), leases, now)?;
            let until = lock.calls_until(&uid, now);
            if matches!(broken, Broken::NoWaitAfterSeize | Broken::SeizeWaitsInMemory) {
                lock.update(&uid, generation, |record| record.calls_until = None)?;
            }
            if release && record.phase != Phase::Pending {
                begin_release(lock, &uid, generation, back, now)?;
            }
            Ok((generation, until))
        });
        let (generation, until) = seized.unwrap();
        world.actors[n].generation = generation;
        let until = until.filter(|_| self.broken != Broken::NoWaitAfterSeize).unwrap_or(now);
        world.actors[n].at = At::Waiting { until };
        true
    }

    /// `Drive::change`, and of `Drive::act` what comes before the call.
    pub fn commit(&self, world: &mut World, n: usize) -> bool {
        let At::Planned(plan) = world.actors[n].at else { return false };
        world.actors[n].at = At::Driving;
        let (uid, generation) = (world.subject(n), world.actors[n].generation);
        let (there, back) = (world.steps(n, Step::ApplyPower), world.steps(n, Step::RestorePower));
        // An abandoned hold is ended without asking the machine, once its holder must be done.
        let abandons = matches!(world.roles[n], Role::Abandon(_));
        let unchecked = abandons || self.broken == Broken::NoMayActAtEnd;
        let broken = self.broken;
        let (mut admitted, mut finished) = (false, false);
        let said = match plan {
            Plan::Act => return self.intend(world, n),
            Plan::Admit => world.transact(|lock, leases, now| {
                lock.drop_absent(leases, now);
                if broken == Broken::DropsHolders {
                    drop_absent_holder(lock, leases, now);
                }
                if turn(lock, leases, &uid, AGING, now) != Turn::Yours {
                    return Ok(());
                }
                let next = match lock.get(&uid).map(|record| record.phase.clone()) {
                    Some(Phase::Pending) | None => Phase::Preparing(Progress::new(there, now)),
                    Some(phase) => phase,
                };
                lock.admit(&uid, generation, next, now)?;
                admitted = true;
                Ok(())
            }),
            Plan::Withdraw => world.transact(|lock, _, now| {
                finished = true;
                lock.withdraw(&uid, generation, now)
            }),
            Plan::BeginRelease => world.transact(|lock, _, now| begin_release(lock, &uid, generation, back, now)),
            Plan::Prepared => world.transact(|lock, _, now| lock.prepared(&uid, generation, now)),
            Plan::Finish => world.transact(|lock, leases, now| {
                if !unchecked && !lock.may_act(&uid, generation, leases, now) {
                    return Ok(());
                }
                finished = true;
                if broken == Broken::ForgetsGenerations {
                    lock.generation = 0;
                }
                let over = Phase::Completed { at: now, ending: Ending::Completed };
                lock.finish(&uid, generation, &over, now)
            }),
        };
        match said {
            Ok(()) => {
                if admitted {
                    world.held |= 1 << number(&uid);
                }
                if finished {
                    ended(world, number(&uid));
                    world.actors[n].goal = Goal::Over;
                    leave(world, n);
                }
            }
            Err(Refusal::Fenced { .. } | Refusal::Gone) => lost(world, n),
            Err(refusal) => panic!("{plan:?} was refused: {refusal}"),
        }
        true
    }

    /// The store's half of the check: the intent is recorded, in the transaction that asks whether this process may act.
    fn intend(&self, world: &mut World, n: usize) -> bool {
        let (uid, generation) = (world.subject(n), world.actors[n].generation);
        let renewed = world.actors[n].renewed;
        // `keep` renews before the intent is recorded, or nothing is recorded.
        if !world.is_safe(renewed) {
            return false;
        }
        let broken = self.broken;
        let said = world.transact(|lock, leases, now| {
            let record = |record: &mut Maintenance| {
                if let Phase::Preparing(progress) | Phase::Releasing { progress, .. } = &mut record.phase {
                    let action = Action::Reset(ResetType::ForceOff);
                    progress.attempts = vec![Attempt { action, at: now, reply: Reply::Unknown }];
                }
            };
            let may_act = match broken {
                Broken::NoMayAct => true,
                Broken::SilentKeepsTurn => lock.may_act(&uid, generation, leases, now),
                _ => return lock.intend(&uid, generation, leases, now, record),
            };
            if may_act {
                lock.update(&uid, generation, record)?;
            }
            Ok(may_act)
        });
        if said == Ok(true) {
            world.actors[n].at = At::Intended { bound: renewed + TTL };
        }
        true
    }

    /// The process's half of the check, right before the call.
    pub fn begin(&self, world: &mut World, n: usize) -> bool {
        let At::Intended { bound } = world.actors[n].at else { return false };
        let renewed = world.actors[n].renewed;
        let (safe, until) = match self.broken {
            Broken::NoClock => (true, world.now + TTL),
            Broken::NoBound => (world.is_safe(bound - TTL), world.now + TTL),
            Broken::LaterRenewalCounts => (world.is_safe(renewed), renewed + TTL),
            _ => (world.is_safe(bound - TTL), bound),
        };
        if safe {
            world.actors[n].at = At::Calling { until };
        } else {
            // The run ends with an error.
            detach(world, n);
            leave(world, n);
        }
        true
    }
}

fn drive(actor: &mut Actor, generation: Fence) -> bool {
    actor.generation = generation;
    actor.at = At::Driving;
    true
}

fn drop_absent_holder(lock: &mut ServerLock, leases: &Leases, now: Timestamp) {
    let alive = |holder: &Maintenance| holder.attachment.as_ref().is_some_and(|a| leases.alive(a, now));
    if let Some(uid) = lock.holder().filter(|holder| !alive(holder)).map(|holder| holder.uid.clone()) {
        lock.active.retain(|record| record.uid != uid);
        lock.slot = None;
    }
}

fn begin_release(
    lock: &mut ServerLock,
    uid: &Uid,
    generation: Fence,
    back: Vec<Step>,
    now: Timestamp,
) -> Result<(), Refusal> {
    lock.begin_release(uid, generation, Ending::Completed, Progress::new(back, now), now)
}

pub fn left_call(actor: &mut Actor, at: At) {
    actor.at = at;
    actor.replaced = None;
}

/// A record is over, and with it what was done under it.
fn ended(world: &mut World, subject: usize) {
    world.over |= 1 << subject;
    for (n, role) in world.roles.iter().enumerate() {
        if *role == Role::Under(subject) {
            world.over |= 1 << n;
        }
    }
}

/// The process ends and ends its lease.
pub fn leave(world: &mut World, n: usize) {
    world.end_process(n);
    world.resign(&world.runner(n).id);
}

fn detach(world: &mut World, n: usize) {
    let (uid, generation) = (world.subject(n), world.actors[n].generation);
    // Refused when somebody else has it.
    let _ = world.transact(|lock, _, now| lock.detach(&uid, generation, now));
}

/// Somebody else has the record now, or it is gone. Whoever still waited for the server asks again.
fn lost(world: &mut World, n: usize) {
    let subject = world.roles[n].subject(n);
    let bit = 1 << subject;
    if world.over & bit != 0 || world.held & bit != 0 && world.actors[n].goal == Goal::Hold {
        world.actors[n].goal = Goal::Over;
    }
    leave(world, n);
}

/// A stop while the process waits for something: for its turn, for a call's answer, for a predecessor.
pub fn stop(world: &mut World, n: usize) -> bool {
    match world.actors[n].at {
        At::Driving | At::Calling { .. } | At::Waiting { .. } => {
            world.end_process(n);
            detach(world, n);
            leave(world, n);
            true
        }
        _ => false,
    }
}

pub fn settle_dead(world: &mut World, n: usize) -> bool {
    let uid = crate::world::uid(n);
    let Some(attachment) = world.lock.get(&uid).and_then(|record| record.attachment.clone()) else { return false };
    let dead = !world.process_exists(&attachment.runner.id) && world.leases.alive(&attachment, world.now);
    world.resign(&attachment.runner.id);
    dead
}

/// The answer of the machine, and that the step is done. Both are recorded for whoever has the right.
pub fn note(world: &mut World, n: usize) -> bool {
    let (uid, generation) = (world.subject(n), world.actors[n].generation);
    let _ = world.transact(|lock, _, now| {
        lock.update(&uid, generation, |record| {
            if let Phase::Preparing(progress) | Phase::Releasing { progress, .. } = &mut record.phase {
                progress.current = 1;
                progress.attempts.clear();
                progress.since = now;
            }
        })
    });
    world.actors[n].at = At::Driving;
    true
}

/// `decide` for a record with one step, without what the machine says.
pub fn decide(world: &mut World, n: usize) -> bool {
    let (lock, leases, now) = (&world.lock, &world.leases, world.now);
    let (uid, actor) = (world.subject(n), &world.actors[n]);
    let Some(record) = lock.get(&uid).filter(|_| world.in_force(n)) else {
        lost(world, n);
        return true;
    };
    let my_turn = || turn(lock, leases, &uid, AGING, now) == Turn::Yours;
    let may_act = lock.may_act(&uid, actor.generation, leases, now);
    let holding = actor.goal == Goal::Hold;
    let plan = match &record.phase {
        Phase::Pending if !holding => Plan::Withdraw,
        Phase::Pending if my_turn() => Plan::Admit,
        Phase::Preparing(_) | Phase::Releasing { .. } if !may_act => {
            if lock.calls_until(&uid, now).is_some() {
                return false;
            }
            // With the slot it is only the lease that is over: it is renewed and asked again.
            let renews = lock.has_slot(record) && record.spec.parent.is_none();
            if renews || !my_turn() {
                return false;
            }
            Plan::Admit
        }
        Phase::Preparing(_) if !holding => Plan::BeginRelease,
        Phase::Preparing(progress) if progress.step().is_none() => Plan::Prepared,
        Phase::Releasing { progress, .. } if progress.step().is_none() => Plan::Finish,
        Phase::Preparing(_) | Phase::Releasing { .. } => Plan::Act,
        Phase::InMaintenance { .. } if holding => {
            detach(world, n);
            leave(world, n);
            world.actors[n].goal = Goal::Release;
            return true;
        }
        Phase::InMaintenance { .. } if lock.other_actor(&uid, leases, now).is_none() => Plan::BeginRelease,
        Phase::Pending | Phase::InMaintenance { .. } | Phase::Completed { .. } | Phase::Failed { .. } => return false,
    };
    world.actors[n].at = At::Planned(plan);
    true
}
