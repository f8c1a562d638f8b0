//! The explored state: one lock, one server, its gates, and its actors.

use std::{
    fmt::{self, Write as _},
    hash::{DefaultHasher, Hash, Hasher},
    ops::Deref,
};

use jiff::{SignedDuration, Timestamp};
use maintenance_protocol::{
    decide::Decision,
    ids::{Fence, Runner, RunnerId, Token, Uid},
    lock::{Leases, ServerLock},
    state::Maintenance,
    step::{Action, Reply},
};

use crate::{
    calls::{OnTheWay, Slip},
    gates::{Gate, Has},
    local::Local,
    machine::Machine,
    node::Node,
    records,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    Hold,
    Release,
    Over,
}

/// State of a process.
#[derive(Clone, Debug, PartialEq)]
pub enum At {
    Away,
    Driving,
    Planned(Decision),
    /// The request is recorded but not sent.
    Asking {
        place: usize,
        enter: bool,
    },
    Calling(Action),
    Called(Reply),
    /// Withdraws its requests before its record ends.
    Withdrawing,
    /// A person ends it without a restore.
    Accepting,
}

#[derive(Clone, Debug)]
pub struct Actor {
    pub goal: Goal,
    pub at: At,
    pub fence: Fence,
    /// Number of the current run.
    pub run: u32,
    pub crashes: u8,
    pub slips: u8,
    /// True if this run's time limit has ended.
    pub timed_out: bool,
    /// True after a run's time limit ended, which happens once.
    pub gave_up: bool,
    pub held: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Begin(usize),
    Decide(usize),
    Do(usize),
    Crash(usize),
    /// A process dies, and its call to a gate still arrives.
    CrashInCall(usize),
    /// A call does not end normally.
    Slip(usize, Slip),
    /// An abandoned call arrives.
    LateEffect(usize),
    /// A process reaches its time limit.
    TimeOut(usize),
    Grant(usize),
    Free(usize),
    Refuse(usize),
    TakeAway(usize),
    /// A request loses its grant but still exists.
    Fail(usize),
    /// A request exists, but another author now has its server.
    Lose(usize),
    /// A withdrawn request keeps leftovers.
    Linger(usize),
    /// An orphaned request is withdrawn.
    Tidy(usize),
    /// A person blocks all maintenances of the server.
    Block,
    /// The block ends.
    Unblock,
    Approve,
    /// The owner withdraws its approval.
    Disapprove,
    /// The window closes.
    Close,
    /// The window opens.
    Open,
    /// The cluster detects that the Node is silent.
    NodeLost,
    /// The kubelet runs again.
    NodeBack,
    /// The time limit for the Node ends.
    Late(usize),
    /// A person gives up a failed release.
    Accept(usize),
}

/// A lock with its hash: printing it takes longer than all rules.
#[derive(Clone)]
pub struct Lock {
    lock: ServerLock,
    mark: u64,
}

impl From<ServerLock> for Lock {
    fn from(lock: ServerLock) -> Self {
        Self { mark: mark(&lock), lock }
    }
}

impl Deref for Lock {
    type Target = ServerLock;

    fn deref(&self) -> &ServerLock {
        &self.lock
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

#[derive(Clone, Debug)]
pub struct World {
    pub lock: Lock,
    pub leases: Leases,
    pub machine: Machine,
    pub node: Node,
    /// True after the Node's time limit ended, which happens once.
    pub late: bool,
    pub local: Local,
    pub gates: Vec<Gate>,
    pub on_the_way: Vec<OnTheWay>,
    pub actors: Vec<Actor>,
    pub now: Timestamp,
    pub wrong: Option<&'static str>,
    /// Hash of the state.
    pub mark: u64,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.mark.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.mark == other.mark
    }
}

impl World {
    /// Hashes a state that no longer changes.
    pub fn sealed(mut self) -> Self {
        let mut alive: Vec<&RunnerId> = self.leases.0.keys().collect();
        alive.sort();
        let outside = (&self.machine, self.node, self.late, &self.local, &self.gates, &self.on_the_way);
        self.mark = mark(&(self.lock.mark, alive, outside, &self.actors, self.now, self.wrong));
        self
    }

    /// Changes the lock without its rules.
    pub fn write(&mut self, change: impl FnOnce(&mut ServerLock)) {
        let mut lock = self.lock.lock.clone();
        change(&mut lock);
        self.lock = lock.into();
    }

    pub fn is_wrong(&self, what: &str) -> bool {
        self.wrong == Some(what)
    }

    pub fn is_over(&self) -> bool {
        self.actors.iter().all(|actor| actor.goal == Goal::Over && actor.at == At::Away)
            && self.gates.iter().all(|gate| gate.of.is_none())
    }

    pub fn all_held(&self) -> bool {
        self.actors.iter().all(|actor| actor.held)
    }

    pub fn record(&self, n: usize) -> Option<&Maintenance> {
        self.lock.get(&uid(n))
    }

    /// Returns true if every chosen gate grants the server to an actor.
    pub fn allow(&self, n: usize, chosen: impl Fn(usize) -> bool) -> bool {
        let all = self.gates.iter().enumerate().filter(|(place, _)| chosen(*place));
        { all }.all(|(_, gate)| gate.of == Some((n, Has::Granted)))
    }
}

/// Hashes the debug text.
fn mark(what: &dyn fmt::Debug) -> u64 {
    struct Marks(DefaultHasher);
    impl fmt::Write for Marks {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut marks = Marks(DefaultHasher::new());
    write!(marks, "{what:?}").unwrap();
    marks.0.finish()
}

pub fn uid(n: usize) -> Uid {
    Uid::new(format!("w{n}"))
}

/// Returns an actor's current or last process.
pub fn runner(world: &World, n: usize) -> Runner {
    Runner { id: RunnerId::new(format!("{n}.{}", world.actors[n].run)), ..records::runner(0) }
}

pub fn token(world: &World, n: usize) -> Token {
    Token(uuid::Uuid::from_u128(u128::from(world.actors[n].run) * 10 + n as u128 + 1))
}

/// Longer than any call from a dead process.
pub const PAUSE: SignedDuration = SignedDuration::from_secs(60);
