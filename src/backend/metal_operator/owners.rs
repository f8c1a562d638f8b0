//! Creates and reads ServerClaims, which determine a server's owner.

use async_trait::async_trait;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use crate::{
    backend::{
        ApprovalMarkRef, ApprovalMarkState, BackendError, Binding, ExternalClaim, ExternalClaimView, ExternalOwnership,
        ExternalRequestRef, ExternalWaiter, GateState, OwnershipTexts, Toleration,
    },
    maintenance::machine::{Ignition, PowerTarget},
    shown::OneLine,
};

use super::{
    MetalOperatorBackend,
    claims::is_approved,
    discovery::{ClusterFeatures, Way},
    errors::{error, not_now},
    fleet::ClusterObjects,
    objects::{
        MANAGER, METAL, NEEDED, OUR_CONTACT, OUR_ID, OUR_OWNER, OUR_RUN, OUR_STORE, OUR_TICKET, REASONS, annotation,
        full_name, label, name, no_server, reference, resource, text, whose,
    },
    orphans,
    park::{is_parked, parker},
    taints, word,
};

/// Converts a claim into a view.
fn view(found: &ClusterFeatures, claim: &DynamicObject) -> ExternalClaimView {
    let own = |text: Option<&str>| text.map(str::to_owned);
    ExternalClaimView {
        id: full_name(claim),
        uid: claim.metadata.uid.clone().unwrap_or_default(),
        owner: annotation(claim, OUR_OWNER).map(OneLine::from),
        contact: annotation(claim, OUR_CONTACT).map(OneLine::from),
        server: own(text(claim, "/spec/serverRef/name")),
        since: claim.metadata.creation_timestamp.as_ref().map(|at| at.0.to_string()),
        phase: own(text(claim, "/status/phase")),
        image: own(text(claim, "/spec/image")),
        ignition_secret: own(text(claim, "/spec/ignitionSecretRef/name")),
        power: own(text(claim, "/spec/power")),
        tolerations: taints::tolerated(claim),
        needed: label(claim, NEEDED).is_some() || annotation(claim, NEEDED).is_some(),
        approved: is_approved(found, claim),
        leaving: claim.metadata.deletion_timestamp.is_some(),
    }
}

/// Describes a claim's owner, for display.
fn claimant(id: &str, claim: Option<&DynamicObject>) -> String {
    let text = |key| claim.and_then(|claim| annotation(claim, key)).map(OneLine::from);
    let (owner, contact) = (text(OUR_OWNER), text(OUR_CONTACT));
    match (owner, contact) {
        (Some(owner), Some(contact)) => format!("ServerClaim {id} of {owner} (contact: {contact})"),
        (Some(owner), None) => format!("ServerClaim {id} of {owner}"),
        _ => format!("ServerClaim {id}"),
    }
}

/// Returns why an unclaimed server is not bound to a claim; `Err` if that is permanent.
async fn blocker(
    fleet: &ClusterObjects,
    name: &str,
    server: &DynamicObject,
    tolerated: &[Toleration],
) -> Result<Result<String, String>, BackendError> {
    let state = text(server, "/status/state").unwrap_or("unknown");
    let mut requests = fleet.maintenances_of(name).await?;
    if fleet.found().await?.way == Way::Park {
        // metal-operator binds a claim whatever metal-maintenance-operator plans.
        requests.clear();
    }
    if is_parked(server) {
        return Ok(Err(format!("it is parked by {}", parker(server))));
    }
    if let Some(holder) = reference(server, "/spec/serverMaintenanceRef") {
        let by = requests.iter().find(|it| full_name(it) == holder).map_or(holder, |it| whose(it));
        return Ok(Err(format!("it is in maintenance: {by}")));
    }
    if state == "Maintenance" {
        return Ok(Ok("the Server to leave maintenance".to_owned()));
    }
    if server.data.pointer("/spec/unclaimable").and_then(Value::as_bool) == Some(true) {
        let by = if annotation(server, OUR_ID).is_some() { format!(", for {}", whose(server)) } else { String::new() };
        return Ok(Err(format!("it is closed to new claims (unclaimable){by}")));
    }
    if let Some(key) = taints::keeps_away(server, tolerated) {
        return Ok(Err(format!("its taint {key:?} (NoBind) excludes claims that do not tolerate it")));
    }
    if let Some(request) = requests.first() {
        return Ok(Ok(format!("the Server, for which a maintenance is requested: {}", whose(request))));
    }
    Ok(Ok(unready(state, text(server, "/status/powerState").unwrap_or("unknown"))))
}

