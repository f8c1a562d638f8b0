//! The gates: what they have of whom, what they do by themselves, and what a process sees of them.

use maintenance_protocol::{
    gate::{ExternalState, GateView, Loss, QueueAuthority},
    state::Phase,
};

use crate::{
    chain::{Broken, Chain},
    world::{Event, World},
};

/// What a gate has of a maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Has {
    Requested,
    Granted,
    /// It is there, and holds nothing now or ever.
    Failed,
    /// It is there, and what it held is another author's.
    Lost,
    /// It was taken back, and is not free yet.
    Returning,
    /// It is gone, and something of it is still there.
    Leftovers,
}

#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Gate {
    pub of: Option<(usize, Has)>,
    pub refuses: bool,
    /// Whether it took a server away: it does that once.
    pub took: bool,
    /// Whether that was since the one who has it looked last.
    pub unseen: bool,
    /// Whether a request failed: that is once.
    pub failed: bool,
    /// Whether it left something behind: that is once.
    pub lingered: bool,
    /// Whether what it has was made by a call that came late, and was not seen since.
    pub stray: bool,
}

impl Gate {
    /// What it has of this one.
    pub fn has_of(&self, n: usize) -> Option<Has> {
        self.of.filter(|(of, _)| *of == n).map(|(_, has)| has)
    }

    /// It does not hold the server any more.
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
                // A waiter leaves that to a person, and waits as long as it has time.
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

    /// What a call to leave a gate does there.
    pub fn left_by_call(world: &mut World, place: usize) {
        let gate = &mut world.gates[place];
        gate.of = gate.of.map(|(of, _)| (of, Has::Returning));
        gate.stray = false;
    }

    /// This one looks at all gates: what was unseen is seen.
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

    /// Whether this gate took the server away and the one who acts does not know it, or knows it
    /// and goes on without this gate.
    pub fn is_without(&self, world: &World, n: usize, place: usize) -> bool {
        let gate = &world.gates[place];
        if self.is_child(n) {
            return gate.took;
        }
        let Some(record) = world.record(n) else { return gate.unseen };
        let gives_back = matches!(record.phase, Phase::Releasing { .. }) && self.links[place].loss == Loss::Restore;
        gate.unseen || gives_back || record.gates[place].lost.is_some()
    }

    /// Whether this gate shows a request as one that waits, and not as one that is acted on.
    fn waits_openly(&self, place: usize) -> bool {
        match self.links[place].order {
            QueueAuthority::Theirs => true,
            QueueAuthority::OnTurn => false,
            QueueAuthority::Ours => self.parks,
        }
    }

    /// What a process sees of its request.
    pub fn view(&self, world: &World, n: usize, place: usize) -> GateView {
        let (gate, child, n) = (&world.gates[place], self.is_child(n), self.holder(n));
        let asked = world.record(n).is_some_and(|record| record.gates[place].asked);
        let said = || format!("gate {place}");
        let standing = match gate.of {
            _ if child && self.broken == Broken::ChildIsBlind => ExternalState::Granted,
            None if gate.refuses && !asked => ExternalState::Refused(said()),
            None => ExternalState::Absent,
            Some((of, _)) if of != n => ExternalState::Taken(said()),
            Some((_, Has::Requested)) if self.broken == Broken::GrantsUnseen => ExternalState::Granted,
            Some((_, Has::Requested)) if self.waits_openly(place) => ExternalState::Waiting(said()),
            Some((_, Has::Requested)) => ExternalState::Entering(said()),
            Some((_, Has::Granted)) => ExternalState::Granted,
            Some((_, Has::Failed)) if self.broken == Broken::FailedIsGone => ExternalState::Absent,
            Some((_, Has::Failed)) => ExternalState::Failed(said()),
            Some((_, Has::Lost)) => ExternalState::Lost(said()),
            Some((_, Has::Returning)) if self.broken == Broken::NotReallyBack => ExternalState::Absent,
            Some((_, Has::Returning)) => ExternalState::Returning(said()),
            Some((_, Has::Leftovers)) if self.broken == Broken::LeftoversAreGone => ExternalState::Absent,
            Some((_, Has::Leftovers)) => ExternalState::Leftovers(said()),
        };
        let memory = [("before".to_owned(), "free".to_owned())].into();
        let awaited = (standing == ExternalState::Granted && place == 0).then(|| self.awaited(world, n)).flatten();
        GateView { memory, awaited, ..GateView::of(standing) }
    }

    /// Whatever a gate has belongs to a record that is active and notes it.
    pub fn noted(world: &World) -> bool {
        world.gates.iter().enumerate().filter(|(_, gate)| !gate.stray).all(|(place, gate)| match gate.of {
            None | Some((_, Has::Returning)) => true,
            Some((n, _)) => world.record(n).is_some_and(|record| record.gates[place].asked),
        })
    }

    /// What is over has nothing at any gate, but for what a late call made.
    pub fn left(&self, world: &World) -> bool {
        (0..self.actors).filter(|n| world.record(*n).is_none() && world.actors[*n].run > 0).all(|n| {
            let ours = |gate: &Gate| !gate.stray && !matches!(gate.has_of(n), None | Some(Has::Returning));
            !world.gates.iter().any(ours)
        })
    }
}
