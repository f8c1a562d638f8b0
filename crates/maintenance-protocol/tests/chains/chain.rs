//! What is explored: the gates before a server, what may happen to them, and which rule is left
//! out.

use std::{fmt, time::Duration};

use maintenance_protocol::{
    gate::{ExternalSystem, Loss, QueueAuthority},
    ids::{Fence, LockKey},
    lock::{EnqueueRequest, Leases, ServerLock},
    machine::{PowerTarget, ResetType},
    operate::{CompletionProof, OperationSpec, WhenOff},
    power::Limits,
    spec::{MaintenanceKind, Policy, Spec},
};

use crate::{
    gates::Gate,
    local,
    machine::Machine,
    node::Node,
    progress::Progress,
    records,
    world::{Actor, At, Goal, World, runner, uid},
};

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
    /// A request that failed counts as gone.
    FailedIsGone,
    /// What a request left behind counts as gone.
    LeftoversAreGone,
    /// No process looks for requests whose maintenance is over.
    NeverTidied,
}

/// What is explored.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a part of the world that may be left out")]
pub struct Chain {
    pub links: Vec<Link>,
    pub actors: usize,
    pub crashes: u8,
    /// How many calls of each process end otherwise than they should.
    pub slips: u8,
    pub refuses: bool,
    pub takes_away: bool,
    /// Each gate gives up one request, whether it was granted or not.
    pub fails: bool,
    /// Each gate leaves something behind once.
    pub lingers: bool,
    /// A gate that is entered under our slot waits until the server is off.
    pub parks: bool,
    /// The time of each process may end before its goal is reached.
    pub times_out: bool,
    /// An operation under the maintenance, which switches the server off.
    pub operates: bool,
    /// The Node of the server has to be Ready before the outermost gate is left.
    pub awaits: bool,
    /// A person blocks the server once, and allows it again later.
    pub blocks: bool,
    /// The owner of the server is asked, and withdraws its approval once.
    pub asks_owner: bool,
    /// The window closes once.
    pub closes: bool,
    pub broken: Broken,
    pub progress: Progress,
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for link in &self.links {
            write!(f, "{:?}", link.order)?;
            let usual = if link.order == QueueAuthority::OnTurn { Loss::Restore } else { Loss::EndsHold };
            if link.loss != usual {
                write!(f, " ({:?})", link.loss)?;
            }
            write!(f, " > ")?;
        }
        write!(f, "{} maintenances, {} crashes", self.actors, self.crashes)?;
        let all = [
            (self.slips > 0, "slips"),
            (self.refuses, "refusals"),
            (self.takes_away, "losses"),
            (self.fails, "failures"),
            (self.lingers, "leftovers"),
            (self.parks, "parking"),
            (self.times_out, "time limits"),
            (self.operates, "an operation"),
            (self.awaits, "a Node"),
            (self.blocks, "a block"),
            (self.asks_owner, "an owner"),
            (self.closes, "a window"),
        ];
        for (_, word) in all.iter().filter(|(is, _)| *is) {
            write!(f, ", {word}")?;
        }
        if self.broken == Broken::Nothing { Ok(()) } else { write!(f, ", {:?}", self.broken) }
    }
}

impl Chain {
    pub fn new(links: &[Link], actors: usize) -> Self {
        Self {
            links: links.to_vec(),
            actors,
            crashes: 0,
            slips: 0,
            refuses: false,
            takes_away: false,
            fails: false,
            lingers: false,
            parks: false,
            times_out: false,
            operates: false,
            awaits: false,
            blocks: false,
            asks_owner: false,
            closes: false,
            broken: Broken::Nothing,
            progress: Progress::default(),
        }
    }

    pub fn crashes(self, crashes: u8) -> Self {
        Self { crashes, ..self }
    }

    /// With calls whose reply is lost, that come late, or that are refused.
    pub fn slips(self, slips: u8) -> Self {
        Self { slips, ..self }
    }

    pub fn refuses(self) -> Self {
        Self { refuses: true, ..self }
    }

    pub fn takes_away(self) -> Self {
        Self { takes_away: true, ..self }
    }

    /// With requests that fail while they wait or after they were granted.
    pub fn fails(self) -> Self {
        Self { fails: true, ..self }
    }

    /// With gates that have to be left twice.
    pub fn lingers(self) -> Self {
        Self { lingers: true, ..self }
    }

    /// With gates that wait until the server is off.
    pub fn parks(self) -> Self {
        Self { parks: true, ..self }
    }

    /// With processes that give up.
    pub fn times_out(self) -> Self {
        Self { times_out: true, ..self }
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

    /// With an approval that is given and withdrawn at any time.
    pub fn asks_owner(self) -> Self {
        Self { asks_owner: true, ..self }
    }

    /// With a window that closes and opens at any time.
    pub fn closes(self) -> Self {
        Self { closes: true, ..self }
    }

    pub fn without(self, broken: Broken) -> Self {
        Self { broken, ..self }
    }

    /// Whether this one acts under the maintenance.
    pub fn is_child(&self, n: usize) -> bool {
        self.operates && n == 1
    }

    /// The one at whose gates this one is.
    pub fn holder(&self, n: usize) -> usize {
        if self.is_child(n) { 0 } else { n }
    }

    /// How many runs of one configuration are enough: one to hold, one to release, one more for
    /// each of what a gate may do once, and one for each that is interrupted.
    pub fn most_runs(&self) -> u32 {
        4 + u32::from(self.crashes) + u32::from(self.slips) + u32::from(self.times_out)
    }

    pub fn first(&self) -> World {
        let actor = Actor {
            goal: Goal::Hold,
            at: At::Away,
            fence: Fence::default(),
            run: 0,
            crashes: 0,
            slips: 0,
            timed_out: false,
            gave_up: false,
            held: false,
        };
        let mut lock = ServerLock::new(LockKey("k".to_owned()));
        lock.ownership.claim = self.asks_owner.then(local::claim);
        World {
            lock: lock.into(),
            leases: Leases::default(),
            machine: Machine::new(),
            node: Node::Serves,
            late: false,
            local: local::Local::default(),
            gates: vec![Gate::default(); self.links.len()],
            on_the_way: Vec::new(),
            actors: vec![actor; self.actors],
            now: local::START,
            wrong: None,
            mark: 0,
        }
        .sealed()
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
            policy: if self.asks_owner { Policy::OwnerApproval } else { Policy::Enforced },
            window: self.closes.then(local::window),
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
}
