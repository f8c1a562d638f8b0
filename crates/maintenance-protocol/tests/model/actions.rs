//! The next possible events, by protocol rules.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex},
};

use maintenance_protocol::{
    change::RecordChange,
    ids::Uid,
    state::{Ending, Phase},
    step::{Action, Reply},
};
use stateright::{Model, Property};

use crate::{
    events::{Broken, Event},
    times::{About, TICK},
    world::{At, Goal, Role, Seen, Told, World, number},
};

/// The actors and their rules.
#[derive(Clone, Debug)]
pub struct Protocol {
    roles: Vec<Role>,
    pub about: About,
    process: Vec<usize>,
    pub broken: Broken,
    /// Without late or lost replies and without stops, for more processes.
    calm: bool,
    /// Maximum number of runs if the store can be set back; `None`: it never is.
    loses: Option<u32>,
    /// True if the store can reject changes for a while.
    one_way: bool,
    /// True to check that all actors finish, which costs more than all other checks.
    pub ends: bool,
    /// States whose fair continuation is proven to end. Each state has exactly one.
    pub known_to_end: Arc<Mutex<HashSet<u64>>>,
}

impl Protocol {
    pub fn new(about: About, roles: &[Role], broken: Broken) -> Self {
        Self {
            roles: roles.to_vec(),
            about,
            process: (0..roles.len()).collect(),
            broken,
            calm: false,
            loses: None,
            one_way: false,
            ends: true,
            known_to_end: Arc::default(),
        }
    }

    /// Disables a rule, and checks only one property.
    pub fn without(self, broken: Broken, property: &str) -> Self {
        Self { broken, ends: self.ends && property == crate::properties::ENDS, ..self }
    }

    pub fn calm(self) -> Self {
        Self { calm: true, ..self }
    }

    /// Runs all actors in one process.
    pub fn together(self) -> Self {
        Self { process: vec![0; self.roles.len()], ..self }
    }

    /// Adds a store that rejects changes for a while and answers reads.
    pub fn one_way(self) -> Self {
        Self { one_way: true, ..self }
    }

    /// Adds a store that is set back once. A person must end maintenances that reappear.
    pub fn losing(self, runs: u32) -> Self {
        Self { loses: Some(runs), ends: false, ..self }
    }

    pub fn loses(&self) -> bool {
        self.loses.is_some()
    }

