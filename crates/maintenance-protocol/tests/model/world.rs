//! The explored state: one lock, the server, all actors, and the time.
//!
//! A paused or disconnected process does not need its own state: it takes no step, or no step with
//! the store, while time passes. Its clock runs as fast as the store's clock, which leases require.

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

/// An actor's goal for the server, which starts switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Hold it switched off, and release it later.
    Hold,
    /// Hold it switched off, change that to on, and release it later.
    HoldThenChange,
    /// Hold it switched off, and later hand it over in that state.
    HoldDirect,
    /// Hold it in its current state, and release it later.
    HoldAsIs,
    /// Switch it off under a separate lock, and restore it later.
    Boot,
    /// Switch it off, then on, each under a separate lock, and restore the first state later.
    BootThenChange,
    /// Switch its power as that maintenance's child, and restore it later.
    Under(usize),
    /// Repeat that actor's role under the same name: a restarted job while the first job is silent.
    Again(usize),
    /// Release that maintenance by force, and restore the server.
    ForceRelease(usize),
    /// Release that maintenance by force without a restore.
    Abandon(usize),
}

impl Role {
    /// Returns the record that this role of actor `number` is about.
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

/// Goal of an actor's current or next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    Hold,
    /// Continue the maintenance with a changed specification.
    Change,
    Release,
    Seize,
    /// Done: no further run starts.
    Over,
}

/// A signal to a process while it drives a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    Nothing,
    Stop,
    TimeIsOver,
}

/// State of an actor.
#[derive(Clone, Debug, PartialEq)]
pub enum At {
    /// Not begun, ended or crashed.
    Away,
    /// Reads the store and the server, and decides.
    Driving,
    /// Has decided. The store and the server can change before the commit.
    Planned(RecordChange),
    /// The intent is recorded; the process reads its own clock next. A call can last until `bound`.
    Intended { action: Action, bound: Timestamp },
    /// The call is in flight. The BMC can accept it at any time before `until`; then it is cut off.
    Calling { action: Action, until: Timestamp },
    /// The call has ended, but its outcome is not recorded yet.
    Called(Reply),
    /// Has revoked a lock and waits until the previous process's call must have ended.
    Waiting { until: Timestamp },
}

/// An actor that starts runs until its goal is reached.
#[derive(Clone, Debug)]
pub struct Actor {
    pub goal: Goal,
    pub at: At,
    pub told: Told,
    /// Number of its process.
    pub process: usize,
    /// The process's run in which it last began.
    pub ran: u32,
    /// Its current or former attachment.
    pub fence: Fence,
    /// The store's commit and history line at that attachment.
    pub fenced_at: Seen,
    /// When its lease ends, set if another process replaced it between its check and its call's
    /// end.
    pub replaced: Option<Timestamp>,
    /// True if it has sent a call since it last began.
    pub called: bool,
    /// The maintenance's generation in its state.
    pub remembers: Option<Generation>,
}

impl Actor {
    pub fn is_alive(&self) -> bool {
        self.at != At::Away
    }
}

/// A point in a store's history: its line and commit number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seen {
    pub line: u32,
    pub commit: u64,
}

/// A process with one lease for everything in it.
#[derive(Clone, Debug)]
pub struct Process {
    /// Number of restarts.
    pub run: u32,
    /// Start of its last confirmed renewal, on its own clock.
    pub renewed: Timestamp,
    /// Its last observed commit.
    pub seen: Seen,
}

/// Detected violations.
#[allow(clippy::struct_excessive_bools, reason = "independent properties")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrong {
    /// A generation or a ticket number was issued twice.
    pub went_back: bool,
    /// A call changed the server after its maintenance was released, or during another maintenance.
    pub late: bool,
    /// A maintenance ended with a changed server state.
    pub unrestored: bool,
    /// A wrong prior state was recorded.
    pub false_prior: bool,
    /// A call was recorded for an attachment that the store has lost.
    pub stale: bool,
    /// A maintenance's own call undid its preparation.
    pub unprepared: bool,
    /// A maintenance was released without a request, although its first goal did not fail.
    pub gave_up: bool,
    /// A state lost its maintenance although no actor had ended it.
    pub forgotten: bool,
}

/// The whole explored state.
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
    /// Admitted records, by number.
    pub held: u8,
    /// Records that reached their goal, by number.
    pub reached: u8,
    /// Records that an authorized actor ended.
    pub over: u8,
    /// Records that ended without a restore.
    pub abandoned: u8,
    /// The store's current point.
    pub here: Seen,
    /// A lock copy for setting the store back, with its commit.
    pub backup: Option<(Arc<ServerLock>, u64)>,
    /// True after a person marked the store as restored.
    pub restored: bool,
    /// True while the store answers reads and rejects changes.
    pub one_way: bool,
    pub wrong: Wrong,
}

