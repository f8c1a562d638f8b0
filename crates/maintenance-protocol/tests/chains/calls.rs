//! Calls and their outcomes, immediate or late.

use maintenance_protocol::{
    change::RecordChange,
    gate::{self, Loss},
    machine::ResetType,
    state::Maintenance,
    step::{Action, Reply},
};

use crate::{
    AWAITED, BACK, ONCE, ORDER, TOUCHED,
    chain::{Broken, Chain},
    gates::Has,
    world::{At, Event, World},
};

/// Outcome of a call that does not end normally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slip {
    /// It is carried out, but its reply is lost.
    NoReply,
    /// It is lost.
    Nothing,
    /// It is abandoned, and arrives later or never.
    Late,
    /// It is rejected.
    Refused,
}

/// An abandoned call to a gate that can still arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnTheWay {
    pub of: usize,
    pub place: usize,
    pub enter: bool,
    /// The run that sent it.
    run: u32,
}

impl Chain {
    pub fn call_events(&self, world: &World, n: usize, events: &mut Vec<Event>) {
        let actor = &world.actors[n];
        let gate = Self::gate_called(world, n);
        if gate.is_some() && actor.crashes < self.crashes && self.slips > 0 {
            events.push(Event::CrashInCall(n));
        }
        if !matches!(actor.at, At::Asking { .. } | At::Calling(_)) || actor.slips >= self.slips {
            return;
        }
        events.extend([Slip::NoReply, Slip::Nothing, Slip::Refused].map(|slip| Event::Slip(n, slip)));
        if gate.is_some() {
            events.push(Event::Slip(n, Slip::Late));
        }
    }

    /// Returns a pending call's gate, and true for entering.
    fn gate_called(world: &World, n: usize) -> Option<(usize, bool)> {
        match &world.actors[n].at {
            At::Asking { place, enter } => Some((*place, *enter)),
            At::Calling(Action::EnterGate) => Some((gate::entering(world.record(n)?)?, true)),
            At::Calling(Action::LeaveGate) => Some((gate::leaving(world.record(n)?)?, false)),
            _ => None,
        }
    }

    /// Abandons a process's call; it can still arrive.
    pub fn give_up_call(world: &mut World, n: usize) {
        if let Some((place, enter)) = Self::gate_called(world, n) {
            let run = world.actors[n].run;
            world.on_the_way.push(OnTheWay { of: n, place, enter, run });
        }
    }

    /// Drops calls that are older than the previous run.
    pub fn forget_calls(world: &mut World, n: usize) {
        let run = world.actors[n].run;
        world.on_the_way.retain(|call| call.of != n || call.run + 2 > run);
    }

    pub fn slip(&self, world: &mut World, n: usize, slip: Slip) {
        world.actors[n].slips += 1;
        let at = world.actors[n].at.clone();
        match slip {
            Slip::NoReply => self.carry_out_call(world, n, &at),
            Slip::Late => Self::give_up_call(world, n),
            Slip::Nothing | Slip::Refused => {}
        }
        let reply = match slip {
            Slip::Refused => Reply::Refused { message: "no".into(), transient: false },
            _ => Reply::Unknown,
        };
        // A rejected waiter leaves the queue, and reads again after any other reply.
        world.actors[n].at = match (at, slip) {
            (At::Asking { .. }, Slip::Refused) => At::Withdrawing,
            (At::Asking { .. }, _) => At::Driving,
            _ => At::Called(reply),
        };
    }

    /// Delivers an abandoned call.
    pub fn late_effect(world: &mut World, call: usize) {
        let OnTheWay { of, place, enter, .. } = world.on_the_way.remove(call);
        let gate = &mut world.gates[place];
        match (enter, gate.of) {
            (true, None) => (gate.of, gate.stray) = (Some((of, Has::Requested)), true),
            (false, Some((n, _))) if n == of => gate.take(Some(Has::Returning)),
            _ => {}
        }
    }

    pub fn carry_out_call(&self, world: &mut World, n: usize, at: &At) {
        match at {
            At::Asking { place, enter: true } => self.enter(world, n, *place),
            At::Asking { place, enter: false } => self.leave(world, n, *place),
            At::Calling(action) => self.call(world, n, action),
            _ => {}
        }
    }

    fn call(&self, world: &mut World, n: usize, action: &Action) {
        let record = world.record(n).cloned();
        match action {
            Action::EnterGate => {
                if let Some(place) = record.as_ref().and_then(gate::entering) {
                    self.enter(world, n, place);
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
                // A gate can wait until the server is off.
                let parks = record.as_ref().and_then(gate::entering).filter(|_| self.parks);
                let chosen = |place| !self.is_without(world, n, place) && parks.is_none_or(|parks| place < parks);
                let holds = world.allow(self.holder(n), chosen);
                if !holds || record.as_ref().is_some_and(is_over) {
                    world.wrong = Some(TOUCHED);
                }
                world.machine.on = *reset == ResetType::On;
                world.node = world.node.after_reset();
            }
            _ => {}
        }
    }

    fn enter(&self, world: &mut World, n: usize, place: usize) {
        if !world.allow(n, |other| other < place && !self.is_without(world, n, other)) {
            world.wrong = Some(ORDER);
        }
        Self::only_before(world, n, place);
        if world.gates[place].of.is_none() {
            world.gates[place].of = Some((n, Has::Requested));
        }
    }

    fn leave(&self, world: &mut World, n: usize, place: usize) {
        if place == 0 && self.leaves_node_behind(world, n) {
            world.wrong = Some(AWAITED);
        }
        if world.gates[place + 1..].iter().any(|gate| gate.has_of(n).is_some() && !gate.stray) {
            world.wrong = Some(BACK);
        }
        Self::only_before(world, n, place);
        if world.gates[place].has_of(n).is_some() {
            Self::left_by_call(world, place);
        }
    }

    /// Reports a call to a gate that the record has already left.
    fn only_before(world: &mut World, n: usize, place: usize) {
        if world.record(n).is_some_and(|record| record.gates[place].left) {
            world.wrong = Some(ONCE);
        }
    }

    /// Withdraws the requests before a record leaves the queue, as the engine does: gate by gate,
    /// innermost first.
    pub fn withdraw(&self, world: &mut World, n: usize, end: &RecordChange) -> bool {
        let left = |place: usize| world.record(n).is_some_and(|record| record.gates[place].left);
        let ours = |place: &usize| world.gates[*place].has_of(n).is_some() && !left(*place);
        match (0..world.gates.len()).rev().find(ours) {
            Some(place) if world.gates[place].has_of(n) == Some(Has::Returning) => return false,
            Some(place) => {
                Self::see(world, n);
                self.leave(world, n, place);
            }
            None => self.commit(world, n, end),
        }
        true
    }
}

/// Returns true if the record shows that a gate ended the maintenance.
fn is_over(record: &Maintenance) -> bool {
    record.gates.iter().any(|gate| gate.lost.is_some() && gate.system.loss == Loss::EndsHold)
}
