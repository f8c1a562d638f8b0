//! The state that is explored: one lock, everybody who wants something from it, and the time.
//!
//! What is not there needs no state of its own: a process that is paused, or cut off from the store, is one that takes no
//! step, or none with the store, while time passes and others go on; nothing ever makes a process take a step. Its clock
//! goes on meanwhile, as fast as that of the store: that is what leases are built on, and it is assumed here.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use terraform_provider_metal::maintenance::{
    ids::{Attachment, Fence, Runner, RunnerId, Uid},
    lock::{Leases, Refusal, Request, ServerLock},
    spec::{Kind, Spec},
    state::{Maintenance, Phase, Progress},
    step::Step,
};

use crate::records;

/// One tick is one second on every clock.
pub const TICK: SignedDuration = SignedDuration::from_secs(1);
/// A lease, in ticks.
pub const TTL: SignedDuration = SignedDuration::from_secs(3);
/// For how long the process judges a lease as safe: two thirds of it.
pub const SAFE: SignedDuration = SignedDuration::from_secs(2);
/// For how long the place of an absent waiter is kept.
pub const HOLD_PLACE: SignedDuration = SignedDuration::from_secs(2);
/// What somebody wants from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Hold it, and later give it back.
    Hold,
    /// Hold it as it is: nothing is changed, and so nothing is put back.
    HoldAsIs,
    /// Boot something on it, with a turn of its own, and later put that back.
    Boot,
    /// Boot something under the hold of that number, and later put that back.
    Under(usize),
    /// The same as number so and so, under the same name: a job that was started again while the first one is silent.
    Again(usize),
    /// Take the hold of that number from its holder and give the server back.
    ForceRelease(usize),
    /// Take the hold of that number from its holder and end it as it is.
    Abandon(usize),
}

impl Role {
    /// The record this is about, when it is `number` who wants it.
    pub fn subject(self, number: usize) -> usize {
        match self {
            Self::Hold | Self::HoldAsIs | Self::Boot | Self::Under(_) => number,
            Self::Again(of) | Self::ForceRelease(of) | Self::Abandon(of) => of,
        }
    }
}

/// What the next or the present process of somebody is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    Hold,
    Release,
    Seize,
    /// Nothing more: no further process is started.
    Over,
}

/// What a process has decided on what it read, and not yet done: the store may have changed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plan {
    Admit,
    Withdraw,
    BeginRelease,
    Act,
    Prepared,
    Finish,
}

/// Where a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// There is none: not started yet, ended or crashed.
    Away,
    /// Reads the store and decides.
    Driving,
    /// Has decided.
    Planned(Plan),
    /// The intent is recorded; what follows is the look at its own clock. A call may last until `bound`.
    Intended { bound: Timestamp },
    /// The call is in flight. Before `until` it may change the machine at any moment, afterwards it is cut off.
    Calling { until: Timestamp },
    /// The machine has answered; that is not recorded yet.
    Called,
    /// Has taken a hold from somebody and waits until that one's call must be over.
    Waiting { until: Timestamp },
}

/// Somebody who wants something, and starts one process after the other until it is done.
#[derive(Clone, Debug)]
pub struct Actor {
    pub goal: Goal,
    pub at: At,
    /// How many processes were started for it. Each is a runner of its own.
    pub run: u32,
    /// The right to act that the present process has, or had.
    pub generation: Fence,
    /// When the last renewal that it knows of was begun, on its own clock.
    pub renewed: Timestamp,
    /// The end of its lease at the moment when its right to act was replaced between its check and the end of its call.
    pub replaced: Option<Timestamp>,
}

impl Actor {
    pub fn is_alive(&self) -> bool {
        self.at != At::Away
    }
}

/// Everything.
#[derive(Clone, Debug)]
pub struct World {
    pub roles: Arc<[Role]>,
    pub lock: Arc<ServerLock>,
    pub leases: Leases,
    pub now: Timestamp,
    pub actors: Vec<Actor>,
    /// Which records were admitted, by number.
    pub held: u8,
    /// Which records were ended by somebody who had the right to.
    pub over: u8,
    /// Whether a generation or a ticket number was ever given out twice.
    pub went_back: bool,
}

