//! `moved` from a `kubernetes_manifest`: the server stays in maintenance throughout.

use std::{fs, os::unix::fs::symlink};

use serde_json::json;

use super::{HELD, cluster, configure, maintenance};
use crate::{
    servers::ironcore::{
        Options,
        api::{Key, Kind},
        family::Family,
    },
    support::{host::Host, provider, simulator::SOON, wait::eventually, workspace::Workspace},
};

/// Made-up source address of the other provider.
const KUBERNETES: &str = "example.com/other/kubernetes";

/// Uses this provider's program as the other provider. The host only loads it, because no resource
/// of it remains.
fn with_other_provider(workspace: &mut Workspace) {
    let plugins = tempfile::tempdir_in(workspace.folder()).unwrap().keep();
    symlink(provider::binary(), plugins.join("terraform-provider-kubernetes")).unwrap();
    let ours = provider::development_override(&plugins);
    let theirs = format!("dev_overrides {{\n    \"{KUBERNETES}\" = \"{}\"\n", plugins.display());
    let rc = workspace.folder().join("both.tfrc");
    fs::write(&rc, ours.replace("dev_overrides {\n", &theirs)).unwrap();
    workspace.set("TF_CLI_CONFIG_FILE", rc.display().to_string());
}

/// Writes a state with a manifest, in the other provider's format.
fn state_with(workspace: &Workspace, manifest: &serde_json::Value) {
    let state = json!({
        "version": 4, "terraform_version": "1.15.5", "serial": 1, "lineage": "3c3b2a1e-0000-4000-8000-000000000002",
        "outputs": {},
        "resources": [{
            "mode": "managed", "type": "kubernetes_manifest", "name": "bios",
            "provider": format!("provider[\"{KUBERNETES}\"]"),
            "instances": [{ "schema_version": 1, "attributes": { "manifest": { "value": manifest, "type": "dynamic" } } }],
        }],
    });
    workspace.write("terraform.tfstate", &state.to_string());
}

const MOVED: &str = "moved {\n  from = kubernetes_manifest.bios\n  to = metal_server_maintenance.held\n}\n";

#[tokio::test]
async fn a_manifest_that_holds_a_server_becomes_ours() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    let mut workspace = Workspace::new(Host::Terraform);
    with_other_provider(&mut workspace);
    let object = json!({
        "apiVersion": "metal.ironcore.dev/v1alpha1",
        "kind": "ServerMaintenance",
        "metadata": { "name": "bios", "namespace": "default" },
        "spec": { "policy": "Enforced", "serverRef": { "name": "node1" }, "serverPower": "On" },
    });
    world.cluster.create(Kind::Legacy, object.clone()).await.unwrap();
    world.until_state("node1", "Maintenance").await;
    state_with(&workspace, &object);
    configure(&world, &workspace, &(maintenance("Enforced", "server_power = \"On\"") + MOVED));

    let plan = workspace.plan().await;
    plan.run.says("the ServerMaintenance default/bios stays in the cluster, and keeps node1 in maintenance");
    plan.run.says("kubectl delete servermaintenances.metal.ironcore.dev -n default bios");
    assert_eq!(plan.changes(), [(HELD.to_owned(), vec!["create".to_owned()])]);
    let apply = workspace.start_apply();
    eventually("the new hold waits behind the old one", SOON, async || {
        let queue = workspace.metal(&["queue"]).await.succeeded();
        queue.stdout.contains("default/bios to release the server").then_some(())
    })
    .await;
    // As the warning suggests.
    world.cluster.delete(Kind::Legacy, &Key::within("default", "bios")).await.unwrap();
    apply.wait(SOON).await.succeeded();
    assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
    workspace.plan().await.is_empty();
    workspace.destroy().await.succeeded();
    world.until_state("node1", "Reserved").await;
}

#[tokio::test]
async fn another_manifest_is_refused() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    let mut workspace = Workspace::new(Host::Terraform);
    with_other_provider(&mut workspace);
    let object =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "bios", "namespace": "default" } });
    state_with(&workspace, &object);
    configure(&world, &workspace, &(maintenance("Enforced", "") + MOVED));
    workspace.try_plan().await.failed().says("not a ServerMaintenance").says("Nothing was changed");
}
