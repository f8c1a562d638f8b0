//! Accessors for metal-operator's objects. Fields that a version lacks read as absent.

use std::collections::BTreeMap;

pub(super) use crate::backend::cluster::{
    MANAGER, OUR_ID, OUR_OWNER, OUR_RUN, OUR_STORE, OUR_TICKET, OUR_UID, annotation, name, text,
};
use crate::{backend::cluster::marks, shown::AsRaw};
use kube::core::{ApiResource, DynamicObject};
use serde_json::Value;

/// The group of servers, claims, boot configurations and BMCs.
pub(super) const METAL: &str = "metal.ironcore.dev";
/// The group of metal-maintenance-operator.
pub(super) const MAINTENANCE: &str = "maintenance.metal.ironcore.dev";
/// The group of metal-maintenance-operator's checks of a server.
pub(super) const READINESS: &str = "readiness.metal.ironcore.dev";
/// The version of all of them.
pub(super) const VERSION: &str = "v1alpha1";

/// Annotation that requests an operation, shared by all authors (operation values: metal-operator
/// v0.2 and later).
pub(super) const OPERATION: &str = "metal.ironcore.dev/operation";
/// Annotation that the operator sets on a parked server (v0.7 and later).
pub(super) const PARKED: &str = "metal.ironcore.dev/parked";
/// Annotations with the reason, as shown in `kubectl get` columns: one key per group.
pub(super) const REASONS: [&str; 2] = ["metal.ironcore.dev/reason", "metal.ironcore.dev/maintenance-reason"];
/// The key that notifies a claim's owner.
pub(super) const NEEDED: &str = "metal.ironcore.dev/maintenance-needed";
/// The key with which a claim's owner approves: up to v0.5.
pub(super) const APPROVAL: &str = "metal.ironcore.dev/maintenance-approval";
/// The approval key of v0.5 and later.
pub(super) const APPROVED: &str = "metal.ironcore.dev/maintenance-approved";

/// Our annotation that triggers the operator's check of a Server.
pub(super) const OUR_LOOK: &str = "terraform-provider-metal/seen-off";
/// Our annotation with a claimed server's power before the parking request.
pub(super) const OUR_POWER: &str = "terraform-provider-metal/power-before";
/// Our annotation with a claim owner's contact.
pub(super) const OUR_CONTACT: &str = "terraform-provider-metal/contact";
/// Our annotation with an approval's author, next to the operator's key.
pub(super) const OUR_WORD: &str = "terraform-provider-metal/approval";
/// Our annotation with the boot template's source.
pub(super) const OUR_BOOT: &str = "terraform-provider-metal/boot";
/// Our annotation with the boot configuration from before the template changed. Its `Ready` does
/// not apply to the new configuration.
pub(super) const OUR_OLD_BOOT: &str = "terraform-provider-metal/boot-before";

pub(super) fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource {
        group: group.to_owned(),
        version: if group.is_empty() { "v1".to_owned() } else { VERSION.to_owned() },
        api_version: if group.is_empty() { "v1".to_owned() } else { format!("{group}/{VERSION}") },
        kind: kind.to_owned(),
        plural: format!("{}s", kind.to_lowercase()),
    }
}

/// Returns the message for a server that does not exist.
pub(super) fn no_server(name: &str) -> String {
    format!("the cluster does not contain Server {name:?}")
}

pub(super) fn label<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

pub(super) fn namespace(object: &DynamicObject) -> &str {
    object.metadata.namespace.as_deref().unwrap_or_default()
}

/// Returns an object's `namespace/name`.
pub(super) fn full_name(object: &DynamicObject) -> String {
    match &object.metadata.namespace {
        Some(namespace) => format!("{namespace}/{}", name(object)),
        None => name(object).to_owned(),
    }
}

/// Returns a namespaced reference as `namespace/name`.
pub(super) fn reference(object: &DynamicObject, pointer: &str) -> Option<String> {
    let found = object.data.pointer(pointer)?;
    let part = |key: &str| found.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    Some(format!("{}/{}", part("namespace").unwrap_or_default(), part("name")?))
}

/// Describes an object's requester from its annotations, for display.
pub(super) fn whose(object: &DynamicObject) -> String {
    let said: Vec<String> = [
        annotation(object, OUR_ID).map(|id| format!("of {id}")),
        annotation(object, OUR_RUN).map(|run| format!("by {run}")),
        REASONS.iter().find_map(|key| annotation(object, key)).map(|reason| format!("reason {reason:?}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    if said.is_empty() { full_name(object) } else { format!("{} ({})", full_name(object), said.join(", ")) }
}

/// Returns the annotations that identify a maintenance, including its reason.
pub(super) fn our_annotations(wish: &crate::maintenance::gate::ExternalRequest) -> BTreeMap<String, String> {
    let mut all = marks(wish);
    let reason = wish.reason.as_raw().map_or_else(|| format!("maintenance {}", wish.id), str::to_owned);
    all.extend(REASONS.map(|key| (key.to_owned(), reason.clone())));
    all
}
