//! The state that is explored: one lock, the server, all who want something from it, and the time.
//!
//! A process that is paused, or cut off from the store, needs no state of its own: it is one that
//! takes no step, or none with the store, while time passes and others go on. Its clock goes on
//! meanwhile, as fast as that of the store: leases rest on that, and it is assumed here.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use maintenance_protocol::{
    change::RecordChange,
    hand_over::HandOver,
    ids::{Fence, Generation, Runner, RunnerId, Token, Uid},
    lock::{EnqueueRequest, Leases, Refusal, ServerLock},
    machine::PowerTarget,
    spec::{MaintenanceKind, Spec},
    state::Maintenance,
    step::{Action, Reply},
};

use crate::{
    machine::Machine,
    records,
    times::{About, HOLD_PLACE, TICK},
};

/// What somebody wants from the server, which is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Hold it switched off, and later give it back.
    Hold,
    /// Hold it switched off, change that to switched on, and later give it back.
    HoldThenChange,
    /// Hold it switched off, and later leave it so to the next that wants that.
    HoldDirect,
    /// Hold it as it is, and later give it back.
    HoldAsIs,
    /// Switch it off in a turn of its own, and later put that back.
    Boot,
    /// The same, then switch it on in another turn, and later put back how it was at first.
    BootThenChange,
    /// Switch it the other way under the hold of that number, and later put that back.
    Under(usize),
    /// The same as that number, under the same name: a job that was started again while the first
    /// one is silent.
    Again(usize),
    /// Take the hold of that number from its holder and give the server back.
    ForceRelease(usize),
    /// Take the hold of that number from its holder and end it as it is.
    Abandon(usize),
}

impl Role {
    /// The record that this is about, when `number` wants it.
    pub fn subject(self, number: usize) -> usize {
        match self {
            Self::Hold
            | Self::HoldThenChange
            | Self::HoldDirect
            | Self::HoldAsIs
            | Self::Boot
            | Self::BootThenChange
            | Self::Under(_) => number,
            Self::Again(of) | Self::ForceRelease(of) | Self::Abandon(of) => of,
        }
    }
}

/// What the next or the present run of somebody is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    Hold,
    /// Go on with the hold that it has, with another wish.
    Change,
    Release,
    Seize,
    /// Nothing more: no further run is started.
    Over,
}

/// What was said to a process while it drives a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    Nothing,
    Stop,
    TimeIsOver,
}

/// Where somebody is.
#[derive(Clone, Debug, PartialEq)]
pub enum At {
    /// Not begun, ended or crashed.
    Away,
    /// Reads the store and the server, and decides.
    Driving,
    /// Has decided. The store and the server may change meanwhile.
    Planned(RecordChange),
    /// The intent is recorded; what follows is the look at its own clock. A call may last until
    /// `bound`.
    Intended { action: Action, bound: Timestamp },
    /// The call is in flight. Before `until` the BMC may accept it at any moment, afterwards it is
    /// cut off.
    Calling { action: Action, until: Timestamp },
    /// The call is over; what came of it is not recorded yet.
    Called(Reply),
    /// Has taken a hold from somebody and waits until that one's call must be over.
    Waiting { until: Timestamp },
}

/// Somebody who wants something, and begins one run after the other until it is done.
#[derive(Clone, Debug)]
pub struct Actor {
    pub goal: Goal,
    pub at: At,
    pub told: Told,
    /// The process in which it runs, by number.
    pub process: usize,
    /// In which run of that process it began last.
    pub ran: u32,
    /// The right to act that it has, or had.
    pub fence: Fence,
    /// At which commit of which line of the store it got that.
    pub fenced_at: Seen,
    /// The end of its lease at the moment when its right to act was replaced between its check and
    /// the end of its call.
    pub replaced: Option<Timestamp>,
    /// Whether it has called anything since it began last.
    pub called: bool,
    /// What its state remembers: the generation of the hold that it has.
    pub remembers: Option<Generation>,
}

impl Actor {
    pub fn is_alive(&self) -> bool {
        self.at != At::Away
    }
}

/// A point in the history of a store: the line it is on, and the number of the commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seen {
    pub line: u32,
    pub commit: u64,
}

/// A process with one lease for all that runs in it.
#[derive(Clone, Debug)]
pub struct Process {
    /// How many there were.
    pub run: u32,
    /// When the last renewal that it knows of was begun, on its own clock.
    pub renewed: Timestamp,
    /// What it has seen of the store.
    pub seen: Seen,
}

