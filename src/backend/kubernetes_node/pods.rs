//! Decides which Pods must leave a Node, and which must not be evicted. Pure.
//!
//! The rules match `kubectl drain` (Kubernetes 1.34,
//! staging/src/k8s.io/kubectl/pkg/drain/filters.go). Mirror Pods and DaemonSet Pods stay. Pods with
//! local data or without a controller need explicit consent.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::maintenance::drain::DrainWish;

/// The annotation of Pods that a kubelet creates from files.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A Pod's role in a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodRole {
    /// The Pod can stay.
    Stays,
    /// The Pod must be evicted.
    Evict,
    /// The Pod is ending.
    Ending,
    /// The configuration forbids the eviction, with the reason.
    Refused(&'static str),
}

/// Returns `namespace/name`.
pub(super) fn shown(pod: &Pod) -> String {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}", part(&pod.metadata.namespace), part(&pod.metadata.name))
}

/// Returns a Pod's role in a drain. `unheard` is `None` for a Ready Node. The Pods of a Node that
/// is not Ready count as ended if they were due to end before this time.
pub(super) fn role(pod: &Pod, wish: &DrainWish, unheard: Option<Timestamp>) -> PodRole {
    let annotations = pod.metadata.annotations.as_ref();
    let controller = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    if annotations.is_some_and(|all| all.contains_key(MIRROR))
        || controller.is_some_and(|owner| owner.kind == "DaemonSet")
        || is_over(pod)
    {
        return PodRole::Stays;
    }
    if let Some(ends) = &pod.metadata.deletion_timestamp {
        let has_ended = unheard.is_some_and(|by| ends.0 <= by);
        return if has_ended { PodRole::Stays } else { PodRole::Ending };
    }
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    if !wish.delete_emptydir_data && volumes.into_iter().any(|volume| volume.empty_dir.is_some()) {
        return PodRole::Refused("its emptyDir data would be lost; kubernetes_node.delete_emptydir_data allows that");
    }
    if !wish.force && controller.is_none() {
        return PodRole::Refused("no controller would start it again; kubernetes_node.force allows that");
    }
    PodRole::Evict
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    fn wish() -> DrainWish {
        DrainWish {
            node: "n1".into(),
            timeout: Duration::from_mins(10),
            ready_timeout: Duration::from_mins(15),
            delete_emptydir_data: false,
            force: false,
        }
    }

    fn pod(change: &Value) -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": "web-0", "namespace": "prod",
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true }],
            },
            "spec": { "containers": [] },
        });
        for (part, value) in change.as_object().unwrap() {
            pod[part].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_pod_is_judged_as_kubectl_drain_does() {
        let owner =
            |kind: &str| json!([{ "apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": true }]);
        let scratch = json!([{ "name": "scratch", "emptyDir": {} }]);
        let refused = |role: &PodRole| matches!(role, PodRole::Refused(_));
        assert_eq!(role(&pod(&json!({})), &wish(), None), PodRole::Evict);
        for stays in [
            json!({ "metadata": { "annotations": { MIRROR: "hash" }, "ownerReferences": owner("Node") } }),
            json!({ "metadata": { "ownerReferences": owner("DaemonSet") } }),
        ] {
            assert_eq!(role(&pod(&stays), &wish(), None), PodRole::Stays);
        }
        let local = pod(&json!({ "spec": { "volumes": scratch } }));
        assert!(refused(&role(&local, &wish(), None)));
        assert_eq!(role(&local, &DrainWish { delete_emptydir_data: true, ..wish() }, None), PodRole::Evict);
        let alone = pod(&json!({ "metadata": { "ownerReferences": [] } }));
        assert!(refused(&role(&alone, &wish(), None)));
        assert_eq!(role(&alone, &DrainWish { force: true, ..wish() }, None), PodRole::Evict);
        let ending = pod(&json!({ "metadata": { "deletionTimestamp": "2026-11-21T10:00:00Z" } }));
        assert_eq!(role(&ending, &wish(), None), PodRole::Ending);
        let unheard = |by: &str| role(&ending, &wish(), Some(by.parse().unwrap()));
        assert_eq!(unheard("2026-11-21T10:00:00Z"), PodRole::Stays, "its kubelet cannot report its end");
        assert_eq!(unheard("2026-11-21T09:59:59Z"), PodRole::Ending, "it still has time to end");
        let mut over = alone;
        over.status = serde_json::from_value(json!({ "phase": "Succeeded" })).unwrap();
        assert_eq!(role(&over, &wish(), None), PodRole::Stays);
    }
}
