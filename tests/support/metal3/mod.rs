//! A stand-in for Metal3's baremetal-operator and the Ironic behind it, against a real API server
//! and real BMCs.
//!
//! Nothing here is its code. What it does was read from its source (v0.14, and what v0.13.2 does
//! otherwise) and compared with what the real one did (`table.txt`, `versions.txt` and, with a real
//! Ironic, `ironic.txt` in `tests/metal3`). It gets the same events as the real one and nothing
//! more: a change of a host counts when generation, annotations or finalizers change, what is
//! detached is looked at again only by an event. [`capm3`] stands in for a user of the hosts.

pub mod bmc;
pub mod capm3;
pub mod operator;
mod turn;
pub mod world;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// What is due first, and how long until then; an hour where nothing is.
fn first(due: &BTreeMap<String, Instant>) -> (Option<String>, Duration) {
    let next = due.iter().min_by_key(|(_, at)| **at);
    let pause = next.map_or(Duration::from_hours(1), |(_, at)| at.saturating_duration_since(Instant::now()));
    (next.map(|(name, _)| name.clone()), pause)
}
