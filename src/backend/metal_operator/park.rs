//! Parking: metal-operator v0.7 and later stop managing a parked server.
//!
//! Parking lacks an owner, a reason, a queue and approvals, so we provide them. Our annotations on
//! the Server identify the parking's author. We never touch a server that another author parked.

use std::collections::BTreeMap;

use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::{
    backend::BackendError,
    maintenance::{
        gate::{Asks, ExternalRequest, ExternalState, GateView},
        ids::Uid,
    },
};

use super::{
    claims::{self, ApprovalCheck},
    discovery::Way,
    fleet::ClusterObjects,
    objects::{
        METAL, OPERATION, OUR_ID, OUR_LOOK, OUR_OWNER, OUR_POWER, OUR_RUN, OUR_STORE, OUR_TICKET, OUR_UID, PARKED,
        REASONS, annotation, no_server, our_annotations, reference, resource, text, whose,
    },
    operation,
};

/// Our annotation: true if the server was closed to new claims before. A next maintenance that
/// starts before we reopened the server keeps it.
const CLOSED: &str = "terraform-provider-metal/unclaimable";

const UNPARKING: &str = "the Server is being unparked";

#[derive(Debug)]
pub(super) struct Parking<'a> {
    pub(super) fleet: &'a ClusterObjects,
    pub(super) server: &'a str,
    pub(super) wish: &'a ExternalRequest,
}

/// Returns true if the operator reports the server as parked.
pub(super) fn is_parked(server: &DynamicObject) -> bool {
    annotation(server, PARKED).is_some() || text(server, "/status/state") == Some("Parked")
}

