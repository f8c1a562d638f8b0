//! `terraform query` finds a lost state's objects, and its generated configuration imports them.

use std::{fs, path::Path};

use crate::support::{
    host::Host,
    images::Images,
    run::Run,
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

/// A query for every importable type.
const EVERYTHING: &str = r#"
list "metal_server_maintenance" "lost" {
  provider = metal
}
list "metal_server_boot_configuration" "lost" {
  provider = metal
}
list "metal_server_claim" "lost" {
  provider = metal
}
list "metal_maintenance_approval" "lost" {
  provider = metal
}
"#;

fn query(type_name: &str, arguments: &str) -> String {
    format!("list \"{type_name}\" \"found\" {{\n  provider = metal\n  config {{\n    {arguments}\n  }}\n}}\n")
}

/// Runs a query in a workspace.
async fn run(workspace: &Workspace, text: &str) -> Run {
    workspace.write("lost.tfquery.hcl", text);
    workspace.run(&["query", "-no-color"]).await
}

fn everything(images: &Images) -> String {
    maintenance(
        "node1",
        "m",
        "server_power = \"On\"\n  expires_after = \"2h\"\n  reason = \"disk swap\"\n  triggers = { run = \"1\" }",
    ) + &maintenance("node4", "waits", "policy = \"OwnerApproval\"\n  wait_for = \"Enqueued\"\n  require_claim = true")
        .replace("  policy    = \"Enforced\"\n", "")
        .replace("\"held\"", "\"waits\"")
        + &format!(
            r##"
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
  contact   = "#db-oncall"
}}
resource "metal_maintenance_approval" "all" {{
  server = metal_server_claim.db.server
  all    = true
}}
"##,
            images.url("rescue.iso")
        )
}

/// Returns a boot configuration under the maintenance `held` of a server, a claim on the server,
/// and its approval.
pub fn beside_a_maintenance(server: &str) -> String {
    format!(
        r#"
resource "metal_server_boot_configuration" "under" {{
  server         = "{server}"
  maintenance_id = metal_server_maintenance.held.id
  method         = "pxe"
}}
resource "metal_server_claim" "db" {{
  server    = "{server}"
  namespace = "db"
  name      = "primary"
}}
resource "metal_maintenance_approval" "all" {{
  server = metal_server_claim.db.server
  all    = true
}}
"#
    )
}

/// Runs the query in an empty workspace, and imports `number` objects with the generated
/// configuration.
pub async fn import_what_is_found(lost: &Workspace, says: &[&str], number: usize) {
    lost.write("lost.tfquery.hcl", EVERYTHING);
    lost.run(&["validate", "-no-color", "-query"]).await.succeeded();
    let found = lost.run(&["query", "-no-color", "-generate-config-out=found.tf"]).await.succeeded();
    for text in says {
        found.says(text);
    }
    let generated = fs::read_to_string(lost.folder().join("found.tf")).unwrap();
    assert_eq!(generated.matches("import {").count(), number, "{generated}");
    assert_eq!(generated.matches("identity = {").count(), number, "{generated}");
    // The apply takes over the lost state's records.
    let managed = ["maintenance", "boot_configuration"].map(|kind| format!("resource \"metal_server_{kind}\""));
    let changed: usize = managed.iter().map(|kind| generated.matches(kind).count()).sum();
    lost.plan().await.run.says(&format!("{number} to import, 0 to add, {changed} to change, 0 to destroy"));
    lost.apply().await.succeeded().says(&format!("{number} imported, 0 added, {changed} changed, 0 destroyed"));
    lost.plan().await.is_empty();
}

#[tokio::test]
async fn a_lost_state_is_found_and_imported_again() {
    let (fleet, images, workspace) = (Fleet::new(4).await, Images::start().await, Workspace::new(Host::Terraform));
    fleet.configure(&workspace, &everything(&images));
    workspace.apply().await.succeeded();
    let requests = fleet.changes("node1").len();

    // A workspace without state and configuration.
    let lost = workspace.beside();
    fleet.configure(&lost, "");
    import_what_is_found(
        &lost,
        &[
            "tests/m: node1, InMaintenance (disk swap)",
            "tests/waits: node4, Pending",
            "tests/m.boot: node1, Ready",
            "db/primary: node3, of default",
            "node3: everything, InForce",
        ],
        6,
    )
    .await;
    assert_eq!(fleet.changes("node1").len(), requests, "neither a query nor an import touches a server");
    lost.destroy().await.succeeded();
    lost.metal(&["queue"]).await.succeeded().says("No server is held");
    lost.metal(&["claims"]).await.succeeded().says("No claims");
    run(&lost, EVERYTHING).await.succeeded().is_silent_about("tests/m").is_silent_about("db/primary");
}

