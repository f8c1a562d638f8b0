//! ServerClaims: a server's owner and the owner's approval.
//!
//! The key's presence is the approval (all versions). The operators never read the value, so we
//! write `true` and delete the key to withdraw.

use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::{
    backend::BackendError,
    maintenance::gate::{Asks, ExternalRequest},
};

use super::{
    discovery::{ApprovalFormat, ClusterFeatures},
    fleet::ClusterObjects,
    objects::{APPROVAL, APPROVED, METAL, NEEDED, annotation, label, reference, resource},
};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ApprovalCheck {
    NotNeeded,
    Given,
    /// The missing approval, for display.
    Missing(String),
}

/// Returns true if a claim's owner has approved, in this version's format.
pub(super) fn is_approved(found: &ClusterFeatures, claim: &DynamicObject) -> bool {
    match found.words {
        ApprovalFormat::Labels => label(claim, APPROVED).is_some(),
        // v0.1 and v0.2 read only the annotation. v0.3 and v0.4 also accept a label with that key,
        // and v0.5 also the newer key.
        ApprovalFormat::Annotations => annotation(claim, APPROVAL).is_some() || label(claim, APPROVAL).is_some(),
    }
}

/// Returns an owner's answer for a claim, by `namespace/name`.
pub(super) async fn approval(
    fleet: &ClusterObjects,
    found: &ClusterFeatures,
    claim: &str,
) -> Result<ApprovalCheck, BackendError> {
    let Some(object) = fleet.claim(claim, false).await? else {
        return Ok(ApprovalCheck::Missing(format!("deleted ServerClaim {claim}, to which the Server is still bound")));
    };
    if is_approved(found, &object) {
        return Ok(ApprovalCheck::Given);
    }
    Ok(ApprovalCheck::Missing(format!("approval on ServerClaim {claim}: {}", command(found, claim))))
}

/// Describes a missing claim if the maintenance requires an owner.
pub(super) fn unclaimed(wish: &ExternalRequest, server: &DynamicObject) -> Option<String> {
    let alone = wish.asks == Asks::OwnerItMustHave && reference(server, "/spec/serverClaimRef").is_none();
    alone.then(|| "a ServerClaim: the Server is unclaimed (require_claim)".to_owned())
}

/// Returns true if a claim still has a maintenance's marks. Before the request was `granted`, only
/// the operator's mark counts: an owner can have approved earlier or during the withdrawal.
pub(super) async fn has_marks(fleet: &ClusterObjects, claim: &str, granted: bool) -> Result<bool, BackendError> {
    let keys: &[&str] = if granted { &[NEEDED, APPROVED, APPROVAL] } else { &[NEEDED] };
    Ok(fleet
        .claim(claim, true)
        .await?
        .is_some_and(|claim| keys.iter().any(|key| label(&claim, key).is_some() || annotation(&claim, key).is_some())))
}

/// Removes a maintenance's marks from a claim after the last request for the server. The operators
/// do so only for granted requests.
pub(super) async fn remove_marks(fleet: &ClusterObjects, claim: &str) -> Result<(), BackendError> {
    let Some(object) = fleet.claim(claim, true).await? else { return Ok(()) };
    let gone = |present: &dyn Fn(&str) -> bool| -> Value {
        let keys = [NEEDED, APPROVED, APPROVAL].into_iter().filter(|key| present(key));
        keys.map(|key| (key.to_owned(), Value::Null)).collect::<serde_json::Map<_, _>>().into()
    };
    let change = json!({ "metadata": {
        "labels": gone(&|key| label(&object, key).is_some()),
        "annotations": gone(&|key| annotation(&object, key).is_some()),
    } });
    fleet.patch(&resource(METAL, "ServerClaim"), &object, change).await
}

/// Returns the command with which a person writes an approval.
fn command(found: &ClusterFeatures, claim: &str) -> String {
    let (namespace, name) = claim.split_once('/').unwrap_or(("", claim));
    match found.words {
        ApprovalFormat::Labels => format!("kubectl label serverclaim -n {namespace} {name} {APPROVED}=true"),
        ApprovalFormat::Annotations => {
            format!("kubectl annotate serverclaim -n {namespace} {name} {APPROVAL}=true")
        }
    }
}
