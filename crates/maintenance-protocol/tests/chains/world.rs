//! The state that is explored: one lock, one server, the gates before it, and those who want it.

use std::{
    fmt,
    hash::{Hash, Hasher},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use maintenance_protocol::{
    decide::Decision,
    gate::{ExternalState, ExternalSystem, GateView, Loss, QueueAuthority},
    ids::{Fence, Generation, LockKey, Runner, RunnerId, Token, Uid},
    lock::{EnqueueRequest, Leases, ServerLock},
    machine::{PowerTarget, ResetType},
    operate::{CompletionProof, OperationSpec, WhenOff},
    power::Limits,
    restrictions::Block,
    spec::{MaintenanceKind, Spec},
    state::Maintenance,
    step::{Action, Reply},
};

use crate::{machine::Machine, node::Node, records};

/// A gate, as it is configured.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub order: QueueAuthority,
    pub loss: Loss,
}

impl Link {
    pub fn is_external(self) -> bool {
        self.order != QueueAuthority::Ours
    }
}

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Nothing,
    /// A request is made without the note that it may be there.
    NoNote,
    /// The outermost gate is left first.
    OuterFirst,
    /// A gate that is on its way back counts as left.
    NotReallyBack,
    /// The gates are asked without waiting for those before them.
    AllAtOnce,
    /// A request that waits counts as granted.
    GrantsUnseen,
    /// A server that an outer gate took away is not restored.
    LossTouchesNothing,
    /// What acts under a hold does not look at the outer gates of it.
    ChildIsBlind,
    /// The outermost gate is left while its Node is not Ready.
    LeavesNodeBehind,
    /// A Node counts as Ready by what was said before the restore.
    BelievesOldWord,
    /// What keeps a start back is not seen by a waiter that has asked a gate.
    KeepsAsking,
    /// A waiter withdraws its requests in the order in which it made them.
    OuterWithdrawnFirst,
}

/// What is explored.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a part of the world that may be left out")]
pub struct Chain {
    pub links: Vec<Link>,
    pub actors: usize,
    pub crashes: u8,
    pub refuses: bool,
    pub takes_away: bool,
    /// An operation under the maintenance, which switches the server off.
    pub operates: bool,
    /// The Node of the server has to be Ready before the outermost gate is left.
    pub awaits: bool,
    /// A person blocks the server once, and allows it again later.
    pub blocks: bool,
    pub broken: Broken,
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for link in &self.links {
            write!(f, "{:?} > ", link.order)?;
        }
        write!(f, "{} maintenances, {} crashes", self.actors, self.crashes)?;
        let all = [
            (self.refuses, "refusals"),
            (self.takes_away, "losses"),
            (self.operates, "an operation"),
            (self.awaits, "a Node"),
            (self.blocks, "a block"),
        ];
        for (is, word) in all {
            if is {
                write!(f, ", {word}")?;
            }
        }
        if self.broken == Broken::Nothing { Ok(()) } else { write!(f, ", {:?}", self.broken) }
    }
}

/// What a gate has of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Has {
    Requested,
    Granted,
    /// It was taken back, and is not free yet.
    Returning,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Gate {
    pub of: Option<(usize, Has)>,
    pub refuses: bool,
    /// Whether it took a server away: it does that once.
    pub took: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    Hold,
    Release,
    Over,
}

/// Where a process is.
#[derive(Clone, Debug, PartialEq)]
pub enum At {
    Away,
    Driving,
    Planned(Decision),
    /// The note is made, the request is not.
    Asking {
        place: usize,
        enter: bool,
    },
    Calling(Action),
    Called(Reply),
    /// Takes its requests back before its record goes.
    Withdrawing,
    /// A person ends it as it is.
    Accepting,
}

#[derive(Clone, Debug)]
pub struct Actor {
    pub goal: Goal,
    pub at: At,
    pub fence: Fence,
    /// In which run it is.
    pub run: u32,
    pub crashes: u8,
    pub held: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Begin(usize),
    Decide(usize),
    Do(usize),
    Crash(usize),
    Grant(usize),
    Free(usize),
    Refuse(usize),
    TakeAway(usize),
    /// A person keeps every maintenance from the server.
    Block,
    /// The block is over.
    Unblock,
    /// The cluster notices that the Node is silent.
    NodeLost,
    /// The kubelet runs again.
    NodeBack,
    /// The time for the Node is over.
    Late(usize),
    /// A person gives up a release that failed.
    Accept(usize),
}

#[derive(Clone, Debug)]
pub struct World {
    pub lock: ServerLock,
    pub leases: Leases,
    pub machine: Machine,
    pub node: Node,
    /// Whether the time for the Node was over: that is once.
    pub late: bool,
    /// Whether the server was blocked: that is once.
    pub was_blocked: bool,
    pub gates: Vec<Gate>,
    pub actors: Vec<Actor>,
    pub now: Timestamp,
    pub wrong: Option<&'static str>,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        format!("{self:?}").hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl World {
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

    pub fn is_blocked(&self) -> bool {
        self.lock.block(self.now).is_some()
    }

    pub fn block(&mut self) {
        self.was_blocked = true;
        self.lock.extension.restrictions.block = Some(Block {
            since: self.now,
            until: Timestamp::MAX,
            id: records::request("other", 0).id,
            uid: Uid("other".to_owned()),
            generation: Generation::default(),
            owner: String::new(),
            server: "node-1".to_owned(),
            by: records::runner(0),
            reason: String::new(),
        });
    }

    /// Whether every gate that is chosen allows it to this one.
    pub fn allow(&self, n: usize, chosen: impl Fn(usize) -> bool) -> bool {
        let all = self.gates.iter().enumerate().filter(|(place, _)| chosen(*place));
        { all }.all(|(_, gate)| gate.of == Some((n, Has::Granted)))
    }
}

