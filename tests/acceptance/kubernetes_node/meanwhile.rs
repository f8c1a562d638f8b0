//! Changes by others to a Node during its drain, its maintenance and its release.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bmc_simulator::{Fault, HeldQuery, Phase, PowerState};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use super::{OFF, Place};
use crate::{
    servers::{
        kubernetes_proxy::{Deal, Proxy, status},
        toxiproxy::Toxiproxy,
    },
    support::{
        simulator::{Fleet, SOON, maintenance},
        wait::eventually,
        workspace::Workspace,
    },
};

const ON: &str = "server_power = \"On\"";

for_one_host! {
    async fn a_change_of_a_hold_drains_a_node_again_that_a_person_opened(host) {
        // A Node cordoned by another author is drained as well.
        for before in [false, true] {
            let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
            if before {
                place.cordon(true).await;
            }
            fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", ON));
            workspace.apply().await.succeeded();
            place.cordon(false).await;
            place.pod("db", Some("StatefulSet"), json!({})).await;
            place.budget("db", 0).await;
            fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", OFF));
            let drains = format!("Node: {} is cordoned and drained first (Pods to evict: 1).", place.node);
            workspace.try_plan().await.succeeded().says("node1 is switched off").says(&drains);
            let apply = workspace.start_apply();
            apply.until_it_logs("disruption budget", SOON).await;
            assert!(place.cordoned().await);
            assert_eq!(fleet.resets("node1"), [""; 0], "the server was reset before the second drain ended");
            place.budget("db", 1).await;
            apply.wait(SOON * 2).await.succeeded();
            assert_eq!((fleet.system("node1").power, place.names().await), (PowerState::Off, vec![]));
            workspace.destroy().await.succeeded();
            assert_eq!((place.cordoned().await, place.marks().await), (false, 0), "our own cordon was not removed");
        }
    }
}

for_one_host! {
    async fn a_plan_tells_what_keeps_a_change_of_a_hold_or_what_is_done_under_it_from_being_made(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", ON));
        workspace.apply().await.succeeded();
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", OFF));
        let untouched = workspace.try_plan().await.succeeded();
        untouched.says("node1 is switched off").is_silent_about(&place.node);

        place.cordon(false).await;
        place.pod("bare", None, json!({})).await;
        let fails = format!("It would fail: Node {} cannot be drained", place.node);
        workspace.try_plan().await.succeeded().says(&fails).says("no controller would start it again");
        workspace.apply().await.failed().says("no controller would start it again");
        // The failed replacement of the lost lock has ended; the next apply locks the server again.
        place.pods().delete("bare", &DeleteParams::default().grace_period(0)).await.unwrap();
        workspace.apply().await.succeeded();
        place.cordon(false).await;
        let second = workspace.beside();
        let under = "  server = \"node1\"\n  namespace = \"tests\"\n  maintenance_id = \"tests/m\"\n";
        let operation = format!("resource \"metal_server_operation\" \"op\" {{\n{under}  name = \"o\"\n  operation = \"ForceRestart\"\n}}\n");
        let under = "  server = \"node1\"\n  maintenance_id = \"tests/m\"\n";
        let boot = format!("resource \"metal_server_boot_configuration\" \"pxe\" {{\n{under}  method = \"pxe\"\n}}\n");
        for resource in [operation, boot] {
            fleet.configure_with(&second, &place.drained(""), &resource);
            second.try_plan().await.succeeded().says("It would fail: Node").says("release tests/m first");
            place.cordon(true).await;
            second.try_plan().await.succeeded().says("It happens under tests/m").is_silent_about(&place.node);
            place.cordon(false).await;
        }
    }
}

