//! The server's Node: the outermost gate's view of it on leaving, and events of the Node and its
//! waiters.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use maintenance_protocol::{
    change::{LockChange, RecordChange},
    decide::Finish,
    gate::{self, AwaitedNode},
    ids::Generation,
    machine::PowerTarget,
    state::{Ending, Phase, Progress},
    step::Step,
};

use crate::{
    chain::{Broken, Chain},
    world::{At, Event, Goal, PAUSE, World, runner, token, uid},
};

/// Time limit for Ready. Shorter than the pause between runs, so that a run after a failed run
/// needs its own time limit.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// The Node's state in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// Ready, and its kubelet reports.
    Serves,
    /// Ready by a report from before the server was stopped or started.
    Unheard,
    NotReady,
}

impl Node {
    /// Marks earlier reports as outdated.
    pub fn after_reset(self) -> Self {
        if self == Self::Serves { Self::Unheard } else { self }
    }
}

fn stuck(world: &World, n: usize) -> bool {
    world.record(n).is_some_and(|record| matches!(record.phase, Phase::Releasing { stuck: Some(_), .. }))
}

fn leaves_gate(world: &World, n: usize) -> bool {
    let step = world.record(n).and_then(|record| record.phase.progress().and_then(Progress::step));
    step == Some(Step::LeaveGate)
}

impl Chain {
    /// Returns the outermost gate's view of the Node, as `cluster_api` does.
    pub fn awaited(&self, world: &World, n: usize) -> Option<AwaitedNode> {
        let leaves = leaves_gate(world, n) && world.record(n).is_some_and(|record| record.gates[0].entered);
        if !self.awaits || !leaves || self.broken == Broken::LeavesNodeBehind {
            return None;
        }
        let heard = match world.node {
            Node::Serves => Some(world.now),
            _ if self.broken == Broken::BelievesOldWord => None,
            _ => Some(Timestamp::UNIX_EPOCH),
        };
        Some(AwaitedNode {
            node: "the Node".into(),
            request: "gate 0".into(),
            ready: world.node != Node::NotReady,
            heard,
            timeout: READY_TIMEOUT,
        })
    }

    pub fn node_events(&self, world: &World, events: &mut Vec<Event>) {
        if !self.awaits {
            return;
        }
        if world.node == Node::Unheard {
            events.push(Event::NodeLost);
        }
        if world.node != Node::Serves && world.machine.on {
            events.push(Event::NodeBack);
        }
        for (n, actor) in world.actors.iter().enumerate() {
            let waits = actor.at == At::Driving && leaves_gate(world, n) && world.node != Node::Serves;
            if waits && !world.late {
                events.push(Event::Late(n));
            }
            if actor.at == At::Away && actor.goal == Goal::Release && stuck(world, n) {
                events.push(Event::Accept(n));
            }
        }
    }

    pub fn node_event(world: &mut World, event: Event) {
        match event {
            Event::NodeLost => world.node = Node::NotReady,
            Event::NodeBack => world.node = Node::Serves,
            Event::Late(_) => {
                world.late = true;
                world.now += SignedDuration::try_from(READY_TIMEOUT).unwrap();
            }
            _ => {}
        }
    }

    /// A person ends a failed release without a restore: the command fences, leaves the gates and
    /// ends the record.
    pub fn accept(world: &mut World, n: usize) -> bool {
        world.now += PAUSE;
        world.actors[n].run += 1;
        let (runner, token, uid) = (runner(world, n), token(world, n), uid(n));
        world.leases.0.insert(runner.id.clone(), Timestamp::MAX);
        let change = LockChange::Attach { uid: &uid, runner: &runner, token, state: "", owner: None };
        match Self::apply(world, &change) {
            Some(maintenance_protocol::change::Applied::Attached { fence, .. }) => {
                (world.actors[n].fence, world.actors[n].at) = (fence, At::Accepting);
            }
            _ => Self::finish(world, n, &Finish::Lost),
        }
        true
    }

    /// Returns the change that ends a record without a restore.
    pub fn as_it_is() -> RecordChange {
        let (by, reason) = ("a person".to_owned(), "the Node stays not Ready".to_owned());
        RecordChange::Abandon(Ending::Released { by: by.into(), reason: reason.into(), seen: Generation::default() })
    }

    /// Returns true if a request is withdrawn while the Node that it protects is not Ready, and the
    /// record does not allow it. It is allowed if the server was revoked, ends switched off, or its
    /// failed release was given up.
    pub fn leaves_node_behind(&self, world: &World, n: usize) -> bool {
        let Some(record) = world.record(n).filter(|_| self.awaits && world.node != Node::Serves) else { return false };
        let runs = record.final_power() == Some(PowerTarget::On) && gate::may_restore(record);
        let given_up = world.actors[n].at == At::Accepting && stuck(world, n);
        runs && record.gates[0].lost.is_none() && record.gates[0].entered && !given_up
    }
}
