//! What may happen next, and what comes of it: the glue of `src/engine` around the real transitions.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex},
};

use jiff::Timestamp;
use stateright::{Model, Property};
use terraform_provider_metal::maintenance::{
    ids::{Generation, Uid},
    lock::{Leases, Refusal, ServerLock},
    machine::ResetType,
    queue::{Turn, turn},
    state::{Ending, Maintenance, Phase, Progress},
    step::{Action, Attempt, Reply, Step},
};

use crate::{
    records::AGING,
    world::{Actor, At, Goal, Plan, Role, TICK, TTL, World, number},
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
    broken: Broken,
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

    /// `Engine::hold`, `release`, `force_release` and `abandon` up to their drive.
    fn enter(&self, world: &mut World, n: usize) -> bool {
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
                    lock.attach(&uid, runner, leases, now)
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
            Goal::Release => match world.transact(|lock, leases, now| lock.attach(&uid, runner, leases, now)) {
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
            let (generation, _) = lock.seize(&uid, record.generation, runner, leases, now)?;
            let until = lock.calls_until(now);
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
    fn commit(&self, world: &mut World, n: usize) -> bool {
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
    fn begin(&self, world: &mut World, n: usize) -> bool {
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

fn drive(actor: &mut Actor, generation: Generation) -> bool {
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
    generation: Generation,
    back: Vec<Step>,
    now: Timestamp,
) -> Result<(), Refusal> {
    lock.begin_release(uid, generation, Ending::Completed, Progress::new(back, now), now)
}

fn left_call(actor: &mut Actor, at: At) {
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
fn leave(world: &mut World, n: usize) {
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
fn stop(world: &mut World, n: usize) -> bool {
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

fn settle_dead(world: &mut World, n: usize) -> bool {
    let uid = crate::world::uid(n);
    let Some(attachment) = world.lock.get(&uid).and_then(|record| record.attachment.clone()) else { return false };
    let dead = !world.process_exists(&attachment.runner.id) && world.leases.alive(&attachment, world.now);
    world.resign(&attachment.runner.id);
    dead
}

/// The answer of the machine, and that the step is done. Both are recorded for whoever has the right.
fn note(world: &mut World, n: usize) -> bool {
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
fn decide(world: &mut World, n: usize) -> bool {
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
            if lock.calls_until(now).is_some() {
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
