//! How a run attaches to a record: `src/engine/entry.rs`, one transaction at a time.

use jiff::Timestamp;
use maintenance_protocol::{
    change::{Applied, LockChange, Moment, RecordChange},
    ids::{Fence, Token},
    lock::{Leases, Refusal, ServerLock},
    state::{Ending, Phase},
};

use crate::{
    actions::Protocol,
    events::Broken,
    records::AGING,
    times::About,
    world::{At, Goal, Role, World, number},
};

/// Applies a change at a store time.
pub fn apply(
    about: About,
    lock: &mut ServerLock,
    change: &LockChange<'_>,
    leases: &Leases,
    now: Timestamp,
) -> Result<Applied, Refusal> {
    lock.apply(change, &Moment { leases, now, aging: AGING, limits: &about.limits() })
}

impl Protocol {
    /// Returns true if a process still has the same store. Otherwise it refuses to work with the
    /// store.
    pub fn reaches(&self, world: &mut World, n: usize) -> bool {
        let here = world.here;
        let process = world.actors[n].process;
        let names = !matches!(self.broken, Broken::NoCommitNames | Broken::SameTokens);
        if names && world.is_behind(world.processes[process].seen) {
            world.leave(n);
            return false;
        }
        world.processes[process].seen = here;
        true
    }

    /// Runs `Engine::hold`, `resume`, `release`, `force_release` and `release_without_restore` up
    /// to their drive.
    pub fn enter(&self, world: &mut World, n: usize) -> bool {
        let (process, subject) = (world.actors[n].process, world.roles[n].subject(n));
        if world.runs(process) {
            // Each run requests only one attachment.
            if world.actors[n].ran == world.processes[process].run || !self.reaches(world, n) {
                return false;
            }
        } else {
            world.processes[process].run += 1;
            world.processes[process].seen = world.here;
        }
        world.actors[n].ran = world.processes[process].run;
        world.actors[n].called = false;
        if world.over & 1 << subject != 0 {
            world.actors[n].goal = Goal::Over;
            return true;
        }
        world.renew(process, world.now, world.now);
        match world.actors[n].goal {
            Goal::Hold => {
                let request = world.request(n);
                let token = self.token(world, n);
                match self.attach(world, n, &LockChange::Enqueue { request: &request, claims: &[], token }) {
                    Ok(Applied::Enqueued { fence: Some(fence), .. }) => drive(world, n, fence),
                    // A person blocked this name.
                    Err(Refusal::ReleasedBefore { .. }) => {
                        world.actors[n].goal = Goal::Over;
                        true
                    }
                    Err(Refusal::ParentNotHolding) => {
                        let Role::Under(hold) = world.roles[subject] else { return false };
                        world.actors[n].goal = Goal::Over;
                        world.over & 1 << hold != 0 || world.actors[hold].goal == Goal::Over
                    }
                    _ => false,
                }
            }
            Goal::Change | Goal::Release => self.resume(world, n),
            Goal::Seize => self.seize(world, n),
            Goal::Over => false,
        }
    }

    /// Resumes the record that a state manages, unless the store has lost it.
    fn resume(&self, world: &mut World, n: usize) -> bool {
        let (uid, changes) = (world.subject(n), world.actors[n].goal == Goal::Change);
        let Some(record) = world.record(n) else {
            // `Engine::lost_since`: no process ended the record, so the store has lost it. A person
            // must mark the store as restored and inspect the server; then the record is dropped
            // from the state.
            if !world.restored && self.broken != Broken::StateRemembersNothing {
                return false;
            }
            world.wrong.forgotten |= !world.restored;
            world.actors[n].goal = Goal::Over;
            return true;
        };
        let remembers = world.actors[n].remembers.filter(|_| self.broken != Broken::StateRemembersNothing);
        if remembers.is_some_and(|seen| record.generation < seen || record.phase == Phase::Pending && !world.restored) {
            return false;
        }
        let (runner, token) = (world.runner(n), self.token(world, n));
        match self.attach(world, n, &LockChange::Attach { uid: &uid, runner: &runner, token, state: "", owner: None }) {
            Ok(Applied::Attached { fence, .. }) => drive(world, n, fence),
            _ => return false,
        };
        if changes {
            let wanted = world.spec(number(&uid), true);
            world.actors[n].at = At::Planned(RecordChange::Respecify(Box::new(wanted)));
        }
        true
    }

