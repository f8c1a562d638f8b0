//! Hosts with identity support store an identity with each resource and import by it. Other hosts
//! never receive it.

use std::fs;

use serde_json::{Value, json};

use crate::support::{
    host::Host,
    images::Images,
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

/// One resource per importable type.
fn everything(images: &Images) -> String {
    maintenance("node1", "m", "server_power = \"Off\"")
        + &format!(
            r#"
resource "metal_server_boot_configuration" "under" {{
  server         = "node1"
  maintenance_id = metal_server_maintenance.held.id
  method         = "virtual_media"
  image          = "{}"
}}
resource "metal_server_boot_configuration" "alone" {{
  server = "node2"
  method = "pxe"
}}
resource "metal_server_claim" "db" {{
  server    = "node3"
  namespace = "db"
  name      = "primary"
}}
resource "metal_maintenance_approval" "all" {{
  server = metal_server_claim.db.server
  all    = true
}}
"#,
            images.url("rescue.iso")
        )
}

/// Returns a state file's resources by address.
fn instances(workspace: &Workspace) -> Vec<(String, Value)> {
    let state = fs::read_to_string(workspace.folder().join("terraform.tfstate")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    let resources = state["resources"].as_array().unwrap().clone();
    resources
        .into_iter()
        .map(|of| {
            let address = format!("{}.{}", of["type"].as_str().unwrap(), of["name"].as_str().unwrap());
            (address, of["instances"][0].clone())
        })
        .collect()
}

fn identities(workspace: &Workspace) -> Vec<(String, Value)> {
    instances(workspace).into_iter().map(|(address, of)| (address, of["identity"].clone())).collect()
}

/// Returns an import block by identity.
fn import(address: &str, identity: &Value) -> String {
    let fields = identity.as_object().unwrap().iter();
    let fields: String = fields.map(|(name, text)| format!("    {name} = {text}\n")).collect();
    format!("import {{\n  to = {address}\n  identity = {{\n{fields}  }}\n}}\n")
}

#[tokio::test]
async fn what_has_an_identity_is_imported_by_it() {
    let (fleet, images, workspace) = (Fleet::new(3).await, Images::start().await, Workspace::new(Host::Terraform));
    let body = everything(&images);
    fleet.configure(&workspace, &body);
    workspace.apply().await.succeeded();
    let known = identities(&workspace);
    let of = |address: &str| known.iter().find(|(name, _)| name == address).unwrap().1.clone();
    assert_eq!(of("metal_server_maintenance.held"), json!({ "namespace": "tests", "name": "m" }));
    assert_eq!(of("metal_server_claim.db"), json!({ "namespace": "db", "name": "primary" }));
    assert_eq!(of("metal_server_boot_configuration.under"), json!({ "namespace": "tests", "name": "m.boot" }));
    assert_eq!(of("metal_server_boot_configuration.alone")["namespace"], "boot-configuration");
    assert!(of("metal_maintenance_approval.all")["id"].is_string());
    workspace.plan().await.is_empty();
    assert_eq!(identities(&workspace), known, "a plan changes no identity");

    // Import into an empty state.
    let lost = workspace.beside();
    let imports: String = known.iter().map(|(address, identity)| import(address, identity)).collect();
    fleet.configure(&lost, &(body + &imports));
    let requests = fleet.changes("node1").len();
    lost.plan().await.run.says("5 to import, 0 to add, 3 to change, 0 to destroy");
    lost.apply().await.succeeded().says("5 imported, 0 added, 3 changed, 0 destroyed");
    assert_eq!(fleet.changes("node1").len(), requests, "a takeover touches no server");
    assert_eq!(identities(&lost), known);
    lost.plan().await.is_empty();
    lost.destroy().await.succeeded();
    lost.metal(&["queue"]).await.succeeded().says("No server is held");
}

#[tokio::test]
async fn a_replacement_under_another_name_has_another_identity() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::Terraform));
    fleet.configure(&workspace, &maintenance("node1", "one", ""));
    workspace.apply().await.succeeded();
    fleet.configure(&workspace, &maintenance("node1", "two", "reason = \"other\""));
    workspace.apply().await.succeeded();
    assert_eq!(identities(&workspace)[0].1, json!({ "namespace": "tests", "name": "two" }));
    // A tainted resource is replaced under its name; an in-place change keeps the name.
    workspace.run(&["taint", "metal_server_maintenance.held"]).await.succeeded();
    workspace.apply().await.succeeded();
    fleet.configure(&workspace, &maintenance("node1", "two", "reason = \"again\""));
    workspace.apply().await.succeeded();
    assert_eq!(identities(&workspace)[0].1, json!({ "namespace": "tests", "name": "two" }));
    workspace.destroy().await.succeeded();
}

