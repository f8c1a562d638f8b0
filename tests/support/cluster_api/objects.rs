//! Reads and writes objects of any kind.

use std::collections::BTreeMap;

use kube::{
    Client, ResourceExt as _,
    api::{Api, DynamicObject, Patch, PatchParams},
    core::ApiResource,
};
use serde_json::Value;

/// Error of a reconcile.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Returns a resource that the controllers or the tests use.
pub fn resource(kind: &str) -> ApiResource {
    let (group, version, plural) = match kind {
        "Machine" => ("cluster.x-k8s.io", "v1beta2", "machines"),
        "MachineDeployment" => ("cluster.x-k8s.io", "v1beta2", "machinedeployments"),
        "MachineHealthCheck" => ("cluster.x-k8s.io", "v1beta2", "machinehealthchecks"),
        "Metal3Machine" => ("infrastructure.cluster.x-k8s.io", "v1beta1", "metal3machines"),
        "BareMetalHost" => ("metal3.io", "v1alpha1", "baremetalhosts"),
        "Node" => ("", "v1", "nodes"),
        "Secret" => ("", "v1", "secrets"),
        "Pod" => ("", "v1", "pods"),
        other => panic!("unknown kind {other}"),
    };
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// Returns the API for a kind in a namespace, or cluster-wide for a Node.
pub fn api(client: &Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let resource = resource(kind);
    match kind {
        "Node" => Api::all_with(client.clone(), &resource),
        _ => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}

/// Returns a text inside an object, empty if missing.
pub fn text<'a>(object: &'a DynamicObject, pointer: &str) -> &'a str {
    object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns true if a label has this value.
pub fn labelled(object: &DynamicObject, key: &str, value: &str) -> bool {
    object.labels().get(key).is_some_and(|found| found == value)
}

/// Returns the merge patch from `before` to `now`, or `None` if they are equal.
pub fn difference(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Option<Value> {
    let set = now.iter().filter(|(key, value)| before.get(*key) != Some(value));
    let set = set.map(|(key, value)| (key.clone(), Value::from(value.clone())));
    let gone = before.keys().filter(|key| !now.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let all: serde_json::Map<String, Value> = set.chain(gone).collect();
    (!all.is_empty()).then_some(Value::Object(all))
}

/// Merges a change into an object, regardless of concurrent writes. Returns the new version.
pub async fn merge(api: &Api<DynamicObject>, name: &str, change: Value) -> Result<DynamicObject, kube::Error> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await
}