    pub fn first(&self) -> World {
        World::new(self.about, &self.roles, &self.process)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} about {:?}", self.roles, self.about)?;
        if self.process.len() > 1 && self.process.iter().all(|process| *process == 0) {
            write!(f, " in one process")?;
        }
        if self.broken != Broken::Nothing {
            write!(f, " with {:?}", self.broken)?;
        }
        if self.loses() {
            write!(f, ", with a store that is set back")?;
        }
        if self.one_way {
            write!(f, ", with a store that rejects changes")?;
        }
        if self.calm { write!(f, ", calm") } else { Ok(()) }
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![self.first()]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        self.possible(world, events);
        if let Some(runs) = self.loses {
            let last = |n: usize| world.process(n).run >= runs && !world.runs(world.actors[n].process);
            events.retain(|event| !matches!(event, Event::Enter(n) | Event::EnterUnheard(n) if last(*n)));
        }
        if self.calm {
            events.retain(|event| !event.is_rare());
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
    fn possible(&self, world: &World, events: &mut Vec<Event>) {
        if self.one_way {
            events.push(if world.one_way { Event::Accepts } else { Event::Rejects });
        }
        events.extend((0..world.machine.coming.len()).map(Event::Comes));
        events.push(Event::Tick);
        for (n, actor) in world.actors.iter().enumerate() {
            match actor.at {
                At::Away if actor.goal == Goal::Over => {}
                At::Away => events.extend([Event::Enter(n), Event::EnterUnheard(n)]),
                At::Driving => events.push(Event::Decide(n)),
                At::Planned(_) => events.push(Event::Commit(n)),
                At::Intended { .. } => events.push(Event::Begin(n)),
                At::Calling { .. } => events.extend([Event::Answer(n), Event::CutOff(n)]),
                At::Called(_) => events.push(Event::Note(n)),
                At::Waiting { .. } => events.push(Event::Resume(n)),
            }
            if actor.is_alive() && self.about == About::Calls {
                let unheard = matches!(actor.at, At::Calling { .. }).then_some(Event::AnswerUnheard(n));
                events.extend([Event::Stop(n), Event::TimeIsOver(n), Event::Panic(n)].into_iter().chain(unheard));
            }
            if self.process[n] == n && world.runs(n) {
                events.extend([Event::Crash(n), Event::LetGo(n)]);
                if self.about == About::Leases {
                    events.extend([Event::Renew(n), Event::RenewLate(n), Event::RenewUnheard(n)]);
                }
            }
            events.push(Event::SettleDead(n));
        }
        if self.loses() {
            events.extend([Event::Backup, Event::GoBack, Event::Restored]);
            events.extend((0..self.roles.len()).map(Event::Inspected));
        }
    }

    /// Returns false if the event is impossible here or changes nothing.
    fn happen(&self, world: &mut World, event: Event) -> bool {
        let writes = matches!(
            event,
            Event::Enter(_)
                | Event::EnterUnheard(_)
                | Event::Renew(_)
                | Event::RenewLate(_)
                | Event::RenewUnheard(_)
                | Event::LetGo(_)
                | Event::SettleDead(_)
        );
        if world.one_way && writes {
            return false;
        }
        match event {
            Event::Rejects | Event::Accepts => {
                world.one_way = event == Event::Rejects;
                true
            }
            Event::Tick => {
                world.tick();
                if self.about == About::Calls {
                    world.heartbeat();
                }
                true
            }
            Event::Enter(n) => self.enter(world, n),
            Event::EnterUnheard(n) => {
                let entered = self.enter(world, n) && world.actors[n].is_alive();
                world.leave(n);
                entered
            }
            Event::Stop(n) => self.tell(world, n, Told::Stop),
            Event::TimeIsOver(n) => self.tell(world, n, Told::TimeIsOver),
            Event::Panic(n) => {
                // The process ends if nothing else runs in it.
                world.vanish(n);
                world.runs(world.actors[n].process)
            }
            Event::Crash(process) => {
                for n in 0..world.actors.len() {
                    if world.actors[n].process == process {
                        world.vanish(n);
                    }
                }
                true
            }
            Event::SettleDead(n) => self.settle_dead(world, n),
            Event::LetGo(process) => self.let_go(world, process),
            Event::Renew(_) | Event::RenewLate(_) | Event::RenewUnheard(_) => self.renewed(world, event),
            Event::Decide(n) => {
                let releases = world.actors[n].goal == Goal::Release;
                !(self.broken == Broken::NeverGivesBack && releases) && self.decide(world, n)
            }
            Event::Commit(n) => self.commit(world, n),
            Event::Begin(n) => self.begin(world, n),
            Event::Answer(n) => self.accepted(world, n, Reply::Accepted),
            Event::AnswerUnheard(n) => self.accepted(world, n, Reply::Unknown),
            Event::CutOff(n) => {
                left_call(world, n, Reply::Unknown);
                true
            }
            Event::Note(n) => self.note(world, n),
            Event::Resume(n) => {
                let At::Waiting { until } = world.actors[n].at else { return false };
                world.actors[n].at = At::Driving;
                if matches!(world.roles[n], Role::Abandon(_)) {
                    world.actors[n].at = At::Planned(RecordChange::Abandon(Ending::Completed));
                }
                until <= world.now
            }
            Event::Comes(which) => comes(world, which),
            Event::Backup | Event::GoBack | Event::Restored | Event::Inspected(_) => store(world, event),
        }
    }

    /// Sends a signal to a run that drives or waits.
    fn tell(&self, world: &mut World, n: usize, what: Told) -> bool {
        if world.actors[n].told != Told::Nothing {
            return false;
        }
        match world.actors[n].at {
            At::Driving => world.actors[n].told = what,
            At::Waiting { .. } if what == Told::Stop => {
                self.detach(world, n);
                world.leave(n);
            }
            _ => return false,
        }
        true
    }

    fn renewed(&self, world: &mut World, event: Event) -> bool {
        let now = world.now;
        match event {
            Event::Renew(process) => {
                world.renew(process, now, now);
                true
            }
            Event::RenewLate(process) => {
                let begun = now - TICK;
                if self.broken == Broken::RenewalCountsFromReply {
                    let n = (0..world.actors.len()).find(|n| world.actors[*n].process == process);
                    let lease = n.and_then(|n| world.leases.0.get(&world.runner(n).id).copied());
                    // The store applied it one tick ago, and no process has detected the old
                    // lease's end since.
                    let unnoticed = lease.is_some_and(|until| until >= now);
                    world.renew(process, now, begun);
                    return unnoticed;
                }
                let news = world.processes[process].renewed < begun;
                world.renew(process, begun, now);
                news
            }
            Event::RenewUnheard(process) => {
                world.renew(process, world.processes[process].renewed, now);
                true
            }
            _ => false,
        }
    }

    /// The BMC accepts a call, even if its answer is lost.
    fn accepted(&self, world: &mut World, n: usize, reply: Reply) -> bool {
        let At::Calling { action, .. } = world.actors[n].at.clone() else { return false };
        let accepts = world.is_calling(n);
        if let Action::Reset(reset) = action {
            let root = world.root(world.roles[n].subject(n));
            world.machine.accept(root, reset, world.now + self.about.power_change());
            if self.about == About::Leases && !world.machine.coming.is_empty() {
                comes(world, 0);
            }
        }
        left_call(world, n, reply);
        accepts
    }
}

/// Applies a store event.
fn store(world: &mut World, event: Event) -> bool {
    match event {
        Event::Backup if world.backup.is_none() => {
            world.backup = Some((Arc::clone(&world.lock), world.here.commit));
            true
        }
        Event::GoBack if world.here.line == 0 => {
            let Some((lock, commit)) = world.backup.clone() else { return false };
            world.replace((*lock).clone());
            world.here = Seen { line: 1, commit };
            true
        }
        Event::Restored if world.here.line == 1 && !world.restored => {
            let seen = world.actors.iter().map(|actor| actor.fence.generation).max().unwrap_or(0);
            world.restored = true;
            let done = world.transact(|lock, leases, now| {
                lock.restored(seen.max(lock.generation) + 10, "", "", leases, now);
                Ok(())
            });
            done.is_ok()
        }
        Event::Inspected(n) => {
            let uid: Uid = crate::world::uid(n);
            world.transact(|lock, _, now| lock.inspected(&uid, "", "", now)) == Ok(true)
        }
        _ => false,
    }
}

fn left_call(world: &mut World, n: usize, reply: Reply) {
    (world.actors[n].at, world.actors[n].replaced) = (At::Called(reply), None);
}

fn waits_in_vain(world: &World, n: usize) -> bool {
    let Role::Under(hold) = world.roles[n] else { return false };
    let (under, hold) = (&world.actors[n], &world.actors[hold]);
    let together = under.process == hold.process && hold.ran == world.process(n).run;
    under.at == At::Driving && under.told == Told::Nothing && together && !hold.is_alive() && hold.goal != Goal::Over
}

/// A power change takes effect. It is late if its maintenance no longer has the server.
fn comes(world: &mut World, which: usize) -> bool {
    let effect = world.machine.coming.remove(which);
    if world.machine.on != effect.on {
        let holder = world.lock.holder();
        let ours = holder.is_some_and(|holder| number(&holder.uid) == effect.root);
        // After a release without a restore, it can arrive until another maintenance reads the
        // server.
        let free = world.abandoned & 1 << effect.root != 0 && holder.is_none_or(|holder| holder.prior.is_none());
        world.wrong.late |= !ours && !free && world.here.line == 0;
        let alone = world.lock.active.iter().all(|record| record.spec.parent.is_none());
        let prepared = holder.is_some_and(|holder| matches!(holder.phase, Phase::InMaintenance { .. }));
        world.wrong.unprepared |= ours && alone && prepared && world.here.line == 0;
    }
    world.machine.on = effect.on;
    true
}

impl Protocol {
    /// Returns the next state without faults: each actor acts if it can, and otherwise time passes.
    /// `None` if all are done.
    pub fn fair_step(&self, world: &World) -> Option<World> {
        let mut events = Vec::new();
        self.possible(world, &mut events);
        let helps = |event: &&Event| !event.is_fault() && !matches!(event, Event::Tick | Event::Renew(_));
        if let Some(next) = events.iter().filter(helps).find_map(|event| self.next_state(world, *event)) {
            return Some(next);
        }
        if world.actors.iter().all(|actor| actor.goal == Goal::Over && !actor.is_alive()) {
            return None;
        }
        // A waiter for a maintenance without a driving process waits until its time limit.
        if let Some(n) = (0..world.actors.len()).find(|n| waits_in_vain(world, *n)) {
            return self.next_state(world, Event::TimeIsOver(n));
        }
        let mut next = world.clone();
        next.tick();
        next.heartbeat();
        // A call that began earlier is cut off at its time limit.
        for n in 0..next.actors.len() {
            if matches!(next.actors[n].at, At::Calling { until, .. } if until <= next.now) {
                left_call(&mut next, n, Reply::Unknown);
            }
        }
        Some(next)
    }
}
