//! Events of the model: the work of `src/engine` around production `decide` and `apply`, one event
//! at a time, and the gates.

use jiff::Timestamp;
use maintenance_protocol::{
    change::{Applied, LockChange, Moment, RecordChange},
    decide::{Decision, DecisionInput, Finish, Goal as Aim, Objective, decide},
    gate::{self, Loss},
    power::Need,
    prepare::Facts,
    queue::Queue,
    spec::WaitFor,
    state::{Ending, Phase, PriorState},
    step::{Action, Reply},
};

use crate::{
    DISTURBED, KEPT, LOCAL_GATES, RESTORED, RUNS, SLOT,
    chain::{Broken, Chain},
    gates::{Gate, Has},
    records::AGING,
    world::{At, Event, Goal, PAUSE, World, runner, token, uid},
};

impl Chain {
    pub fn events(&self, world: &World, events: &mut Vec<Event>) {
        if world.wrong.is_some() {
            return;
        }
        for (n, actor) in world.actors.iter().enumerate() {
            match actor.at {
                At::Away if actor.goal != Goal::Over && self.may_begin(world, n) => events.push(Event::Begin(n)),
                At::Away => {}
                At::Driving => events.push(Event::Decide(n)),
                _ => events.push(Event::Do(n)),
            }
            if actor.at != At::Away && actor.crashes < self.crashes {
                events.push(Event::Crash(n));
            }
            if actor.at == At::Driving && self.times_out && !actor.gave_up {
                events.push(Event::TimeOut(n));
            }
            self.call_events(world, n, events);
        }
        events.extend((0..world.on_the_way.len()).map(Event::LateEffect));
        self.node_events(world, events);
        self.local_events(world, events);
        self.gate_events(world, events);
    }

    /// Returns true if this actor can begin. A child begins while its maintenance has the server.
    fn may_begin(&self, world: &World, n: usize) -> bool {
        let over = world.actors[0].goal == Goal::Over;
        let held = world.record(0).is_some_and(|record| matches!(record.phase, Phase::InMaintenance { .. }));
        !self.is_child(n) || over || held || world.record(n).is_some()
    }

    pub fn after(&self, before: &World, event: Event) -> Option<World> {
        let mut world = before.clone();
        let happened = match event {
            Event::Begin(n) => self.begin(&mut world, n),
            Event::Decide(n) => self.decide(&mut world, n),
            Event::Do(n) => self.go_on(&mut world, n),
            Event::Accept(n) => Self::accept(&mut world, n),
            _ => {
                self.befall(&mut world, event);
                true
            }
        };
        happened.then(|| world.sealed())
    }

    /// Applies events of processes, calls, gates and the server.
    fn befall(&self, world: &mut World, event: Event) {
        match event {
            Event::Crash(n) => Self::crash(world, n),
            Event::CrashInCall(n) => {
                Self::give_up_call(world, n);
                Self::crash(world, n);
            }
            Event::Slip(n, slip) => self.slip(world, n, slip),
            Event::LateEffect(call) => Self::late_effect(world, call),
            Event::TimeOut(n) => (world.actors[n].timed_out, world.actors[n].gave_up) = (true, true),
            _ => {
                Self::gate_event(world, event);
                Self::node_event(world, event);
                self.local_event(world, event);
            }
        }
    }

    fn crash(world: &mut World, n: usize) {
        let id = runner(world, n).id;
        world.leases.0.remove(&id);
        let actor = &mut world.actors[n];
        (actor.at, actor.timed_out, actor.crashes) = (At::Away, false, actor.crashes + 1);
    }

    pub fn apply(world: &mut World, change: &LockChange<'_>) -> Option<Applied> {
        let limits = Self::limits();
        let at = Moment { leases: &world.leases, now: world.now, aging: AGING, limits: &limits };
        let mut after = (*world.lock).clone();
        let applied = after.apply(change, &at).ok()?;
        after.events.clear();
        after.finished.clear();
        if after != *world.lock {
            world.lock = after.into();
        }
        Some(applied)
    }

    pub fn change(world: &mut World, n: usize, change: &RecordChange) -> Option<Applied> {
        let (uid, fence) = (uid(n), world.actors[n].fence);
        Self::apply(world, &LockChange::Driven { uid: &uid, fence, change })
    }

