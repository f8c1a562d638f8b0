//! The two files `roles/cluster-api-*.yaml` allow the gate's requests and nothing else.

use std::path::Path;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, WatchParams},
};
use serde_json::json;

use crate::support::{
    cluster_api::{
        MAINTENANCE,
        objects::{api, merge},
        world::{Options, World},
    },
    ironcore::patience,
    kubernetes::Kubernetes,
};

/// Both clusters are one here.
const ROLES: &str = concat!(
    include_str!("../../roles/cluster-api-management.yaml"),
    "---\n",
    include_str!("../../roles/cluster-api-workload.yaml")
);

/// Returns a client with the rights from both files.
async fn runner(world: &World, roles: &str) -> Client {
    let roles = roles.replace("namespace: metal3", &format!("namespace: {}", world.namespace));
    let kubeconfig = tokio::task::spawn_blocking(move || {
        let kubernetes = Kubernetes::shared();
        kubernetes.apply(&roles);
        kubernetes.user("runner-of-a-team", &["metal-runners"])
    });
    Kubernetes::client(Path::new(&kubeconfig.await.unwrap())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_of_the_file_are_enough_and_no_more() {
    let world = World::start(Options::default()).await;
    world.add("m1").await;
    world.add_host("h1").await;
    world.on_host("m1", "h1").await;
    let client = runner(&world, ROLES).await;
    let ours = |kind: &str| -> Api<DynamicObject> { api(&client, kind, &world.namespace) };
    let (machines, nodes, node) = (ours("Machine"), ours("Node"), world.node_name("m1"));

    // A new role takes effect after a short delay.
    patience::until("the right counts", async || machines.get("m1").await.ok()).await;
    machines.list(&ListParams::default()).await.unwrap();
    let _ = machines.watch(&WatchParams::default().timeout(1), "0").await.unwrap();
    let between = ours("Metal3Machine");
    between.get("m1").await.unwrap();
    between.list(&ListParams::default()).await.unwrap();
    let _ = between.watch(&WatchParams::default().timeout(1), "0").await.unwrap();
    patience::until("the right counts", async || nodes.get(&node).await.ok()).await;
    nodes.list(&ListParams::default()).await.unwrap();
    let _ = nodes.watch(&WatchParams::default().timeout(1), "0").await.unwrap();
    let heartbeats: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    patience::until("the right counts", async || heartbeats.get_opt(&node).await.ok()).await;
    merge(&machines, "m1", json!({"metadata": {"labels": {MAINTENANCE: "requested"}}})).await.unwrap();
    world.until_machine("m1", "approved", |one| one["metadata"]["labels"][MAINTENANCE] == "approved").await;
    merge(&machines, "m1", json!({"metadata": {"labels": {MAINTENANCE: null}}})).await.unwrap();

    let refused =
        |error: kube::Error| assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
    refused(machines.delete("m1", &DeleteParams::default()).await.unwrap_err());
    let status = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    refused(machines.patch_status("m1", &PatchParams::default(), &status).await.unwrap_err());
    refused(merge(&nodes, &node, json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap_err());
    refused(ours("Secret").get("workload-kubeconfig").await.unwrap_err());
    refused(ours("BareMetalHost").get("h1").await.unwrap_err());
    refused(merge(&between, "m1", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap_err());
    refused(between.delete("m1", &DeleteParams::default()).await.unwrap_err());
}
