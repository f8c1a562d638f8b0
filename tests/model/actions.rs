//! What may happen next, by which rules.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex},
};

use stateright::{Model, Property};

use crate::{
    process::{decide, leave, left_call, note, settle_dead, stop},
    world::{At, Goal, Plan, Role, TICK, World},
};

/// A rule that is left out, to see that it is needed and that its absence is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The rules as they are.
    Nothing,
    /// The process does not ask its own clock, neither before the call nor for the call's time limit.
    NoClock,
    /// The process asks its own clock before the call, but the call may last as long as a lease from its beginning.
    NoBound,
    /// The intent is recorded without asking whether this process may act.
    NoMayAct,
    /// Whoever acted under a hold and is silent keeps its turn when the hold acts itself.
    SilentKeepsTurn,
    /// A hold is ended on what was read before, without asking again whether something acts under it.
    NoMayActAtEnd,
    /// A renewal between the check of the store and the call counts for the call.
    LaterRenewalCounts,
    /// The process counts its lease from the reply to a renewal, not from its beginning.
    RenewalCountsFromReply,
    /// Whoever took a hold from somebody touches the machine at once.
    NoWaitAfterSeize,
    /// Whoever took a hold from somebody waits for it, but only its own process knows of that.
    SeizeWaitsInMemory,
    /// An absent holder is dropped like an absent waiter.
    DropsHolders,
    /// The end of a maintenance forgets which generations were given out.
    ForgetsGenerations,
    /// Nobody gives the server back.
    NeverGivesBack,
}

/// One thing that happens. The number is whose process does it, or to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time passes, for everybody.
    Tick,
    /// A process is started; it makes its lease and takes its right to act.
    Enter(usize),
    /// The same, but the store's reply is lost: the process ends with an error.
    EnterUnheard(usize),
    /// A process that waits for its turn is asked to stop, or any that waits: it gives its right to act back and ends.
    Stop(usize),
    /// A process ends without a word.
    Crash(usize),
    /// The lease of a process that is known to be gone is ended.
    SettleDead(usize),
    /// The lease is renewed; the process hears of it at once.
    Renew(usize),
    /// The lease is renewed with a renewal that was begun one tick ago.
    RenewLate(usize),
    /// The lease is renewed, and the process never hears of it.
    RenewUnheard(usize),
    /// The process reads the store and decides.
    Decide(usize),
    /// What it decided is applied by the store.
    Commit(usize),
    /// The process looks at its own clock and begins the call.
    Begin(usize),
    /// The call changes the machine, and the machine answers.
    Land(usize),
    /// The call ends without an answer.
    CutOff(usize),
    /// The answer is recorded.
    Note(usize),
    /// Whoever took a hold has waited long enough.
    Resume(usize),
}

impl Event {
    /// Whether this is something that goes wrong, or that a person does on top of what was asked.
    fn is_fault(self) -> bool {
        matches!(
            self,
            Self::EnterUnheard(_)
                | Self::Stop(_)
                | Self::Crash(_)
                | Self::RenewLate(_)
                | Self::RenewUnheard(_)
                | Self::CutOff(_)
        )
    }
}

/// Who takes part, and by which rules.
#[derive(Clone, Debug)]
pub struct Protocol {
    roles: Vec<Role>,
    pub broken: Broken,
    /// Without replies that are late or lost and without stops: for a larger number of processes.
    calm: bool,
    /// The states from which a fair continuation is known to come to an end; it is the same one from each of them on.
    pub known_to_end: Arc<Mutex<HashSet<u64>>>,
}

impl Protocol {
    pub fn new(roles: &[Role], broken: Broken) -> Self {
        Self { roles: roles.to_vec(), broken, calm: false, known_to_end: Arc::default() }
    }

