//! One-time operations through metal-operator's annotation (v0.2 and later).
//!
//! All authors share one key, and the last writer wins. So we write it only if it is free,
//! conditional on the object's version, and watch until the operator accepts it. We remove a key
//! that is not accepted, because the operator would retry it forever.

use std::time::Duration;

use serde_json::json;

use crate::{backend::BackendError, clock::within, maintenance::machine::ResetType};

use super::{
    errors::not_now,
    fleet::ClusterObjects,
    objects::{METAL, OPERATION, annotation, reference, resource, text},
};

/// The annotation's values.
pub(super) const NAMES: [(ResetType, &str); 5] = [
    (ResetType::GracefulRestart, "graceful-restart-server"),
    (ResetType::ForceRestart, "hard-restart-server"),
    (ResetType::PowerCycle, "power-cycle-server"),
    (ResetType::ForceOff, "force-off-server"),
    (ResetType::On, "force-on-server"),
];

/// How long the operator has to accept an operation. Shorter than a lease, so that the request
/// never outlives its process.
const PATIENCE: Duration = Duration::from_secs(10);

/// Attempts to remove the key despite concurrent writes.
const TRIES: usize = 5;

/// Returns `Ok` if the operator would keep an operation's result outside a maintenance. The
/// operator enforces each claim's power and powers unclaimed servers off.
pub(super) async fn would_last(fleet: &ClusterObjects, name: &str, reset: ResetType) -> Result<(), BackendError> {
    let Some(server) = fleet.server(name, true).await? else { return Ok(()) };
    let claim = reference(&server, "/spec/serverClaimRef");
    let object = match &claim {
        Some(claim) => fleet.claim(claim, true).await?,
        None => None,
    };
    let wants_on = object.is_some_and(|claim| text(&claim, "/spec/power") == Some("On"));
    if wants_on == (reset == ResetType::On) {
        return Ok(());
    }
    let why = match claim {
        Some(claim) => format!("ServerClaim {claim} wants its power {}", if wants_on { "On" } else { "Off" }),
        None => "it is not claimed".to_owned(),
    };
    Err(BackendError::Unsupported {
        address: fleet.cluster.address().into(),
        what: format!(
            "metal-operator would switch Server {name} back immediately: {why}. Run the operation under a \
             metal_server_maintenance (maintenance_id), or change the claim's power"
        )
        .into(),
    })
}

/// Requests an operation and returns after the operator has performed it.
pub(super) async fn ask(fleet: &ClusterObjects, name: &str, reset: ResetType) -> Result<(), BackendError> {
    let Some((_, value)) = NAMES.iter().find(|(known, _)| *known == reset) else {
        return Err(BackendError::Unsupported {
            address: fleet.cluster.address().into(),
            what: format!("metal-operator does not support {reset}").into(),
        });
    };
    let request = || format!("operation {value} of Server {name}");
    let server = fleet.known(name, true).await?;
    if let Some(other) = annotation(&server, OPERATION) {
        return Err(busy(fleet, request(), other));
    }
    let kind = resource(METAL, "Server");
    fleet.patch(&kind, &server, json!({ "metadata": { "annotations": { OPERATION: value } } })).await?;
    if within(PATIENCE, until_taken(fleet, name, value)).await == Some(Ok(())) {
        return Ok(());
    }
    if !remove(fleet, name, value).await? {
        return Ok(());
    }
    let why = format!("metal-operator did not accept it within {}s; the request was removed", PATIENCE.as_secs());
    // The operator reads the key before it contacts the BMC, so a restart can still be in progress
    // and must not be requested twice. Repeating a power-on or power-off is harmless.
    if matches!(reset, ResetType::On | ResetType::ForceOff) {
        return Err(not_now(fleet.cluster.address(), request(), why));
    }
    Err(BackendError::ReplyLost {
        address: fleet.cluster.address().into(),
        request: request().into(),
        cause: why.into(),
    })
}

/// Removes a request; `false` if the operator accepted it first.
async fn remove(fleet: &ClusterObjects, name: &str, value: &str) -> Result<bool, BackendError> {
    let kind = resource(METAL, "Server");
    let mut tries = 0;
    loop {
        let Some(server) = fleet.server(name, true).await? else { return Ok(false) };
        if annotation(&server, OPERATION) != Some(value) {
            return Ok(false);
        }
        let change = json!({ "metadata": { "annotations": { OPERATION: null } } });
        tries += 1;
        match fleet.patch(&kind, &server, change).await {
            Ok(()) => return Ok(true),
            // A concurrent write, perhaps by the operator when it accepted the key.
            Err(BackendError::Rejected { status: 409, .. }) if tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the error for a key that is already in use.
pub(super) fn busy(fleet: &ClusterObjects, request: String, operation: &str) -> BackendError {
    let why = format!("the operation {operation:?} is requested but not accepted yet");
    not_now(fleet.cluster.address(), request, why)
}

async fn until_taken(fleet: &ClusterObjects, name: &str, value: &str) -> Result<(), BackendError> {
    let mut changes = fleet.servers.changes();
    loop {
        changes.borrow_and_update();
        let server = fleet.server(name, true).await?;
        if server.is_none_or(|server| annotation(&server, OPERATION) != Some(value)) {
            return Ok(());
        }
        let pause = fleet.clock.sleep(Duration::from_millis(500));
        tokio::select! {
            _ = changes.changed() => {}
            () = pause => {}
        }
    }
}
