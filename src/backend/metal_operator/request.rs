//! Lifecycle of our `ServerMaintenance`: create, judge, change, withdraw.
//!
//! Three conditions must be true before a server is touched, and metal-operator's own controllers
//! check the same three. The object's state is `InMaintenance`, the Server's state is
//! `Maintenance`, and the Server's `serverMaintenanceRef` is ours.

use std::sync::Arc;

use kube::core::DynamicObject;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    backend::BackendError,
    maintenance::{
        gate::{Asks, BootReadiness, ExternalRequest, ExternalState, GateView},
        ids::Uid,
    },
};

use super::{
    claims::{self, ApprovalCheck},
    discovery::{ClusterFeatures, Way},
    fleet::ClusterObjects,
    objects::{
        MANAGER, METAL, OUR_BOOT, OUR_ID, OUR_OLD_BOOT, OUR_STORE, OUR_UID, REASONS, annotation, full_name, no_server,
        our_annotations, reference, resource, text, whose,
    },
    template::Template,
};

#[derive(Debug)]
pub(super) struct ServerMaintenanceRequest<'a> {
    pub(super) fleet: &'a ClusterObjects,
    pub(super) server: &'a str,
    pub(super) wish: &'a ExternalRequest,
}

/// A request's objects, read together.
struct ObservedObjects {
    server: Option<Arc<DynamicObject>>,
    object: Option<Arc<DynamicObject>>,
}