/// What should not have been, by whom it was noticed.
#[allow(clippy::struct_excessive_bools, reason = "each is a property of its own")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrong {
    /// A generation or a ticket number was given out twice.
    pub went_back: bool,
    /// A call changed the server after its hold was given back, or under another one.
    pub late: bool,
    /// A hold ended with the server in another state than before.
    pub unrestored: bool,
    /// A state of the server was recorded as the one before the hold, and was not.
    pub false_prior: bool,
    /// A call was recorded on a right to act that the store has lost.
    pub stale: bool,
    /// What a hold had prepared was undone by a call of its own.
    pub unprepared: bool,
    /// A hold was given back although nobody asked for it and nothing that it was asked for first
    /// failed.
    pub gave_up: bool,
    /// A state was told that its hold is over, and nobody had ended it.
    pub forgotten: bool,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct World {
    pub about: About,
    pub roles: Arc<[Role]>,
    pub lock: Arc<ServerLock>,
    pub leases: Leases,
    pub machine: Machine,
    pub now: Timestamp,
    pub actors: Vec<Actor>,
    pub processes: Vec<Process>,
    /// Which records were admitted, by number.
    pub held: u8,
    /// Which records reached what they were asked for, by number.
    pub reached: u8,
    /// Which records were ended by somebody who had the right to.
    pub over: u8,
    /// Which records were ended without a restore.
    pub abandoned: u8,
    /// Where the store is.
    pub here: Seen,
    /// A copy of the lock that the store may be set back to, and the commit that it was made at.
    pub backup: Option<(Arc<ServerLock>, u64)>,
    /// Whether a person said that the store was restored.
    pub restored: bool,
    /// True while the store answers reads and rejects changes.
    pub one_way: bool,
    pub wrong: Wrong,
}

pub fn uid(number: usize) -> Uid {
    Uid(format!("w{number}"))
}

pub fn number(uid: &Uid) -> usize {
    uid.0[1..].parse().unwrap()
}

impl World {
    /// Nobody has begun. `process` says in which process each runs.
    pub fn new(about: About, roles: &[Role], process: &[usize]) -> Self {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let actor = |(n, role): (usize, &Role)| Actor {
            goal: match role {
                Role::ForceRelease(_) | Role::Abandon(_) => Goal::Seize,
                _ => Goal::Hold,
            },
            at: At::Away,
            told: Told::Nothing,
            process: process[n],
            ran: 0,
            fence: Fence::default(),
            fenced_at: Seen::default(),
            replaced: None,
            called: false,
            remembers: None,
        };
        let first = Process { run: 0, renewed: now, seen: Seen::default() };
        Self {
            about,
            roles: roles.into(),
            lock: Arc::new(ServerLock::new(records::key("k"))),
            leases: Leases::default(),
            machine: Machine::new(),
            now,
            actors: roles.iter().enumerate().map(actor).collect(),
            processes: vec![first; roles.len()],
            held: 0,
            reached: 0,
            over: 0,
            abandoned: 0,
            here: Seen::default(),
            backup: None,
            restored: false,
            one_way: false,
            wrong: Wrong::default(),
        }
    }

    /// What the record of somebody asks for.
    pub fn spec(&self, subject: usize, changed: bool) -> Spec {
        let off = Some(PowerTarget::Off);
        let (kind, parent, server_power) = match self.roles[subject] {
            Role::HoldThenChange if changed => (MaintenanceKind::Maintenance, None, Some(PowerTarget::On)),
            Role::HoldAsIs => (MaintenanceKind::Maintenance, None, None),
            Role::BootThenChange if changed => (MaintenanceKind::BootConfiguration, None, Some(PowerTarget::On)),
            Role::Boot | Role::BootThenChange => (MaintenanceKind::BootConfiguration, None, off),
            Role::Under(hold) => {
                let other = if self.roles[hold] == Role::HoldAsIs { off } else { Some(PowerTarget::On) };
                (MaintenanceKind::BootConfiguration, Some(uid(hold)), other)
            }
            _ => (MaintenanceKind::Maintenance, None, off),
        };
        let hold_place_for = Duration::try_from(HOLD_PLACE).unwrap();
        let direct = self.roles[subject] == Role::HoldDirect;
        let hand_over = if direct { HandOver::Direct } else { HandOver::Restore };
        Spec { kind, parent, hold_place_for, server_power, hand_over, ..records::spec() }
    }

    pub fn request(&self, actor: usize) -> EnqueueRequest {
        let subject = self.roles[actor].subject(actor);
        EnqueueRequest {
            gates: Vec::new(),
            uid: uid(subject),
            spec: self.spec(subject, false),
            runner: self.runner(actor),
            ..records::request(&format!("m{subject}"), 0)
        }
    }

    /// The record that this one is about.
    pub fn subject(&self, actor: usize) -> Uid {
        uid(self.roles[actor].subject(actor))
    }

    /// The hold that a record is, or acts under, by number.
    pub fn root(&self, subject: usize) -> usize {
        if let Role::Under(hold) = self.roles[subject] { hold } else { subject }
    }

    pub fn process(&self, actor: usize) -> &Process {
        &self.processes[self.actors[actor].process]
    }

