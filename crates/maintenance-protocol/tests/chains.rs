//! Model check of gate chains: production `decide` and `ServerLock::apply` in every possible order
//! of events.
//!
//! One or two maintenances use one server behind two or three gates. Each gate has a queue, has
//! none, or is entered under our lock. Processes crash between any two events or give up. Calls
//! lose their reply or arrive late. Requests are rejected, fail or leave leftovers. Servers are
//! revoked, and a block, an owner or a window delays the start.
//!
//! `model.rs` covers leases, late power calls and a store that is set back. Here, a process's death
//! is always detected.
#![allow(clippy::duration_suboptimal_units, reason = "shares records with the store's tests")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "chains/calls.rs"]
mod calls;
#[path = "chains/chain.rs"]
mod chain;
#[path = "chains/gates.rs"]
mod gates;
#[path = "chains/local.rs"]
mod local;
#[path = "model/machine.rs"]
#[allow(dead_code, reason = "calls that come late are in the other model")]
mod machine;
#[path = "chains/node.rs"]
mod node;
#[path = "chains/progress.rs"]
mod progress;
mod records;
#[path = "chains/steps.rs"]
mod steps;
#[path = "chains/world.rs"]
mod world;

use maintenance_protocol::gate::{Loss, QueueAuthority};
use stateright::{Checker as _, Model, Property};

use chain::{Broken, Chain, Link};
use world::{Event, World};

const EXTERNAL: Link = Link { order: QueueAuthority::Theirs, loss: Loss::EndsHold };
const WITHOUT_QUEUE: Link = Link { order: QueueAuthority::OnTurn, loss: Loss::Restore };
const LOCAL: Link = Link { order: QueueAuthority::Ours, loss: Loss::EndsHold };

/// The same gates with the other loss.
const EXTERNAL_BESIDE: Link = Link { order: QueueAuthority::Theirs, loss: Loss::Restore };
const WITHOUT_QUEUE_OWN: Link = Link { order: QueueAuthority::OnTurn, loss: Loss::EndsHold };
const LOCAL_BESIDE: Link = Link { order: QueueAuthority::Ours, loss: Loss::Restore };

/// Every order of two gates that can be enqueued.
const PAIRS: [[Link; 2]; 6] = [
    [WITHOUT_QUEUE, LOCAL],
    [WITHOUT_QUEUE, EXTERNAL],
    [EXTERNAL, LOCAL],
    [WITHOUT_QUEUE, WITHOUT_QUEUE],
    [EXTERNAL, EXTERNAL],
    [LOCAL, LOCAL],
];

/// Violations, by property name.
const ORDER: &str = "a gate receives a request after all gates before it allow the start";
const SLOT: &str = "the lock is taken after all external gates allow it";
const BACK: &str = "gates are left in reverse order";
const AWAITED: &str = "a gate stays until the Node is Ready again, unless the record states a reason";
const KEPT: &str = "a blocked waiter does not keep a request at an external gate";
const NOTED: &str = "an active record contains every request at a gate";
const TOUCHED: &str = "power changes only under all gates";
const DISTURBED: &str = "no request is sent under a lock after an outer gate revoked the server";
const RESTORED: &str = "a server that was not revoked ends in its prior state";
const RUNS: &str = "no run starts in vain";
const LOCAL_GATES: &str = "the lock is taken after block, owner and window allow it";
const ONCE: &str = "a gate is not entered or left again";
const LEFT: &str = "an ended maintenance does not have a request at any gate";
const ENDS: &str = "no maintenance waits forever";
const HELD: &str = "every maintenance gets the lock once";

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
        let next = self.after(world, event)?;
        self.progress.note(world, event, &next);
        Some(next)
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
            Property::always(LOCAL_GATES, |_, world: &World| !world.is_wrong(LOCAL_GATES)),
            Property::always(ONCE, |_, world: &World| !world.is_wrong(ONCE)),
            Property::always(NOTED, |_, world: &World| Chain::noted(world)),
            Property::always(LEFT, |model: &Chain, world: &World| model.left(world)),
            Property::sometimes(HELD, |_, world: &World| world.is_over() && world.all_held()),
        ]
    }
}

