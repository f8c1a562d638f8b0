//! The guide "from kubernetes_manifest to metal": takes over another provider's hold, during which
//! the server stays in maintenance.
//!
//! With `KUBERNETES_PROVIDER` set to a built terraform-provider-kubernetes, that provider creates
//! the old hold, as users did. Otherwise the test creates the object and the state directly.

use std::{env, fs, path::PathBuf, sync::Arc};

use futures_util::StreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::json;
use tokio::sync::Mutex;

use super::{HELD, cluster, configure, maintenance};
use crate::{
    servers::ironcore::{
        Options,
        api::{Key, Kind, text},
        family::Family,
        world::World,
    },
    support::{provider, simulator::SOON, wait::eventually, workspace::Workspace},
};

/// Made-up source address of the other provider.
const KUBERNETES: &str = "example.com/other/kubernetes";

fn object() -> serde_json::Value {
    json!({
        "apiVersion": "metal.ironcore.dev/v1alpha1",
        "kind": "ServerMaintenance",
        "metadata": { "name": "bios", "namespace": "default" },
        "spec": { "policy": "Enforced", "serverRef": { "name": "node1" }, "serverPower": "On" },
    })
}

async fn old_hold(world: &World, workspace: &mut Workspace) {
    let Some(other) = env::var_os("KUBERNETES_PROVIDER").map(PathBuf::from) else {
        world.cluster.create(Kind::Legacy, object()).await.unwrap();
        let state = json!({
            "version": 4, "terraform_version": "1.6.2", "serial": 1, "lineage": "3c3b2a1e-0000-4000-8000-000000000001",
            "outputs": {},
            "resources": [{
                "mode": "managed", "type": "kubernetes_manifest", "name": "bios",
                "provider": format!("provider[\"{KUBERNETES}\"]"),
                "instances": [{ "schema_version": 1, "attributes": { "manifest": { "value": object(), "type": "dynamic" } } }],
            }],
        });
        workspace.write("terraform.tfstate", &state.to_string());
        return;
    };
    let rc = workspace.folder().join("both.tfrc");
    let plugins = tempfile::tempdir_in(workspace.folder()).unwrap().keep();
    let ours = provider::development_override(&plugins);
    let theirs = format!("dev_overrides {{\n    \"{KUBERNETES}\" = \"{}\"\n", other.parent().unwrap().display());
    fs::write(&rc, ours.replace("dev_overrides {\n", &theirs)).unwrap();
    workspace.set("TF_CLI_CONFIG_FILE", rc.display().to_string());
    let kubeconfig = world.kubernetes.user("ci", &["system:masters"]);
    fs::write(
        workspace.folder().join("main.tf"),
        format!(
            r#"
terraform {{
  required_providers {{
    kubernetes = {{ source = "{KUBERNETES}" }}
  }}
}}
provider "kubernetes" {{
  config_path = "{}"
}}
resource "kubernetes_manifest" "bios" {{
  manifest = {{
    apiVersion = "metal.ironcore.dev/v1alpha1"
    kind       = "ServerMaintenance"
    metadata   = {{ name = "bios", namespace = "default" }}
    spec = {{
      policy      = "Enforced"
      serverRef   = {{ name = "node1" }}
      serverPower = "On"
    }}
  }}
  wait {{
    fields = {{ "status.state" = "InMaintenance" }}
  }}
}}
"#,
            kubeconfig.display()
        ),
    )
    .unwrap();
    workspace.apply().await.succeeded();
}

for_one_host! {
    async fn a_hold_of_kubernetes_manifest_is_taken_over(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        world.claim("node1", "owners", "claim1").await;
        let mut workspace = Workspace::new(host);
        old_hold(&world, &mut workspace).await;
        world.until_state("node1", "Maintenance").await;
        // Records every state of the server from here.
        let states = Arc::new(Mutex::new(Vec::<String>::new()));
        let noted = Arc::clone(&states);
        let events = watcher(world.cluster.all(Kind::Server), watcher::Config::default()).default_backoff();
        let watching = tokio::spawn(async move {
            let mut events = std::pin::pin!(events.applied_objects());
            while let Some(Ok(server)) = events.next().await {
                noted.lock().await.push(text(&server, "/status/state").to_owned());
            }
        });

        // Step 1 of the guide: remove the old resource from the state, not from the cluster.
        workspace.run(&["state", "rm", "kubernetes_manifest.bios"]).await.succeeded();
        // Step 2: the new maintenance waits behind the old hold.
        configure(&world, &workspace, &maintenance("Enforced", "server_power = \"On\""));
        let apply = workspace.start_apply();
        eventually("the new hold waits behind the old one", SOON, async || {
            let queue = workspace.metal(&["queue"]).await.succeeded();
            queue.stdout.contains("default/bios to release the server").then_some(())
        })
        .await;
        // Step 3: delete the old object, so that the operator transfers the server.
        world.cluster.delete(Kind::Legacy, &Key::within("default", "bios")).await.unwrap();
        apply.wait(SOON).await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        let seen = states.lock().await.clone();
        watching.abort();
        assert!(!seen.is_empty() && seen.iter().all(|state| state == "Maintenance"), "{seen:?}");

        assert!(workspace.plan().await.changes().is_empty());
        workspace.destroy().await.succeeded();
        world.until_state("node1", "Reserved").await;
        assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
    }
}
