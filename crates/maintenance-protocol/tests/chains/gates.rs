//! The gates: their requests, their own events, and the view that a process has of them.

use maintenance_protocol::{
    gate::{ExternalState, GateView, Loss, QueueAuthority},
    state::Phase,
};

use crate::{
    chain::{Broken, Chain},
    world::{Event, World},
};

/// A gate's state for a maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Has {
    Requested,
    Granted,
    /// The request exists, but will never be granted.
    Failed,
    /// The request exists, but another author has the server.
    Lost,
    /// It was withdrawn, but the gate is not free yet.
    Returning,
    /// It was deleted, but leftovers exist.
    Leftovers,
}

#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Gate {
    pub of: Option<(usize, Has)>,
    pub refuses: bool,
    /// True after it revoked a server, which happens once.
    pub took: bool,
    /// True if the holder has not read it since then.
    pub unseen: bool,
    /// True after a request failed, which happens once.
    pub failed: bool,
    /// True after it kept leftovers, which happens once.
    pub lingered: bool,
    /// True if its request came from a late call and was not read since.
    pub stray: bool,
}

impl Gate {
    /// Returns its state for an actor.
    pub fn has_of(&self, n: usize) -> Option<Has> {
        self.of.filter(|(of, _)| *of == n).map(|(_, has)| has)
    }

    /// Revokes the server.
    pub fn take(&mut self, becomes: Option<Has>) {
        if matches!(self.of, Some((_, Has::Granted))) {
            (self.took, self.unseen) = (true, true);
        }
        self.of = self.of.and_then(|(of, _)| Some((of, becomes?)));
    }
}

impl Chain {
    pub fn gate_events(&self, world: &World, events: &mut Vec<Event>) {
        for (place, gate) in world.gates.iter().enumerate() {
            let Some((of, has)) = gate.of else {
                if self.refuses && !gate.refuses {
                    events.push(Event::Refuse(place));
                }
                continue;
            };
            let record = world.record(of);
            match has {
                Has::Requested if self.parks && !self.links[place].is_external() && world.machine.on => {}
                Has::Requested => events.push(Event::Grant(place)),
                Has::Granted if self.takes_away && !gate.took => events.push(Event::TakeAway(place)),
                Has::Returning => events.push(Event::Free(place)),
                _ => {}
            }
            if matches!(has, Has::Requested | Has::Granted) && self.fails && !gate.failed {
                events.push(Event::Fail(place));
                // A person must resolve that; a waiter waits until its time limit.
                let waits = record.is_some_and(|record| record.phase == Phase::Pending);
                if !waits || self.times_out {
                    events.push(Event::Lose(place));
                }
            }
            if has == Has::Returning && self.lingers && !gate.lingered {
                events.push(Event::Linger(place));
            }
            let orphan = gate.stray && record.is_none() && has != Has::Returning;
            if orphan && self.broken != Broken::NeverTidied {
                events.push(Event::Tidy(place));
            }
        }
    }

    pub fn gate_event(world: &mut World, event: Event) {
        let gates = &mut world.gates;
        match event {
            Event::Grant(place) => gates[place].of = gates[place].of.map(|(n, _)| (n, Has::Granted)),
            Event::Free(place) => (gates[place].of, gates[place].stray) = (None, false),
            Event::Refuse(place) => gates[place].refuses = true,
            Event::TakeAway(place) => gates[place].take(None),
            Event::Fail(place) => {
                gates[place].take(Some(Has::Failed));
                gates[place].failed = true;
            }
            Event::Lose(place) => {
                gates[place].take(Some(Has::Lost));
                gates[place].failed = true;
            }
            Event::Linger(place) => {
                gates[place].take(Some(Has::Leftovers));
                gates[place].lingered = true;
            }
            Event::Tidy(place) => gates[place].take(Some(Has::Returning)),
            _ => {}
        }
    }

    /// Applies a leave call.
    pub fn left_by_call(world: &mut World, place: usize) {
        let gate = &mut world.gates[place];
        gate.of = gate.of.map(|(of, _)| (of, Has::Returning));
        gate.stray = false;
    }

