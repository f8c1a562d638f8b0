//! Shows in a plan which objects can block or take a released server: rules that taint it, a
//! sanitization that claims it, and network checks.
//!
//! Kinds and conditions: metal-operator v0.6 and later, and metal-maintenance-operator of August
//! 2026 (`serversanitization_controller.go`, `serverwiring_controller.go`).

use std::{fmt::Display, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{DynamicObject, Selector, SelectorExt as _};
use serde_json::Value;

use crate::kubernetes::ClusterError;

use super::{
    discovery::ClusterFeatures,
    fleet::ClusterObjects,
    objects::{full_name, name},
};

/// This condition is False while the server's disks are not erased yet.
const SANITIZED: &str = "maintenance.metal.ironcore.dev/sanitized";

/// One line for each object that concerns the server.
pub(super) async fn lines(fleet: &ClusterObjects, found: &ClusterFeatures, server: &DynamicObject) -> Vec<String> {
    let mut lines: Vec<String> = sanitization(server).into_iter().collect();
    if found.readiness_rules {
        lines.extend(shown("ServerReadinessRules", fleet.rules.all().await, |it| rule(it, server)));
    }
    if found.wirings {
        lines.extend(shown("ServerWirings", fleet.wirings.by(name(server)).await, |it| Some(wiring(it))));
    }
    lines
}

/// Returns one line for each object, or the cause if they cannot be read. A role without this right
/// loses only these lines.
fn shown(
    kinds: impl Display,
    listed: Result<Vec<Arc<DynamicObject>>, ClusterError>,
    line: impl Fn(&DynamicObject) -> Option<String>,
) -> Vec<String> {
    match listed {
        Ok(all) => all.iter().filter_map(|object| line(object)).collect(),
        Err(error) => vec![format!("{kinds}: not checked ({error}).")],
    }
}

fn sanitization(server: &DynamicObject) -> Option<String> {
    let conditions = server.data.pointer("/status/conditions").and_then(Value::as_array)?;
    let pending = conditions.iter().any(|it| it["type"] == SANITIZED && it["status"] == "False");
    pending.then(|| {
        "Sanitization: pending. metal-maintenance-operator claims the Server when it is Available, and erases its disks."
            .to_owned()
    })
}

/// A rule that selects the server. One whose selector cannot be read selects nothing.
fn rule(rule: &DynamicObject, server: &DynamicObject) -> Option<String> {
    let selector = rule.data.pointer("/spec/serverSelector").cloned().unwrap_or_default();
    let selector: LabelSelector = serde_json::from_value(selector).unwrap_or_default();
    let labels = server.metadata.labels.clone().unwrap_or_default();
    Selector::try_from(selector).ok().filter(|selector| selector.matches(&labels))?;
    let part = |it: &Value, key: &str| it.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let conditions = rule.data.pointer("/spec/conditions").and_then(Value::as_array);
    let conditions: Vec<String> = conditions
        .into_iter()
        .flatten()
        .map(|it| format!("{} is not {}", part(it, "type"), part(it, "requiredStatus")))
        .collect();
    let taint = rule.data.pointer("/spec/taint").cloned().unwrap_or_default();
    Some(format!(
        "ServerReadinessRule {}: taints the Server with {} ({}) while {}.",
        name(rule),
        part(&taint, "key"),
        part(&taint, "effect"),
        conditions.join(" or ")
    ))
}

fn wiring(wiring: &DynamicObject) -> String {
    let mismatches = wiring.data.pointer("/status/mismatches").and_then(Value::as_array).map_or(0, Vec::len);
    let result = match mismatches {
        0 => "no mismatches".to_owned(),
        some => format!("mismatches: {some}, so that its condition NetworkReady is False"),
    };
    format!("ServerWiring {}: checks the Server's network ({result}).", full_name(wiring))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_rules_that_select_the_server_are_shown() {
        let server = object(json!({ "metadata": { "name": "node1", "labels": { "rack": "7" } } }));
        let selecting = |selector: Value| {
            object(json!({ "metadata": { "name": "disks" }, "spec": {
                "serverSelector": selector,
                "conditions": [{ "type": "DisksReady", "requiredStatus": "True" }],
                "taint": { "key": "disks", "effect": "NoBind" },
            } }))
        };
        let shown = "ServerReadinessRule disks: taints the Server with disks (NoBind) while DisksReady is not True.";
        for (selector, expected) in [
            (json!({}), Some(shown)),
            (json!({ "matchLabels": { "rack": "7" } }), Some(shown)),
            (json!({ "matchLabels": { "rack": "8" } }), None),
            (json!({ "matchExpressions": [{ "key": "rack", "operator": "DoesNotExist" }] }), None),
            (json!({ "matchExpressions": [{ "key": "rack", "operator": "In", "values": ["7"] }] }), Some(shown)),
        ] {
            assert_eq!(rule(&selecting(selector.clone()), &server).as_deref(), expected, "{selector}");
        }
    }

    #[test]
    fn only_a_sanitization_that_is_still_to_come_is_shown() {
        let with = |status: &str| {
            let conditions = json!([{ "type": SANITIZED, "status": status }]);
            object(json!({ "metadata": { "name": "node1" }, "status": { "conditions": conditions } }))
        };
        assert!(sanitization(&with("False")).unwrap().contains("erases its disks"));
        assert_eq!((sanitization(&with("True")), sanitization(&with("Unknown"))), (None, None));
    }

    #[test]
    fn a_wiring_shows_its_mismatches() {
        let with = |mismatches: Value| {
            let metadata = json!({ "name": "node1", "namespace": "racks" });
            wiring(&object(json!({ "metadata": metadata, "status": { "mismatches": mismatches } })))
        };
        assert!(with(json!([])).contains("racks/node1: checks the Server's network (no mismatches)"));
        assert!(with(json!([{}, {}])).contains("mismatches: 2"));
    }
}
