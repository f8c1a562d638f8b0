//! Conversions between a Kubernetes Lease and a process's lease.
//!
//! Each process has a Lease, like Kubernetes components with leader election.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};

use super::{
    fault::ErrorMapper,
    objects::{self, KIND, OVER, RUNNER, UNTIL},
};
use crate::{
    maintenance::ids::{Runner, RunnerId},
    store::{StoreError, alive::LeaseStatus, lease_end},
};

/// Parses a Lease.
pub(super) fn status(lease: &Lease, faults: &ErrorMapper) -> Result<LeaseStatus, StoreError> {
    let name = format!("the Lease {}", lease.metadata.name.as_deref().unwrap_or_default());
    let empty = std::collections::BTreeMap::new();
    let notes = lease.metadata.annotations.as_ref().unwrap_or(&empty);
    let runner = notes.get(RUNNER).ok_or_else(|| faults.record(&name, "it does not name a process"))?;
    let until = notes.get(UNTIL).ok_or_else(|| faults.record(&name, "it does not have an end time"))?;
    let until = until.parse().map_err(|error| faults.record(&name, error))?;
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
    Ok(LeaseStatus {
        runner: RunnerId::new(runner.clone()),
        until,
        over: notes.contains_key(OVER),
        length: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    })
}

/// Builds the Lease of a process that lives for `ttl` from `now`.
pub(super) fn renewed(runner: &Runner, now: Timestamp, ttl: Duration) -> Value {
    // Leases use whole seconds. Rounding up is safe, because the process itself stops earlier.
    let seconds = ttl.as_millis().div_ceil(1000).max(1);
    let mut lease = lease(&runner.id, lease_end(now, ttl));
    lease["spec"] = json!({
        "holderIdentity": runner.to_string(),
        "leaseDurationSeconds": i32::try_from(seconds).unwrap_or(i32::MAX),
        "renewTime": format!("{now:.6}"),
    });
    lease
}

/// Builds the Lease of an ended process.
pub(super) fn ended(said: &LeaseStatus, at: Timestamp) -> Value {
    let mut lease = lease(&said.runner, at.min(said.until));
    lease["metadata"]["annotations"][OVER] = json!("true");
    lease["spec"] = json!({"leaseDurationSeconds": said.length.as_secs()});
    lease
}

fn lease(runner: &RunnerId, until: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": objects::runner(runner),
            "labels": {KIND: "runner"},
            "annotations": {RUNNER: runner.raw(), UNTIL: until.to_string()},
        },
    })
}