/// Returns the reason for the wait if nothing blocks a claim. metal-operator binds it to a Server
/// that is Available and off.
fn unready(state: &str, power: &str) -> String {
    match (state, power) {
        ("Available", "Off") => "metal-operator to bind the Server".to_owned(),
        ("Available", _) => format!("the Server to be off (now {power})"),
        (_, "Off") => format!("the Server to be Available (now {state})"),
        _ => format!("the Server to be Available and off (now {state}, power {power})"),
    }
}

#[async_trait]
impl ExternalOwnership for MetalOperatorBackend {
    fn address(&self) -> String {
        self.fleet.cluster.address()
    }

    fn texts(&self) -> OwnershipTexts {
        OwnershipTexts {
            flag: "--metal-operator",
            claim: "ServerClaim",
            limits: "metal-operator stores only whether an approval exists",
            counts: "applies to every request for its server, present and future, until the last request has ended.",
        }
    }

    fn after_claim(&self, state: Option<&GateState>) -> Vec<String> {
        let mut lines = vec!["metal-operator shuts the server down, whatever runs on it.".to_owned()];
        lines.push(if state.is_some_and(|state| state.retained) {
            "Its reclaimPolicy is Retain: it stays Released until an administrator binds or deletes it.".to_owned()
        } else {
            // The operator does not wipe disks in any state.
            "Then the next claim can bind it and boot something else. The operator wipes no disk: the next owner can \
             read the data."
                .to_owned()
        });
        if state.is_some_and(|state| state.state == "Maintenance") {
            lines.push(
                "It is in maintenance now. After that it is booted from the network to be discovered again.".to_owned(),
            );
        }
        lines
    }

    async fn state(&self, server: &str, fresh: bool) -> Result<GateState, BackendError> {
        let object = self.fleet.known(server, fresh).await?;
        let state = text(&object, "/status/state").unwrap_or_default().to_owned();
        let retained = text(&object, "/spec/reclaimPolicy") == Some("Retain");
        Ok(GateState { state, claim: reference(&object, "/spec/serverClaimRef"), retained })
    }

    async fn claims(&self) -> Result<Vec<ExternalClaimView>, BackendError> {
        let found = self.fleet.found().await?;
        let all = self.fleet.claims.all().await.map_err(error)?;
        Ok(all.iter().map(|claim| view(found, claim)).collect())
    }

    async fn claim_view(&self, id: &str, fresh: bool) -> Result<Option<ExternalClaimView>, BackendError> {
        let found = self.fleet.found().await?;
        Ok(self.fleet.claim(id, fresh).await?.map(|claim| view(found, &claim)))
    }

    async fn tolerates(&self) -> Result<Result<(), String>, BackendError> {
        let tolerates = self.fleet.found().await?.tolerations;
        Ok(tolerates.then_some(()).ok_or_else(|| {
            let address = self.fleet.cluster.address();
            format!("the ServerClaims of {address} do not support it (metal-operator v0.6 and later do)")
        }))
    }