for_one_host! {
    async fn a_node_of_another_name_is_drained_before_its_held_server_is_switched_off(host) {
        let (place, renamed, fleet) = (Place::new().await, Place::new().await, Fleet::new(1).await);
        let workspace = Workspace::new(host);
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", ON));
        workspace.apply().await.succeeded();
        renamed.pod("db", Some("StatefulSet"), json!({})).await;
        renamed.budget("db", 0).await;
        fleet.configure_with(&workspace, &renamed.drained(""), &maintenance("node1", "m", OFF));
        let drains = format!("Node: {} is cordoned and drained first (Pods to evict: 1).", renamed.node);
        workspace.try_plan().await.succeeded().says(&drains);
        let apply = workspace.start_apply();
        apply.until_it_logs("disruption budget", SOON).await;
        assert!(renamed.cordoned().await);
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0), "another server's Node was cordoned");
        assert_eq!(fleet.resets("node1"), [""; 0]);
        renamed.budget("db", 1).await;
        apply.wait(SOON * 2).await.succeeded();
        workspace.destroy().await.succeeded();
        assert_eq!((renamed.cordoned().await, renamed.marks().await), (false, 0));
    }
}

for_one_host! {
    async fn a_server_that_is_off_is_prepared_without_the_api_server_that_ran_on_it(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        let way = Toxiproxy::to(&place.cluster.host());
        let kubeconfig = place.cluster.kubeconfig_at(&format!("https://{}", way.host()), "admin");
        let boot = "server_power = \"On\"\n  boot_configuration = { method = \"pxe\" }";
        fleet.configure_with(&workspace, &place.drained_as(&kubeconfig), &maintenance("node1", "m", boot));
        // The Node stops and starts with the server.
        let reads = fleet.simulator.inject(Fault::hold(Phase::After).on_request("POST", "*ComputerSystem.Reset").times(1));
        let apply = workspace.start_apply();
        fleet.simulator.wait_held(&HeldQuery::default(), SOON).await.unwrap();
        way.cut();
        fleet.simulator.remove_fault(reads).unwrap();
        fleet.simulator.release_all();
        apply.wait(SOON * 4).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
        assert!(fleet.runs("node1").contains("Pxe"), "{}", fleet.runs("node1"));
        way.mend();
        workspace.destroy().await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
    }
}

for_one_host! {
    async fn a_node_that_is_opened_while_a_bmc_is_away_keeps_its_server_on(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        place.pod("db", Some("StatefulSet"), json!({})).await;
        place.budget("db", 0).await;
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", OFF));
        let apply = workspace.start_apply();
        apply.until_it_logs("disruption budget", SOON).await;
        let away = fleet.simulator.inject(Fault::error(503, "away").on_system("node1"));
        place.budget("db", 1).await;
        apply.until_it_logs("was answered with 503", SOON * 2).await;
        place.cordon(false).await;
        fleet.simulator.remove_fault(away).unwrap();
        apply.wait(SOON * 4).await.failed().says("was uncordoned by another author");
        assert_eq!((fleet.resets("node1"), fleet.system("node1").power), (vec![], PowerState::On));
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
    }
}

for_one_host! {
    async fn a_node_that_a_person_opens_before_its_server_is_switched_off_keeps_it_on(host) {
        for killed in [false, true] {
            let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
            let busy = Fault::error(503, "busy").on_request("POST", "*ComputerSystem.Reset");
            let busy = fleet.simulator.inject(busy);
            fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", OFF));
            let apply = workspace.start_apply();
            eventually("a shutdown request is sent", SOON, async || (!fleet.resets("node1").is_empty()).then_some(())).await;
            let apply = if killed {
                apply.kill_everything();
                drop(apply);
                place.cordon(false).await;
                let asked = fleet.resets("node1").len();
                fleet.simulator.remove_fault(busy).unwrap();
                let again = workspace.start_apply().wait(SOON * 4).await;
                assert_eq!(fleet.resets("node1").len(), asked, "a server with workloads received a reset");
                again
            } else {
                place.cordon(false).await;
                apply.wait(SOON * 4).await
            };
            apply.failed().says("was uncordoned by another author").says(&place.node);
            assert_eq!(fleet.system("node1").power, PowerState::On);
            assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
        }
    }
}

