//! Roles of Metal3, Cluster API and Kubernetes Nodes.

use serde_json::json;

use super::{User, each_permission_counts, maintenance};
use crate::{
    each_request::places::{Chain, Metal3, Node, Place as _},
    servers::roles::Roles,
};

/// Tasks in parallel. They spend most of their time waiting.
const AT_ONCE: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_metal3() {
    let files = ["metal3.yaml"];
    each_permission_counts(&Roles::of_files(&files, None), AT_ONCE, async |_, without| {
        let mut errors = Vec::new();
        for block in [json!({}), json!({"hold": "power_off"})] {
            let place = Metal3::new(block).await;
            let roles = Roles::of_files(&files, Some(("metal3", place.namespace())));
            let user = User::new(place.kubernetes(), &roles, without).await;
            let config = place.config(&user.kubeconfig, user.folder());
            errors = user.plays(&config, vec![maintenance("node1", json!({}))]).await;
            if !errors.is_empty() {
                break;
            }
        }
        errors
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_cluster_api() {
    let files = ["cluster-api-management.yaml", "cluster-api-workload.yaml", "metal3.yaml"];
    each_permission_counts(&Roles::of_files(&files[..2], None), AT_ONCE, async |_, without| {
        let place = Chain::new().await;
        let roles = Roles::of_files(&files, Some(("metal3", place.namespace())));
        let user = User::new(place.kubernetes(), &roles, without).await;
        let config = place.config(&user.kubeconfig, user.folder());
        user.plays(&config, vec![maintenance("node1", json!({}))]).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_kubernetes_nodes() {
    let roles = Roles::of_files(&["kubernetes-node.yaml"], None);
    each_permission_counts(&roles, AT_ONCE, async |_, without| {
        let place = Node::new().await;
        let user = User::new(place.kubernetes(), &roles, without).await;
        let config = place.config(&user.kubeconfig, user.folder());
        let errors = user.plays(&config, vec![maintenance("node1", json!({}))]).await;
        if !errors.is_empty() {
            return errors;
        }
        let cluster = [("METAL_NODE_KUBECONFIG", user.kubeconfig.display().to_string())];
        user.command(&["prune", "--nodes"], &cluster).await
    })
    .await;
}
