//! Cluster outages while a Machine is requested, and races with other authors: nothing is lost or
//! repeated.

use std::path::Path;

use super::{
    HELD, configure,
    flows::is_claimed,
    place,
    ready::{WAITS, beat, set_ready},
    traces,
};
use crate::{
    servers::{
        cluster_api::{MAINTENANCE, world::World},
        kubernetes::Kubernetes,
        kubernetes_proxy::Proxy,
        toxiproxy::Toxiproxy,
    },
    support::{
        simulator::{SOON, maintenance},
        wait::eventually,
        workspace::Workspace,
    },
};

const OFF: &str = "server_power = \"Off\"";

/// Returns the provider's arguments with a kubeconfig.
fn asks_as(world: &World, kubeconfig: &Path) -> String {
    let (namespace, kubeconfig) = (&world.namespace, kubeconfig.display());
    format!("cluster_api = {{ machines = {{ node1 = \"{namespace}/m1\" }}, kubeconfig = \"{kubeconfig}\" }}")
}

for_one_host! {
    async fn clusters_that_are_away_while_a_machine_is_waited_for_cost_nothing(host) {
        let ((world, fleet), workspace) = (place().await, Workspace::new(host));
        beat(&world).await;
        set_ready(&world, true).await;
        let cluster = Kubernetes::shared();
        let way = Toxiproxy::to(&cluster.host());
        let kubeconfig = cluster.kubeconfig_at(&format!("https://{}", way.host()), "admin");
        fleet.configure_with(&workspace, &asks_as(&world, &kubeconfig), &maintenance("node1", "bios", OFF));

        // The approval arrives during the outage.
        world.withhold("m1").await;
        let apply = workspace.start_apply();
        apply.until_it_logs("waiting for the maintenance controller to approve", SOON).await;
        way.cut();
        apply.until_it_logs("trying again", SOON).await;
        world.allow("m1").await;
        world.until_machine("m1", "approved", |machine| machine["metadata"]["labels"].to_string().contains("\"approved\"")).await;
        assert_eq!(fleet.resets("node1"), [""; 0], "the provider acted on an approval that it could not read");
        way.mend();
        apply.wait(SOON * 4).await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");

        // During the release, so does the kubelet's report.
        set_ready(&world, false).await;
        let destroy = workspace.start_destroy();
        destroy.until_it_logs(WAITS, SOON).await;
        way.cut();
        destroy.until_it_logs("trying again", SOON).await;
        set_ready(&world, true).await;
        beat(&world).await;
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("approved"));
        way.mend();
        destroy.wait(SOON * 4).await.succeeded();
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
    }
}

for_one_host! {
    async fn a_label_that_another_author_sets_at_the_same_moment_stays(host) {
        let ((world, fleet), workspace) = (place().await, Workspace::new(host));
        let proxy = Proxy::to(Kubernetes::shared()).await;
        let kubeconfig = Kubernetes::shared().kubeconfig_at(&proxy.url(), "admin");
        fleet.configure_with(&workspace, &asks_as(&world, &kubeconfig), &maintenance("node1", "bios", OFF));
        let requests = proxy.hold_first(|seen| seen.method == "PATCH" && seen.body.contains(MAINTENANCE));
        let apply = workspace.start_apply();
        eventually("it requests maintenance", SOON * 2, async || requests.has_come().then_some(())).await;
        world.label_machine("m1", serde_json::json!({ MAINTENANCE: "requested" })).await;
        requests.goes_on();
        apply.until_it_logs("for which another author requested maintenance", SOON * 2).await;
        assert!(world.maintenance("m1").await.is_some(), "another author's label was removed");
        assert_eq!(traces(&world, "m1").await.len(), 1, "traces other than the other author's label");
        assert_eq!(fleet.resets("node1"), [""; 0]);
        apply.interrupt();
        apply.wait(SOON * 4).await.failed();
        assert_eq!(traces(&world, "m1").await.len(), 1, "traces other than the other author's label");
    }
}

for_one_host! {
    async fn controllers_that_are_away_are_waited_for(host) {
        let ((mut world, fleet), workspace) = (place().await, Workspace::new(host));
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", OFF)).await;
        // The extension copies the request to the Node; the maintenance-controller approves it.
        world.stop_extension();
        let apply = workspace.start_apply();
        apply.until_it_logs("waiting for the maintenance controller to approve", SOON * 2).await;
        assert!(!is_claimed(&world.node("m1").await));
        world.stop_maintenance();
        world.start_extension();
        world.until_node("m1", "asked for", is_claimed).await;
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("requested"));
        assert_eq!(fleet.resets("node1"), [""; 0]);
        world.start_maintenance();
        apply.wait(SOON * 4).await.succeeded();

        // The extension must remove both labels from the Node.
        world.stop_extension();
        let destroy = workspace.start_destroy();
        destroy.until_it_logs("still has the label", SOON * 2).await;
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"], "the server was not restored");
        assert!(!traces(&world, "m1").await.is_empty(), "our annotations were removed too early");
        // A run that stops waiting keeps the maintenance, and the next run ends it.
        destroy.interrupt();
        destroy.wait(SOON * 4).await.failed();
        assert!(workspace.resource(HELD).await.is_some(), "the state lost the maintenance");
        world.start_extension();
        workspace.destroy().await.succeeded();
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
        assert!(!is_claimed(&world.node("m1").await));
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
    }
}