    pub fn calm(self) -> Self {
        Self { calm: true, ..self }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.roles)?;
        if self.broken != Broken::Nothing {
            write!(f, " with {:?}", self.broken)?;
        }
        if self.calm { write!(f, ", calm") } else { Ok(()) }
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.roles)]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        events.push(Event::Tick);
        for (n, actor) in world.actors.iter().enumerate() {
            match actor.at {
                At::Away if actor.goal == Goal::Over => {}
                At::Away => events.extend([Event::Enter(n), Event::EnterUnheard(n)]),
                At::Driving => events.push(Event::Decide(n)),
                At::Planned(_) => events.push(Event::Commit(n)),
                At::Intended { .. } => events.push(Event::Begin(n)),
                At::Calling { .. } => events.extend([Event::Land(n), Event::CutOff(n)]),
                At::Called => events.push(Event::Note(n)),
                At::Waiting { .. } => events.push(Event::Resume(n)),
            }
            if actor.is_alive() {
                events.extend([Event::Crash(n), Event::Stop(n)]);
                events.extend([Event::Renew(n), Event::RenewLate(n), Event::RenewUnheard(n)]);
            }
            events.push(Event::SettleDead(n));
        }
        if self.calm {
            events.retain(|event| matches!(event, Event::Crash(_) | Event::CutOff(_)) || !event.is_fault());
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut after = world.clone();
        self.happen(&mut after, event).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        crate::properties::all()
    }
}

impl Protocol {
    /// `false` when that cannot happen here, or changes nothing.
    fn happen(&self, world: &mut World, event: Event) -> bool {
        match event {
            Event::Tick => {
                world.now += TICK;
                true
            }
            Event::Enter(n) => self.enter(world, n),
            Event::EnterUnheard(n) => {
                let entered = self.enter(world, n) && world.actors[n].is_alive();
                leave(world, n);
                entered
            }
            Event::Stop(n) => stop(world, n),
            Event::Crash(n) => {
                world.end_process(n);
                true
            }
            Event::SettleDead(n) => settle_dead(world, n),
            Event::Renew(n) => {
                world.renew(n, world.now, world.now);
                true
            }
            Event::RenewLate(n) => {
                let begun = world.now - TICK;
                let from_reply = self.broken == Broken::RenewalCountsFromReply;
                if from_reply {
                    let lease = world.leases.0.get(&world.runner(n).id).copied();
                    // The store applied it a tick ago, which nobody can have noticed who saw the old lease run.
                    let unnoticed = lease.is_some_and(|until| until >= world.now);
                    world.renew(n, world.now, begun);
                    return unnoticed;
                }
                let news = world.actors[n].renewed < begun;
                world.renew(n, begun, world.now);
                news
            }
            Event::RenewUnheard(n) => {
                world.renew(n, world.actors[n].renewed, world.now);
                true
            }
            Event::Decide(n) => {
                let releases = world.actors[n].goal == Goal::Release;
                !(self.broken == Broken::NeverGivesBack && releases) && decide(world, n)
            }
            Event::Commit(n) => self.commit(world, n),
            Event::Begin(n) => self.begin(world, n),
            Event::Land(n) => {
                let lands = world.is_calling(n);
                left_call(&mut world.actors[n], At::Called);
                lands
            }
            Event::CutOff(n) => {
                left_call(&mut world.actors[n], At::Driving);
                true
            }
            Event::Note(n) => note(world, n),
            Event::Resume(n) => {
                let At::Waiting { until } = world.actors[n].at else { return false };
                world.actors[n].at = At::Driving;
                if matches!(world.roles[n], Role::Abandon(_)) {
                    world.actors[n].at = At::Planned(Plan::Finish);
                }
                until <= world.now
            }
        }
    }
}

impl Protocol {
    /// What comes next when nothing goes wrong any more: everybody in turn does what it can, and time passes when nobody
    /// can do anything. `None` when everybody is done.
    pub fn fair_step(&self, world: &World) -> Option<World> {
        let mut events = Vec::new();
        self.actions(world, &mut events);
        let helps = |event: &&Event| !event.is_fault() && !matches!(event, Event::Tick | Event::Renew(_));
        if let Some(next) = events.iter().filter(helps).find_map(|event| self.next_state(world, *event)) {
            return Some(next);
        }
        if world.actors.iter().all(|actor| actor.goal == Goal::Over && !actor.is_alive()) {
            return None;
        }
        let mut next = world.clone();
        next.now += TICK;
        for n in 0..next.actors.len() {
            if next.actors[n].is_alive() {
                next.renew(n, next.now, next.now);
            }
        }
        // A call that was begun before is cut off when its time is over.
        for actor in &mut next.actors {
            if matches!(actor.at, At::Calling { until } if until <= next.now) {
                left_call(actor, At::Driving);
            }
        }
        Some(next)
    }
}
