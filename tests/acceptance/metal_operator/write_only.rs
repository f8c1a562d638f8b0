//! `ignition_wo`: the boot operator receives the content, but no local file contains it.

use bmc_simulator::PowerState;
use serde_json::json;

use super::{cluster, configure, maintenance};
use crate::{
    servers::ironcore::{
        Options,
        api::{Key, Kind, text},
        family::Family,
        world::World,
    },
    support::{host::Host, run::Run, simulator::SOON, workspace::Workspace},
};

const FIRST: &str = "sentinel-51cc-first";
const SECOND: &str = "sentinel-51cc-second";
const VARIABLE: &str = "variable \"content\" {\n  type = string\n  ephemeral = true\n}\n";

/// A maintenance with write-only boot content.
fn nested(version: u32, reason: &str) -> String {
    VARIABLE.to_owned()
        + &maintenance(
            "Enforced",
            &format!(
                "server_power = \"On\"\n  boot_configuration = {{ method = \"boot_operator\", image = \"registry.example/bios:2\", \
                 ignition_wo = var.content, ignition_wo_version = {version} }}"
            ),
        )
        .replace("BIOS 2.19", reason)
}

/// A separate boot configuration with write-only content, under a maintenance.
fn own(version: u32) -> String {
    VARIABLE.to_owned()
        + &maintenance("Enforced", "")
        + &format!(
            "resource \"metal_server_boot_configuration\" \"boot\" {{\n  server = \"node1\"\n  \
             maintenance_id = metal_server_maintenance.held.id\n  method = \"boot_operator\"\n  image = \"registry.example/rescue:3\"\n  \
             server_power = \"On\"\n  ignition_wo = var.content\n  ignition_wo_version = {version}\n}}\n"
        )
}

/// Returns the content that the operator boots.
async fn booted_with(world: &World) -> String {
    let boots = world.list(Kind::Boot).await;
    let boot = boots.into_iter().find(|boot| {
        let owners = boot.metadata.owner_references.iter().flatten();
        owners.clone().any(|owner| owner.kind == "ServerMaintenance")
    });
    let name = text(&boot.expect("prepared"), "/spec/ignitionSecretRef/name").to_owned();
    let secret = world.object(Kind::Secret, &Key::within("default", &name)).await;
    secret.data.to_string()
}

/// Encodes a content as in a Secret.
fn encoded(content: &str) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    STANDARD.encode(content)
}

fn is_nowhere(workspace: &Workspace, said: &[Run]) {
    for secret in [FIRST, SECOND].into_iter().flat_map(|secret| [secret.to_owned(), encoded(secret)]) {
        for run in said {
            assert!(!run.output.contains(&secret), "{} said it:\n{}", run.command, run.output);
        }
        for (file, content) in workspace.everything_written() {
            let found = content.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{} contains the ignition", file.display());
        }
    }
}

#[tokio::test]
async fn the_content_is_booted_and_written_nowhere() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    let mut workspace = Workspace::new(Host::Terraform);
    workspace.set("TF_LOG", "TRACE").set("TF_VAR_content", FIRST);
    let mut said = Vec::new();
    configure(&world, &workspace, &nested(1, "one"));
    // This includes a saved plan and its JSON.
    let plan = workspace.plan().await;
    assert!(!plan.json.to_string().contains(FIRST));
    assert_eq!(plan.change("metal_server_maintenance.held")["after"]["boot_configuration"]["ignition_wo"], json!(null));
    said.push(workspace.apply_saved(&plan).await.succeeded());
    said.push(plan.run);
    assert!(booted_with(&world).await.contains(&encoded(FIRST)));
    workspace.plan().await.is_empty();

    // New content without a new version is not booted, even with another change.
    workspace.set("TF_VAR_content", SECOND);
    workspace.plan().await.is_empty();
    configure(&world, &workspace, &nested(1, "two"));
    let resets = world.simulator.boots("node1").unwrap().len();
    said.push(workspace.apply().await.succeeded());
    assert_eq!(world.simulator.boots("node1").unwrap().len(), resets, "nothing was booted");
    assert!(booted_with(&world).await.contains(&encoded(FIRST)));

    // With a new version it is booted.
    configure(&world, &workspace, &nested(2, "two"));
    let changes = workspace.plan().await.changes();
    assert_eq!(changes, [("metal_server_maintenance.held".to_owned(), vec!["update".to_owned()])]);
    said.push(workspace.apply().await.succeeded());
    assert!(booted_with(&world).await.contains(&encoded(SECOND)));
    world.simulator.wait_power("node1", PowerState::On, SOON).await.expect("as the hold wants it");
    said.push(workspace.destroy().await.succeeded());
    is_nowhere(&workspace, &said);
}