    /// Begins a process. Its predecessor is detected as dead, but calls from it can still arrive.
    fn begin(&self, world: &mut World, n: usize) -> bool {
        world.now += PAUSE;
        world.actors[n].run += 1;
        Self::forget_calls(world, n);
        if world.actors[n].run > self.most_runs() {
            world.wrong = Some(RUNS);
            return true;
        }
        let (runner, token) = (runner(world, n), token(world, n));
        world.leases.0.insert(runner.id.clone(), Timestamp::MAX);
        let uid = uid(n);
        let applied = match world.actors[n].goal {
            Goal::Hold => {
                let request = self.request(world, n);
                Self::apply(world, &LockChange::Enqueue { request: &request, claims: &[], token })
            }
            _ if world.record(n).is_none() => {
                world.actors[n].goal = Goal::Over;
                return true;
            }
            _ => {
                let change = LockChange::Attach { uid: &uid, runner: &runner, token, state: "", owner: None };
                Self::apply(world, &change)
            }
        };
        if applied.is_none() && self.is_child(n) {
            // The maintenance has ended in between.
            world.actors[n].goal = Goal::Over;
            return true;
        }
        let fence = match applied {
            Some(Applied::Enqueued { fence: Some(fence), .. } | Applied::Attached { fence, .. }) => fence,
            other => panic!("{other:?}"),
        };
        (world.actors[n].fence, world.actors[n].at) = (fence, At::Driving);
        true
    }

    /// Runs one round of `Reconciler::drive` up to its action. Its reading can be old when it acts.
    fn decide(&self, world: &mut World, n: usize) -> bool {
        let goal = match world.actors[n].goal {
            Goal::Hold => Aim::Hold(WaitFor::InMaintenance),
            _ => Aim::Release(Ending::Completed),
        };
        let timed_out = world.actors[n].timed_out;
        let intent = Objective { goal, stop: false, timed_out, waited: None };
        let (uid, limits, mut facts) = (uid(n), Self::limits(), Facts::default());
        if self.is_child(n) {
            facts.outer_gates = world.gates.len() - 1;
        }
        if !self.is_child(n) {
            Self::see(world, n);
        }
        let mut lock = (*world.lock).clone();
        if self.broken == Broken::KeepsAsking {
            lock.extension.restrictions.block = None;
        }
        let decision = loop {
            let decision = decide(&DecisionInput {
                lock: &lock,
                leases: &world.leases,
                now: world.now,
                queue: &Queue::default(),
                uid: &uid,
                fence: world.actors[n].fence,
                intent: &intent,
                facts: &facts,
                limits: &limits,
                aging: AGING,
            });
            match decision {
                Decision::Look(Need::Gate(place)) if !facts.gates.contains_key(&place) => {
                    facts.gates.insert(place, self.view(world, n, place));
                }
                Decision::Look(_) if facts.machine.is_none() => {
                    facts = Facts { gates: facts.gates, outer_gates: facts.outer_gates, ..world.machine.facts() };
                }
                Decision::Look(need) => panic!("{need:?} is not in this world"),
                decision => break decision,
            }
        };
        if matches!(decision, Decision::Wait { .. }) {
            if self.is_kept(world) && self.keeps_a_gate(world, n) {
                world.wrong = Some(KEPT);
                return true;
            }
            return false;
        }
        if matches!(decision, Decision::Ask { enter: true, .. }) && self.is_kept(world) {
            world.wrong = Some(KEPT);
        }
        if self.is_child(n) && matches!(decision, Decision::Act(Action::Reset(_))) && self.serves_again(world) {
            world.wrong = Some(DISTURBED);
        }
        let decision = match decision {
            Decision::Ask { enter: true, .. } if self.broken == Broken::AllAtOnce => {
                let last = world.gates.len() - 1;
                let place = (0..=last).rev().find(|place| world.gates[*place].of.is_none()).unwrap_or(last);
                Decision::Ask { place, enter: true }
            }
            Decision::Ask { enter: false, .. } if self.broken == Broken::OuterWithdrawnFirst => {
                Decision::Ask { place: 0, enter: false }
            }
            decision => decision,
        };
        world.actors[n].at = At::Planned(decision);
        true
    }

    /// Returns true if a waiter has a request at an external gate, which can be granted, and
    /// withdraws none.
    fn keeps_a_gate(&self, world: &World, n: usize) -> bool {
        // The outer request is withdrawn after the inner gate is free.
        if world.gates.iter().any(|gate| gate.has_of(n) == Some(Has::Returning)) {
            return false;
        }
        let waits = world.record(n).is_some_and(|record| record.phase == Phase::Pending);
        let has = |gate: &Gate| gate.has_of(n).is_some();
        waits && world.gates.iter().zip(&self.links).any(|(gate, link)| link.is_external() && has(gate))
    }

    /// Returns true if a gate revoked the server but leaves it to the maintenance: its Node can run
    /// workloads again.
    fn serves_again(&self, world: &World) -> bool {
        let outer = world.gates.iter().zip(&self.links).take(world.gates.len() - 1);
        { outer }.any(|(gate, link)| link.loss == Loss::Restore && gate.of != Some((0, Has::Granted)))
    }