pub fn uid(number: usize) -> Uid {
    Uid::new(format!("w{number}"))
}

pub fn number(uid: &Uid) -> usize {
    uid.raw()[1..].parse().unwrap()
}

impl World {
    /// Creates a world before any run. `process` assigns actors to processes.
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

    /// Returns the specification in an actor's record.
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

    /// Returns an actor's record UID.
    pub fn subject(&self, actor: usize) -> Uid {
        uid(self.roles[actor].subject(actor))
    }

    /// Returns a record's maintenance, by number: its parent or itself.
    pub fn root(&self, subject: usize) -> usize {
        if let Role::Under(hold) = self.roles[subject] { hold } else { subject }
    }

    pub fn process(&self, actor: usize) -> &Process {
        &self.processes[self.actors[actor].process]
    }

    /// Returns an actor's current or last process, with an ID per run.
    pub fn runner(&self, actor: usize) -> Runner {
        let (process, run) = (self.actors[actor].process, self.process(actor).run);
        Runner::new(format!("{process}.{run}"), "", "", 0)
    }

    /// Returns an actor's attachment token, unique per run.
    pub fn token(&self, actor: usize) -> Token {
        Token(uuid::Uuid::from_u128(u128::from(self.process(actor).run) * 1000 + actor as u128 + 1))
    }

    pub fn record(&self, actor: usize) -> Option<&Maintenance> {
        self.lock.get(&self.subject(actor))
    }

    /// Returns true if an actor's attachment is current.
    pub fn in_force(&self, actor: usize) -> bool {
        let attachment = self.record(actor).and_then(|record| record.attachment.as_ref());
        attachment.is_some_and(|attachment| attachment.is(self.actors[actor].fence))
    }

    /// Returns true if an actor's call is in flight and the BMC can still accept it.
    pub fn is_calling(&self, actor: usize) -> bool {
        matches!(self.actors[actor].at, At::Calling { until, .. } if self.now < until)
    }

    /// Mirrors `LeaseKeeper::is_safe_with`.
    pub fn is_safe(&self, renewed: Timestamp) -> bool {
        self.now.duration_since(renewed) < self.about.safe()
    }

    /// Returns true if any actor runs in the process.
    pub fn runs(&self, process: usize) -> bool {
        self.actors.iter().any(|actor| actor.process == process && actor.is_alive())
    }

    /// Returns true if the process with this ID exists.
    pub fn process_exists(&self, id: &RunnerId) -> bool {
        (0..self.actors.len()).any(|n| self.runs(self.actors[n].process) && self.runner(n).id == *id)
    }

    /// Returns true if the store was set back behind a process's last observed commit.
    pub fn is_behind(&self, seen: Seen) -> bool {
        let kept = self.backup.as_ref().map_or(u64::MAX, |(_, commit)| *commit);
        seen.line < self.here.line && seen.commit > kept
    }

    /// Applies a change as every store does: to a copy, which replaces the lock after success.
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

    /// Replaces the lock.
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

    /// Mirrors `Store::renew`.
    pub fn renew(&mut self, process: usize, begun: Timestamp, counted_from: Timestamp) {
        if self.one_way {
            return;
        }
        let run = self.processes[process].run;
        self.leases.0.insert(RunnerId::new(format!("{process}.{run}")), counted_from + self.about.lease());
        self.processes[process].renewed = begun;
    }

    /// Mirrors `Store::resign`.
    pub fn resign(&mut self, id: &RunnerId) {
        if self.one_way {
            return;
        }
        let now = self.now;
        self.leases.0.entry(id.clone()).and_modify(|until| *until = now.min(*until));
    }

    /// Stops an actor without an update in the store.
    pub fn vanish(&mut self, actor: usize) {
        let actor = &mut self.actors[actor];
        (actor.at, actor.replaced, actor.told) = (At::Away, None, Told::Nothing);
    }

    /// Stops an actor. The process resigns its lease after its last actor.
    pub fn leave(&mut self, actor: usize) {
        self.vanish(actor);
        if !self.runs(self.actors[actor].process) {
            self.resign(&self.runner(actor).id);
        }
    }

    /// Advances time. Expired leases are kept only if a record refers to them.
    pub fn tick(&mut self) {
        self.now += TICK;
        self.machine.forget(self.now);
        let (now, lock) = (self.now, &self.lock);
        let shown = |id: &RunnerId| {
            lock.active.iter().any(|record| record.attachment.as_ref().is_some_and(|it| it.runner.id == *id))
        };
        self.leases.0.retain(|id, until| *until > now || shown(id));
    }

    /// Renews every running process's lease.
    pub fn heartbeat(&mut self) {
        for process in 0..self.processes.len() {
            if self.runs(process) {
                self.renew(process, self.now, self.now);
            }
        }
    }
}
