//! The explored chain: a server's gates, their possible events, and the disabled rule.

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

/// A configured gate.
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

/// A disabled rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Nothing,
    /// A request is sent without recording it first.
    NoNote,
    /// A record leaves the outermost gate first.
    OuterFirst,
    /// A returning gate counts as left.
    NotReallyBack,
    /// Each gate is requested without waiting for the outer gates.
    AllAtOnce,
    /// A waiting request counts as granted.
    GrantsUnseen,
    /// A server that an outer gate revoked is not restored.
    LossTouchesNothing,
    /// A child record ignores its parent's outer gates.
    ChildIsBlind,
    /// A record leaves the outermost gate while its Node is not Ready.
    LeavesNodeBehind,
    /// A Node counts as Ready by its last report before the restore.
    BelievesOldWord,
    /// A waiter with a gate request ignores blockers of its start.
    KeepsAsking,
    /// A waiter withdraws its requests in the order of sending them.
    OuterWithdrawnFirst,
    /// A failed request counts as deleted.
    FailedIsGone,
    /// Leftovers of a request count as deleted.
    LeftoversAreGone,
    /// No process searches for orphaned requests.
    NeverTidied,
}

/// The explored chain.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent switches of the model")]
pub struct Chain {
    pub links: Vec<Link>,
    pub actors: usize,
    pub crashes: u8,
    /// Number of abnormal calls per process.
    pub slips: u8,
    pub refuses: bool,
    pub takes_away: bool,
    /// Each gate fails one request, granted or not.
    pub fails: bool,
    /// Each gate has leftovers once.
    pub lingers: bool,
    /// A gate that is entered under our lock waits until the server is off.
    pub parks: bool,
    /// Each process can reach its time limit first.
    pub times_out: bool,
    /// An operation under the maintenance switches the server off.
    pub operates: bool,
    /// A record leaves the outermost gate after the server's Node is Ready.
    pub awaits: bool,
    /// A person blocks the server once, and later allows it again.
    pub blocks: bool,
    /// The server's owner must approve, and withdraws the approval once.
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

    /// Adds calls that lose their reply, arrive late or are rejected.
    pub fn slips(self, slips: u8) -> Self {
        Self { slips, ..self }
    }

    pub fn refuses(self) -> Self {
        Self { refuses: true, ..self }
    }

    pub fn takes_away(self) -> Self {
        Self { takes_away: true, ..self }
    }

    /// Adds requests that fail, before or after they are granted.
    pub fn fails(self) -> Self {
        Self { fails: true, ..self }
    }

    /// Adds gates that need a second leave call.
    pub fn lingers(self) -> Self {
        Self { lingers: true, ..self }
    }

    /// Adds gates that wait until the server is off.
    pub fn parks(self) -> Self {
        Self { parks: true, ..self }
    }

    /// Adds processes that give up.
    pub fn times_out(self) -> Self {
        Self { times_out: true, ..self }
    }

    /// Adds an operation under a single maintenance.
    pub fn operates(self) -> Self {
        Self { operates: true, actors: 2, ..self }
    }

    /// Adds a Node that must be Ready before a record leaves the outermost gate.
    pub fn awaits(self) -> Self {
        Self { awaits: true, ..self }
    }

    /// Adds a block that begins and ends at any time.
    pub fn blocks(self) -> Self {
        Self { blocks: true, ..self }
    }

    /// Adds an approval that is granted and withdrawn at any time.
    pub fn asks_owner(self) -> Self {
        Self { asks_owner: true, ..self }
    }

    /// Adds a window that closes and opens at any time.
    pub fn closes(self) -> Self {
        Self { closes: true, ..self }
    }

    pub fn without(self, broken: Broken) -> Self {
        Self { broken, ..self }
    }

    /// Returns true if this actor's record is a child record.
    pub fn is_child(&self, n: usize) -> bool {
        self.operates && n == 1
    }

    /// Returns the actor whose gates this actor uses.
    pub fn holder(&self, n: usize) -> usize {
        if self.is_child(n) { 0 } else { n }
    }

    /// Returns the maximum number of runs: one to hold, one to release, one per single gate event,
    /// and one per interrupted run.
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
        let mut lock = ServerLock::new(LockKey::new("k"));
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
            // As `Engine::systems` returns it: only the server's own system, which it does not
            // enter.
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
