//! ServerClaims: who owns a server, and whether the owner has said yes.
//!
//! Only the presence of a key counts (all versions); the value is never read by the operators, so
//! we write `true` and take the key away to withdraw.

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

/// An owner's answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ApprovalCheck {
    NotNeeded,
    Given,
    /// What to wait for, for people.
    Missing(String),
}

/// Whether a claim's owner has approved, in the form that this version reads.
pub(super) fn is_approved(found: &ClusterFeatures, claim: &DynamicObject) -> bool {
    match found.words {
        ApprovalFormat::Labels => label(claim, APPROVED).is_some(),
        // v0.1 and v0.2 read the annotation only, v0.3 and v0.4 also a label of that key, v0.5 also
        // the newer key.
        ApprovalFormat::Annotations => annotation(claim, APPROVAL).is_some() || label(claim, APPROVAL).is_some(),
    }
}

/// An owner's answer about a claim by `namespace/name`.
pub(super) async fn approval(
    fleet: &ClusterObjects,
    found: &ClusterFeatures,
    claim: &str,
) -> Result<ApprovalCheck, BackendError> {
    let Some(object) = fleet.claim(claim, false).await? else {
        return Ok(ApprovalCheck::Missing(format!(
            "ServerClaim {claim}, to which the Server is bound and which is gone"
        )));
    };
    if is_approved(found, &object) {
        return Ok(ApprovalCheck::Given);
    }
    Ok(ApprovalCheck::Missing(format!("approval on ServerClaim {claim}: {}", command(found, claim))))
}

/// What is waited for where a server must have an owner and has none.
pub(super) fn unclaimed(wish: &ExternalRequest, server: &DynamicObject) -> Option<String> {
    let alone = wish.asks == Asks::OwnerItMustHave && reference(server, "/spec/serverClaimRef").is_none();
    alone.then(|| "a ServerClaim: the Server is unclaimed (require_claim)".to_owned())
}

/// Whether a claim still has what a maintenance writes on it. Until the request was `granted` only
/// the mark of the operator counts: an owner may have approved before it was made, or while it is
/// withdrawn.
pub(super) async fn has_marks(fleet: &ClusterObjects, claim: &str, granted: bool) -> Result<bool, BackendError> {
    let keys: &[&str] = if granted { &[NEEDED, APPROVED, APPROVAL] } else { &[NEEDED] };
    Ok(fleet
        .claim(claim, true)
        .await?
        .is_some_and(|claim| keys.iter().any(|key| label(&claim, key).is_some() || annotation(&claim, key).is_some())))
}

/// Takes away what a maintenance writes on a claim: for when nobody waits for the server any more.
/// The operators do that only for a request that was granted.
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

/// How an approval is written here, for people who are to write it.
fn command(found: &ClusterFeatures, claim: &str) -> String {
    let (namespace, name) = claim.split_once('/').unwrap_or(("", claim));
    match found.words {
        ApprovalFormat::Labels => format!("kubectl label serverclaim -n {namespace} {name} {APPROVED}=true"),
        ApprovalFormat::Annotations => {
            format!("kubectl annotate serverclaim -n {namespace} {name} {APPROVAL}=true")
        }
    }
}