    /// Reads all gates for an actor.
    pub fn see(world: &mut World, n: usize) {
        let left: Option<Vec<bool>> = world.record(n).map(|record| record.gates.iter().map(|gate| gate.left).collect());
        for (place, gate) in world.gates.iter_mut().enumerate() {
            gate.unseen = false;
            let goes_on = left.as_ref().is_some_and(|left| !left.get(place).copied().unwrap_or(true));
            if gate.has_of(n).is_some() && goes_on {
                gate.stray = false;
            }
        }
    }

    /// Returns true if this gate revoked the server and the actor either has not read that or
    /// continues without the gate.
    pub fn is_without(&self, world: &World, n: usize, place: usize) -> bool {
        let gate = &world.gates[place];
        if self.is_child(n) {
            return gate.took;
        }
        let Some(record) = world.record(n) else { return gate.unseen };
        let gives_back = matches!(record.phase, Phase::Releasing { .. }) && self.links[place].loss == Loss::Restore;
        gate.unseen || gives_back || record.gates[place].lost.is_some()
    }

    /// Returns true if this gate shows a queued request as waiting.
    fn waits_openly(&self, place: usize) -> bool {
        match self.links[place].order {
            QueueAuthority::Theirs => true,
            QueueAuthority::OnTurn => false,
            QueueAuthority::Ours => self.parks,
        }
    }

    /// Returns a process's view of its request.
    pub fn view(&self, world: &World, n: usize, place: usize) -> GateView {
        let (gate, child, n) = (&world.gates[place], self.is_child(n), self.holder(n));
        let asked = world.record(n).is_some_and(|record| record.gates[place].asked);
        let said = || format!("gate {place}");
        let standing = match gate.of {
            _ if child && self.broken == Broken::ChildIsBlind => ExternalState::Granted,
            None if gate.refuses && !asked => ExternalState::Refused(said().into()),
            None => ExternalState::Absent,
            Some((of, _)) if of != n => ExternalState::Taken(said().into()),
            Some((_, Has::Requested)) if self.broken == Broken::GrantsUnseen => ExternalState::Granted,
            Some((_, Has::Requested)) if self.waits_openly(place) => ExternalState::Waiting(said().into()),
            Some((_, Has::Requested)) => ExternalState::Entering(said().into()),
            Some((_, Has::Granted)) => ExternalState::Granted,
            Some((_, Has::Failed)) if self.broken == Broken::FailedIsGone => ExternalState::Absent,
            Some((_, Has::Failed)) => ExternalState::Failed(said().into()),
            Some((_, Has::Lost)) => ExternalState::Lost(said().into()),
            Some((_, Has::Returning)) if self.broken == Broken::NotReallyBack => ExternalState::Absent,
            Some((_, Has::Returning)) => ExternalState::Returning(said().into()),
            Some((_, Has::Leftovers)) if self.broken == Broken::LeftoversAreGone => ExternalState::Absent,
            Some((_, Has::Leftovers)) => ExternalState::Leftovers(said().into()),
        };
        let memory = [("before".to_owned(), "free".to_owned())].into();
        let awaited = (standing == ExternalState::Granted && place == 0).then(|| self.awaited(world, n)).flatten();
        GateView { memory, awaited, ..GateView::of(standing) }
    }

    /// Checks that each gate request is recorded in an active record.
    pub fn noted(world: &World) -> bool {
        world.gates.iter().enumerate().filter(|(_, gate)| !gate.stray).all(|(place, gate)| match gate.of {
            None | Some((_, Has::Returning)) => true,
            Some((n, _)) => world.record(n).is_some_and(|record| record.gates[place].asked),
        })
    }

    /// Checks that no ended record has a request at a gate, except from late calls.
    pub fn left(&self, world: &World) -> bool {
        (0..self.actors).filter(|n| world.record(*n).is_none() && world.actors[*n].run > 0).all(|n| {
            let ours = |gate: &Gate| !gate.stray && !matches!(gate.has_of(n), None | Some(Has::Returning));
            !world.gates.iter().any(ours)
        })
    }
}
