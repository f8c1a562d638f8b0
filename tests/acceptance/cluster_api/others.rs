//! Changes to a Machine by other runs and other people.

use bmc_simulator::PowerState;
use serde_json::{Map, Value, json};

use super::{HELD, configure, place, traces};
use crate::{
    servers::cluster_api::MAINTENANCE,
    support::{
        simulator::{SOON, maintenance},
        wait::eventually,
        workspace::Workspace,
    },
};

for_one_host! {
    async fn a_second_run_asks_once_the_first_has_given_the_machine_back(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        let second = workspace.beside();
        configure(&world, &fleet, &workspace, &maintenance("node1", "first", "server_power = \"Off\"")).await;
        configure(&world, &fleet, &second, &maintenance("node1", "second", "server_power = \"Off\"")).await;
        workspace.apply().await.succeeded();
        second.try_plan().await.succeeded().says("tests/first");
        let waits = second.start_apply();
        waits.until_it_logs("queued, 1 ahead", SOON * 2).await;
        let marked = world.machine("m1").await["metadata"]["annotations"]["terraform-provider-metal/maintenance"].clone();
        assert_eq!(marked, "tests/first");
        workspace.destroy().await.succeeded();
        waits.wait(SOON * 4).await.succeeded();
        second.destroy().await.succeeded();
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
        let words: Vec<String> = world.journal.changes().into_iter().flat_map(|it| it.words).collect();
        assert_eq!(words.iter().filter(|it| *it == "label maintenance=requested").count(), 2, "{words:?}");
    }
}

for_one_host! {
    async fn runs_with_two_stores_never_share_a_machine(host) {
        let (world, fleet) = place().await;
        // Separate home folders and so separate stores; both maintenances have the same name.
        let (first, mut second) = (Workspace::new(host), Workspace::new(host));
        let body = maintenance("node1", "bios", "server_power = \"Off\"");
        configure(&world, &fleet, &first, &body).await;
        configure(&world, &fleet, &second, &body).await;
        first.apply().await.succeeded();
        let marks = world.machine("m1").await["metadata"]["annotations"].clone();
        let waits = second.start_apply();
        waits.until_it_logs("waiting for", SOON * 2).await;
        fleet.command_line(&mut second);
        second.set("METAL_CLUSTER_API_KUBECONFIG", world.kubeconfig().display().to_string());
        second.metal(&["prune"]).await.succeeded();
        assert_eq!(world.machine("m1").await["metadata"]["annotations"], marks, "prune removed a running maintenance's annotations");
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown"], "only the holder switched the server off");
        first.destroy().await.succeeded();
        waits.wait(SOON * 4).await.succeeded();
        second.destroy().await.succeeded();
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On", "GracefulShutdown", "On"]);
    }
}

for_one_host! {
    async fn an_interrupted_wait_takes_the_request_back(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", "server_power = \"Off\"")).await;
        world.withhold("m1").await;
        let apply = workspace.start_apply();
        apply.until_it_logs("waiting for the maintenance controller to approve", SOON * 2).await;
        apply.interrupt();
        apply.wait(SOON * 4).await.failed();
        assert!(world.maintenance("m1").await.is_none());
        // The next command removes leftovers of a hasty stop.
        let mut operator = workspace.beside();
        fleet.command_line(&mut operator);
        operator.set("METAL_CLUSTER_API_KUBECONFIG", world.kubeconfig().display().to_string());
        eventually("all of our annotations and labels are removed", SOON * 2, async || {
            if traces(&world, "m1").await.is_empty() {
                return Some(());
            }
            operator.metal(&["prune"]).await;
            None
        })
        .await;
        assert!(fleet.changes("node1").is_empty());
    }
}

for_one_host! {
    async fn a_label_that_another_author_removes_is_told_and_the_server_is_given_back(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", "server_power = \"Off\"")).await;
        workspace.apply().await.succeeded();
        world.label_machine("m1", json!({ MAINTENANCE: null })).await;
        workspace.try_plan().await.succeeded().says("was removed by another author");
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On, "the release did not restore the power");
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn an_operation_under_a_hold_whose_label_was_removed_sends_nothing(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        let second = workspace.beside();
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", "")).await;
        workspace.apply().await.succeeded();
        world.label_machine("m1", json!({ MAINTENANCE: null })).await;
        let restart = "resource \"metal_server_operation\" \"op\" {\n  server = \"node1\"\n  namespace = \"tests\"\n  name = \"restart\"\n  \
                       operation = \"ForceRestart\"\n  maintenance_id = \"tests/bios\"\n}\n";
        configure(&world, &fleet, &second, restart).await;
        second.apply().await.failed().says("Cluster API").says("was removed by another author").says("Release tests/bios first");
        assert_eq!(fleet.resets("node1"), [""; 0], "a server whose Node can run workloads was reset");
        workspace.try_plan().await.succeeded().says("was removed by another author");
        workspace.destroy().await.succeeded();
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_deletion_waits_until_the_server_is_back(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", "server_power = \"Off\"")).await;
        workspace.apply().await.succeeded();
        world.delete_machine("m1").await;
        let left = world.finish_deletion("m1").await;
        assert!(left.iter().any(|hook| hook.ends_with("/terraform-provider-metal")), "{left:?}");
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
        let left = world.finish_deletion("m1").await;
        assert!(!left.iter().any(|hook| hook.ends_with("/terraform-provider-metal")), "{left:?}");
        workspace.apply().await.failed().says("m1 is being deleted");
    }
}