for_one_host! {
    async fn a_node_without_its_block_is_named_by_what_it_keeps_from_ending(host) {
        let (place, fleet, mut workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", OFF));
        workspace.apply().await.succeeded();
        // The configuration lacks the Node's cluster now.
        fleet.configure_with(&workspace, "", &maintenance("node1", "m", OFF));
        let unseen = format!("Node {}, which is drained for tests/m", place.node);
        let plan = workspace.plan().await;
        plan.is_empty();
        plan.run.says("A Node was not checked").says(&unseen).says("METAL_NODE_KUBECONFIG");
        let left = format!("the server is restored, but Node {} could still be cordoned for tests/m", place.node);
        let advice = "kubernetes_node.kubeconfig or METAL_NODE_KUBECONFIG names its cluster";
        workspace.destroy().await.failed().says("The Node of node1 was not reached").says(&left).says(advice);
        assert_eq!((fleet.system("node1").power, place.cordoned().await), (PowerState::On, true));
        fleet.command_line(&mut workspace);
        workspace.metal(&["queue"]).await.succeeded().says(&left).says(advice);
        let end = ["release", "tests/m", "--reason", "test"];
        workspace.metal(&end).await.failed().says(&left).says(advice);
        workspace.metal(&["prune", "--nodes"]).await.failed().says("the Nodes that maintenances left cordoned").says(advice);
        workspace.set("METAL_NODE_KUBECONFIG", place.cluster.kubeconfig().display().to_string());
        workspace.metal(&end).await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
    }
}

for_one_host! {
    async fn maintenances_of_two_stores_never_have_one_node_at_a_time(host) {
        // Each user has a home folder and so a separate store.
        let (place, fleet) = (Place::new().await, Fleet::new(1).await);
        let (first, second) = (Workspace::new(host), Workspace::new(host));
        fleet.configure_with(&first, &place.drained(""), &maintenance("node1", "m", OFF));
        fleet.configure_with(&second, &place.drained(""), &maintenance("node1", "m", OFF));
        first.apply().await.succeeded();
        second.try_plan().await.succeeded().says("It would wait for the maintenance tests/m of another store");
        let waits = second.start_apply();
        waits.until_it_logs("waiting for the maintenance tests/m of another store", SOON).await;
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown"], "only the holder switched the server off");
        first.destroy().await.succeeded();
        waits.wait(SOON * 4).await.succeeded();
        assert!(place.cordoned().await && place.marks().await > 0, "the Node was uncordoned during the second maintenance");
        assert_eq!(fleet.system("node1").power, PowerState::Off);
        second.destroy().await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On", "GracefulShutdown", "On"]);
    }
}

for_one_host! {
    async fn a_node_whose_annotations_a_person_removed_is_uncordoned_all_the_same(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", OFF));
        workspace.apply().await.succeeded();
        place.went_down().await;
        place.strip().await;
        assert_eq!((place.cordoned().await, place.marks().await), (true, 0));
        let destroy = workspace.start_destroy();
        destroy.until_it_logs("is uncordoned once it is Ready again", SOON).await;
        place.kubelet.up.store(true, Ordering::SeqCst);
        destroy.wait(SOON * 2).await.succeeded();
        assert!(!place.cordoned().await);
    }
}

for_one_host! {
    async fn an_api_server_that_fails_is_not_the_word_of_a_kubelet(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        let proxy = Proxy::to(place.cluster).await;
        let drained = place.drained_as(&place.cluster.kubeconfig_at(&proxy.url(), "admin"));
        fleet.configure_with(&workspace, &drained, &maintenance("node1", "m", OFF));
        workspace.apply().await.succeeded();
        // The `Ready` condition outlives the kubelet.
        place.kubelet.up.store(false, Ordering::SeqCst);
        let answered = Arc::new(AtomicUsize::new(0));
        let told = Arc::clone(&answered);
        proxy.rule(move |seen| {
            if !seen.path.contains("/leases/") {
                return Deal::Pass;
            }
            told.fetch_add(1, Ordering::SeqCst);
            Deal::Answer(500, "", status(500, "InternalError"))
        });
        let destroy = workspace.start_destroy();
        // A request is retried before it fails.
        eventually("the provider reads the Lease again", SOON * 3, async || (answered.load(Ordering::SeqCst) > 6).then_some(())).await;
        proxy.rule(|_| Deal::Pass);
        destroy.until_it_logs("is uncordoned once it is Ready again", SOON * 2).await;
        assert!(place.cordoned().await, "the Node was uncordoned before its kubelet renewed its Lease");
        place.kubelet.up.store(true, Ordering::SeqCst);
        destroy.wait(SOON * 2).await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
    }
}

for_one_host! {
    async fn a_cordon_that_another_author_sets_at_the_same_moment_stays(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        let proxy = Proxy::to(place.cluster).await;
        let drained = place.drained_as(&place.cluster.kubeconfig_at(&proxy.url(), "admin"));
        fleet.configure_with(&workspace, &drained, &maintenance("node1", "m", OFF));
        let cordon = proxy.hold_first(|seen| seen.method == "PATCH" && seen.path.contains("/nodes/"));
        let apply = workspace.start_apply();
        eventually("the cordon request is sent", SOON, async || cordon.has_come().then_some(())).await;
        place.cordon(true).await;
        cordon.goes_on();
        apply.wait(SOON * 4).await.succeeded();
        assert_eq!((fleet.system("node1").power, place.marks().await), (PowerState::Off, 0));
        workspace.destroy().await.succeeded();
        assert!(place.cordoned().await, "another author's cordon was removed");
    }
}

for_one_host! {
    async fn a_cluster_that_is_away_during_a_drain_or_at_its_end_is_waited_out(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        let way = Toxiproxy::to(&place.cluster.host());
        let kubeconfig = place.cluster.kubeconfig_at(&format!("https://{}", way.host()), "admin");
        place.pod("db", Some("StatefulSet"), json!({})).await;
        place.budget("db", 0).await;
        fleet.configure_with(&workspace, &place.drained_as(&kubeconfig), &maintenance("node1", "m", OFF));
        let apply = workspace.start_apply();
        apply.until_it_logs("disruption budget", SOON).await;
        way.cut();
        apply.until_it_logs("trying again", SOON).await;
        place.budget("db", 1).await;
        assert_eq!((fleet.resets("node1"), place.names().await), (vec![], vec!["db".to_owned()]));
        way.mend();
        apply.wait(SOON * 4).await.succeeded();
        assert_eq!((fleet.system("node1").power, place.names().await), (PowerState::Off, vec![]));

        place.went_down().await;
        let destroy = workspace.start_destroy();
        destroy.until_it_logs("is uncordoned once it is Ready again", SOON).await;
        way.cut();
        destroy.until_it_logs("trying again", SOON).await;
        place.kubelet.up.store(true, Ordering::SeqCst);
        assert!(place.cordoned().await);
        way.mend();
        destroy.wait(SOON * 4).await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
    }
}

impl Place {
    /// Returns the provider's arguments with a kubeconfig.
    pub fn drained_as(&self, kubeconfig: &Path) -> String {
        let (node, kubeconfig) = (&self.node, kubeconfig.display());
        format!("kubernetes_node = {{ nodes = {{ node1 = \"{node}\" }}, kubeconfig = \"{kubeconfig}\" }}")
    }

    /// Removes this program's annotations.
    async fn strip(&self) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let annotations = nodes.get(&self.node).await.unwrap().metadata.annotations.unwrap_or_default();
        let ours = annotations.keys().filter(|key| key.starts_with("terraform-provider-metal/"));
        let none: serde_json::Map<_, _> = ours.map(|key| (key.clone(), serde_json::Value::Null)).collect();
        let change = json!({ "metadata": { "annotations": none } });
        nodes.patch(&self.node, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }
}