pub fn uid(n: usize) -> Uid {
    Uid(format!("w{n}"))
}

impl Chain {
    pub fn new(links: &[Link], actors: usize) -> Self {
        Self {
            links: links.to_vec(),
            actors,
            crashes: 0,
            refuses: false,
            takes_away: false,
            operates: false,
            awaits: false,
            blocks: false,
            broken: Broken::Nothing,
        }
    }

    pub fn crashes(self, crashes: u8) -> Self {
        Self { crashes, ..self }
    }

    pub fn refuses(self) -> Self {
        Self { refuses: true, ..self }
    }

    pub fn takes_away(self) -> Self {
        Self { takes_away: true, ..self }
    }

    /// With an operation under the one maintenance.
    pub fn operates(self) -> Self {
        Self { operates: true, actors: 2, ..self }
    }

    /// With a Node that is waited for before the outermost gate is left.
    pub fn awaits(self) -> Self {
        Self { awaits: true, ..self }
    }

    /// With a block that begins and ends at any time.
    pub fn blocks(self) -> Self {
        Self { blocks: true, ..self }
    }

    /// Whether this one acts under the maintenance.
    pub fn is_child(&self, n: usize) -> bool {
        self.operates && n == 1
    }

    /// The one at whose gates this one is.
    pub fn holder(&self, n: usize) -> usize {
        if self.is_child(n) { 0 } else { n }
    }

    pub fn without(self, broken: Broken) -> Self {
        Self { broken, ..self }
    }

    pub fn first(&self) -> World {
        let actor = Actor { goal: Goal::Hold, at: At::Away, fence: Fence::default(), run: 0, crashes: 0, held: false };
        World {
            lock: ServerLock::new(LockKey("k".to_owned())),
            leases: Leases::default(),
            machine: Machine::new(),
            node: Node::Serves,
            late: false,
            was_blocked: false,
            gates: vec![Gate::default(); self.links.len()],
            actors: vec![actor; self.actors],
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            wrong: None,
        }
    }

    fn systems(&self) -> Vec<ExternalSystem> {
        let last = self.links.len() - 1;
        let system = |(place, link): (usize, &Link)| {
            let gate = (place != last).then(|| format!("gate{place}"));
            let loss = if self.broken == Broken::LossTouchesNothing { Loss::EndsHold } else { link.loss };
            ExternalSystem { gate, loss, ..ExternalSystem::own(format!("gate {place}"), link.order, true) }
        };
        self.links.iter().enumerate().map(system).collect()
    }

    pub fn request(&self, world: &World, n: usize) -> EnqueueRequest {
        let child = self.is_child(n);
        let kind = if child { MaintenanceKind::Operation } else { MaintenanceKind::Maintenance };
        let spec = Spec {
            hold_place_for: records::HOLD_PLACE,
            server_power: (!self.operates).then_some(PowerTarget::Off),
            parent: child.then(|| uid(0)),
            operation: child.then_some(OperationSpec {
                reset: ResetType::ForceOff,
                when_off: WhenOff::Skip,
                proof: CompletionProof::Accepted,
            }),
            ..Spec::new(kind, "node-1")
        };
        let mut gates = self.systems();
        if child {
            // As `Engine::systems` has it: its own system, which it does not enter.
            gates.drain(..gates.len() - 1);
            gates[0].enters = false;
        }
        EnqueueRequest { uid: uid(n), spec, gates, runner: runner(world, n), ..records::request(&format!("m{n}"), 0) }
    }

    pub fn limits() -> Limits {
        let zero = Duration::ZERO;
        Limits {
            graceful_shutdown: zero,
            power_change: zero,
            boot_progress: zero,
            call: zero,
            settle: zero,
            media: zero,
            busy: zero,
            post: zero,
            attempts: 3,
            retry_pause: zero,
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
            Some((_, Has::Requested)) => ExternalState::Entering(said()),
            Some((_, Has::Granted)) => ExternalState::Granted,
            Some((_, Has::Returning)) if self.broken == Broken::NotReallyBack => ExternalState::Absent,
            Some((_, Has::Returning)) => ExternalState::Returning(said()),
        };
        let memory = [("before".to_owned(), "free".to_owned())].into();
        let awaited = (standing == ExternalState::Granted && place == 0).then(|| self.awaited(world, n)).flatten();
        GateView { memory, awaited, ..GateView::of(standing) }
    }

    /// What a gate has of somebody is of a record that is active and says so.
    pub fn noted(world: &World) -> bool {
        world.gates.iter().enumerate().all(|(place, gate)| match gate.of {
            Some((n, Has::Requested | Has::Granted)) => world.record(n).is_some_and(|record| record.gates[place].asked),
            _ => true,
        })
    }

    /// What is over has nothing at any gate.
    pub fn left(&self, world: &World) -> bool {
        (0..self.actors).filter(|n| world.record(*n).is_none() && world.actors[*n].run > 0).all(|n| {
            let ours = |gate: &Gate| matches!(gate.of, Some((of, Has::Requested | Has::Granted)) if of == n);
            !world.gates.iter().any(ours)
        })
    }
}

/// The process in which this one runs, or ran last.
pub fn runner(world: &World, n: usize) -> Runner {
    Runner { id: RunnerId(format!("{n}.{}", world.actors[n].run)), ..records::runner(0) }
}

pub fn token(world: &World, n: usize) -> Token {
    Token(uuid::Uuid::from_u128(u128::from(world.actors[n].run) * 10 + n as u128 + 1))
}

/// Longer than any call of a process that died.
pub const PAUSE: SignedDuration = SignedDuration::from_secs(60);
