//! Finds requests of any of our processes, and withdraws orphaned requests.

use std::collections::BTreeMap;

use kube::core::DynamicObject;

use crate::backend::{BackendError, ExternalRequestRef};

use super::{
    discovery::Way,
    fleet::ClusterObjects,
    objects::{OUR_STORE, OUR_UID, annotation, full_name, text},
    withdrawal::{delete_request, remove_marks_of},
};

/// Reads our request from an annotated object; `None` if it is not ours.
fn request(object: &DynamicObject, parks: bool) -> Option<ExternalRequestRef> {
    let full = full_name(object);
    Some(ExternalRequestRef {
        store: annotation(object, OUR_STORE)?.to_owned(),
        uid: annotation(object, OUR_UID)?.to_owned(),
        server: if parks { full.clone() } else { text(object, "/spec/serverRef/name")?.to_owned() },
        name: if parks { format!("the parking of Server {full}") } else { format!("ServerMaintenance {full}") },
        parks,
        gate: None,
        memory: BTreeMap::new(),
    })
}

/// Lists our requests for every server.
pub(super) async fn all(fleet: &ClusterObjects) -> Result<Vec<ExternalRequestRef>, BackendError> {
    use super::errors::error;
    if fleet.found().await?.way == Way::Park {
        let servers = fleet.servers.all().await.map_err(error)?;
        return Ok(servers.iter().filter_map(|server| request(server, true)).collect());
    }
    let Some((mirror, _)) = fleet.maintenances().await? else { return Ok(Vec::new()) };
    let all = mirror.all().await.map_err(error)?;
    Ok(all.iter().filter_map(|object| request(object, false)).collect())
}

/// Lists our requests for a server.
pub(super) async fn of(fleet: &ClusterObjects, server: &str) -> Result<Vec<ExternalRequestRef>, BackendError> {
    if fleet.found().await?.way == Way::Park {
        let server = fleet.server(server, false).await?;
        return Ok(server.iter().filter_map(|server| request(server, true)).collect());
    }
    Ok(fleet.maintenances_of(server).await?.iter().filter_map(|object| request(object, false)).collect())
}

/// Withdraws a `ServerMaintenance` whose maintenance no longer exists.
pub(super) async fn discard(fleet: &ClusterObjects, request: &ExternalRequestRef) -> Result<(), BackendError> {
    let Some((mirror, kind)) = fleet.maintenances().await? else { return Ok(()) };
    let full = request.name.rsplit(' ').next().unwrap_or_default();
    let Some((namespace, name)) = full.split_once('/') else { return Ok(()) };
    let Some(object) = fleet.get(mirror, &kind, Some(namespace), name, true).await? else { return Ok(()) };
    // Another maintenance could have adopted the request since.
    if annotation(&object, OUR_UID) != Some(&request.uid) {
        return Ok(());
    }
    delete_request(fleet, &kind, &object).await?;
    let Some(server) = text(&object, "/spec/serverRef/name") else { return Ok(()) };
    let Some(server) = fleet.server(server, true).await? else { return Ok(()) };
    remove_marks_of(fleet, &server, full, false).await
}
