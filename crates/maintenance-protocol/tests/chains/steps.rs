//! What happens: what `src/engine` does around production `decide` and `apply`, one event at a
//! time, and what gates do.

use jiff::Timestamp;
use maintenance_protocol::{
    change::{Applied, LockChange, Moment, RecordChange},
    decide::{Decision, DecisionInput, Finish, Goal as Aim, Objective, decide},
    gate::{self, Loss},
    machine::{PowerState, ResetType},
    power::Need,
    prepare::Facts,
    queue::Queue,
    spec::WaitFor,
    state::{Ending, Phase, PriorState},
    step::{Action, Reply},
};

use crate::{
    AWAITED, BACK, DISTURBED, KEPT, ORDER, RESTORED, RUNS, SLOT, TOUCHED,
    records::AGING,
    world::{At, Broken, Chain, Event, Goal, Has, PAUSE, World, runner, token, uid},
};

/// How many runs of one configuration are enough, besides those that crash: one to hold, one to
/// release, and one more for each of what a gate may do once.
const MOST_RUNS: u32 = 4;

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
        }
        self.node_events(world, events);
        match (self.blocks, world.is_blocked()) {
            (true, false) if !world.was_blocked => events.push(Event::Block),
            (_, true) => events.push(Event::Unblock),
            _ => {}
        }
        for (place, gate) in world.gates.iter().enumerate() {
            match gate.of {
                Some((_, Has::Requested)) => events.push(Event::Grant(place)),
                Some((_, Has::Granted)) if self.takes_away && !gate.took => events.push(Event::TakeAway(place)),
                Some((_, Has::Returning)) => events.push(Event::Free(place)),
                None if self.refuses && !gate.refuses => events.push(Event::Refuse(place)),
                _ => {}
            }
        }
    }

    /// What acts under a maintenance begins once that has the server, and is over with it.
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
            Event::Crash(n) => {
                let id = runner(&world, n).id;
                world.leases.0.remove(&id);
                let actor = &mut world.actors[n];
                (actor.at, actor.crashes) = (At::Away, actor.crashes + 1);
                true
            }
            Event::Grant(place) => {
                let of = world.gates[place].of.map(|(n, _)| (n, Has::Granted));
                world.gates[place].of = of;
                true
            }
            Event::Free(place) => {
                world.gates[place].of = None;
                true
            }
            Event::Refuse(place) => {
                world.gates[place].refuses = true;
                true
            }
            Event::NodeLost | Event::NodeBack | Event::Late(_) => {
                Self::node_event(&mut world, event);
                true
            }
            Event::Accept(n) => Self::accept(&mut world, n),
            Event::Block => {
                world.block();
                true
            }
            Event::Unblock => {
                world.lock.extension.restrictions.block = None;
                true
            }
            Event::TakeAway(place) => {
                (world.gates[place].of, world.gates[place].took) = (None, true);
                true
            }
        };
        happened.then_some(world)
    }

    pub fn apply(world: &mut World, change: &LockChange<'_>) -> Option<Applied> {
        let limits = Self::limits();
        let at = Moment { leases: &world.leases, now: world.now, aging: AGING, limits: &limits };
        let mut after = world.lock.clone();
        let applied = after.apply(change, &at).ok()?;
        after.events.clear();
        after.finished.clear();
        world.lock = after;
        Some(applied)
    }

    pub fn change(world: &mut World, n: usize, change: &RecordChange) -> Option<Applied> {
        let (uid, fence) = (uid(n), world.actors[n].fence);
        Self::apply(world, &LockChange::Driven { uid: &uid, fence, change })
    }

    /// A process begins: what died before it is known to be dead, and its calls are over.
    fn begin(&self, world: &mut World, n: usize) -> bool {
        world.now += PAUSE;
        world.actors[n].run += 1;
        if world.actors[n].run > u32::from(self.crashes) + MOST_RUNS {
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
            // The maintenance ended meanwhile.
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

    /// One round of `Reconciler::drive` up to what it does. What it sees is old when it does it.
    fn decide(&self, world: &mut World, n: usize) -> bool {
        let goal = match world.actors[n].goal {
            Goal::Hold => Aim::Hold(WaitFor::InMaintenance),
            _ => Aim::Release(Ending::Completed),
        };
        let intent = Objective { goal, stop: false, timed_out: false, waited: None };
        let (uid, limits, mut facts) = (uid(n), Self::limits(), Facts::default());
        if self.is_child(n) {
            facts.outer_gates = world.gates.len() - 1;
        }
        let mut lock = world.lock.clone();
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
            if world.is_blocked() && self.keeps_a_gate(world, n) {
                world.wrong = Some(KEPT);
                return true;
            }
            return false;
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

    /// Whether a waiter has a request at an external gate, which may be granted, and withdraws
    /// none.
    fn keeps_a_gate(&self, world: &World, n: usize) -> bool {
        // The one before it is withdrawn once it is really back.
        if world.gates.iter().any(|gate| gate.of == Some((n, Has::Returning))) {
            return false;
        }
        let waits = world.record(n).is_some_and(|record| record.phase == Phase::Pending);
        let has = |gate: &crate::world::Gate| matches!(gate.of, Some((of, Has::Requested | Has::Granted)) if of == n);
        waits && world.gates.iter().zip(&self.links).any(|(gate, link)| link.is_external() && has(gate))
    }

    /// Whether a gate took the server away whose loss leaves it to the maintenance: its Node may
    /// run workloads again.
    fn serves_again(&self, world: &World) -> bool {
        let outer = world.gates.iter().zip(&self.links).take(world.gates.len() - 1);
        { outer }.any(|(gate, link)| link.loss == Loss::Restore && gate.of != Some((0, Has::Granted)))
    }

    fn go_on(&self, world: &mut World, n: usize) -> bool {
        match world.actors[n].at.clone() {
            At::Planned(decision) => self.carry_out(world, n, decision),
            At::Asking { place, enter } => {
                world.actors[n].at = At::Driving;
                if enter { Self::enter(world, n, place) } else { self.leave(world, n, place) }
            }
            At::Calling(action) => {
                self.call(world, n, &action);
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
                    last_reset: None,
                    recorded_at: Timestamp::UNIX_EPOCH,
                };
                let _ = Self::change(world, n, &RecordChange::Prior(Box::new(prior)));
            }
            Decision::Act(action) => {
                if Self::change(world, n, &RecordChange::Intend(action.clone())) == Some(Applied::Done) {
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

    fn commit(&self, world: &mut World, n: usize, change: &RecordChange) {
        let ends = matches!(change, RecordChange::Finish(_));
        let before = world.record(n).cloned();
        let applied = Self::change(world, n, change);
        let admitted = matches!(change, RecordChange::Admit(_)) && applied == Some(Applied::Done);
        // What a gate took away meanwhile is found by the next look.
        let external = |place: usize| self.links[place].is_external() && !world.gates[place].took;
        if admitted && !world.allow(self.holder(n), external) {
            world.wrong = Some(SLOT);
        }
        let restored = before.is_some_and(|record| gate::may_restore(&record) || !self.ended_by_own(world));
        let ends = ends && !self.is_child(n);
        if ends && matches!(applied, Some(Applied::Finished(_))) && restored && !world.machine.on {
            world.wrong = Some(RESTORED);
        }
        match applied {
            Some(Applied::Finished(finish)) => Self::finish(world, n, &finish),
            None => Self::finish(world, n, &Finish::Lost),
            _ => {}
        }
    }

    /// Whether a gate took the server away whose loss ends a hold.
    fn ended_by_own(&self, world: &World) -> bool {
        let ends = |(gate, link): (&crate::world::Gate, &crate::world::Link)| gate.took && link.loss.is_end();
        world.gates.iter().zip(&self.links).any(ends)
    }

    pub fn finish(world: &mut World, n: usize, finish: &Finish) {
        let reached = *finish == Finish::Reached;
        world.actors[n].held |= reached;
        let _ = Self::change(world, n, &RecordChange::Detach);
        world.actors[n].at = At::Away;
        world.actors[n].goal = match finish {
            Finish::Reached | Finish::Stuck(_) => Goal::Release,
            Finish::Over | Finish::Withdrawn => Goal::Over,
            _ => world.actors[n].goal,
        };
    }

    /// What the engine does before a record leaves the queue: each gate is waited for, the
    /// innermost first.
    fn withdraw(&self, world: &mut World, n: usize, end: &RecordChange) -> bool {
        let ours = |place: &usize| matches!(world.gates[*place].of, Some((of, _)) if of == n);
        match (0..world.gates.len()).rev().find(ours) {
            Some(place) if world.gates[place].of == Some((n, Has::Returning)) => return false,
            Some(place) => self.leave(world, n, place),
            None => self.commit(world, n, end),
        }
        true
    }

    fn call(&self, world: &mut World, n: usize, action: &Action) {
        let record = world.record(n).cloned();
        match action {
            Action::EnterGate => {
                if let Some(place) = record.as_ref().and_then(gate::entering) {
                    Self::enter(world, n, place);
                }
            }
            Action::LeaveGate => {
                let place = match self.broken {
                    Broken::OuterFirst => record.as_ref().map(|_| 0),
                    _ => record.as_ref().and_then(gate::leaving),
                };
                if let Some(place) = place {
                    self.leave(world, n, place);
                }
            }
            Action::Reset(reset) => {
                if !world.allow(self.holder(n), |place| !world.gates[place].took) {
                    world.wrong = Some(TOUCHED);
                }
                world.machine.on = *reset == ResetType::On;
                world.node = world.node.after_reset();
                debug_assert!(matches!(world.machine.power(), PowerState::On | PowerState::Off));
            }
            _ => {}
        }
    }

    fn enter(world: &mut World, n: usize, place: usize) {
        if !world.allow(n, |other| other < place && !world.gates[other].took) {
            world.wrong = Some(ORDER);
        }
        if world.gates[place].of.is_none() {
            world.gates[place].of = Some((n, Has::Requested));
        }
    }

    fn leave(&self, world: &mut World, n: usize, place: usize) {
        if place == 0 && self.leaves_node_behind(world, n) {
            world.wrong = Some(AWAITED);
        }
        let inner = |gate: &crate::world::Gate| matches!(gate.of, Some((of, _)) if of == n);
        if world.gates[place + 1..].iter().any(inner) {
            world.wrong = Some(BACK);
        }
        if matches!(world.gates[place].of, Some((of, _)) if of == n) {
            world.gates[place].of = Some((n, Has::Returning));
        }
    }
}
