//! `moved` blocks across types: the states that can become a `metal_server_maintenance`, with their
//! warnings.
//!
//! A host requests the move before it configures the provider, so the cluster and the store are not
//! available yet. The moved state only records its source. The next refresh reports it as deleted,
//! and the plan creates the maintenance as configured.

use serde_json::Value as Json;
use tf_provider::{AttributePath, Diagnostic, Diagnostics, value::Value};

use crate::plugin::{MovedState, diagnostic};

use crate::provider::{maintenance::model::MaintenanceModel, shared::values::given};

/// State after a move and before the next refresh.
const MOVED: &str = "Moved";

/// Types without content to move: their provisioners did the work.
const WITHOUT_CONTENT: [&str; 2] = ["null_resource", "terraform_data"];

/// Returns true for a moved resource's state.
pub(in crate::provider) fn is_moved(model: &MaintenanceModel) -> bool {
    given(&model.state) == Some(MOVED)
}

/// Builds a moved resource's state; `None` after an error.
pub(in crate::provider) fn moved(diags: &mut Diagnostics, from: &MovedState) -> Option<MaintenanceModel> {
    let told = match from.type_name.as_str() {
        "kubernetes_manifest" => of_manifest(&from.attributes),
        name if WITHOUT_CONTENT.contains(&name) => Ok(format!(
            "{name}: the move keeps none of its data and does not run its provisioners, including those for destroy. \
             If a provisioner took the server out of service, undo that by hand. The new maintenance locks the \
             server in its current state and restores that state."
        )),
        name => Err(format!(
            "A metal_server_maintenance takes over a kubernetes_manifest of a ServerMaintenance, a null_resource or a \
             terraform_data. {name} is neither."
        )),
    };
    match told {
        Ok(effect) => {
            let text = |text: &str| Value::Value(text.to_owned());
            Some(MaintenanceModel { state: text(MOVED), effect: text(&effect), ..MaintenanceModel::default() })
        }
        Err(why) => {
            diags.add_error(diagnostic(
                format!("A {} cannot be moved to metal_server_maintenance", from.type_name),
                format!(
                    "{why} Nothing was changed. Remove the moved block. To drop the old resource from the state \
                     without destroying it, use a removed block or `state rm`."
                ),
                AttributePath::root(),
            ));
            None
        }
    }
}

/// Describes how a manifest is moved; `Err` explains why it cannot be moved.
fn of_manifest(attributes: &Json) -> Result<String, String> {
    // Dynamic values are stored with their type.
    let whole = |name: &str| attributes.get(name).map(|of| of.get("value").unwrap_or(of)).filter(|of| of.is_object());
    let manifest = whole("manifest").or_else(|| whole("object")).ok_or("It does not contain a manifest.")?;
    let text = |path: &str| manifest.pointer(path).and_then(Json::as_str).unwrap_or_default();
    let (group, kind) = (text("/apiVersion").split('/').next().unwrap_or_default(), text("/kind"));
    if kind != "ServerMaintenance" || !group.ends_with("ironcore.dev") {
        return Err(format!("It is a {kind} of {group}, not a ServerMaintenance."));
    }
    let (name, server) = (text("/metadata/name"), text("/spec/serverRef/name"));
    let namespace = Some(text("/metadata/namespace")).filter(|text| !text.is_empty()).unwrap_or("default");
    if ![namespace, name, server].iter().all(|text| is_name(text)) {
        return Err("Its namespace, its name or its server's name is not a valid Kubernetes name.".to_owned());
    }
    Ok(format!(
        "kubernetes_manifest: the ServerMaintenance {namespace}/{name} stays in the cluster, and keeps {server} in maintenance, \
         but it is in no state any more. The maintenance is created, and its request waits behind that object. Delete the object \
         while the apply waits (\"queued, 1 ahead: {namespace}/{name}\"): the operator then hands {server} over without releasing \
         it.\n  kubectl delete servermaintenances.{group} -n {namespace} {name}"
    ))
}

/// Returns true for a valid object name. Other texts would not be safe in a command.
fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    !text.is_empty() && !text.starts_with('-') && text.chars().all(fits)
}

/// Builds the warning for a refresh that drops a moved state.
pub(in crate::provider) fn dropped(model: &MaintenanceModel) -> Diagnostic {
    let detail = given(&model.effect).unwrap_or_default().to_owned();
    diagnostic("A moved resource is created as a maintenance", detail, AttributePath::root())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn manifest() -> Json {
        json!({
            "apiVersion": "metal.ironcore.dev/v1alpha1",
            "kind": "ServerMaintenance",
            "metadata": { "name": "bios", "namespace": "ops" },
            "spec": { "serverRef": { "name": "node1" } },
        })
    }

    fn from(type_name: &str, attributes: Json) -> Result<String, String> {
        let state =
            MovedState { provider: String::new(), type_name: type_name.to_owned(), schema_version: 0, attributes };
        let mut diags = Diagnostics::default();
        let moved = moved(&mut diags, &state);
        match moved {
            Some(model) => {
                assert!(is_moved(&model) && model.id.is_null());
                Ok(given(&model.effect).unwrap().to_owned())
            }
            None => Err(diags.errors[0].detail.to_string()),
        }
    }

    #[test]
    fn a_manifest_says_which_object_stays() {
        for attributes in
            [json!({ "manifest": { "value": manifest(), "type": "dynamic" } }), json!({ "object": manifest() })]
        {
            let told = from("kubernetes_manifest", attributes).unwrap();
            assert!(told.contains("keeps node1 in maintenance"), "{told}");
            assert!(told.ends_with("kubectl delete servermaintenances.metal.ironcore.dev -n ops bios"), "{told}");
        }
    }

    #[test]
    fn another_manifest_is_refused() {
        let mut other = manifest();
        other["kind"] = json!("Server");
        let mut hostile = manifest();
        hostile["metadata"]["name"] = json!("x; rm -rf /");
        for (manifest, why) in [
            (other, "not a ServerMaintenance"),
            (hostile, "not a valid Kubernetes name"),
            (json!(null), "not contain a manifest"),
        ] {
            let refused = from("kubernetes_manifest", json!({ "manifest": manifest })).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn what_has_no_content_is_forgotten_and_the_rest_is_refused() {
        assert!(from("terraform_data", json!({})).unwrap().contains("does not run its provisioners"));
        assert!(from("null_resource", json!({ "triggers": null })).is_ok());
        assert!(from("aws_instance", json!({})).unwrap_err().contains("aws_instance is neither"));
    }
}