    fn go_on(&self, world: &mut World, n: usize) -> bool {
        match world.actors[n].at.clone() {
            At::Planned(decision) => self.carry_out(world, n, decision),
            at @ At::Asking { .. } => {
                world.actors[n].at = At::Driving;
                self.carry_out_call(world, n, &at);
            }
            at @ At::Calling(_) => {
                self.carry_out_call(world, n, &at);
                world.actors[n].at = At::Called(Reply::Accepted);
            }
            At::Called(reply) => {
                let _ = Self::change(world, n, &RecordChange::Replied(reply));
                world.actors[n].at = At::Driving;
            }
            At::Withdrawing => return self.withdraw(world, n, &RecordChange::Withdraw),
            At::Accepting => return self.withdraw(world, n, &Self::as_it_is()),
            At::Away | At::Driving => {}
        }
        true
    }

    fn carry_out(&self, world: &mut World, n: usize, decision: Decision) {
        world.actors[n].at = At::Driving;
        match decision {
            Decision::Ask { place, enter } => {
                if self.broken != Broken::NoNote {
                    let _ = Self::change(world, n, &RecordChange::AskExternal(place));
                }
                world.actors[n].at = At::Asking { place, enter };
            }
            Decision::Act(Action::Record) => {
                let prior = PriorState {
                    power: world.machine.power(),
                    boot: None,
                    media: Vec::new(),
                    recorded_at: Timestamp::UNIX_EPOCH,
                };
                let _ = Self::change(world, n, &RecordChange::Prior(Box::new(prior)));
            }
            Decision::Act(action) => {
                let intent = RecordChange::Intend { action: action.clone(), last_reset: None };
                if Self::change(world, n, &intent) == Some(Applied::Done) {
                    world.actors[n].at = At::Calling(action);
                }
            }
            Decision::Change(RecordChange::Withdraw) | Decision::Finished(Finish::Refused(_)) => {
                world.actors[n].at = At::Withdrawing;
            }
            Decision::Change(change) => self.commit(world, n, &change),
            Decision::Finished(finish) => Self::finish(world, n, &finish),
            Decision::Look(_) | Decision::Wait { .. } => {}
        }
    }

    pub fn commit(&self, world: &mut World, n: usize, change: &RecordChange) {
        let ends = matches!(change, RecordChange::Finish(_));
        let before = world.record(n).cloned();
        let applied = Self::change(world, n, change);
        let admitted = matches!(change, RecordChange::Admit(_)) && applied == Some(Applied::Done);
        // The next read finds servers that were revoked in the meantime.
        let external = |place: usize| self.links[place].is_external() && !self.is_without(world, n, place);
        if admitted && !world.allow(self.holder(n), external) {
            world.wrong = Some(SLOT);
        }
        if admitted && !self.is_child(n) && self.is_kept(world) {
            world.wrong = Some(LOCAL_GATES);
        }
        // A gate that never granted the server must restore the power that it required off.
        let forced = self.parks && before.as_ref().is_some_and(gate::never_ours);
        let restored = before.is_some_and(|record| gate::may_restore(&record) || !self.ended_by_own(world));
        let ends = ends && !self.is_child(n);
        if ends && matches!(applied, Some(Applied::Finished(_))) && restored && !forced && !world.machine.on {
            world.wrong = Some(RESTORED);
        }
        match applied {
            Some(Applied::Finished(finish)) => Self::finish(world, n, &finish),
            None => Self::finish(world, n, &Finish::Lost),
            _ => {}
        }
    }

    /// Returns true if a gate whose loss ends a maintenance revoked the server.
    fn ended_by_own(&self, world: &World) -> bool {
        let ends = |(gate, link): (&Gate, &crate::chain::Link)| gate.took && link.loss.is_end();
        world.gates.iter().zip(&self.links).any(ends)
    }

    pub fn finish(world: &mut World, n: usize, finish: &Finish) {
        let reached = *finish == Finish::Reached;
        world.actors[n].held |= reached;
        let _ = Self::change(world, n, &RecordChange::Detach);
        let id = runner(world, n).id;
        world.leases.0.remove(&id);
        (world.actors[n].at, world.actors[n].timed_out) = (At::Away, false);
        world.actors[n].goal = match finish {
            // A process without time gives up.
            Finish::Reached | Finish::Stuck(_) | Finish::TimedOut(_) => Goal::Release,
            Finish::Over | Finish::Withdrawn => Goal::Over,
            _ => world.actors[n].goal,
        };
    }
}
