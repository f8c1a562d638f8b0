//! Model check of the lock protocol in every possible order of events. A few processes pause,
//! crash, lose the store or are replaced at any moment.
//!
//! Production `decide` and `ServerLock::apply` run under the model; `model/process.rs` and
//! `model/entering.rs` only call them as `src/engine` does. A transaction, a clock reading or a
//! call is one event, and any other event can come between two of them. Time, crashes and restarts
//! are unlimited; `model/identity.rs` explains why the space is finite.
//!
//! The model includes several records in one process, late effects of calls, changes of a held
//! maintenance and processes of unknown state. Its store can be set back, or answer reads and
//! reject changes. It excludes overdue maintenances, windows and approvals (covered by
//! `protocol.rs`), external maintenance systems, boot overrides and media, and clocks that drift.
//!
//! The ignored tests take minutes and are part of `make soak`:
//! `cargo test --package maintenance-protocol --test model -- --ignored --nocapture`.
#![allow(clippy::duration_suboptimal_units, reason = "shares records with the store's tests")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "model/actions.rs"]
mod actions;
#[path = "model/entering.rs"]
mod entering;
#[path = "model/events.rs"]
mod events;
#[path = "model/identity.rs"]
mod identity;
#[path = "model/machine.rs"]
mod machine;
#[path = "model/process.rs"]
mod process;
#[path = "model/properties.rs"]
mod properties;
mod records;
#[path = "model/times.rs"]
mod times;
#[path = "model/world.rs"]
mod world;

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Instant,
};

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use actions::Protocol;
use events::Broken;
use properties::{
    BOUNDED, DONE, ENDS, FORWARD, HANDED_OVER, IN_TIME, KEPT, NO_LOST_HOLD, NOT_STALE, ONE_CALL, OUTLIVES, QUEUED,
    REJECTED, REMEMBERED, REPLACED, SET_BACK, STOPS, TAKEN, TAKEN_OVER, TRUE_PRIOR, UNDER, UNDONE,
};
use times::About;
use world::{Role, World};

