//! An approval: a key on the ServerClaim in this version's format, or on the Node from which a
//! controller copies it to the claim.
//!
//! The key's presence is the approval, whatever its value, so revoking deletes the key. A separate
//! annotation identifies our approval. The operator deletes its own key after the last request, and
//! a later key by another author is not ours.

use std::sync::Arc;

use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use crate::{
    backend::{ApprovalMarkRef, ApprovalMarkState, BackendError},
    kubernetes::Cluster,
};

use super::{
    claims::is_approved,
    discovery::{ApprovalFormat, ClusterFeatures},
    fleet::ClusterObjects,
    objects::{APPROVAL, APPROVED, MANAGER, METAL, OUR_WORD, annotation, label, resource},
};

struct ApprovalMark {
    cluster: Cluster,
    kind: ApiResource,
    object: Arc<DynamicObject>,
    /// `labels` or `annotations`.
    section: &'static str,
    keys: &'static [&'static str],
    /// The location, for display.
    name: String,
    present: bool,
}

impl ApprovalMark {
    /// Returns an approval's location; `None` if the object no longer exists.
    async fn of(fleet: &ClusterObjects, word: &ApprovalMarkRef) -> Result<Option<Self>, BackendError> {
        let found = fleet.found().await?;
        match &word.node {
            None => Self::on_claim(fleet, found, word).await,
            Some(node) => Self::on_node(fleet, node).await,
        }
    }

    async fn on_claim(
        fleet: &ClusterObjects,
        found: &ClusterFeatures,
        word: &ApprovalMarkRef,
    ) -> Result<Option<Self>, BackendError> {
        let claim = fleet.claim(&word.claim, true).await?;
        // A different claim with this name belongs to another owner, or is a later claim of the
        // same owner.
        let claim = claim.filter(|it| word.claim_uid.is_none() || it.metadata.uid == word.claim_uid);
        let Some(object) = claim else { return Ok(None) };
        let (section, keys): (_, &[&str]) = match found.words {
            ApprovalFormat::Labels => ("labels", &[APPROVED]),
            ApprovalFormat::Annotations => ("annotations", &[APPROVAL]),
        };
        Ok(Some(Self {
            cluster: fleet.cluster.clone(),
            kind: resource(METAL, "ServerClaim"),
            present: is_approved(found, &object),
            name: format!("{} {} of ServerClaim {}", section.trim_end_matches('s'), keys.join(" and "), word.claim),
            object,
            section,
            keys,
        }))
    }

    /// Controllers copy different keys, depending on the version they were built with.
    async fn on_node(fleet: &ClusterObjects, node: &str) -> Result<Option<Self>, BackendError> {
        const KEYS: [&str; 2] = [APPROVED, APPROVAL];
        let kind = resource("", "Node");
        let object = fleet.now_in(&fleet.nodes, &kind, None, node).await?;
        let Some(object) = object else { return Ok(None) };
        Ok(Some(Self {
            cluster: fleet.nodes.clone(),
            kind,
            present: KEYS.iter().any(|key| label(&object, key).is_some()),
            name: format!("labels {} of Node {node}", KEYS.join(" and ")),
            object: Arc::new(object),
            section: "labels",
            keys: &KEYS,
        }))
    }

    fn holds(&self, key: &str) -> bool {
        let object = &self.object;
        if self.section == "labels" { label(object, key).is_some() } else { annotation(object, key).is_some() }
    }

    /// Returns true if we last wrote an existing key, according to the API server.
    fn is_ours(&self, key: &str) -> bool {
        let section = format!("f:{}", self.section);
        let owners = self.object.metadata.managed_fields.iter().flatten().filter(|entry| {
            let fields = entry.fields_v1.as_ref().and_then(|fields| fields.0.get("f:metadata")?.get(&section));
            fields.is_some_and(|fields| fields.get(format!("f:{key}")).is_some())
        });
        let mut others = owners.map(|entry| entry.manager.as_deref() != Some(MANAGER));
        !others.any(|other| other)
    }

    /// Returns the existing keys that this approval wrote.
    fn ours(&self, word: &ApprovalMarkRef) -> Vec<&'static str> {
        let marked = annotation(&self.object, OUR_WORD) == Some(&word.uid);
        self.keys.iter().copied().filter(|key| marked && self.holds(key) && self.is_ours(key)).collect()
    }

    async fn change(
        &self,
        fleet: &ClusterObjects,
        keys: &[&str],
        value: &Value,
        mark: &Value,
    ) -> Result<(), BackendError> {
        let mut metadata = json!({ "annotations": { OUR_WORD: mark } });
        for key in keys {
            metadata[self.section][key] = value.clone();
        }
        fleet.patch_in(&self.cluster, &self.kind, &self.object, json!({ "metadata": metadata })).await
    }
}

fn gone(word: &ApprovalMarkRef) -> String {
    match &word.node {
        Some(node) => format!("Node {node:?} does not exist"),
        None => format!("ServerClaim {} no longer exists", word.claim),
    }
}

/// Reads an approval's state.
pub(super) async fn look(fleet: &ClusterObjects, word: &ApprovalMarkRef) -> Result<ApprovalMarkState, BackendError> {
    let Some(place) = ApprovalMark::of(fleet, word).await? else {
        return Ok(ApprovalMarkState { place: gone(word), present: false, ours: false });
    };
    let ours = !place.ours(word).is_empty();
    Ok(ApprovalMarkState { place: place.name, present: place.present, ours })
}

/// Writes an approval unless one exists.
pub(super) async fn approve(fleet: &ClusterObjects, word: &ApprovalMarkRef) -> Result<(), BackendError> {
    let Some(place) = ApprovalMark::of(fleet, word).await? else {
        let cluster = if word.node.is_some() { &fleet.nodes } else { &fleet.cluster };
        return Err(BackendError::Missing { address: cluster.address().into(), what: gone(word).into() });
    };
    if place.present {
        return Ok(());
    }
    place.change(fleet, place.keys, &json!("true"), &json!(word.uid)).await
}

/// Revokes exactly this approval.
pub(super) async fn withdraw(fleet: &ClusterObjects, word: &ApprovalMarkRef) -> Result<(), BackendError> {
    let Some(place) = ApprovalMark::of(fleet, word).await? else { return Ok(()) };
    if annotation(&place.object, OUR_WORD) != Some(&word.uid) {
        return Ok(());
    }
    place.change(fleet, &place.ours(word), &Value::Null, &Value::Null).await
}