for_one_host! {
    async fn a_rollout_is_waited_for_unless_only_a_person_goes_on_with_it(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        let rollout = |strategy: &str| json!({ "spec": { "clusterName": "c", "rollout": { "strategy": { "type": strategy } } } });
        world.create("MachineDeployment", "workers", rollout("RollingUpdate")).await;
        world.label_machine("m1", json!({ "cluster.x-k8s.io/deployment-name": "workers" })).await;
        world.merge_status("m1", json!({ "conditions": [{ "type": "UpToDate", "status": "False" }] })).await;
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", "")).await;
        workspace.try_plan().await.succeeded().says("It would wait for the rollout that replaces Machine");
        world.merge("MachineDeployment", "workers", rollout("OnDelete")).await;
        workspace.try_plan().await.succeeded().says("is replaced only after a manual action");
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_machine_that_vanishes_while_it_is_asked_for_ends_the_wait(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        world.withhold("m1").await;
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", "server_power = \"Off\"")).await;
        let apply = workspace.start_apply();
        world.until_machine("m1", "maintenance requested", |it| it["metadata"]["labels"][MAINTENANCE] == "requested").await;
        // Like `clusterctl move` or a forced deletion.
        world.delete_machine("m1").await;
        world.merge("Machine", "m1", json!({ "metadata": { "finalizers": null } })).await;
        apply.wait(SOON * 2).await.failed().says(&format!("Machine {}/m1 does not exist", world.namespace));
        assert_eq!(fleet.resets("node1"), [""; 0]);
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_one_host! {
    async fn a_machine_whose_annotations_a_person_removed_is_freed_by_the_release_and_by_prune(host) {
        let (world, fleet) = place().await;
        let mut workspace = Workspace::new(host);
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", "server_power = \"Off\"")).await;
        workspace.apply().await.succeeded();
        let metadata = world.machine("m1").await["metadata"].clone();
        let marks = metadata["annotations"].as_object().unwrap().keys().filter(|key| key.starts_with("terraform-provider-metal/"));
        let gone: Map<String, Value> = marks.map(|key| (key.clone(), Value::Null)).collect();
        world.merge("Machine", "m1", json!({ "metadata": { "annotations": gone } })).await;
        workspace.try_plan().await.succeeded().says("our annotations were removed from Machine");
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());

        // As if the ended run had died earlier, and a person then removed its annotations.
        let ours = |key: &&String| key.ends_with("/terraform-provider-metal") || key.ends_with("/skip-remediation");
        let held = metadata["annotations"].as_object().unwrap();
        let guards: Map<String, Value> =
            held.keys().filter(ours).map(|key| (key.clone(), held[key].clone())).collect();
        assert_eq!(guards.len(), 2, "{guards:?}");
        world.merge("Machine", "m1", json!({ "metadata": { "annotations": guards } })).await;
        fleet.command_line(&mut workspace);
        workspace.set("METAL_CLUSTER_API_KUBECONFIG", world.kubeconfig().display().to_string());
        workspace.metal(&["prune"]).await.succeeded();
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn an_overdue_hold_is_ended_and_its_machine_free_before_the_next_asks(host) {
        let ((world, fleet), first) = (place().await, Workspace::new(host));
        let overdue = maintenance("node1", "bios", "server_power = \"Off\"\n  expires_after = \"1s\"");
        configure(&world, &fleet, &first, &overdue).await;
        first.apply().await.succeeded();
        let second = first.beside();
        configure(&world, &fleet, &second, &maintenance("node1", "next", "")).await;
        second.apply().await.succeeded();
        let words: Vec<String> = world.journal.changes().into_iter().flat_map(|it| it.words).collect();
        assert_eq!(words.iter().filter(|it| *it == "label maintenance=requested").count(), 2, "{words:?}");
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"], "the server was not restored between the two maintenances");
        first.refresh().await.succeeded().says("Maintenance has expired");
        first.destroy().await.succeeded();
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("approved"), "the second maintenance lost its approval");
        second.destroy().await.succeeded();
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
    }
}