/// Explores all states of a protocol and prints their number. The named situations must be among
/// them.
#[allow(clippy::disallowed_methods, reason = "prints its duration")]
fn explore(protocol: Protocol, reached: &[&'static str]) {
    let begun = Instant::now();
    let shown = protocol.to_string();
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!(
        "{shown}: {} states, {} generated, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        begun.elapsed().as_secs_f64()
    );
    let mut found = checker.discoveries();
    for property in properties::all() {
        let path = found.remove(property.name);
        match property.expectation {
            Expectation::Sometimes => {
                assert!(path.is_some() || !reached.contains(&property.name), "never reached: {}", property.name);
            }
            _ => assert!(path.is_none(), "{}: {:?}", property.name, path.map(Path::into_actions)),
        }
    }
}

fn leases(roles: &[Role]) -> Protocol {
    Protocol::new(About::Leases, roles, Broken::Nothing)
}

fn calls(roles: &[Role]) -> Protocol {
    Protocol::new(About::Calls, roles, Broken::Nothing)
}

#[test]
fn a_hold_alone() {
    explore(leases(&[Role::Hold]), &[DONE]);
    explore(calls(&[Role::Hold]), &[OUTLIVES, DONE]);
}

#[test]
fn a_hold_that_is_changed() {
    explore(calls(&[Role::HoldThenChange]), &[OUTLIVES, UNDONE, DONE]);
}

#[test]
fn two_holds_of_one_server() {
    explore(leases(&[Role::Hold, Role::Hold]).calm(), &[QUEUED, DONE]);
}

#[test]
fn two_holds_that_pass_a_server_on() {
    explore(leases(&[Role::HoldDirect, Role::HoldDirect]).calm(), &[QUEUED, HANDED_OVER, DONE]);
}

#[test]
fn a_call_that_outlives_its_hold() {
    explore(calls(&[Role::Hold, Role::HoldAsIs]), &[QUEUED, OUTLIVES, DONE]);
}

#[test]
fn a_job_that_is_started_again() {
    explore(leases(&[Role::Hold, Role::Again(0)]).calm(), &[TAKEN_OVER, DONE]);
}

#[test]
fn a_boot_configuration_beside_a_hold() {
    explore(leases(&[Role::Boot, Role::Hold]).calm(), &[QUEUED, DONE]);
}

#[test]
fn a_boot_configuration_that_is_changed_takes_a_turn_for_it() {
    explore(leases(&[Role::BootThenChange, Role::Hold]).calm(), &[QUEUED, DONE]);
    explore(calls(&[Role::BootThenChange]), &[OUTLIVES, UNDONE, DONE]);
}

#[test]
fn a_boot_configuration_under_a_hold() {
    explore(leases(&[Role::Hold, Role::Under(0)]).calm(), &[UNDER, DONE]);
}

#[test]
fn a_boot_configuration_under_a_hold_that_changes_nothing() {
    explore(leases(&[Role::HoldAsIs, Role::Under(0)]).calm(), &[UNDER, DONE]);
}

#[test]
fn a_hold_and_what_acts_under_it_in_one_process() {
    explore(calls(&[Role::HoldAsIs, Role::Under(0)]).together().calm(), &[UNDER, DONE]);
}

#[test]
fn a_hold_that_is_taken_from_its_holder() {
    explore(leases(&[Role::Hold, Role::ForceRelease(0)]).calm(), &[REPLACED, TAKEN_OVER, DONE]);
}

#[test]
fn a_hold_that_is_abandoned() {
    explore(leases(&[Role::Hold, Role::Abandon(0)]).calm(), &[REPLACED, DONE]);
}

#[test]
fn a_store_that_is_set_back() {
    explore(calls(&[Role::Hold]).losing(3).calm(), &[SET_BACK]);
}

#[test]
fn a_store_that_rejects_changes_for_a_while() {
    explore(calls(&[Role::Hold]).one_way(), &[OUTLIVES, REJECTED, DONE]);
}

#[test]
fn no_rule_about_a_store_that_rejects_changes_can_be_left_out() {
    needs(Broken::RepeatsForever, calls(&[Role::Hold]).one_way(), STOPS);
}

/// Checks that the model finds the violation without this rule.
fn needs(broken: Broken, protocol: Protocol, property: &'static str) {
    let protocol = protocol.without(broken, property);
    let shown = protocol.to_string();
    let found = HasDiscoveries::AnyOf([property].into());
    let checker = protocol.checker().threads(2).finish_when(found).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else { panic!("{shown}: not noticed") };
    println!("{shown}: not {property}: {} states, {:?}", checker.unique_state_count(), path.into_actions());
}

#[test]
fn no_rule_about_leases_can_be_left_out() {
    let late = || leases(&[Role::Hold, Role::Again(0)]);
    let again = || late().calm();
    let under = || leases(&[Role::HoldAsIs, Role::Under(0)]).calm();
    let forced = || leases(&[Role::Hold, Role::ForceRelease(0)]).calm();
    needs(Broken::NoClock, again(), ONE_CALL);
    needs(Broken::NoClock, again(), BOUNDED);
    needs(Broken::NoBound, again(), ONE_CALL);
    needs(Broken::NoMayAct, under(), ONE_CALL);
    needs(Broken::LaterRenewalCounts, late(), ONE_CALL);
    needs(Broken::LaterRenewalCounts, late(), BOUNDED);
    needs(Broken::RenewalCountsFromReply, late(), ONE_CALL);
    needs(Broken::SilentKeepsTurn, under(), ONE_CALL);
    needs(Broken::NoMayActAtEnd, under(), TAKEN);
    needs(Broken::NoWaitAfterSeize, forced(), ONE_CALL);
    needs(Broken::SeizeWaitsInMemory, forced(), ONE_CALL);
    needs(Broken::SeizeWaitsInMemory, leases(&[Role::Hold, Role::Abandon(0)]).calm(), TAKEN);
    needs(Broken::DropsHolders, leases(&[Role::Hold, Role::Hold]).calm(), NO_LOST_HOLD);
    needs(Broken::ForgetsGenerations, again(), FORWARD);
    needs(Broken::HandOverForgetsPrior, leases(&[Role::HoldDirect, Role::HoldDirect]).calm(), TRUE_PRIOR);
    needs(Broken::NeverGivesBack, leases(&[Role::Hold]), ENDS);
    needs(Broken::UnknownCountsAsGone, again(), ONE_CALL);
}

#[test]
fn no_rule_about_calls_can_be_left_out() {
    needs(Broken::ForgetsEffects, calls(&[Role::Hold]), IN_TIME);
    needs(Broken::ReleaseForgetsCalls, calls(&[Role::Hold]), IN_TIME);
    needs(Broken::StepsForgetOtherCalls, calls(&[Role::HoldThenChange]), IN_TIME);
    needs(Broken::ForgetsEffectsAtEnd, calls(&[Role::Hold, Role::Abandon(0), Role::HoldAsIs]).calm(), IN_TIME);
    needs(Broken::UpdateGivesBack, calls(&[Role::HoldThenChange]), KEPT);
    needs(Broken::NeverLetsGo, calls(&[Role::HoldAsIs, Role::Under(0)]).together(), ENDS);
}

#[test]
fn no_rule_about_a_store_that_is_set_back_can_be_left_out() {
    needs(Broken::NoCommitNames, calls(&[Role::Hold]).losing(1).calm(), TRUE_PRIOR);
    needs(Broken::SameTokens, calls(&[Role::Hold, Role::Again(0)]).losing(2).calm(), NOT_STALE);
    needs(Broken::StateRemembersNothing, calls(&[Role::Hold]).losing(2).calm(), REMEMBERED);
}

/// Worlds with equal hashes must behave alike, because the exploration skips states with a known
/// hash.
#[test]
fn worlds_that_count_as_one_behave_as_one() {
    let mut compared = 0;
    for roles in
        [&[Role::Hold, Role::Again(0)], &[Role::HoldAsIs, Role::Under(0)], &[Role::Hold, Role::ForceRelease(0)]]
    {
        let protocol = Protocol::new(About::Calls, roles, Broken::Nothing);
        let mut known: HashMap<u64, Vec<u64>> = HashMap::new();
        for walk in 0..60u64 {
            // Any walk works; a fixed seed keeps the runs repeatable.
            let mut chance = walk;
            let mut world = protocol.first();
            for _ in 0..60 {
                let next = protocol.next_states(&world);
                let come: Vec<u64> = next.iter().map(World::identity).collect();
                match known.entry(world.identity()) {
                    Entry::Vacant(entry) => drop(entry.insert(come)),
                    Entry::Occupied(entry) => {
                        compared += 1;
                        assert_eq!(entry.get(), &come, "{world:?}");
                    }
                }
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let chosen = usize::try_from(chance >> 33).unwrap() % next.len();
                world = next.into_iter().nth(chosen).unwrap();
            }
        }
    }
    println!("{compared} compared");
    assert!(compared > 1000);
}

/// Repeats the checks above with every fault.
#[test]
#[ignore = "takes minutes"]
fn with_late_and_lost_replies() {
    explore(leases(&[Role::Hold, Role::Hold]), &[QUEUED, DONE]);
    explore(leases(&[Role::Hold, Role::Again(0)]), &[TAKEN_OVER, DONE]);
    explore(leases(&[Role::Boot, Role::Hold]), &[QUEUED, DONE]);
    explore(leases(&[Role::Hold, Role::Under(0)]), &[UNDER, DONE]);
    explore(leases(&[Role::HoldAsIs, Role::Under(0)]), &[UNDER, DONE]);
    explore(leases(&[Role::Hold, Role::ForceRelease(0)]), &[REPLACED, TAKEN_OVER, DONE]);
    explore(leases(&[Role::Hold, Role::Abandon(0)]), &[REPLACED, DONE]);
    explore(calls(&[Role::HoldAsIs, Role::Under(0)]).together(), &[UNDER, DONE]);
    explore(calls(&[Role::Hold]).losing(3), &[SET_BACK]);
    explore(leases(&[Role::Hold, Role::Again(0)]).one_way().calm(), &[TAKEN_OVER, DONE]);
}

#[test]
#[ignore = "takes minutes"]
fn a_server_is_passed_on_past_nobody() {
    explore(leases(&[Role::HoldDirect, Role::HoldAsIs, Role::HoldDirect]).calm(), &[QUEUED, HANDED_OVER, DONE]);
}

#[test]
#[ignore = "takes minutes"]
fn three_in_the_queue() {
    explore(leases(&[Role::HoldAsIs, Role::HoldAsIs, Role::Hold]).calm(), &[QUEUED, DONE]);
}

#[test]
#[ignore = "takes minutes"]
fn a_boot_configuration_under_a_hold_that_is_started_again() {
    explore(leases(&[Role::Hold, Role::Under(0), Role::Again(1)]).calm(), &[TAKEN_OVER, UNDER, DONE]);
}

#[test]
#[ignore = "takes minutes"]
fn a_hold_that_is_started_again_and_taken_from_its_holder() {
    let roles = [Role::Hold, Role::Again(0), Role::ForceRelease(0)];
    explore(leases(&roles).calm(), &[REPLACED, TAKEN_OVER, DONE]);
}