#[tokio::test]
async fn arguments_select() {
    let (fleet, workspace) = (Fleet::new(3).await, Workspace::new(Host::Terraform));
    let body: String = (1..=3)
        .map(|n| maintenance(&format!("node{n}"), &format!("m{n}"), "").replace("\"held\"", &format!("\"held{n}\"")))
        .collect();
    fleet.configure(&workspace, &body);
    workspace.apply().await.succeeded();
    let other = workspace.beside();
    let waiter = maintenance("node1", "waits", "wait_for = \"Enqueued\"").replace("\"tests\"", "\"others\"");
    fleet.configure_with(&other, "owner = \"team-b\"", &waiter);
    other.apply().await.succeeded();

    let asked = workspace.beside();
    fleet.configure(&asked, "");
    let maintenances = |arguments: &str| query("metal_server_maintenance", arguments);
    let all = ["tests/m1", "tests/m2", "tests/m3", "others/waits"];
    for (arguments, expected) in [
        ("", &all[..3]),
        ("owner = \"*\"", &all[..]),
        ("owner = \"team-b\"", &all[3..]),
        ("server = \"node2\"", &all[1..2]),
        ("namespace = \"others\"\n    owner = \"*\"", &all[3..]),
        ("namespace = \"others\"", &[]),
        ("states = [\"Pending\"]\n    owner = \"*\"", &all[3..]),
        ("states = [\"InMaintenance\", \"Releasing\"]\n    owner = \"*\"", &all[..3]),
    ] {
        let found = run(&asked, &maintenances(arguments)).await.succeeded();
        for id in all {
            if expected.contains(&id) {
                found.says(&format!("{id}: node"));
            } else {
                found.is_silent_about(id);
            }
        }
    }
    // A limit, and the resource in the result.
    let limited = maintenances("").replace("  config", "  limit = 2\n  config");
    run(&asked, &limited).await.succeeded().says("tests/m2").is_silent_about("tests/m3");
    let whole = maintenances("server = \"node3\"").replace("  config", "  include_resource = true\n  config");
    asked.write("lost.tfquery.hcl", &whole);
    let json = asked.run(&["query", "-json"]).await.succeeded();
    assert!(json.stdout.contains("\"power_state\":\"On\""), "{}", json.stdout);
    // Errors are reported before any read.
    for (type_name, arguments, says) in [
        ("metal_server_maintenance", "states = [\"Held\"]", "\"Held\" is not one of \"Pending\""),
        ("metal_server_boot_configuration", "states = [\"Held\"]", "\"Held\" is not one of \"Pending\""),
        ("metal_server_claim", "server = \"\"", "server"),
        ("metal_server_operation", "", "metal_server_operation"),
    ] {
        run(&asked, &query(type_name, arguments)).await.failed().says(says);
    }
    other.destroy().await.succeeded();
    workspace.destroy().await.succeeded();
}

#[tokio::test]
async fn every_example_is_run() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::Terraform));
    fleet.configure(&workspace, "");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/list-resources");
    let mut examples: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    examples.sort();
    assert_eq!(examples.len(), 4, "{examples:?}");
    for example in examples {
        let text = fs::read_to_string(example.join("list-resource.tfquery.hcl")).unwrap();
        workspace.write("lost.tfquery.hcl", &text);
        workspace.run(&["validate", "-no-color", "-query"]).await.succeeded();
        run(&workspace, &text).await.succeeded();
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_an_error() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::Terraform));
    fleet.configure_with(&workspace, "coordination_url = \"sqlite:///proc/none/store.db\"", "");
    run(&workspace, EVERYTHING).await.failed().says("store.db");
}

// A host without queries ignores the file.
#[tokio::test]
async fn an_old_host_is_not_disturbed() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    workspace.write("lost.tfquery.hcl", EVERYTHING);
    fleet.configure(&workspace, &maintenance("node1", "m", ""));
    workspace.apply().await.succeeded();
    workspace.plan().await.is_empty();
    let state = fs::read_to_string(workspace.folder().join("terraform.tfstate")).unwrap();
    assert!(!state.contains("identity"), "{state}");
    workspace.run(&["query"]).await.failed();
    workspace.destroy().await.succeeded();
}