pub fn uid(number: usize) -> Uid {
    Uid(format!("w{number}"))
}

pub fn number(uid: &Uid) -> usize {
    uid.0[1..].parse().unwrap()
}

/// The process number `run` of somebody. Its identity says which it is.
pub fn runner(actor: usize, run: u32) -> Runner {
    Runner { id: RunnerId(format!("{actor}.{run}")), ..records::runner(run) }
}

impl World {
    /// Nobody has begun.
    pub fn new(roles: &[Role]) -> Self {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let actor = |role: &Role| Actor {
            goal: match role {
                Role::Hold | Role::HoldAsIs | Role::Boot | Role::Under(_) | Role::Again(_) => Goal::Hold,
                Role::ForceRelease(_) | Role::Abandon(_) => Goal::Seize,
            },
            at: At::Away,
            run: 0,
            generation: Fence::default(),
            renewed: now,
            replaced: None,
        };
        Self {
            roles: roles.into(),
            lock: Arc::new(ServerLock::new(records::key("k"))),
            leases: Leases::default(),
            now,
            actors: roles.iter().map(actor).collect(),
            held: 0,
            over: 0,
            went_back: false,
        }
    }

    pub fn request(&self, actor: usize) -> Request {
        let subject = self.roles[actor].subject(actor);
        let (kind, parent) = match self.roles[subject] {
            Role::Boot => (Kind::BootConfiguration, None),
            Role::Under(hold) => (Kind::BootConfiguration, Some(uid(hold))),
            _ => (Kind::Maintenance, None),
        };
        let hold_place_for = Duration::try_from(HOLD_PLACE).unwrap();
        Request {
            native: None,
            uid: uid(subject),
            spec: Spec { kind, parent, hold_place_for, ..records::spec() },
            runner: self.runner(actor),
            ..records::request(&format!("m{subject}"), self.actors[actor].run)
        }
    }

    /// The record that this one is about.
    pub fn subject(&self, actor: usize) -> Uid {
        uid(self.roles[actor].subject(actor))
    }

    /// The one step there and the one back, unless there is nothing to do.
    pub fn steps(&self, actor: usize, step: Step) -> Vec<Step> {
        let nothing = self.roles[self.roles[actor].subject(actor)] == Role::HoldAsIs;
        if nothing { Vec::new() } else { vec![step] }
    }

    pub fn runner(&self, actor: usize) -> Runner {
        runner(actor, self.actors[actor].run)
    }

    pub fn record(&self, actor: usize) -> Option<&Maintenance> {
        self.lock.get(&self.subject(actor))
    }

    /// Whether the right to act that this one has, or had, is the one in force.
    pub fn in_force(&self, actor: usize) -> bool {
        let generation = self.actors[actor].generation;
        let attachment = self.record(actor).and_then(|record| record.attachment.as_ref());
        attachment.is_some_and(|attachment| attachment.is(generation))
    }

    /// Whether a process is in the middle of a call that may still change the machine.
    pub fn is_calling(&self, actor: usize) -> bool {
        matches!(self.actors[actor].at, At::Calling { until } if self.now < until)
    }

    /// What `LeaseKeeper::is_safe` says.
    pub fn is_safe(&self, renewed: Timestamp) -> bool {
        self.now.duration_since(renewed) < SAFE
    }

    /// Applies a transition as every store does: to a copy, which replaces the lock when nothing was refused.
    pub fn transact<T>(
        &mut self,
        change: impl FnOnce(&mut ServerLock, &Leases, Timestamp) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut after = ServerLock::clone(&self.lock);
        let said = change(&mut after, &self.leases, self.now)?;
        self.went_back |= after.generation < self.lock.generation || after.last_ticket < self.lock.last_ticket;
        after.events.clear();
        after.finished.clear();
        self.lock = Arc::new(after);
        for actor in 0..self.actors.len() {
            let between = matches!(self.actors[actor].at, At::Intended { .. } | At::Calling { .. });
            if between && self.actors[actor].replaced.is_none() && !self.in_force(actor) {
                let lease = self.leases.0.get(&self.runner(actor).id).copied();
                self.actors[actor].replaced = Some(lease.unwrap_or(self.now).max(self.now));
            }
        }
        Ok(said)
    }