impl ServerMaintenanceRequest<'_> {
    /// Returns the object's name: identical in every process of a store, and unique for each
    /// maintenance.
    pub(super) fn name(&self) -> String {
        let digest = Sha256::digest(format!("{}\n{}\n{}", self.wish.store, self.wish.id, self.server));
        let mark: String = digest[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        // The operator derives label values and object names from it, which are limited to 63
        // characters.
        let server: String = self.server.chars().take(44).collect();
        format!("{}-{mark}", server.trim_end_matches(['-', '.']))
    }

    /// Returns the object's namespace, from the record if it has one, even if the configuration has
    /// changed.
    pub(super) fn namespace(&self) -> &str {
        self.wish.namespace.as_deref().unwrap_or(&self.fleet.namespace)
    }

    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }

    async fn seen(&self, fresh: bool) -> Result<ObservedObjects, BackendError> {
        let object = self.object(fresh).await?;
        Ok(ObservedObjects { server: self.fleet.server(self.server, fresh).await?, object })
    }

    pub(super) async fn object(&self, fresh: bool) -> Result<Option<Arc<DynamicObject>>, BackendError> {
        let Some((mirror, kind)) = self.fleet.maintenances().await? else { return Ok(None) };
        self.fleet.get(mirror, &kind, Some(self.namespace()), &self.name(), fresh).await
    }

    /// Returns true if this maintenance created the object, including earlier incarnations.
    pub(super) fn is_ours(&self, object: &DynamicObject) -> bool {
        annotation(object, OUR_STORE) == Some(&self.wish.store) && annotation(object, OUR_ID) == Some(&self.wish.id)
    }

    pub(super) async fn look(&self, fresh: bool) -> Result<GateView, BackendError> {
        use ExternalState::{Failed, Leftovers, Lost, Refused};
        let view = self.look_once(fresh).await?;
        // The kinds have separate watches, which can reflect different moments. A result that would
        // end a wait is verified with a fresh read.
        if fresh || !matches!(view.standing, Failed(_) | Leftovers(_) | Lost(_) | Refused(_)) {
            return Ok(view);
        }
        self.look_once(true).await
    }

    async fn look_once(&self, fresh: bool) -> Result<GateView, BackendError> {
        let found = self.fleet.found().await?;
        let seen = self.seen(fresh).await?;
        let boot = match seen.object.as_ref().filter(|object| self.is_ours(object)) {
            Some(object) => self.boot(object, fresh).await?,
            None => None,
        };
        let standing = self.standing(found, &seen, boot.as_ref()).await?;
        let behind = match &standing {
            ExternalState::Waiting(_) => self.behind(found, &seen).await?,
            _ => None,
        };
        Ok(GateView { boot, behind, ..GateView::of(standing) })
    }

    /// Returns the same store's maintenance that has the server, unless ours could not start after
    /// it.
    async fn behind(&self, found: &ClusterFeatures, seen: &ObservedObjects) -> Result<Option<Uid>, BackendError> {
        let (Some(object), Some(server)) = (&seen.object, &seen.server) else { return Ok(None) };
        let holder = reference(server, "/spec/serverMaintenanceRef").filter(|holder| *holder != full_name(object));
        let Some(holder) = holder else { return Ok(None) };
        if let Some(claim) = reference(server, "/spec/serverClaimRef").filter(|_| self.wish.asks != Asks::Nobody)
            && let ApprovalCheck::Missing(_) = claims::approval(self.fleet, found, &claim).await?
        {
            return Ok(None);
        }
        let all = self.fleet.maintenances_of(self.server).await?;
        let ours =
            all.iter().find(|one| full_name(one) == holder && annotation(one, OUR_STORE) == Some(&self.wish.store));
        Ok(ours.and_then(|one| annotation(one, OUR_UID)).map(Uid::new))
    }

    async fn standing(
        &self,
        found: &ClusterFeatures,
        seen: &ObservedObjects,
        boot: Option<&BootReadiness>,
    ) -> Result<ExternalState, BackendError> {
        let Some(object) = &seen.object else { return self.without_object(seen).await };
        let full = full_name(object);
        if !self.is_ours(object) {
            return Ok(ExternalState::Refused(
                format!(
                    "ServerMaintenance {full} already exists and belongs to another author ({}). It was not changed: \
                 delete it, or rename this maintenance",
                    whose(object)
                )
                .into(),
            ));
        }
        if object.metadata.deletion_timestamp.is_some() {
            return Ok(ExternalState::Returning(format!("ServerMaintenance {full} is being deleted").into()));
        }
        if annotation(object, OUR_UID) != Some(&self.wish.uid) {
            // An earlier incarnation left the object; the next call adopts it.
            return Ok(ExternalState::Absent);
        }
        let Some(server) = &seen.server else {
            return Ok(ExternalState::Failed(format!("Server {:?} no longer exists", self.server).into()));
        };
        if !self.wish.entered
            && let Some(why) = claims::unclaimed(self.wish, server)
        {
            return Ok(ExternalState::Leftovers(why.into()));
        }
        let state = text(server, "/status/state").unwrap_or("unknown");
        let holder = reference(server, "/spec/serverMaintenanceRef");
        let ours = holder.as_deref() == Some(&full);
        Ok(match text(object, "/status/state") {
            // A maintenance with a failed boot configuration can still restore the server.
            Some("InMaintenance" | "Failed") if ours && state == "Maintenance" => ExternalState::Granted,
            Some("InMaintenance") if ours => ExternalState::Waiting(
                format!(
                    "the Server to be in maintenance: ServerMaintenance {full} is granted, the Server is still {state}"
                )
                .into(),
            ),
            Some("InMaintenance") => match holder {
                Some(other) => ExternalState::Lost(
                    format!(
                        "ServerMaintenance {full} is InMaintenance, but the Server's serverMaintenanceRef names {}",
                        self.described(&other).await?
                    )
                    .into(),
                ),
                // Only a new request can repair this.
                None => ExternalState::Leftovers(
                    format!("ServerMaintenance {full} is InMaintenance, but the Server lacks serverMaintenanceRef")
                        .into(),
                ),
            },
            Some("Failed") => {
                let why = match boot {
                    Some(BootReadiness::Error(message)) => message.clone(),
                    _ => "no reason given".into(),
                };
                ExternalState::Failed(format!("ServerMaintenance {full} is Failed: {why}").into())
            }
            _ => ExternalState::Waiting(self.pending(found, object, server, holder).await?.into()),
        })
    }

    /// Returns the reason why a request is Pending.
    async fn pending(
        &self,
        found: &ClusterFeatures,
        object: &DynamicObject,
        server: &DynamicObject,
        holder: Option<String>,
    ) -> Result<String, BackendError> {
        if let Some(other) = holder.filter(|holder| *holder != full_name(object)) {
            return Ok(format!("{} to release the server", self.described(&other).await?));
        }
        let approval = match reference(server, "/spec/serverClaimRef") {
            Some(claim) if self.wish.asks != Asks::Nobody => claims::approval(self.fleet, found, &claim).await?,
            _ => ApprovalCheck::NotNeeded,
        };
        if let ApprovalCheck::Missing(words) = approval {
            return Ok(words);
        }
        let mut before: Vec<Arc<DynamicObject>> = self.fleet.maintenances_of(self.server).await?;
        before.retain(|other| full_name(other) != full_name(object) && text(other, "/status/state") != Some("Failed"));
        before.sort_by_key(|other| order(other));
        let ours = order(object);
        let ahead: Vec<String> = before.iter().filter(|other| order(other) < ours).map(|other| whose(other)).collect();
        let state = text(server, "/status/state").unwrap_or("unknown");
        Ok(match ahead.as_slice() {
            [] => format!("metal-operator to put the Server into maintenance (now {state})"),
            [first] => format!("the request ahead: {first}"),
            [first, ..] => format!("the {} requests ahead: {first} first", ahead.len()),
        })
    }

    async fn described(&self, other: &str) -> Result<String, BackendError> {
        let all = self.fleet.maintenances_of(self.server).await?;
        Ok(all
            .iter()
            .find(|object| full_name(object) == other)
            .map_or_else(|| other.to_owned(), |object| whose(object)))
    }

    /// Returns a server's state without our request.
    async fn without_object(&self, seen: &ObservedObjects) -> Result<ExternalState, BackendError> {
        let Some(server) = &seen.server else {
            return Ok(if self.wish.asked {
                ExternalState::Absent
            } else {
                ExternalState::Refused(no_server(self.server).into())
            });
        };
        if !self.wish.entered
            && let Some(why) = claims::unclaimed(self.wish, server)
        {
            return Ok(ExternalState::Waiting(why.into()));
        }
        if !self.wish.asked {
            return Ok(ExternalState::Absent);
        }
        let holder = reference(server, "/spec/serverMaintenanceRef");
        if holder.as_deref() == Some(&self.full_name()) {
            return Ok(ExternalState::Leftovers("the Server still refers to our deleted ServerMaintenance".into()));
        }
        // The watch can still contain our deleted request.
        let ours = self.full_name();
        let others = self.fleet.maintenances_of(self.server).await?.iter().any(|other| full_name(other) != ours);
        if holder.is_none() && !others {
            if let Some(claim) = &reference(server, "/spec/serverClaimRef")
                && claims::has_marks(self.fleet, claim, self.wish.entered).await?
                && !self.others_are_there().await?
            {
                return Ok(ExternalState::Leftovers(
                    format!("ServerClaim {claim} still has a maintenance's marks").into(),
                ));
            }
            let state = text(server, "/status/state").unwrap_or("unknown");
            if self.wish.entered && matches!(state, "Maintenance" | "Initial" | "Discovery") {
                return Ok(ExternalState::Returning(format!("the Server is returning to service ({state})").into()));
            }
        }
        Ok(ExternalState::Absent)
    }

    /// Creates the request, or adopts an earlier incarnation's request.
    pub(super) async fn enter(&self) -> Result<(), BackendError> {
        let before = self.object(true).await?;
        if let Some(object) = &before
            && (!self.is_ours(object) || object.metadata.deletion_timestamp.is_some())
        {
            return Ok(());
        }
        let wanted = self.wanted(None, None, None).await?;
        self.apply(wanted, before.as_deref()).await.map(drop)
    }

    /// Applies the object. With `before`, only that object is changed and none is created.
    pub(super) async fn apply(
        &self,
        mut wanted: Value,
        before: Option<&DynamicObject>,
    ) -> Result<DynamicObject, BackendError> {
        if let Some(before) = before {
            wanted["metadata"]["uid"] = json!(before.metadata.uid);
            if annotation(before, OUR_UID) == Some(&self.wish.uid) {
                keep_edits(&mut wanted, before);
            }
        }
        let Some((_, kind)) = self.fleet.maintenances().await? else {
            return Err(BackendError::Unsupported {
                address: self.fleet.cluster.address().into(),
                what: "the cluster does not serve ServerMaintenance".into(),
            });
        };
        self.fleet.apply(&kind, self.namespace(), &self.name(), &wanted).await
    }

    /// Returns all of our fields: server-side apply removes fields that are not repeated.
    pub(super) async fn wanted(
        &self,
        power: Option<&str>,
        template: Option<&Template>,
        stale: Option<&str>,
    ) -> Result<Value, BackendError> {
        let found = self.fleet.found().await?;
        let Some((_, kind)) = self.fleet.maintenances().await? else { return Ok(Value::Null) };
        let mut annotations = our_annotations(self.wish);
        let policy = if self.wish.asks == Asks::Nobody { "Enforced" } else { "OwnerApproval" };
        let mut spec = json!({ "policy": policy, "serverRef": { "name": self.server } });
        if found.priority {
            spec["priority"] = json!(i32::try_from(self.wish.priority).unwrap_or(if self.wish.priority < 0 {
                i32::MIN
            } else {
                i32::MAX
            }));
        }
        if found.way == Way::Legacy {
            if let Some(power) = power {
                spec["serverPower"] = json!(power);
            }
            if let Some(template) = template {
                spec["serverBootConfigurationTemplate"] = json!({ "name": self.name(), "spec": template.spec });
                annotations.insert(OUR_BOOT.to_owned(), template.made_from.clone());
            }
            if let Some(stale) = stale {
                annotations.insert(OUR_OLD_BOOT.to_owned(), stale.to_owned());
            }
        }
        Ok(json!({
            "apiVersion": kind.api_version, "kind": kind.kind,
            "metadata": {
                "name": self.name(), "namespace": self.namespace(),
                "labels": { "app.kubernetes.io/managed-by": MANAGER },
                "annotations": annotations,
            },
            "spec": spec,
        }))
    }

    /// Returns the object while it is ours and granted. After a loss, nothing is changed.
    pub(super) async fn held(&self) -> Result<Arc<DynamicObject>, BackendError> {
        match (self.look(true).await?.standing, self.object(true).await?) {
            (ExternalState::Granted, Some(object)) => Ok(object),
            (standing, _) => Err(BackendError::Unsupported {
                address: self.fleet.cluster.address().into(),
                what: format!("the maintenance lost the server: {standing}").into(),
            }),
        }
    }

    /// Sets the server's target power for the operator.
    pub(super) async fn set_power(&self, power: &str) -> Result<(), BackendError> {
        let object = self.held().await?;
        let (_, template, stale) = Self::said(&object);
        let wanted = self.wanted(Some(power), template.as_ref(), stale).await?;
        let object = self.apply(wanted, Some(&object)).await?;
        if text(&object, "/status/state") != Some("Failed") {
            return Ok(());
        }
        // The operator ignores a request whose boot configuration failed, so the server's own power
        // setting must change.
        let Some(server) = self.fleet.server(self.server, true).await? else { return Ok(()) };
        self.fleet.patch(&resource(METAL, "Server"), &server, json!({ "spec": { "power": power } })).await
    }

    /// Stops the operator from controlling power.
    pub(super) async fn release_power(&self) -> Result<(), BackendError> {
        let object = self.held().await?;
        let (power, template, stale) = Self::said(&object);
        if power.is_none() {
            return Ok(());
        }
        let wanted = self.wanted(None, template.as_ref(), stale).await?;
        self.apply(wanted, Some(&object)).await.map(drop)
    }
}