fn explore(chain: Chain) {
    let (shown, progress, first) = (chain.to_string(), chain.progress.clone(), chain.first());
    let checker = chain.checker().threads(2).spawn_bfs().join();
    println!("{shown}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
    for (name, path) in checker.discoveries() {
        let last = (path.last_state().actors.clone(), path.last_state().gates.clone());
        assert_eq!(name, HELD, "{shown}: not {name}: {:?}\n{last:#?}", path.into_actions());
    }
    assert!(checker.discovery(HELD).is_some(), "{shown}: never {HELD}");
    assert_eq!(progress.without_end(&first), None, "{shown}: not {ENDS}");
}

/// Checks that the model finds the violation without this rule.
fn needs(broken: Broken, property: &'static str, chain: Chain) {
    let chain = chain.without(broken);
    let (shown, progress, first) = (chain.to_string(), chain.progress.clone(), chain.first());
    let checker = chain.checker().threads(2).spawn_bfs().join();
    let found = checker.discovery(property).is_some() || property == ENDS && progress.without_end(&first).is_some();
    assert!(found, "{shown}: not noticed");
}

#[test]
fn chains_of_two_gates() {
    for links in PAIRS {
        explore(Chain::new(&links, 1).crashes(2).refuses());
        explore(Chain::new(&links, 1).crashes(1).takes_away());
    }
}

#[test]
fn chains_of_gates_with_either_loss() {
    for links in [[EXTERNAL_BESIDE, LOCAL], [EXTERNAL_BESIDE, EXTERNAL], [WITHOUT_QUEUE_OWN, LOCAL_BESIDE]] {
        explore(Chain::new(&links, 1).takes_away());
        explore(Chain::new(&links, 1).fails());
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
        explore(Chain::new(&links, 1).crashes(1).takes_away());
    }
}

#[test]
fn chains_whose_requests_fail() {
    for links in PAIRS {
        explore(Chain::new(&links, 1).fails().lingers());
        explore(Chain::new(&links, 1).fails().blocks());
    }
    for links in [[WITHOUT_QUEUE, EXTERNAL], [LOCAL, LOCAL]] {
        explore(Chain::new(&links, 1).fails().crashes(1));
    }
    explore(Chain::new(&[WITHOUT_QUEUE, EXTERNAL, LOCAL], 1).fails());
}

#[test]
fn chains_whose_calls_lose_their_reply_or_come_late() {
    for links in PAIRS {
        explore(Chain::new(&links, 1).slips(1).crashes(1));
        explore(Chain::new(&links, 1).slips(1).lingers());
        explore(Chain::new(&links, 1).slips(1).blocks());
    }
    explore(Chain::new(&[WITHOUT_QUEUE, EXTERNAL], 1).slips(1).takes_away());
    explore(Chain::new(&[WITHOUT_QUEUE, EXTERNAL, LOCAL], 1).slips(1).refuses());
}

#[test]
fn chains_before_a_maintenance_whose_time_ends() {
    for links in PAIRS {
        explore(Chain::new(&links, 1).times_out().blocks());
        explore(Chain::new(&links, 1).times_out().takes_away());
    }
    explore(Chain::new(&[WITHOUT_QUEUE, EXTERNAL], 1).times_out().fails());
}

#[test]
fn chains_before_a_server_whose_owner_or_window_says_when() {
    for links in PAIRS {
        explore(Chain::new(&links, 1).asks_owner().crashes(1));
        explore(Chain::new(&links, 1).closes());
    }
}

#[test]
fn chains_with_a_gate_that_waits_until_the_server_is_off() {
    for links in [[WITHOUT_QUEUE, LOCAL], [EXTERNAL, LOCAL], [LOCAL, LOCAL]] {
        explore(Chain::new(&links, 1).parks().fails());
        explore(Chain::new(&links, 1).parks().slips(1));
    }
}

#[test]
fn chains_before_a_server_whose_node_is_waited_for() {
    for links in [&[WITHOUT_QUEUE, LOCAL][..], &[WITHOUT_QUEUE, EXTERNAL], &[WITHOUT_QUEUE, EXTERNAL, LOCAL]] {
        explore(Chain::new(links, 1).awaits().crashes(1));
        explore(Chain::new(links, 1).awaits().takes_away());
    }
    explore(Chain::new(&[WITHOUT_QUEUE, EXTERNAL], 1).awaits().slips(1));
}

#[test]
fn chains_of_two_gates_before_an_operation_under_a_maintenance() {
    for links in [[WITHOUT_QUEUE, LOCAL], [WITHOUT_QUEUE, EXTERNAL]] {
        explore(Chain::new(&links, 1).operates().takes_away());
    }
}

#[test]
fn chains_before_a_server_that_is_blocked_for_a_while() {
    for links in PAIRS {
        explore(Chain::new(&links, 1).blocks().crashes(1));
    }
    explore(Chain::new(&[WITHOUT_QUEUE, LOCAL, LOCAL], 1).blocks().crashes(1));
    explore(Chain::new(&[WITHOUT_QUEUE, EXTERNAL], 1).blocks().refuses());
    explore(Chain::new(&[EXTERNAL, EXTERNAL], 1).blocks().takes_away());
}

#[test]
fn no_rule_about_chains_can_be_left_out() {
    let outer = || Chain::new(&[WITHOUT_QUEUE, EXTERNAL], 1);
    let chain = || Chain::new(&[WITHOUT_QUEUE, LOCAL], 1).crashes(1);
    needs(Broken::NoNote, NOTED, chain());
    needs(Broken::OuterFirst, BACK, chain());
    needs(Broken::NotReallyBack, BACK, chain());
    needs(Broken::AllAtOnce, ORDER, outer());
    needs(Broken::GrantsUnseen, SLOT, chain());
    needs(Broken::ChildIsBlind, DISTURBED, Chain::new(&[WITHOUT_QUEUE, LOCAL], 1).operates().takes_away());
    needs(Broken::LeavesNodeBehind, AWAITED, Chain::new(&[WITHOUT_QUEUE, LOCAL], 1).awaits());
    needs(Broken::BelievesOldWord, AWAITED, Chain::new(&[WITHOUT_QUEUE, LOCAL], 1).awaits());
    needs(Broken::KeepsAsking, KEPT, outer().blocks());
    needs(Broken::OuterWithdrawnFirst, BACK, outer().blocks());
    needs(Broken::LossTouchesNothing, RESTORED, Chain::new(&[WITHOUT_QUEUE, LOCAL], 1).takes_away());
    needs(Broken::FailedIsGone, LEFT, Chain::new(&[WITHOUT_QUEUE, LOCAL], 1).fails());
    needs(Broken::LeftoversAreGone, LEFT, Chain::new(&[WITHOUT_QUEUE, LOCAL], 1).lingers());
    needs(Broken::NeverTidied, ENDS, outer().slips(1));
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

#[test]
#[ignore = "takes minutes"]
fn chains_that_fail_in_several_ways() {
    for links in PAIRS {
        explore(Chain::new(&links, 1).slips(1).crashes(1).fails());
        explore(Chain::new(&links, 1).slips(1).takes_away().blocks());
        explore(Chain::new(&links, 1).closes().takes_away().crashes(1));
        explore(Chain::new(&links, 1).parks().fails().crashes(1));
        explore(Chain::new(&links, 1).times_out().fails().blocks());
        explore(Chain::new(&links, 1).times_out().fails().lingers().asks_owner());
        explore(Chain::new(&links, 1).slips(2).crashes(1));
    }
    for links in [[WITHOUT_QUEUE, EXTERNAL, LOCAL], [WITHOUT_QUEUE, WITHOUT_QUEUE, EXTERNAL]] {
        explore(Chain::new(&links, 1).crashes(1).fails().takes_away());
        explore(Chain::new(&links, 1).crashes(1).slips(1));
    }
}

#[test]
#[ignore = "takes minutes"]
fn chains_that_fail_before_two_maintenances() {
    for links in [[WITHOUT_QUEUE, LOCAL], [WITHOUT_QUEUE, EXTERNAL]] {
        explore(Chain::new(&links, 2).fails());
        explore(Chain::new(&links, 2).slips(1));
    }
}
