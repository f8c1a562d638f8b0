//! A stand-in for Metal3's baremetal-operator and its Ironic, on a real API server and real BMC
//! clients.
//!
//! It shares no code with the operator. Its behaviour was derived from the source (v0.14 and the
//! differences of v0.13.2). It was compared with recordings in `tests/metal3`: `table.txt`,
//! `versions.txt` and, with a real Ironic, `ironic.txt`. It receives the same events as the
//! operator: changes to generation, annotations or finalizers. Detached hosts are reconciled only
//! by events. [`capm3`] stands in for a consumer of hosts.

pub mod bmc;
pub mod capm3;
pub mod operator;
mod turn;
pub mod world;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Returns the next due host and the delay, or an hour without one.
fn first(due: &BTreeMap<String, Instant>) -> (Option<String>, Duration) {
    let next = due.iter().min_by_key(|(_, at)| **at);
    let pause = next.map_or(Duration::from_hours(1), |(_, at)| at.saturating_duration_since(Instant::now()));
    (next.map(|(name, _)| name.clone()), pause)
}