    /// The process in which this one runs, or ran last. Its identity says which it is.
    pub fn runner(&self, actor: usize) -> Runner {
        let (process, run) = (self.actors[actor].process, self.process(actor).run);
        Runner::new(format!("{process}.{run}"), "", "", 0)
    }

    /// The random number of an attachment of this one, of which it has one in each run.
    pub fn token(&self, actor: usize) -> Token {
        Token(uuid::Uuid::from_u128(u128::from(self.process(actor).run) * 1000 + actor as u128 + 1))
    }

    pub fn record(&self, actor: usize) -> Option<&Maintenance> {
        self.lock.get(&self.subject(actor))
    }

    /// Whether the right to act that this one has, or had, is the one in force.
    pub fn in_force(&self, actor: usize) -> bool {
        let attachment = self.record(actor).and_then(|record| record.attachment.as_ref());
        attachment.is_some_and(|attachment| attachment.is(self.actors[actor].fence))
    }

    /// Whether somebody is in the middle of a call that the BMC may still accept.
    pub fn is_calling(&self, actor: usize) -> bool {
        matches!(self.actors[actor].at, At::Calling { until, .. } if self.now < until)
    }

    /// What `LeaseKeeper::is_safe_with` says.
    pub fn is_safe(&self, renewed: Timestamp) -> bool {
        self.now.duration_since(renewed) < self.about.safe()
    }

    /// Whether anything runs in that process.
    pub fn runs(&self, process: usize) -> bool {
        self.actors.iter().any(|actor| actor.process == process && actor.is_alive())
    }

    /// Whether the process of that identity exists.
    pub fn process_exists(&self, id: &RunnerId) -> bool {
        (0..self.actors.len()).any(|n| self.runs(self.actors[n].process) && self.runner(n).id == *id)
    }

    /// Whether what a process has seen is lost: the store was set back behind it.
    pub fn is_behind(&self, seen: Seen) -> bool {
        let kept = self.backup.as_ref().map_or(u64::MAX, |(_, commit)| *commit);
        seen.line < self.here.line && seen.commit > kept
    }

    /// Applies a change as every store does: to a copy, which replaces the lock when nothing was
    /// refused.
    pub fn transact<T>(
        &mut self,
        change: impl FnOnce(&mut ServerLock, &Leases, Timestamp) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut after = ServerLock::clone(&self.lock);
        let said = change(&mut after, &self.leases, self.now)?;
        self.wrong.went_back |= after.generation < self.lock.generation || after.last_ticket < self.lock.last_ticket;
        after.events.clear();
        after.finished.clear();
        self.replace(after);
        self.here.commit += 1;
        Ok(said)
    }

    /// The lock is another one from now on.
    pub fn replace(&mut self, lock: ServerLock) {
        self.lock = Arc::new(lock);
        for actor in 0..self.actors.len() {
            let between = matches!(self.actors[actor].at, At::Intended { .. } | At::Calling { .. });
            if between && self.actors[actor].replaced.is_none() && !self.in_force(actor) {
                let lease = self.leases.0.get(&self.runner(actor).id).copied();
                self.actors[actor].replaced = Some(lease.unwrap_or(self.now).max(self.now));
            }
        }
    }

    /// What a store does for `Store::renew`.
    pub fn renew(&mut self, process: usize, begun: Timestamp, counted_from: Timestamp) {
        if self.one_way {
            return;
        }
        let run = self.processes[process].run;
        self.leases.0.insert(RunnerId(format!("{process}.{run}")), counted_from + self.about.lease());
        self.processes[process].renewed = begun;
    }

    /// What a store does for `Store::resign`.
    pub fn resign(&mut self, id: &RunnerId) {
        if self.one_way {
            return;
        }
        let now = self.now;
        self.leases.0.entry(id.clone()).and_modify(|until| *until = now.min(*until));
    }

    /// Nothing drives the record any more, and the store was not told.
    pub fn vanish(&mut self, actor: usize) {
        let actor = &mut self.actors[actor];
        (actor.at, actor.replaced, actor.told) = (At::Away, None, Told::Nothing);
    }

    /// Somebody is done. The process ends its lease when nothing runs in it any more.
    pub fn leave(&mut self, actor: usize) {
        self.vanish(actor);
        if !self.runs(self.actors[actor].process) {
            self.resign(&self.runner(actor).id);
        }
    }

    /// Time passes. Of leases that are over only those count that a record shows.
    pub fn tick(&mut self) {
        self.now += TICK;
        self.machine.forget(self.now);
        let (now, lock) = (self.now, &self.lock);
        let shown = |id: &RunnerId| {
            lock.active.iter().any(|record| record.attachment.as_ref().is_some_and(|it| it.runner.id == *id))
        };
        self.leases.0.retain(|id, until| *until > now || shown(id));
    }

    /// The heartbeat of every process that runs reaches the store.
    pub fn heartbeat(&mut self) {
        for process in 0..self.processes.len() {
            if self.runs(process) {
                self.renew(process, self.now, self.now);
            }
        }
    }
}
