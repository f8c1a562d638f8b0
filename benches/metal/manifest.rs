//! The same refresh with `kubernetes_manifest`, if `KUBERNETES_PROVIDER` names that provider's
//! program. It is not downloaded: no registry is contacted, and the Go module proxy lacks its
//! newer versions.
use std::{
    env, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    measure::ms,
    support::ironcore::{
        api::{Key, Kind},
        world::World,
    },
};

const USER: &str = "manifest";
const SOURCE: &str = "example.com/other/kubernetes";

/// Refreshes a state with these objects in a real host. Returns the duration in words, or `None`
/// without the program.
pub async fn refresh(world: &World, kind: Kind, objects: &[Key]) -> Option<String> {
    let kubeconfig = world.kubernetes.user(USER, &["system:masters"]);
    let listed = world.list(kind).await;
    let manifest = |key: &Key| {
        let object = listed.iter().find(|object| Key::of(object) == *key).unwrap();
        json!({
            "apiVersion": object.types.as_ref().unwrap().api_version,
            "kind": object.types.as_ref().unwrap().kind,
            "metadata": { "name": key.name, "namespace": key.namespace },
            "spec": object.data["spec"],
        })
    };
    let took = of(&kubeconfig, objects.iter().map(manifest).collect()).await?;
    let asked = world.requests_of(USER);
    let count = |verb: &str| asked.iter().filter(|request| request.verb == verb).count();
    let (lists, gets) = (count("list"), count("get"));
    Some(format!("{lists} lists and {gets} gets of {} requests, {} with its host", asked.len(), ms(took)))
}

/// Same as `refresh`, for these manifests and this kubeconfig. Returns the duration.
pub async fn of(kubeconfig: &Path, manifests: Vec<Value>) -> Option<Duration> {
    let program = PathBuf::from(env::var_os("KUBERNETES_PROVIDER")?);
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
    let name = |manifest: &Value| manifest["metadata"]["name"].as_str().unwrap().to_owned();
    let instances: Vec<Value> = manifests
        .iter()
        .map(|value| {
            let both = json!({ "type": type_of(value), "value": value });
            json!({
                "index_key": name(value), "schema_version": 1,
                "attributes": { "manifest": both, "object": both },
            })
        })
        .collect();
    let manifests: serde_json::Map<_, _> = manifests.into_iter().map(|manifest| (name(&manifest), manifest)).collect();
    write("manifests.json", Value::Object(manifests).to_string());
    write(
        "main.tf",
        format!(
            "terraform {{\n  required_providers {{\n    kubernetes = {{ source = \"{SOURCE}\" }}\n  }}\n}}\n\
             provider \"kubernetes\" {{\n  config_path = \"{}\"\n}}\n\
             resource \"kubernetes_manifest\" \"held\" {{\n  for_each = jsondecode(file(\"manifests.json\"))\n  \
             manifest = each.value\n}}\n",
            kubeconfig.display()
        ),
    );
    let state = json!({
        "version": 4, "terraform_version": "1.6.2", "serial": 1, "lineage": "3c3b2a1e-0000-4000-8000-000000000002",
        "outputs": {},
        "resources": [{
            "mode": "managed", "type": "kubernetes_manifest", "name": "held",
            "provider": format!("provider[\"{SOURCE}\"]"), "instances": instances,
        }],
    });
    write("terraform.tfstate", state.to_string());
    let overrides = format!("dev_overrides {{ \"{SOURCE}\" = \"{}\" }}", program.parent().unwrap().display());
    write("cli.tfrc", format!("provider_installation {{ {overrides} }}\n"));

    let tofu = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".tools/bin/tofu");
    let begin = Instant::now();
    let run = Command::new(tofu)
        .args(["plan", "-refresh-only", "-input=false", "-no-color"])
        .current_dir(folder.path())
        .env("TF_CLI_CONFIG_FILE", folder.path().join("cli.tfrc"))
        .env("CHECKPOINT_DISABLE", "1")
        .output()
        .await
        .unwrap();
    let took = begin.elapsed();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    Some(took)
}

/// Returns a value's type in the state's format.
fn type_of(value: &Value) -> Value {
    match value {
        Value::Null => json!("dynamic"),
        Value::Bool(_) => json!("bool"),
        Value::Number(_) => json!("number"),
        Value::String(_) => json!("string"),
        Value::Array(all) => json!(["tuple", all.iter().map(type_of).collect::<Vec<_>>()]),
        Value::Object(all) => {
            let types: serde_json::Map<_, _> = all.iter().map(|(name, value)| (name.clone(), type_of(value))).collect();
            json!(["object", types])
        }
    }
}