    async fn binding(&self, id: &str, server: &str, tolerated: &[Toleration]) -> Result<Binding, BackendError> {
        let Some(object) = self.fleet.server(server, true).await? else {
            return Ok(Binding::Impossible(no_server(server)));
        };
        let claim = self.fleet.claim(id, true).await?;
        let state = text(&object, "/status/state").unwrap_or("unknown");
        match reference(&object, "/spec/serverClaimRef") {
            Some(other) if other != id => {
                let claim = self.fleet.claim(&other, true).await?;
                Ok(Binding::Impossible(format!("it is claimed by {}", claimant(&other, claim.as_deref()))))
            }
            Some(_) => {
                let bound = claim.as_ref().is_some_and(|claim| text(claim, "/status/phase") == Some("Bound"));
                let there = matches!(state, "Reserved" | "Maintenance" | "Parked");
                Ok(if bound && there {
                    Binding::Bound
                } else if claim.is_some() {
                    Binding::Waiting(format!("the Server to be Reserved for {id} (now {state})"))
                } else {
                    Binding::Waiting(format!("an earlier ServerClaim of that name to release the Server (now {state})"))
                })
            }
            None if claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some()) => {
                Ok(Binding::Waiting(format!("ServerClaim {id} to be deleted")))
            }
            None => Ok(match blocker(&self.fleet, server, &object, tolerated).await? {
                Ok(why) => Binding::Waiting(why),
                Err(why) => Binding::Impossible(why),
            }),
        }
    }

    async fn claim(&self, wanted: &ExternalClaim, uid: Option<&str>) -> Result<(), BackendError> {
        let id = wanted.id();
        let tolerates = self.tolerates().await?;
        if let (false, Err(what)) = (wanted.tolerations.is_empty(), &tolerates) {
            let (address, what) = (self.fleet.cluster.address(), format!("tolerations: {what}"));
            return Err(BackendError::Unsupported { address: address.into(), what: what.into() });
        }
        let found = self.fleet.claim(&id, true).await?;
        if let Some(claim) = &found {
            self.may_change(claim, wanted, uid)?;
        } else if uid.is_some() {
            return Err(self.missing(format!("ServerClaim {id} no longer exists")));
        }
        let secret = match &wanted.ignition {
            None => None,
            Some(Ignition::Secret(name)) => Some(name.clone()),
            Some(Ignition::Content(sha256)) => {
                let secret = self.ignition_secret(&wanted.name, sha256);
                // The Secret must exist before the claim, because the server's boot needs it.
                self.fleet.ignition_secret(&wanted.namespace, &secret, sha256, found.as_deref()).await?;
                Some(secret)
            }
        };
        let kind = resource(METAL, "ServerClaim");
        let (annotations, spec) = (annotations(wanted), spec(wanted, secret.as_deref()));
        if let Some(claim) = found {
            let mut spec = spec;
            // Unset fields are removed; the server never changes.
            spec.remove("serverRef");
            spec.entry("ignitionSecretRef").or_insert(Value::Null);
            if tolerates.is_ok() {
                spec.entry(taints::FIELD).or_insert(Value::Null);
            }
            let mut change = json!({ "metadata": { "annotations": annotations }, "spec": spec });
            if wanted.contact.is_none() {
                change["metadata"]["annotations"][OUR_CONTACT] = Value::Null;
            }
            return self.fleet.patch(&kind, &claim, change).await;
        }
        let object = json!({
            "apiVersion": kind.api_version, "kind": kind.kind,
            "metadata": {
                "name": wanted.name, "namespace": wanted.namespace, "annotations": annotations,
                "labels": { "app.kubernetes.io/managed-by": MANAGER },
            },
            "spec": spec,
        });
        let made = self.fleet.apply(&kind, &wanted.namespace, &wanted.name, &object).await?;
        match (&wanted.ignition, secret) {
            // With the claim as its owner, the Secret is deleted together with it.
            (Some(Ignition::Content(sha256)), Some(secret)) => {
                self.fleet.ignition_secret(&wanted.namespace, &secret, sha256, Some(&made)).await
            }
            _ => Ok(()),
        }
    }

    async fn unclaim(&self, id: &str, uid: &str) -> Result<(), BackendError> {
        match self.fleet.claim(id, true).await? {
            Some(claim) if claim.metadata.uid.as_deref() == Some(uid) => {
                self.fleet.delete(&resource(METAL, "ServerClaim"), &claim, false).await
            }
            _ => Ok(()),
        }
    }

    async fn kept(&self, id: &str, uid: &str, server: &str) -> Result<Option<String>, BackendError> {
        let claim = self.fleet.claim(id, true).await?;
        if claim.is_some_and(|claim| claim.metadata.uid.as_deref() == Some(uid)) {
            return Ok(Some(format!("ServerClaim {id} to be deleted")));
        }
        let Some(object) = self.fleet.server(server, true).await? else { return Ok(None) };
        let state = text(&object, "/status/state").unwrap_or("unknown");
        let held = reference(&object, "/spec/serverClaimRef").as_deref() == Some(id);
        // With the reclaim policy Retain, the server stays Released until a person frees it.
        Ok((held && state != "Released").then(|| format!("metal-operator to free the Server (now {state})")))
    }

    fn ignition_secret(&self, claim: &str, sha256: &str) -> String {
        format!("{claim}-ignition-{}", sha256.get(..8).unwrap_or(sha256))
    }

    async fn requests(&self) -> Result<Vec<ExternalRequestRef>, BackendError> {
        orphans::all(&self.fleet).await
    }

    async fn asked(&self, server: &str) -> Result<Vec<ExternalWaiter>, BackendError> {
        let all = self.fleet.maintenances_of(server).await?;
        let live = all.iter().filter(|it| it.metadata.deletion_timestamp.is_none());
        Ok(live.map(|it| asked(it)).collect())
    }

    async fn word(&self, word: &ApprovalMarkRef) -> Result<ApprovalMarkState, BackendError> {
        word::look(&self.fleet, word).await
    }

    async fn approve(&self, word: &ApprovalMarkRef) -> Result<(), BackendError> {
        word::approve(&self.fleet, word).await
    }

    async fn withdraw(&self, word: &ApprovalMarkRef) -> Result<(), BackendError> {
        word::withdraw(&self.fleet, word).await
    }

    async fn changed(&self) {
        let (mut servers, mut claims) = (self.fleet.servers.changes(), self.fleet.claims.changes());
        tokio::select! {
            _ = servers.changed() => {}
            _ = claims.changed() => {}
        }
    }
}

