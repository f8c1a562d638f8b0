//! Chains of gates in every order of events that is possible: a model checker applies production
//! `decide` and `ServerLock::apply` to one or two maintenances of one server behind two or three
//! gates, each with a queue, without one, or entered under our slot; processes crash between any
//! two events, approvals come late, requests are refused, and servers are taken away.
//!
//! Leases, lost calls and a store that is set back are in `model.rs`; here a dead process is known
//! to be dead.
#![allow(clippy::duration_suboptimal_units, reason = "the records of the store's tests are used here too")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "model/machine.rs"]
#[allow(dead_code, reason = "calls that come late are in the other model")]
mod machine;
#[path = "chains/node.rs"]
mod node;
mod records;
#[path = "chains/steps.rs"]
mod steps;
#[path = "chains/world.rs"]
mod world;

use maintenance_protocol::gate::{Loss, QueueAuthority};
use stateright::{Checker as _, Model, Property};

use world::{Broken, Chain, Event, Link, World};

const EXTERNAL: Link = Link { order: QueueAuthority::Theirs, loss: Loss::EndsHold };
const WITHOUT_QUEUE: Link = Link { order: QueueAuthority::OnTurn, loss: Loss::Restore };
const LOCAL: Link = Link { order: QueueAuthority::Ours, loss: Loss::EndsHold };

/// What must never be, by the name of the property.
const ORDER: &str = "a gate is asked once all before it allow the start";
const SLOT: &str = "the server is taken once all external gates allow it";
const BACK: &str = "a gate is left once all behind it are really left";
const AWAITED: &str = "a gate stays until the Node is Ready again, unless the record says why not";
const KEPT: &str = "a waiter keeps nothing at an external gate while its start is blocked";
const NOTED: &str = "what a gate has of ours is noted in an active record";
const TOUCHED: &str = "power is changed only where every gate holds the server";
const DISTURBED: &str = "nothing that acts under a hold is sent once an outer gate took the server away";
const RESTORED: &str = "a server that stayed ours ends as it was";
const RUNS: &str = "no run is begun in vain";
const LEFT: &str = "what is over has nothing at any gate";
const ENDS: &str = "nothing waits for ever";
const HELD: &str = "every maintenance has the server once";

impl Model for Chain {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![self.first()]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        self.events(world, events);
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        self.after(world, event)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ORDER, |_, world: &World| !world.is_wrong(ORDER)),
            Property::always(SLOT, |_, world: &World| !world.is_wrong(SLOT)),
            Property::always(BACK, |_, world: &World| !world.is_wrong(BACK)),
            Property::always(AWAITED, |_, world: &World| !world.is_wrong(AWAITED)),
            Property::always(TOUCHED, |_, world: &World| !world.is_wrong(TOUCHED)),
            Property::always(DISTURBED, |_, world: &World| !world.is_wrong(DISTURBED)),
            Property::always(RUNS, |_, world: &World| !world.is_wrong(RUNS)),
            Property::always(RESTORED, |_, world: &World| !world.is_wrong(RESTORED)),
            Property::always(KEPT, |_, world: &World| !world.is_wrong(KEPT)),
            Property::always(NOTED, |_, world: &World| Chain::noted(world)),
            Property::always(LEFT, |model: &Chain, world: &World| model.left(world)),
            Property::always(ENDS, |model: &Chain, world: &World| {
                world.is_over() || world.wrong.is_some() || !model.next_states(world).is_empty()
            }),
            Property::sometimes(HELD, |_, world: &World| world.is_over() && world.all_held()),
        ]
    }
}

