//! `terraform query` on a cluster: claims are ServerClaims, and approvals lack an author.

use std::fs;

use serde_json::json;

use super::{cluster, configure, maintenance};
use crate::{
    servers::ironcore::{Options, api::Kind, family::Family},
    support::{host::Host, workspace::Workspace},
};

const QUERY: &str = r#"
list "metal_server_claim" "lost" {
  provider = metal
}
list "metal_server_maintenance" "lost" {
  provider = metal
}
"#;

#[tokio::test]
async fn a_lost_state_of_a_cluster_is_found_and_imported_again() {
    let world = cluster(Family::V0_7, 3, Options::default()).await;
    world.claim("node3", "owners", "strange").await;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "bios-ignition", "namespace": "default" },
        "data": { "ignition": "e30=" },
    });
    world.cluster.create(Kind::Secret, secret).await.unwrap();
    let workspace = Workspace::new(Host::Terraform);
    let boot = "server_power = \"On\"\n  boot_configuration = { method = \"boot_operator\", image = \"registry.example/bios:2\", \
                ignition = { secret_name = \"bios-ignition\" } }";
    let claim = "resource \"metal_server_claim\" \"db\" {\n  server = \"node2\"\n  namespace = \"default\"\n  name = \"a\"\n  \
                 image = \"registry.example/os:1\"\n  server_power = \"On\"\n  contact = \"#db\"\n}\n";
    configure(&world, &workspace, &(maintenance("Enforced", boot) + claim));
    workspace.apply().await.succeeded();

    let lost = workspace.beside();
    configure(&world, &lost, "");
    lost.write("lost.tfquery.hcl", QUERY);
    let found = lost.run(&["query", "-no-color", "-generate-config-out=found.tf"]).await.succeeded();
    found.says("default/a: node2, of default").says("ops/bios: node1, InMaintenance (BIOS 2.19)");
    // Another author's object was not in the lost state.
    found.is_silent_about("strange");
    // The lost state manages the maintenance until the apply transfers it.
    lost.plan().await.run.says("2 to import, 0 to add, 1 to change, 0 to destroy");
    lost.apply().await.succeeded().says("2 imported, 0 added, 1 changed, 0 destroyed");
    lost.plan().await.is_empty();

    let asked = workspace.beside();
    configure(&world, &asked, "");
    let all = "list \"metal_server_claim\" \"all\" {\n  provider = metal\n  config {\n    owner = \"*\"\n  }\n}\n";
    asked.write("all.tfquery.hcl", all);
    asked.run(&["query", "-no-color"]).await.succeeded().says("owners/strange: node3, of no owner").says("default/a");
    fs::remove_file(asked.folder().join("all.tfquery.hcl")).unwrap();
    asked.write("none.tfquery.hcl", "list \"metal_maintenance_approval\" \"none\" {\n  provider = metal\n}\n");
    asked.run(&["query", "-no-color"]).await.succeeded().says("Cluster approvals cannot be listed");
    lost.destroy().await.succeeded();
}