    /// `Engine::apply` for attachments: detaches the process's undriven records first.
    fn attach(&self, world: &mut World, n: usize, change: &LockChange<'_>) -> Result<Applied, Refusal> {
        let driven = self.driven(world, world.actors[n].process);
        let (runner, lets_go) = (world.runner(n).id, self.broken != Broken::NeverLetsGo);
        world.transact(|lock, leases, now| {
            if lets_go {
                lock.detach_undriven(&runner, &driven, now);
            }
            apply(self.about, lock, change, leases, now)
        })
    }

    /// Returns the attachments that a process drives.
    fn driven(&self, world: &World, process: usize) -> Vec<Token> {
        let drives = |n: &usize| world.actors[*n].process == process && world.actors[*n].is_alive();
        (0..world.actors.len()).filter(drives).map(|n| self.token(world, n)).collect()
    }

    /// Detaches a process's undriven records, as its heartbeat does.
    pub fn let_go(&self, world: &mut World, process: usize) -> bool {
        if self.broken == Broken::NeverLetsGo || !world.runs(process) {
            return false;
        }
        let driven = self.driven(world, process);
        let Some(n) = (0..world.actors.len()).find(|n| world.actors[*n].process == process) else { return false };
        let runner = world.runner(n).id;
        world.transact(|lock, _, now| Ok(!lock.detach_undriven(&runner, &driven, now).is_empty())) == Ok(true)
    }

    fn token(&self, world: &World, n: usize) -> Token {
        if self.broken == Broken::SameTokens { crate::records::token() } else { world.token(n) }
    }

    /// `Engine::fence_holder`: revokes the lock as currently read, and starts the next step.
    fn seize(&self, world: &mut World, n: usize) -> bool {
        let (uid, runner, now) = (world.subject(n), world.runner(n), world.now);
        let Some(seen) = world.lock.get(&uid).map(|record| record.generation) else {
            // The lock is already released, or was never held. A waiter that was released by force
            // loses its queue position.
            let taken = !world.lock.extension.restrictions.released.is_empty();
            if taken {
                world.actors[n].goal = Goal::Over;
            }
            return taken;
        };
        let ending = matches!(world.roles[n], Role::ForceRelease(_)).then_some(Ending::Completed);
        let (broken, token) = (self.broken, self.token(world, n));
        let seized = world.transact(|lock, leases, now| {
            let change = LockChange::Seize {
                owner: None,
                uid: &uid,
                seen,
                runner: &runner,
                token,
                ending: ending.as_ref(),
                reason: "",
                block: None,
            };
            let applied = apply(self.about, lock, &change, leases, now)?;
            if let (Broken::NoWaitAfterSeize | Broken::SeizeWaitsInMemory, Applied::Attached { fence, .. }) =
                (broken, &applied)
            {
                lock.update(&uid, *fence, |record| record.calls_until = None)?;
            }
            Ok(applied)
        });
        let Ok(Applied::Attached { fence, calls_until }) = seized else { return false };
        drive(world, n, fence);
        let until = calls_until.filter(|_| self.broken != Broken::NoWaitAfterSeize).unwrap_or(now);
        world.actors[n].at = At::Waiting { until };
        true
    }
}

fn drive(world: &mut World, n: usize, fence: Fence) -> bool {
    let here = world.here;
    let actor = &mut world.actors[n];
    (actor.fence, actor.fenced_at, actor.at) = (fence, here, At::Driving);
    true
}