impl MetalOperatorBackend {
    fn missing(&self, what: String) -> BackendError {
        BackendError::Missing { address: self.fleet.cluster.address().into(), what: what.into() }
    }

    /// Returns `Ok` if an existing claim can be changed to the wanted state.
    fn may_change(&self, claim: &DynamicObject, wanted: &ExternalClaim, uid: Option<&str>) -> Result<(), BackendError> {
        let id = wanted.id();
        let refused =
            |why: String| BackendError::Unsupported { address: self.fleet.cluster.address().into(), what: why.into() };
        if let Some(uid) = uid {
            return if claim.metadata.uid.as_deref() == Some(uid) {
                Ok(())
            } else {
                Err(self.missing(format!("ServerClaim {id} was replaced: its UID differs from the state's")))
            };
        }
        if claim.metadata.deletion_timestamp.is_some() {
            let why = "a ServerClaim of that name is being deleted".to_owned();
            return Err(not_now(self.fleet.cluster.address(), format!("claim {id}"), why));
        }
        let server = text(claim, "/spec/serverRef/name");
        match annotation(claim, OUR_OWNER) {
            Some(owner) if owner == wanted.owner && server == Some(&wanted.server) => Ok(()),
            Some(owner) if owner == wanted.owner => Err(refused(format!(
                "ServerClaim {id} already exists for the server {:?}. A claim cannot change its server: choose another \
                 name",
                server.unwrap_or("that it finds")
            ))),
            Some(owner) => Err(refused(format!("ServerClaim {id} already exists and belongs to {owner:?}"))),
            None => Err(refused(format!(
                "ServerClaim {id} already exists and was not created by this provider. Import it to manage it, or read \
                 it with the data source metal_server_claim"
            ))),
        }
    }
}

/// Returns the annotations that identify the owner, for people and for this provider.
fn annotations(wanted: &ExternalClaim) -> Map<String, Value> {
    let contact = wanted.contact.as_ref().map(|contact| (OUR_CONTACT, contact));
    let all = [(OUR_OWNER, &wanted.owner), (OUR_RUN, &wanted.run)].into_iter().chain(contact);
    all.map(|(key, value)| (key.to_owned(), json!(value))).collect()
}

fn spec(wanted: &ExternalClaim, secret: Option<&str>) -> Map<String, Value> {
    let power = match wanted.power {
        PowerTarget::On => "On",
        PowerTarget::Off => "Off",
    };
    let mut spec = Map::from_iter([
        ("serverRef".to_owned(), json!({ "name": wanted.server })),
        ("image".to_owned(), json!(wanted.image)),
        ("power".to_owned(), json!(power)),
    ]);
    if let Some(secret) = secret {
        spec.insert("ignitionSecretRef".to_owned(), json!({ "name": secret }));
    }
    if !wanted.tolerations.is_empty() {
        spec.insert(taints::FIELD.to_owned(), taints::written(&wanted.tolerations));
    }
    spec
}

/// Describes a `ServerMaintenance` and its requester.
fn asked(request: &DynamicObject) -> ExternalWaiter {
    let own = |text: Option<&str>| text.map(str::to_owned);
    let manager = || request.metadata.managed_fields.iter().flatten().find_map(|entry| entry.manager.clone());
    ExternalWaiter {
        id: own(annotation(request, OUR_ID)).unwrap_or_else(|| full_name(request)),
        store: own(annotation(request, OUR_STORE)),
        name: full_name(request),
        started: matches!(text(request, "/status/state"), Some("InMaintenance" | "Failed")),
        asks: text(request, "/spec/policy") != Some("Enforced"),
        priority: request.data.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or(0),
        by: own(annotation(request, OUR_RUN)).or_else(manager).unwrap_or_else(|| name(request).to_owned()),
        reason: REASONS.iter().find_map(|key| own(annotation(request, key))),
        ticket: own(annotation(request, OUR_TICKET)),
        since: request.metadata.creation_timestamp.as_ref().map(|at| at.0.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_waits_only_for_what_is_not_so_yet() {
        for (state, power, expected) in [
            ("Available", "Off", "metal-operator to bind the Server"),
            ("Available", "On", "the Server to be off (now On)"),
            ("Initial", "Off", "the Server to be Available (now Initial)"),
            ("Discovery", "On", "the Server to be Available and off (now Discovery, power On)"),
        ] {
            assert_eq!(unready(state, power), expected);
        }
    }
}
