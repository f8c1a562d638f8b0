//! The lock protocol in every order of events that is possible: a model checker applies the real transitions to a small
//! number of processes, each of which may be paused, crash, lose the store or be replaced at any moment.
//!
//! There is no limit on time, crashes or restarts; `model/world.rs` says why the space is finite all the same. The code
//! around the transitions, `src/engine`, is modelled step by step in `model/process.rs`: whatever is one transaction, one
//! look at the clock or one call there is one event here, and between any two of them everything else may happen. Not
//! modelled: overdue holds, windows and approvals (`protocol.rs` has them), several records in one process, a wish that is
//! changed under a hold, clocks that go at different speeds.
//!
//! The tests that are ignored explore three at once: `cargo test --test model -- --ignored --nocapture`.
#![allow(clippy::duration_suboptimal_units, reason = "the records of the store's tests are used here too")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "model/actions.rs"]
mod actions;
#[path = "model/process.rs"]
mod process;
#[path = "model/properties.rs"]
mod properties;
#[path = "store/records.rs"]
mod records;
#[path = "model/world.rs"]
mod world;

use std::collections::{HashMap, hash_map::Entry};

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};
use terraform_provider_metal::clock::{Clock, SystemClock};

use actions::{Broken, Protocol};
use properties::{BOUNDED, DONE, ENDS, FORWARD, NO_LOST_HOLD, ONE_CALL, QUEUED, REPLACED, TAKEN, TAKEN_OVER, UNDER};
use world::{Role, World};

/// Explores everything that a protocol can come to, and says how much that was. Of the situations that matter, those
/// named must be among it.
fn explore(protocol: Protocol, reached: &[&'static str]) {
    let clock = SystemClock::default();
    let shown = protocol.to_string();
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!(
        "{shown}: {} states, {} generated, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        clock.monotonic().as_secs_f64()
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

fn holds(roles: &[Role], reached: &[&'static str]) {
    explore(Protocol::new(roles, Broken::Nothing), reached);
}

#[test]
fn two_holds_of_one_server() {
    holds(&[Role::Hold, Role::Hold], &[QUEUED, DONE]);
}

#[test]
fn a_job_that_is_started_again() {
    holds(&[Role::Hold, Role::Again(0)], &[TAKEN_OVER, DONE]);
}

#[test]
fn a_boot_configuration_beside_a_hold() {
    holds(&[Role::Boot, Role::Hold], &[QUEUED, DONE]);
}

#[test]
fn a_boot_configuration_under_a_hold() {
    holds(&[Role::Hold, Role::Under(0)], &[UNDER, DONE]);
}

#[test]
fn a_boot_configuration_under_a_hold_that_changes_nothing() {
    holds(&[Role::HoldAsIs, Role::Under(0)], &[UNDER, DONE]);
}

#[test]
fn a_hold_that_is_taken_from_its_holder() {
    holds(&[Role::Hold, Role::ForceRelease(0)], &[REPLACED, TAKEN_OVER, DONE]);
}

#[test]
fn a_hold_that_is_abandoned() {
    holds(&[Role::Hold, Role::Abandon(0)], &[REPLACED, DONE]);
}

/// Without this rule, what must never be is found.
fn needs(broken: Broken, roles: &[Role], property: &'static str) {
    let protocol = Protocol::new(roles, broken);
    let shown = protocol.to_string();
    let found = HasDiscoveries::AnyOf([property].into());
    let checker = protocol.checker().threads(2).finish_when(found).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else { panic!("{shown}: not noticed") };
    println!("{shown}: not {property}: {:?}", path.into_actions());
}

#[test]
fn no_rule_can_be_left_out() {
    let again = &[Role::Hold, Role::Again(0)];
    let under = &[Role::Hold, Role::Under(0)];
    needs(Broken::NoClock, again, ONE_CALL);
    needs(Broken::NoClock, again, BOUNDED);
    needs(Broken::NoBound, again, ONE_CALL);
    needs(Broken::NoMayAct, under, ONE_CALL);
    needs(Broken::LaterRenewalCounts, again, ONE_CALL);
    needs(Broken::LaterRenewalCounts, again, BOUNDED);
    needs(Broken::RenewalCountsFromReply, again, ONE_CALL);
    needs(Broken::SilentKeepsTurn, under, ONE_CALL);
    needs(Broken::NoMayActAtEnd, &[Role::HoldAsIs, Role::Under(0)], TAKEN);
    needs(Broken::NoWaitAfterSeize, &[Role::Hold, Role::ForceRelease(0)], ONE_CALL);
    needs(Broken::SeizeWaitsInMemory, &[Role::Hold, Role::ForceRelease(0)], ONE_CALL);
    needs(Broken::SeizeWaitsInMemory, &[Role::Hold, Role::Abandon(0)], TAKEN);
    needs(Broken::DropsHolders, &[Role::Hold, Role::Hold], NO_LOST_HOLD);
    needs(Broken::ForgetsGenerations, again, FORWARD);
    needs(Broken::NeverGivesBack, &[Role::Hold, Role::Hold], ENDS);
}

/// Worlds that differ only in what [`World`]'s `Hash` leaves out must behave as one: otherwise the exploration would skip
/// states that nobody has looked at.
#[test]
fn worlds_that_count_as_one_behave_as_one() {
    let mut compared = 0;
    for roles in
        [&[Role::Hold, Role::Again(0)], &[Role::HoldAsIs, Role::Under(0)], &[Role::Hold, Role::ForceRelease(0)]]
    {
        let protocol = Protocol::new(roles, Broken::Nothing);
        let mut known: HashMap<u64, Vec<u64>> = HashMap::new();
        for walk in 0..60u64 {
            // Any walk does; these are the same in every run.
            let mut chance = walk;
            let mut world = World::new(roles);
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

#[test]
#[ignore = "takes minutes"]
fn three_in_the_queue() {
    let roles = [Role::HoldAsIs, Role::HoldAsIs, Role::Hold];
    explore(Protocol::new(&roles, Broken::Nothing).calm(), &[QUEUED, DONE]);
}

#[test]
#[ignore = "takes minutes"]
fn a_boot_configuration_under_a_hold_that_is_started_again() {
    let roles = [Role::Hold, Role::Under(0), Role::Again(1)];
    explore(Protocol::new(&roles, Broken::Nothing).calm(), &[TAKEN_OVER, UNDER, DONE]);
}

#[test]
#[ignore = "takes minutes"]
fn a_hold_that_is_started_again_and_taken_from_its_holder() {
    let roles = [Role::Hold, Role::Again(0), Role::ForceRelease(0)];
    explore(Protocol::new(&roles, Broken::Nothing).calm(), &[REPLACED, TAKEN_OVER, DONE]);
}
