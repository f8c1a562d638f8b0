//! Configured clusters that are unusable: the plan names the wrong setting, the apply fails with
//! the same text, and no server is touched.

use std::path::Path;

use crate::{
    servers::{cluster_api::world::workload_cluster, kubernetes::Kubernetes},
    support::{
        simulator::{Fleet, maintenance},
        workspace::Workspace,
    },
};

const ELSEWHERE: &str = "context = \"elsewhere\"";

for_one_host! {
    async fn a_cluster_that_cannot_be_used_is_told_and_no_server_is_touched(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let file = |path: &Path| format!("kubeconfig = \"{}\"", path.display());
        let here = file(&Kubernetes::shared().kubeconfig());
        let nowhere = "kubeconfig = \"/nowhere/kubeconfig\"";
        let bare = file(&workload_cluster().await.kubeconfig());
        let (nodes, machines) = ("nodes = { node1 = \"n1\" }", "machines = { node1 = \"metal3/m1\" }");
        let off = maintenance("node1", "bios", "server_power = \"Off\"");
        for (block, says) in [
            (format!("kubernetes_node = {{ {nodes}, {here}, {ELSEWHERE} }}"), "elsewhere"),
            (format!("kubernetes_node = {{ {nodes}, {nowhere} }}"), "/nowhere/kubeconfig"),
            (format!("kubernetes_node = {{ {nodes}, {bare} }}"), "does not contain Node n1"),
            (format!("cluster_api = {{ {machines}, {here}, {ELSEWHERE} }}"), "elsewhere"),
            (format!("cluster_api = {{ {machines}, {nowhere} }}"), "/nowhere/kubeconfig"),
            (format!("cluster_api = {{ {machines}, {bare} }}"), "it serves no Machines"),
        ] {
            fleet.configure_with(&workspace, &block, &off);
            // The apply's own plan shows it as well.
            let apply = workspace.apply().await.failed();
            assert!(apply.words().matches(says).count() > 1, "{block}: plan and apply do not both report {says:?}:\n{}", apply.output);
            assert_eq!(fleet.changes("node1"), Vec::<String>::new(), "{block}");
        }
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        for (metal3, says) in [
            (format!("{here}, {ELSEWHERE}"), "elsewhere"),
            (nowhere.to_owned(), "/nowhere/kubeconfig"),
            (bare, "baremetalhosts"),
        ] {
            workspace.configure(&format!("provider \"metal\" {{\n  metal3 = {{ {metal3}, namespace = \"metal3\" }}\n}}\n{off}"));
            let apply = workspace.apply().await.failed();
            assert!(apply.words().matches(says).count() > 1, "metal3 {metal3}: plan and apply do not both report {says:?}:\n{}", apply.output);
        }
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}
