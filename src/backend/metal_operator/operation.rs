//! One-shot operations by metal-operator's annotation (v0.2 and later).
//!
//! One key serves everybody, and the last writer wins: so it is written only where it is free, on
//! the condition that nobody wrote in between, and watched until the operator has taken it. One
//! that is not taken is taken back: a key that stays is tried again and again.

use std::time::Duration;

use serde_json::json;

use crate::{backend::BackendError, clock::within, maintenance::machine::ResetType};

use super::{
    errors::not_now,
    fleet::ClusterObjects,
    objects::{METAL, OPERATION, annotation, reference, resource, text},
};

/// What the annotation can say.
pub(super) const NAMES: [(ResetType, &str); 5] = [
    (ResetType::GracefulRestart, "graceful-restart-server"),
    (ResetType::ForceRestart, "hard-restart-server"),
    (ResetType::PowerCycle, "power-cycle-server"),
    (ResetType::ForceOff, "force-off-server"),
    (ResetType::On, "force-on-server"),
];

/// How long the operator has to take it. Shorter than a lease, so that it is never asked for by
/// somebody who is gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a key that others write at the same moment is tried to be removed.
const TRIES: usize = 5;

/// Whether the operator leaves a server beside a maintenance as an operation leaves it. It holds
/// every one to what its claim wants, and switches off what nobody has claimed.
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
        address: fleet.cluster.address(),
        what: format!(
            "metal-operator would switch Server {name} back at once: {why}. Make the operation under a metal_server_maintenance \
             (maintenance_id), or change the claim's power"
        ),
    })
}

/// Asks for an operation and returns when the operator has made it.
pub(super) async fn ask(fleet: &ClusterObjects, name: &str, reset: ResetType) -> Result<(), BackendError> {
    let Some((_, value)) = NAMES.iter().find(|(known, _)| *known == reset) else {
        return Err(BackendError::Unsupported {
            address: fleet.cluster.address(),
            what: format!("metal-operator has no operation for {reset}"),
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
    let why = format!("metal-operator did not take it within {}s; the request was removed", PATIENCE.as_secs());
    // The operator reads the key before it asks the BMC, so that a restart may still be under way.
    // It must not be asked for twice; being switched on or off twice changes nothing.
    if matches!(reset, ResetType::On | ResetType::ForceOff) {
        return Err(not_now(fleet.cluster.address(), request(), why));
    }
    Err(BackendError::ReplyLost { address: fleet.cluster.address(), request: request(), cause: why })
}

/// Removes a request; `false`: the operator took it first.
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
            // Another author wrote at the same moment: perhaps the operator, which took it.
            Err(BackendError::Rejected { status: 409, .. }) if tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// The one key is in use.
pub(super) fn busy(fleet: &ClusterObjects, request: String, operation: &str) -> BackendError {
    let why = format!("the operation {operation:?} is requested and not accepted yet");
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