#[tokio::test]
async fn a_state_of_an_earlier_version_gets_its_identities() {
    let (fleet, images, workspace) = (Fleet::new(3).await, Images::start().await, Workspace::new(Host::Terraform));
    fleet.configure(&workspace, &everything(&images));
    workspace.apply().await.succeeded();
    let known = identities(&workspace);
    let file = workspace.folder().join("terraform.tfstate");
    let without = || {
        let mut state: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        for of in state["resources"].as_array_mut().unwrap() {
            let instance = of["instances"][0].as_object_mut().unwrap();
            instance.remove("identity").expect("an identity");
            instance.remove("identity_schema_version");
        }
        fs::write(&file, state.to_string()).unwrap();
    };
    without();
    workspace.plan().await.is_empty();
    workspace.refresh().await.succeeded();
    assert_eq!(identities(&workspace), known);
    // Changes and destroys also work without a refresh.
    without();
    let changed = everything(&images).replace("server_power", "reason = \"word\"\n  server_power");
    fleet.configure(&workspace, &changed);
    workspace.run(&["apply", "-auto-approve", "-refresh=false", "-no-color"]).await.succeeded().says("1 changed");
    let held = identities(&workspace).into_iter().find(|(address, _)| address == "metal_server_maintenance.held");
    assert_eq!(held.unwrap().1, json!({ "namespace": "tests", "name": "m" }), "the change brought it");
    workspace.run(&["destroy", "-auto-approve", "-refresh=false", "-no-color"]).await.succeeded();
}

#[tokio::test]
async fn what_cannot_be_imported_says_so() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::Terraform));
    let operation = "resource \"metal_server_operation\" \"cycle\" {\n  server = \"node1\"\n  namespace = \"tests\"\n  \
                     name = \"cycle\"\n  policy = \"Enforced\"\n  operation = \"On\"\n}\n";
    let identity = json!({ "namespace": "tests", "name": "cycle" });
    fleet.configure(&workspace, &(operation.to_owned() + &import("metal_server_operation.cycle", &identity)));
    workspace.try_plan().await.failed().says("The operation tests/cycle cannot be imported");
    // A missing resource, and a wrong type.
    let under = "resource \"metal_server_boot_configuration\" \"under\" {\n  server = \"node1\"\n  method = \"pxe\"\n  \
                 maintenance_id = metal_server_maintenance.held.id\n}\n";
    fleet.configure(&workspace, &(maintenance("node1", "m", "") + under));
    workspace.apply().await.succeeded();
    let other = workspace.beside();
    for (address, body, identity, says) in [
        (
            "metal_server_maintenance.held",
            maintenance("node1", "none", ""),
            json!({ "namespace": "tests", "name": "none" }),
            "tests/none",
        ),
        (
            "metal_server_maintenance.held",
            maintenance("node1", "m.boot", ""),
            json!({ "namespace": "tests", "name": "m.boot" }),
            "tests/m.boot is not a maintenance",
        ),
        (
            "metal_server_boot_configuration.boot",
            "resource \"metal_server_boot_configuration\" \"boot\" {\n  server = \"node1\"\n  method = \"pxe\"\n}\n"
                .to_owned(),
            json!({ "namespace": "tests", "name": "m" }),
            "tests/m is not a boot configuration",
        ),
    ] {
        fleet.configure(&other, &(body + &import(address, &identity)));
        other.try_plan().await.failed().says(says);
    }
    workspace.destroy().await.succeeded();
}

// The host rejects an import block by identity; everything else works.
#[tokio::test]
async fn an_old_host_imports_by_id_only() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    let body = maintenance("node1", "m", "");
    fleet.configure(&workspace, &body);
    workspace.apply().await.succeeded();
    assert_eq!(identities(&workspace)[0].1, Value::Null);
    let lost = workspace.beside();
    let identity = json!({ "namespace": "tests", "name": "m" });
    fleet.configure(&lost, &(body.clone() + &import("metal_server_maintenance.held", &identity)));
    lost.try_plan().await.failed().says("identity");
    let by_id = "import {\n  to = metal_server_maintenance.held\n  id = \"tests/m\"\n}\n";
    fleet.configure(&lost, &(body + by_id));
    lost.apply().await.succeeded().says("1 imported, 0 added, 1 changed, 0 destroyed");
    lost.destroy().await.succeeded();
}

// One host drops the identity, and the provider sends it again to the other.
#[tokio::test]
async fn a_state_goes_from_one_host_to_the_other_and_back() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::Terraform));
    fleet.configure(&workspace, &maintenance("node1", "m", ""));
    workspace.apply().await.succeeded();
    let known = identities(&workspace);
    let file = workspace.folder().join("terraform.tfstate");
    let old = workspace.on(Host::OpenTofu);
    old.plan().await.is_empty();
    fleet.configure(&workspace, &maintenance("node1", "m", "reason = \"changed\""));
    old.apply().await.succeeded().says("0 added, 1 changed, 0 destroyed");
    assert_eq!(identities(&workspace)[0].1, Value::Null, "{}", fs::read_to_string(&file).unwrap());
    workspace.plan().await.is_empty();
    workspace.refresh().await.succeeded();
    assert_eq!(identities(&workspace), known);
    workspace.destroy().await.succeeded();
}
