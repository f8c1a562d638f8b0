//! CRDs of a family: those in `crds/`, without features that the family lacks.

use kube::{
    Client, ResourceExt as _,
    api::{Api, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    api::{self, Object},
    family::{Family, MAINTENANCE, METAL},
    patience,
};

const SERVER: &str = include_str!("crds/server.yaml");
const CLAIM: &str = include_str!("crds/serverclaim.yaml");
const BOOT: &str = include_str!("crds/serverbootconfiguration.yaml");
const BMC: &str = include_str!("crds/bmc.yaml");
const SECRET: &str = include_str!("crds/bmcsecret.yaml");
const LEGACY: &str = include_str!("crds/servermaintenance-legacy.yaml");
const NEW: &str = include_str!("crds/servermaintenance.yaml");

/// Returns a family's CRDs, ready to apply. `both` includes the maintenance operator's.
pub fn definitions(family: Family, both: bool) -> Vec<Value> {
    let mut texts = vec![SERVER, CLAIM, BOOT, BMC, SECRET];
    if family.group() == Some(METAL) {
        texts.push(LEGACY);
    }
    if both || family.group() == Some(MAINTENANCE) {
        texts.push(NEW);
    }
    let trimmed = texts.into_iter().map(|text| {
        let mut definition: Value = serde_saphyr::from_str(text).unwrap();
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap().to_owned();
        let new = definition["spec"]["group"] == MAINTENANCE;
        let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        if !new {
            family.trim(&kind, schema);
        }
        definition
    });
    let mut all: Vec<Value> = trimmed.collect();
    if both {
        all.push(checking(METAL, "ServerReadinessRule", "Cluster"));
        all.push(checking("readiness.metal.ironcore.dev", "ServerWiring", "Namespaced"));
    }
    all
}

/// Defines a kind that checks servers. Its schema keeps every field.
fn checking(group: &str, kind: &str, scope: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let version =
        json!({ "name": "v1alpha1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } });
    let names =
        json!({ "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List") });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": { "group": group, "scope": scope, "names": names, "versions": [version] },
    })
}

/// Installs the CRDs and waits until they are served.
pub async fn install(client: &Client, family: Family, both: bool) {
    let all: Api<Object> = Api::all_with(client.clone(), &api::definition());
    let how = PatchParams::apply("tests").force();
    let mut names = Vec::new();
    for definition in definitions(family, both) {
        let object: Object = serde_json::from_value(definition).unwrap();
        names.push(object.name_any());
        all.patch(&object.name_any(), &how, &Patch::Apply(&object)).await.unwrap();
    }
    for name in names {
        patience::until(&format!("{name} is served"), async || {
            let conditions = all.get(&name).await.unwrap().data["status"]["conditions"].clone();
            let established = |one: &Value| one["type"] == "Established" && one["status"] == "True";
            conditions.as_array().is_some_and(|every| every.iter().any(established)).then_some(())
        })
        .await;
    }
}
