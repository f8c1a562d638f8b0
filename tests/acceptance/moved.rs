//! `moved` from a resource with provisioners: the old resource is dropped and a maintenance is
//! created.

use std::{fs, os::unix::fs::symlink};

use bmc_simulator::PowerState;
use serde_json::json;

use crate::support::{
    host::Host,
    provider,
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

const BEFORE: &str = r#"
resource "terraform_data" "bios" {
  input = "node1"
  provisioner "local-exec" {
    command = "echo cordoned > made"
  }
  provisioner "local-exec" {
    when    = destroy
    command = "echo undone > undone"
  }
}
"#;

const NULL: &str = "registry.terraform.io/hashicorp/null";

/// The configuration after the move.
const EXAMPLE: &str = include_str!("../../examples/resources/metal_server_maintenance/moved.tf");

const MOVED: &str = "moved {\n  from = terraform_data.bios\n  to = metal_server_maintenance.held\n}\n";

#[tokio::test]
async fn a_resource_with_provisioners_becomes_a_maintenance() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::Terraform));
    fleet.configure(&workspace, BEFORE);
    workspace.apply().await.succeeded();
    assert!(workspace.folder().join("made").exists());
    fleet.configure(&workspace, &EXAMPLE.replace("rack1-node7", "node1"));

    // Without a refresh, the host has the moved state, whose destroy changes nothing.
    let blind = workspace.run(&["plan", "-refresh=false", "-no-color", "-input=false"]).await.succeeded();
    blind.says("A moved resource is created as a maintenance").says("1 to add, 0 to change, 1 to destroy");

    let plan = workspace.plan().await;
    plan.run.says("A moved resource is created as a maintenance").says("does not run its provisioners");
    assert_eq!(plan.changes(), [("metal_server_maintenance.bios".to_owned(), vec!["create".to_owned()])]);
    assert_eq!(fleet.changes("node1"), [""; 0], "a plan changes nothing");
    workspace.apply().await.succeeded().says("1 added, 0 changed, 0 destroyed");
    assert_eq!(workspace.resource("metal_server_maintenance.bios").await.unwrap()["state"], "InMaintenance");
    assert_eq!(workspace.resource("terraform_data.bios").await, None);
    assert!(!workspace.folder().join("undone").exists());
    // The block can stay.
    workspace.plan().await.is_empty();
    workspace.destroy().await.succeeded();
}

/// The `null` provider is not available here. Another program replaces it, because the host reads
/// only its schema.
#[tokio::test]
async fn a_null_resource_becomes_a_maintenance() {
    let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(Host::Terraform));
    let folder = workspace.root().join("null");
    fs::create_dir(&folder).unwrap();
    symlink(provider::binary(), folder.join("terraform-provider-null")).unwrap();
    let known = fs::read_to_string(workspace.root().join("cli.tfrc")).unwrap();
    let both =
        known.replace("dev_overrides {\n", &format!("dev_overrides {{\n    \"{NULL}\" = \"{}\"\n", folder.display()));
    assert_ne!(both, known);
    let rc = workspace.root().join("both.tfrc");
    fs::write(&rc, both).unwrap();
    workspace.set("TF_CLI_CONFIG_FILE", rc.display().to_string());
    let state = json!({
        "version": 4, "terraform_version": "1.15.5", "serial": 1, "lineage": "3c3b2a1e-0000-4000-8000-000000000003",
        "outputs": {},
        "resources": [{
            "mode": "managed", "type": "null_resource", "name": "bios",
            "provider": format!("provider[\"{NULL}\"]"),
            "instances": [{
                "schema_version": 0, "attributes": { "id": "5577006791947779410", "triggers": { "server": "node1" } },
            }],
        }],
    });
    workspace.write("terraform.tfstate", &state.to_string());
    let from = MOVED.replace("terraform_data", "null_resource");
    fleet.configure(&workspace, &(maintenance("node1", "m", "server_power = \"Off\"") + &from));

    let plan = workspace.plan().await;
    plan.run.says("null_resource: the move keeps none of its data").says("does not run its provisioners");
    assert_eq!(plan.changes(), [("metal_server_maintenance.held".to_owned(), vec!["create".to_owned()])]);
    workspace.apply_saved(&plan).await.succeeded().says("1 added, 0 changed, 0 destroyed");
    assert_eq!(workspace.resource("null_resource.bios").await, None);
    fleet.until("node1", PowerState::Off).await;
    workspace.plan().await.is_empty();
    workspace.destroy().await.succeeded();
    fleet.until("node1", PowerState::On).await;
}

#[tokio::test]
async fn what_cannot_be_moved_is_refused() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::Terraform));
    fleet.configure(&workspace, BEFORE);
    workspace.apply().await.succeeded();
    let claim =
        "resource \"metal_server_claim\" \"db\" {\n  server = \"node1\"\n  namespace = \"db\"\n  name = \"a\"\n}\n";
    fleet.configure(
        &workspace,
        &(claim.to_owned() + &MOVED.replace("metal_server_maintenance.held", "metal_server_claim.db")),
    );
    let refused = workspace.try_plan().await.failed();
    refused.says("A terraform_data cannot be moved here").says("forgets the old resource without destroying it");
    assert!(workspace.resource("terraform_data.bios").await.is_some(), "nothing was changed");
}

// A host without moves across types reports that itself, and changes nothing.
#[tokio::test]
async fn an_old_host_refuses_it_unharmed() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, BEFORE);
    workspace.apply().await.succeeded();
    let before = fs::read_to_string(workspace.folder().join("terraform.tfstate")).unwrap();
    fleet.configure(&workspace, &(maintenance("node1", "m", "") + MOVED));
    workspace.try_plan().await.failed().says("Resource type mismatch");
    assert_eq!(fs::read_to_string(workspace.folder().join("terraform.tfstate")).unwrap(), before);
    // Without the block, the old resource is destroyed and the new resource created.
    fleet.configure(&workspace, &maintenance("node1", "m", ""));
    workspace.apply().await.succeeded().says("1 added, 0 changed, 1 destroyed");
    workspace.destroy().await.succeeded();
}