/// Repeats a person's edits to our object. Otherwise server-side apply would report a conflict for
/// their fields, and the power or boot change would fail too.
fn keep_edits(wanted: &mut Value, before: &DynamicObject) {
    for field in ["priority", "policy"] {
        if let Some(now) = before.data.pointer(&format!("/spec/{field}"))
            && wanted["spec"].get(field).is_some()
        {
            wanted["spec"][field] = now.clone();
        }
    }
    for key in REASONS {
        if let Some(now) = annotation(before, key) {
            wanted["metadata"]["annotations"][key] = json!(now);
        }
    }
}

/// Returns the operator's sort key for requests: priority, then `Enforced` (v0.6 and later), then
/// age, then name.
fn order(object: &DynamicObject) -> impl Ord + use<> {
    let priority = object.data.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or(0);
    let asks = text(object, "/spec/policy") != Some("Enforced");
    let since = object.metadata.creation_timestamp.as_ref().map(|at| at.0.to_string());
    (std::cmp::Reverse(priority), asks, since, full_name(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_edited_is_said_again_and_nothing_else() {
        let object = json!({
            "apiVersion": "metal.ironcore.dev/v1alpha1", "kind": "ServerMaintenance",
            "metadata": { "annotations": { REASONS[0]: "edited", OUR_UID: "u", "foreign": "x" } },
            "spec": { "priority": 9, "policy": "OwnerApproval", "serverPower": "Off" },
        });
        let before: DynamicObject = serde_json::from_value(object).unwrap();
        let annotations = json!({ REASONS[0]: "bios", REASONS[1]: "bios", OUR_UID: "u" });
        let spec = json!({ "priority": 0, "policy": "OwnerApproval", "serverPower": "On" });
        let mut wanted = json!({ "metadata": { "annotations": annotations }, "spec": spec });
        keep_edits(&mut wanted, &before);
        assert_eq!(wanted["spec"], json!({ "priority": 9, "policy": "OwnerApproval", "serverPower": "On" }));
        let kept = json!({ REASONS[0]: "edited", REASONS[1]: "bios", OUR_UID: "u" });
        assert_eq!(wanted["metadata"]["annotations"], kept);
    }
}
