//! What is read of metal-operator's objects. Fields that a version does not have are simply not
//! there.

use std::collections::BTreeMap;

use kube::core::{ApiResource, DynamicObject};
use serde_json::Value;

use crate::backend::cluster::marks;
pub(super) use crate::backend::cluster::{
    MANAGER, OUR_ID, OUR_OWNER, OUR_RUN, OUR_STORE, OUR_TICKET, OUR_UID, annotation, name, text,
};

/// The group of servers, claims, boot configurations and BMCs.
pub(super) const METAL: &str = "metal.ironcore.dev";
/// The group of metal-maintenance-operator.
pub(super) const MAINTENANCE: &str = "maintenance.metal.ironcore.dev";
/// The group of metal-maintenance-operator's checks of a server.
pub(super) const READINESS: &str = "readiness.metal.ironcore.dev";
/// The version of all of them.
pub(super) const VERSION: &str = "v1alpha1";

/// Asks for an operation; one key for everything (operation values: metal-operator v0.2 and later).
pub(super) const OPERATION: &str = "metal.ironcore.dev/operation";
/// Set by the operator on a parked server (v0.7 and later).
pub(super) const PARKED: &str = "metal.ironcore.dev/parked";
/// Why, as the columns of `kubectl get` show it: one key by each group.
pub(super) const REASONS: [&str; 2] = ["metal.ironcore.dev/reason", "metal.ironcore.dev/maintenance-reason"];
/// A claim's owner is told with it.
pub(super) const NEEDED: &str = "metal.ironcore.dev/maintenance-needed";
/// A claim's owner approves with it: up to v0.5.
pub(super) const APPROVAL: &str = "metal.ironcore.dev/maintenance-approval";
/// The kind of v0.5 and later.
pub(super) const APPROVED: &str = "metal.ironcore.dev/maintenance-approved";

/// Ours: written so that the operator looks at a Server.
pub(super) const OUR_LOOK: &str = "terraform-provider-metal/seen-off";
/// Ours: the power of a claimed server before it was asked to be parked.
pub(super) const OUR_POWER: &str = "terraform-provider-metal/power-before";
/// Ours: where a claim's owner is reached.
pub(super) const OUR_CONTACT: &str = "terraform-provider-metal/contact";
/// Ours: whose an approval is, beside the key that the operator reads.
pub(super) const OUR_WORD: &str = "terraform-provider-metal/approval";
/// Ours: what the boot template was made from.
pub(super) const OUR_BOOT: &str = "terraform-provider-metal/boot";
/// Ours: the boot configuration that was there before the template changed; its `Ready` says
/// nothing about the new one.
pub(super) const OUR_OLD_BOOT: &str = "terraform-provider-metal/boot-before";

/// A kind of one of the groups.
pub(super) fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource {
        group: group.to_owned(),
        version: if group.is_empty() { "v1".to_owned() } else { VERSION.to_owned() },
        api_version: if group.is_empty() { "v1".to_owned() } else { format!("{group}/{VERSION}") },
        kind: kind.to_owned(),
        plural: format!("{}s", kind.to_lowercase()),
    }
}

/// The message where a server is not there.
pub(super) fn no_server(name: &str) -> String {
    format!("the cluster has no Server {name:?}")
}

/// A text of an object's labels.
pub(super) fn label<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// An object's namespace.
pub(super) fn namespace(object: &DynamicObject) -> &str {
    object.metadata.namespace.as_deref().unwrap_or_default()
}

/// `namespace/name` of an object.
pub(super) fn full_name(object: &DynamicObject) -> String {
    match &object.metadata.namespace {
        Some(namespace) => format!("{namespace}/{}", name(object)),
        None => name(object).to_owned(),
    }
}

/// A reference to something in a namespace, as `namespace/name`.
pub(super) fn reference(object: &DynamicObject, pointer: &str) -> Option<String> {
    let found = object.data.pointer(pointer)?;
    let part = |key: &str| found.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    Some(format!("{}/{}", part("namespace").unwrap_or_default(), part("name")?))
}

/// Who asked for an object, for people: what its annotations tell.
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

/// Annotations that say whose something is.
pub(super) fn our_annotations(wish: &crate::maintenance::gate::ExternalRequest) -> BTreeMap<String, String> {
    let mut all = marks(wish);
    let reason = wish.reason.clone().unwrap_or_else(|| format!("maintenance {}", wish.id));
    all.extend(REASONS.map(|key| (key.to_owned(), reason.clone())));
    all
}
