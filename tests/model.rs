//! The lock protocol in every order of events that is possible: a model checker applies the real transitions to a small
//! number of processes, each of which may be paused, crash, lose the store or be replaced at any moment.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "model/actions.rs"]
mod actions;
#[path = "model/properties.rs"]
mod properties;
#[path = "store/records.rs"]
mod records;
#[path = "model/world.rs"]
mod world;

use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use actions::{Broken, Protocol};
use properties::{DONE, ONE_CALL, QUEUED, REPLACED, TAKEN, TAKEN_OVER, UNDER};
use world::Role;

/// Explores everything that these roles can come to, and says how much that was. Of the situations that matter, those
/// named must be among it.
fn holds(roles: &[Role], reached: &[&'static str]) {
    let began = Instant::now();
    let protocol = Protocol::new(roles, Broken::Nothing);
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!(
        "{roles:?}: {} states, {} generated, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f64()
    );
    for (name, path) in checker.discoveries() {
        if checker.discovery_classification(name).to_string() == "counterexample" {
            println!("{name}: {:?}", path.into_actions());
        }
    }
    let found = checker.discoveries();
    for property in properties::all() {
        match property.expectation {
            Expectation::Sometimes => assert!(!reached.contains(&property.name) || found.contains_key(property.name)),
            _ => assert!(!found.contains_key(property.name), "{}", property.name),
        }
    }
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

/// Without this rule something that must never be is found.
fn needs(broken: Broken, roles: &[Role], name: &'static str) {
    let protocol = Protocol::new(roles, broken);
    let checker = protocol.checker().threads(2).finish_when(HasDiscoveries::AnyOf([name].into())).spawn_bfs().join();
    let path = checker.discovery(name);
    println!("{broken:?}: {} states", checker.unique_state_count());
    let path = path.unwrap_or_else(|| panic!("{broken:?} was not noticed"));
    println!("{:?}", path.into_actions());
}

#[test]
fn no_rule_can_be_left_out() {
    let again = &[Role::Hold, Role::Again(0)];
    let under = &[Role::Hold, Role::Under(0)];
    needs(Broken::NoClock, again, ONE_CALL);
    needs(Broken::NoBound, again, ONE_CALL);
    needs(Broken::NoMayAct, under, ONE_CALL);
    needs(Broken::LaterRenewalCounts, again, ONE_CALL);
    needs(Broken::RenewalCountsFromReply, again, ONE_CALL);
    needs(Broken::SilentKeepsTurn, under, ONE_CALL);
    needs(Broken::NoMayActAtEnd, &[Role::HoldAsIs, Role::Under(0)], TAKEN);
    needs(Broken::NoWaitAfterSeize, &[Role::Hold, Role::ForceRelease(0)], ONE_CALL);
    needs(Broken::SeizeWaitsInMemory, &[Role::Hold, Role::ForceRelease(0)], ONE_CALL);
    needs(Broken::SeizeWaitsInMemory, &[Role::Hold, Role::Abandon(0)], TAKEN);
}