    /// What a store does for `Store::renew`.
    pub fn renew(&mut self, actor: usize, begun: Timestamp, counted_from: Timestamp) {
        self.leases.0.insert(self.runner(actor).id, counted_from + TTL);
        self.actors[actor].renewed = begun;
    }

    /// What a store does for `Store::resign`.
    pub fn resign(&mut self, id: &RunnerId) {
        let now = self.now;
        self.leases.0.entry(id.clone()).and_modify(|until| *until = now.min(*until));
    }

    /// The process is gone, with whatever it was in the middle of; its lease is not.
    pub fn end_process(&mut self, actor: usize) {
        self.actors[actor].at = At::Away;
        self.actors[actor].replaced = None;
    }

    /// Whether somebody's process of that identity exists.
    pub fn process_exists(&self, id: &RunnerId) -> bool {
        (0..self.actors.len()).any(|actor| self.actors[actor].is_alive() && self.runner(actor).id == *id)
    }

    /// How far in the future a moment is, as far as any rule can tell.
    fn ahead(&self, at: Timestamp) -> i64 {
        at.duration_since(self.now).as_secs().clamp(0, TTL.as_secs())
    }

    /// How far in the past a moment is, as far as any rule can tell.
    fn behind(&self, at: Timestamp) -> i64 {
        self.now.duration_since(at).as_secs().clamp(0, TTL.as_secs())
    }
}

/// Two worlds are one when no rule can tell them apart: moments count by their distance from now, as far as a lease
/// reaches, rights to act by whether they are in force, processes by whose they are and whether they exist. That makes
/// the space finite without any limit on time, on crashes or on the number of processes.
impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for (n, actor) in self.actors.iter().enumerate() {
            (actor.goal, std::mem::discriminant(&actor.at)).hash(state);
            if !actor.is_alive() {
                continue;
            }
            match actor.at {
                At::Planned(plan) => plan.hash(state),
                At::Intended { bound: moment } | At::Calling { until: moment } | At::Waiting { until: moment } => {
                    self.ahead(moment).hash(state);
                }
                At::Away | At::Driving | At::Called => {}
            }
            let lease = self.leases.0.get(&self.runner(n).id);
            (self.in_force(n), self.behind(actor.renewed), lease.map(|until| self.ahead(*until))).hash(state);
            actor.replaced.map(|until| self.ahead(until)).hash(state);
        }
        let slot = self.lock.slot.as_ref();
        slot.map(|slot| (number(&slot.uid), slot.acting.as_ref().map(number))).hash(state);
        let mut records: Vec<&Maintenance> = self.lock.active.iter().collect();
        records.sort_by_key(|record| record.ticket_number);
        for record in records {
            self.hash_record(record, state);
        }
        (self.held, self.over, self.went_back).hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl World {
    /// In one number.
    pub fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    fn hash_record(&self, record: &Maintenance, state: &mut impl Hasher) {
        number(&record.uid).hash(state);
        match &record.phase {
            Phase::Preparing(Progress { current, .. }) => (1, current).hash(state),
            Phase::Releasing { progress, .. } => (2, progress.current).hash(state),
            phase => phase.name().hash(state),
        }
        if let Some(Attachment { runner, .. }) = &record.attachment {
            let (actor, _) = runner.id.0.split_once('.').unwrap();
            (actor, self.process_exists(&runner.id)).hash(state);
            self.leases.0.get(&runner.id).map(|until| self.ahead(*until)).hash(state);
        }
        record.calls_until.map(|until| self.ahead(until)).hash(state);
        // Since when it is absent counts only for the place of a waiter.
        if record.phase == Phase::Pending {
            let lease = record.attachment.as_ref().and_then(|attachment| self.leases.until(attachment));
            let since = lease.or(record.detached_at).unwrap_or(record.requested_at);
            self.behind(since).hash(state);
        }
    }
}
