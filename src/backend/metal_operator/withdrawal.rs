//! Withdraws a request and removes its leftovers.

use kube::core::{ApiResource, DynamicObject};
use serde_json::json;

use crate::backend::BackendError;

use super::{
    claims,
    discovery::ApprovalFormat,
    fleet::ClusterObjects,
    objects::{METAL, full_name, name, reference, resource, text},
    request::ServerMaintenanceRequest,
};

/// Attempts to delete an object despite concurrent writes.
const TRIES: usize = 5;

impl ServerMaintenanceRequest<'_> {
    /// Withdraws the request, or removes its leftovers.
    pub(super) async fn leave(&self) -> Result<(), BackendError> {
        let Some((_, kind)) = self.fleet.maintenances().await? else { return Ok(()) };
        if let Some(object) = self.object(true).await? {
            return if self.is_ours(&object) { delete_request(self.fleet, &kind, &object).await } else { Ok(()) };
        }
        let Some(server) = self.fleet.server(self.server, true).await? else { return Ok(()) };
        if reference(&server, "/spec/serverMaintenanceRef") == Some(self.full_name()) {
            // Only metal-operator v0.7 removes this reference itself.
            let change = json!({ "spec": { "serverMaintenanceRef": null } });
            return self.fleet.patch(&resource(METAL, "Server"), &server, change).await;
        }
        remove_marks_of(self.fleet, &server, &self.full_name(), self.wish.entered).await
    }

    /// Returns true if another author currently requests the server: an owner's approval serves all
    /// requests.
    pub(super) async fn others_are_there(&self) -> Result<bool, BackendError> {
        others_than(self.fleet, self.server, &self.full_name()).await
    }
}

/// Returns true if another request for the server exists.
async fn others_than(fleet: &ClusterObjects, server: &str, request: &str) -> Result<bool, BackendError> {
    let Some((_, kind)) = fleet.maintenances().await? else { return Ok(false) };
    let all = fleet.list(&kind).await?;
    Ok(all.iter().any(|one| text(one, "/spec/serverRef/name") == Some(server) && full_name(one) != request))
}

/// Removes a request's marks from its server's claim, unless another request is waiting. From v0.6
/// on, a request deleted before it was granted leaves them.
pub(super) async fn remove_marks_of(
    fleet: &ClusterObjects,
    server: &DynamicObject,
    request: &str,
    granted: bool,
) -> Result<(), BackendError> {
    match reference(server, "/spec/serverClaimRef") {
        Some(claim)
            if claims::has_marks(fleet, &claim, granted).await?
                && !others_than(fleet, name(server), request).await? =>
        {
            claims::remove_marks(fleet, &claim).await
        }
        _ => Ok(()),
    }
}

/// Deletes our request without affecting other requests.
///
/// Until v0.5, the operator clears the Server's reference for every deleted request, whichever
/// request has the server. It also never releases a request whose Server was deleted. We therefore
/// delete such a request without the operator; it does not need a cleanup.
pub(super) async fn delete_request(
    fleet: &ClusterObjects,
    kind: &ApiResource,
    request: &DynamicObject,
) -> Result<(), BackendError> {
    if fleet.found().await?.words != ApprovalFormat::Annotations {
        return fleet.delete(kind, request, false).await;
    }
    let (mut request, mut tries) = (request.clone(), 0);
    loop {
        let server = match text(&request, "/spec/serverRef/name") {
            Some(name) => fleet.server(name, true).await?,
            None => None,
        };
        let holds_nothing = server.is_none_or(|server| {
            reference(&server, "/spec/serverMaintenanceRef").is_some_and(|holder| holder != full_name(&request))
        });
        if !holds_nothing {
            return fleet.delete(kind, &request, false).await;
        }
        let operators = format!("{}/servermaintenance", kind.group);
        let mut kept = request.metadata.finalizers.clone().unwrap_or_default();
        let before = kept.len();
        kept.retain(|one| *one != operators);
        let without = if kept.len() == before {
            Ok(request.clone())
        } else {
            fleet.patched(kind, &request, json!({ "metadata": { "finalizers": kept } })).await
        };
        // Exactly the object without the operator's finalizer, which the operator would add again.
        let taken = match without {
            Ok(without) => fleet.delete(kind, &without, true).await,
            Err(error) => Err(error),
        };
        tries += 1;
        match taken {
            Err(BackendError::Rejected { status: 409, .. }) if tries < TRIES => {}
            taken => return taken,
        }
        let (space, name) = (request.metadata.namespace.clone(), request.metadata.name.clone().unwrap_or_default());
        let Some(now) = fleet.now(kind, space.as_deref(), &name).await? else { return Ok(()) };
        if now.metadata.uid != request.metadata.uid {
            return Ok(());
        }
        request = now;
    }
}
