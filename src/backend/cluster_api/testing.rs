//! Test objects for this gate.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    backend::cluster,
    maintenance::gate::{Asks, ExternalRequest},
};

/// Returns an enabled Machine.
pub(super) fn machine() -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {
            "name": "m1", "namespace": "caph", "annotations": {},
            "labels": { "runtime-extension-maintenance-controller.cloud.sap/enabled": "true" },
        },
        "spec": { "providerID": "metal3://caph/node1/m1" },
        "status": { "phase": "Running", "nodeRef": { "name": "n1" }, "conditions": [{ "type": "UpToDate", "status": "True" }] },
    })
}

pub(super) fn node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n1", "labels": { "cloud.sap/maintenance-state": "operational" } },
        "spec": { "providerID": "metal3://caph/node1/m1" },
    })
}

pub(super) fn wish() -> ExternalRequest {
    ExternalRequest {
        store: "s".to_owned(),
        uid: "u".to_owned(),
        id: "ops/bios".to_owned(),
        owner: "ops".into(),
        run: "ci".into(),
        asks: Asks::Nobody,
        priority: 0,
        reason: None,
        ticket: None,
        asked: false,
        entered: false,
        enters: true,
        leaving: false,
        namespace: None,
        memory: BTreeMap::new(),
        outer: Vec::new(),
    }
}

/// Returns our annotations without the label.
pub(super) fn marks(wish: &ExternalRequest) -> Value {
    json!({ "metadata": { "annotations": cluster::marks(wish) } })
}