impl Parking<'_> {
    fn is_ours(&self, server: &DynamicObject) -> bool {
        annotation(server, OUR_UID) == Some(&self.wish.uid) && annotation(server, OUR_STORE) == Some(&self.wish.store)
    }

    pub(super) async fn look(&self, fresh: bool) -> Result<GateView, BackendError> {
        let Some(server) = self.fleet.server(self.server, fresh).await? else {
            let why = no_server(self.server);
            // The deletion of the Server removed our marks too.
            let standing = if self.wish.asked { ExternalState::Absent } else { ExternalState::Refused(why.into()) };
            return Ok(GateView::of(standing));
        };
        let standing = if self.wish.enters { self.standing(&server).await? } else { self.beside(&server).await? };
        let behind = match &standing {
            ExternalState::Waiting(_) => self.behind(&server).await?,
            _ => None,
        };
        Ok(GateView { behind, ..GateView::of(standing) })
    }

    /// Returns the same store's maintenance that parked the server, unless ours could not start
    /// after it.
    async fn behind(&self, server: &DynamicObject) -> Result<Option<Uid>, BackendError> {
        if !is_parked(server) || annotation(server, OUR_STORE) != Some(&self.wish.store) {
            return Ok(None);
        }
        if let Some(claim) = reference(server, "/spec/serverClaimRef").filter(|_| self.wish.asks != Asks::Nobody)
            && let ApprovalCheck::Missing(_) = claims::approval(self.fleet, self.fleet.found().await?, &claim).await?
        {
            return Ok(None);
        }
        Ok(annotation(server, OUR_UID).filter(|uid| *uid != self.wish.uid).map(Uid::new))
    }

    async fn standing(&self, server: &DynamicObject) -> Result<ExternalState, BackendError> {
        let (state, operation) = (text(server, "/status/state").unwrap_or("unknown"), annotation(server, OPERATION));
        let ours = self.is_ours(server);
        Ok(match (ours, is_parked(server), operation) {
            (true, _, Some("unpark")) => ExternalState::Returning(UNPARKING.into()),
            // The operator removes both annotations before it changes the state.
            (true, true, None) if annotation(server, PARKED).is_none() => ExternalState::Returning(UNPARKING.into()),
            (true, true, _) if annotation(server, PARKED).is_some() && state == "Parked" => ExternalState::Granted,
            (true, _, Some("park")) | (true, true, _) => {
                ExternalState::Waiting(format!("the Server to be parked: it is shutting down (now {state})").into())
            }
            (true, false, _) if matches!(state, "Initial" | "Discovery") => {
                ExternalState::Returning(format!("the Server is returning to service ({state})").into())
            }
            (true, false, _) => ExternalState::Leftovers("our annotations are still on the Server".into()),
            (false, true, _) if self.wish.asked => {
                ExternalState::Taken(format!("the Server, which is parked by {}", parker(server)).into())
            }
            (false, true, _) => {
                ExternalState::Waiting(format!("the Server, which is parked by {}", parker(server)).into())
            }
            // The parking ended, whatever the server's state now.
            (false, false, _) if self.wish.asked => ExternalState::Absent,
            (false, false, _) => self.beside(server).await?,
        })
    }

    /// Returns true if the server ran for its claim, the claim still wants it on, and only a
    /// parking stopped it. The parking's maintenance is ending without having started.
    pub(super) async fn was_running(&self) -> Result<bool, BackendError> {
        if !self.wish.leaving || self.wish.entered {
            return Ok(false);
        }
        let Some(server) = self.fleet.server(self.server, true).await? else { return Ok(false) };
        let ran = self.is_ours(&server) && !matches!(annotation(&server, OUR_POWER), None | Some("Off"));
        if !ran || !is_parked(&server) || annotation(&server, OPERATION) == Some("unpark") {
            return Ok(false);
        }
        let Some(claim) = reference(&server, "/spec/serverClaimRef") else { return Ok(false) };
        let claim = self.fleet.claim(&claim, true).await?;
        Ok(claim.is_some_and(|claim| {
            claim.metadata.deletion_timestamp.is_none() && text(&claim, "/spec/power") == Some("On")
        }))
    }

    /// Returns `Absent` if a server without our request can be parked or operated on now, otherwise
    /// the obstacle.
    async fn beside(&self, server: &DynamicObject) -> Result<ExternalState, BackendError> {
        let state = text(server, "/status/state").unwrap_or("unknown");
        if let Some(operation) = annotation(server, OPERATION) {
            return Ok(ExternalState::Waiting(
                format!("the operation {operation:?} on the Server, which another author requested").into(),
            ));
        }
        if state == "Parked" {
            return Ok(ExternalState::Waiting(format!("the Server, which is parked by {}", parker(server)).into()));
        }
        if !matches!(state, "Available" | "Reserved") {
            let holder = reference(server, "/spec/serverMaintenanceRef");
            let by = holder.map(|holder| format!(" for {holder}")).unwrap_or_default();
            return Ok(ExternalState::Waiting(
                format!("the Server to be Available or Reserved (now {state}{by})").into(),
            ));
        }
        if let Some(why) = claims::unclaimed(self.wish, server) {
            return Ok(ExternalState::Waiting(why.into()));
        }
        let found = self.fleet.found().await?;
        // Where servers are parked, nothing on the Server shows a ServerMaintenance.
        if found.way == Way::Park {
            let all = self.fleet.maintenances_of(self.server).await?;
            if let Some(other) = all.iter().find(|it| text(it, "/status/state") == Some("InMaintenance")) {
                let why = format!("ServerMaintenance {}, which is InMaintenance and has to be deleted", whose(other));
                return Ok(ExternalState::Waiting(why.into()));
            }
        }
        Ok(match reference(server, "/spec/serverClaimRef").filter(|_| self.wish.asks != Asks::Nobody) {
            None => ExternalState::Absent,
            Some(claim) => match claims::approval(self.fleet, found, &claim).await? {
                ApprovalCheck::Missing(words) => ExternalState::Waiting(words.into()),
                ApprovalCheck::Given | ApprovalCheck::NotNeeded => ExternalState::Absent,
            },
        })
    }

    /// Requests parking. A single patch of the judged object also adds our annotations and closes
    /// an unclaimed server to new claims.
    pub(super) async fn enter(&self) -> Result<(), BackendError> {
        let Some(server) = self.fleet.server(self.server, true).await? else { return Ok(()) };
        let ours = self.is_ours(&server);
        if is_parked(&server) || (ours && annotation(&server, OPERATION).is_some()) {
            return Ok(());
        }
        if let Some(operation) = annotation(&server, OPERATION) {
            return Err(self.busy(operation));
        }
        let mut annotations: BTreeMap<String, Value> =
            our_annotations(self.wish).into_iter().map(|(key, value)| (key, json!(value))).collect();
        annotations.insert(OPERATION.to_owned(), json!("park"));
        let is_claimed = reference(&server, "/spec/serverClaimRef").is_some();
        // Replaces an earlier parking's leftover.
        annotations.insert(OUR_POWER.to_owned(), json!(text(&server, "/status/powerState").filter(|_| is_claimed)));
        let mut change = json!({ "metadata": { "annotations": annotations } });
        if !is_claimed && self.fleet.found().await?.unclaimable {
            change["spec"] = json!({ "unclaimable": true });
            // If an earlier maintenance did not reopen the server, its recorded value is the
            // original.
            let before = annotation(&server, CLOSED).map_or_else(|| is_unclaimable(&server).to_string(), str::to_owned);
            change["metadata"]["annotations"][CLOSED] = json!(before);
        }
        self.fleet.patch(&resource(METAL, "Server"), &server, change).await
    }

    fn busy(&self, operation: &str) -> BackendError {
        operation::busy(self.fleet, format!("park Server {}", self.server), operation)
    }

    /// Requests unparking; after it, removes our annotations.
    pub(super) async fn leave(&self) -> Result<(), BackendError> {
        let Some(server) = self.fleet.server(self.server, true).await? else { return Ok(()) };
        if !self.is_ours(&server) {
            return Ok(());
        }
        let kind = resource(METAL, "Server");
        match annotation(&server, OPERATION) {
            Some("unpark") => return Ok(()),
            // The operator could be parking the server right now; the patch fails if it already
            // has.
            Some("park") if !is_parked(&server) => {
                let change = json!({ "metadata": { "annotations": { OPERATION: null } } });
                return self.fleet.patch(&kind, &server, change).await;
            }
            Some("park") | None => {}
            Some(operation) => return Err(self.busy(operation)),
        }
        if is_parked(&server) {
            let change = json!({ "metadata": { "annotations": { OPERATION: "unpark" } } });
            return self.fleet.patch(&kind, &server, change).await;
        }
        // Where metal-maintenance-operator has requests, the marks on the claim are also theirs.
        if let Some(claim) = reference(&server, "/spec/serverClaimRef")
            && self.fleet.maintenances_of(self.server).await?.is_empty()
        {
            claims::remove_marks(self.fleet, &claim).await?;
        }
        let marks = [OUR_UID, OUR_ID, OUR_OWNER, OUR_RUN, OUR_STORE, OUR_TICKET, OUR_LOOK, OUR_POWER, CLOSED];
        let ours = marks.into_iter().chain(REASONS);
        let gone: serde_json::Map<String, Value> =
            ours.filter(|key| annotation(&server, key).is_some()).map(|key| (key.to_owned(), Value::Null)).collect();
        let mut change = json!({ "metadata": { "annotations": gone } });
        // Another author could have closed the server before us, and it then stays closed.
        if annotation(&server, CLOSED) == Some("false") {
            change["spec"] = json!({ "unclaimable": false });
        }
        self.fleet.patch(&kind, &server, change).await
    }
}

fn is_unclaimable(server: &DynamicObject) -> bool {
    server.data.pointer("/spec/unclaimable").and_then(Value::as_bool).unwrap_or(false)
}

/// Describes a parking's author, for display.
pub(super) fn parker(server: &DynamicObject) -> String {
    if annotation(server, OUR_ID).is_some() { whose(server) } else { "an unnamed author".to_owned() }
}