fn explore(chain: Chain) {
    let shown = chain.to_string();
    let checker = chain.checker().threads(2).spawn_bfs().join();
    println!("{shown}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
    for (name, path) in checker.discoveries() {
        let last = (path.last_state().actors.clone(), path.last_state().gates.clone());
        assert_eq!(name, HELD, "{shown}: not {name}: {:?}\n{last:#?}", path.into_actions());
    }
    assert!(checker.discovery(HELD).is_some(), "{shown}: never {HELD}");
}

/// Without this rule, what must never be is found.
fn needs(broken: Broken, property: &'static str, chain: Chain) {
    let chain = chain.without(broken);
    let shown = chain.to_string();
    let checker = chain.checker().threads(2).spawn_bfs().join();
    assert!(checker.discovery(property).is_some(), "{shown}: not noticed");
}

#[test]
fn chains_of_two_gates() {
    for links in [[WITHOUT_QUEUE, LOCAL], [WITHOUT_QUEUE, EXTERNAL], [EXTERNAL, LOCAL], [WITHOUT_QUEUE, WITHOUT_QUEUE]]
    {
        explore(Chain::new(&links, 1).crashes(2).refuses());
        explore(Chain::new(&links, 1).crashes(1).takes_away());
    }
}

#[test]
fn chains_of_two_gates_before_two_maintenances() {
    for links in [[WITHOUT_QUEUE, LOCAL], [WITHOUT_QUEUE, EXTERNAL]] {
        explore(Chain::new(&links, 2));
    }
}

#[test]
fn chains_of_three_gates() {
    for links in [[WITHOUT_QUEUE, EXTERNAL, LOCAL], [WITHOUT_QUEUE, WITHOUT_QUEUE, EXTERNAL]] {
        explore(Chain::new(&links, 1).crashes(1).refuses());
        explore(Chain::new(&links, 1).takes_away());
    }
}

#[test]
fn chains_before_a_server_whose_node_is_waited_for() {
    for links in [&[WITHOUT_QUEUE, LOCAL][..], &[WITHOUT_QUEUE, EXTERNAL], &[WITHOUT_QUEUE, EXTERNAL, LOCAL]] {
        explore(Chain::new(links, 1).awaits().crashes(1));
        explore(Chain::new(links, 1).awaits().takes_away());
    }
}

#[test]
fn chains_of_two_gates_before_an_operation_under_a_maintenance() {
    for links in [[WITHOUT_QUEUE, LOCAL], [WITHOUT_QUEUE, EXTERNAL]] {
        explore(Chain::new(&links, 1).operates().takes_away());
    }
}

#[test]
fn chains_before_a_server_that_is_blocked_for_a_while() {
    let links = [
        &[WITHOUT_QUEUE, LOCAL][..],
        &[WITHOUT_QUEUE, EXTERNAL],
        &[EXTERNAL, EXTERNAL],
        &[WITHOUT_QUEUE, LOCAL, LOCAL],
    ];
    for links in links {
        explore(Chain::new(links, 1).blocks().crashes(1));
    }
    explore(Chain::new(&[WITHOUT_QUEUE, EXTERNAL], 1).blocks().refuses());
}

#[test]
fn no_rule_about_chains_can_be_left_out() {
    let chain = || Chain::new(&[WITHOUT_QUEUE, LOCAL], 1).crashes(1);
    needs(Broken::NoNote, NOTED, chain());
    needs(Broken::OuterFirst, BACK, chain());
    needs(Broken::NotReallyBack, BACK, chain());
    needs(Broken::AllAtOnce, ORDER, Chain::new(&[WITHOUT_QUEUE, EXTERNAL], 1));
    needs(Broken::GrantsUnseen, SLOT, chain());
    needs(Broken::ChildIsBlind, DISTURBED, Chain::new(&[WITHOUT_QUEUE, LOCAL], 1).operates().takes_away());
    needs(Broken::LeavesNodeBehind, AWAITED, Chain::new(&[WITHOUT_QUEUE, LOCAL], 1).awaits());
    needs(Broken::BelievesOldWord, AWAITED, Chain::new(&[WITHOUT_QUEUE, LOCAL], 1).awaits());
    needs(Broken::KeepsAsking, KEPT, Chain::new(&[WITHOUT_QUEUE, EXTERNAL], 1).blocks());
    needs(Broken::OuterWithdrawnFirst, BACK, Chain::new(&[WITHOUT_QUEUE, EXTERNAL], 1).blocks());
    needs(Broken::LossTouchesNothing, RESTORED, Chain::new(&[WITHOUT_QUEUE, LOCAL], 1).takes_away());
}

#[test]
#[ignore = "takes minutes"]
fn chains_before_an_operation_that_crashes() {
    for links in [[WITHOUT_QUEUE, LOCAL], [WITHOUT_QUEUE, EXTERNAL]] {
        explore(Chain::new(&links, 1).operates().crashes(1));
    }
}

#[test]
#[ignore = "takes minutes"]
fn chains_with_everything() {
    for links in [[WITHOUT_QUEUE, LOCAL], [WITHOUT_QUEUE, EXTERNAL]] {
        explore(Chain::new(&links, 2).crashes(1));
        explore(Chain::new(&links, 1).crashes(2).refuses().takes_away());
    }
    explore(Chain::new(&[WITHOUT_QUEUE, EXTERNAL, LOCAL], 1).crashes(2).refuses());
}