#[tokio::test]
async fn a_boot_configuration_has_it_too() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    let mut workspace = Workspace::new(Host::Terraform);
    workspace.set("TF_LOG", "TRACE").set("TF_VAR_content", FIRST);
    configure(&world, &workspace, &own(1));
    let mut said = vec![workspace.apply().await.succeeded()];
    assert!(booted_with(&world).await.contains(&encoded(FIRST)));
    workspace.plan().await.is_empty();
    workspace.set("TF_VAR_content", SECOND);
    configure(&world, &workspace, &own(2));
    said.push(workspace.apply().await.succeeded());
    assert!(booted_with(&world).await.contains(&encoded(SECOND)));
    workspace.plan().await.is_empty();
    said.push(workspace.destroy().await.succeeded());
    is_nowhere(&workspace, &said);
}

/// A claim with write-only boot content.
fn claim(version: u32, contact: &str) -> String {
    VARIABLE.to_owned()
        + &format!(
            "resource \"metal_server_claim\" \"db\" {{\n  server = \"node1\"\n  namespace = \"default\"\n  name = \"db\"\n  \
             contact = \"{contact}\"\n  image = \"registry.example/gardenlinux:1\"\n  server_power = \"On\"\n  \
             ignition_wo = var.content\n  ignition_wo_version = {version}\n}}\n"
        )
}

/// Returns the claim's Secret content.
async fn claimed_with(world: &World) -> String {
    let claim = world.object(Kind::Claim, &Key::within("default", "db")).await;
    let name = text(&claim, "/spec/ignitionSecretRef/name").to_owned();
    world.object(Kind::Secret, &Key::within("default", &name)).await.data.to_string()
}

#[tokio::test]
async fn a_claim_has_it_too() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    let mut workspace = Workspace::new(Host::Terraform);
    workspace.set("TF_LOG", "TRACE").set("TF_VAR_content", FIRST);
    configure(&world, &workspace, &claim(1, "#db"));
    let mut said = vec![workspace.apply().await.succeeded()];
    assert!(claimed_with(&world).await.contains(&encoded(FIRST)));
    workspace.plan().await.is_empty();

    // New content without a new version is not written, even with another change.
    workspace.set("TF_VAR_content", SECOND);
    workspace.plan().await.is_empty();
    configure(&world, &workspace, &claim(1, "#storage"));
    said.push(workspace.apply().await.succeeded());
    assert!(claimed_with(&world).await.contains(&encoded(FIRST)));
    workspace.plan().await.is_empty();

    configure(&world, &workspace, &claim(2, "#storage"));
    said.push(workspace.apply().await.succeeded());
    assert!(claimed_with(&world).await.contains(&encoded(SECOND)));
    workspace.plan().await.is_empty();

    // A reference that a person removed from the claim is written again.
    world
        .cluster
        .merge(Kind::Claim, &Key::within("default", "db"), json!({ "spec": { "ignitionSecretRef": null } }))
        .await
        .unwrap();
    let changes = workspace.plan().await.changes();
    assert_eq!(changes, [("metal_server_claim.db".to_owned(), vec!["update".to_owned()])]);
    said.push(workspace.apply().await.succeeded());
    assert!(claimed_with(&world).await.contains(&encoded(SECOND)));
    said.push(workspace.destroy().await.succeeded());
    is_nowhere(&workspace, &said);
}

// An older host would store the content.
#[tokio::test]
async fn a_host_that_does_not_know_it_is_refused() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    let workspace = Workspace::new(Host::OpenTofu);
    for body in [nested(1, "one"), own(1), claim(1, "#db")] {
        configure(&world, &workspace, &body.replace(VARIABLE, "").replace("var.content", &format!("\"{FIRST}\"")));
        let refused = workspace.apply().await.failed();
        refused.says("Write-only attribute not supported by this host").says("ignition_wo must not be stored");
        assert!(!workspace.folder().join("terraform.tfstate").exists(), "an object was created");
    }
}
