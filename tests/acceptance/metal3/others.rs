//! Changes to a host by others, and other runs and configurations for the same machine.

use bmc_simulator::{JournalQuery, PowerState};
use serde_json::{Value, json};

use super::{HELD, configure, configure_as, configure_with, maintenance};
use crate::{
    servers::{
        kubernetes_proxy::Proxy,
        metal3::{
            operator::Options,
            world::{DETACHED, World},
        },
    },
    support::{
        simulator::{Fleet, SOON},
        wait::eventually,
        workspace::Workspace,
    },
};

/// Counts the machine's power changes by any client.
fn resets(world: &World) -> usize {
    let journal = world.simulator.journal(&JournalQuery::system("node1"));
    journal.iter().filter(|entry| entry.path.contains("ComputerSystem.Reset")).count()
}

for_one_host! {
    async fn a_host_that_another_author_detached_is_waited_for_and_stays_so(host) {
        let world = World::start(1, Options::default()).await;
        world.annotate("node1", json!({DETACHED: "by the night shift"})).await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("bios", "server_power = \"Off\""));
        workspace.try_plan().await.succeeded().says("It would wait for").says("which another author detached");
        let apply = workspace.start_apply();
        eventually("the queue shows who detached the host", SOON, async || {
            let queue = workspace.metal(&["queue"]).await.succeeded();
            queue.words().contains("another author detached").then_some(())
        })
        .await;
        assert_eq!(world.host("node1").await["metadata"]["annotations"][DETACHED], "by the night shift");
        assert_eq!((world.traces("node1").await, resets(&world)), (vec![DETACHED.to_owned()], 0));
        world.annotate("node1", json!({DETACHED: null})).await;
        apply.wait(SOON * 2).await.succeeded();
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
        workspace.destroy().await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn runs_with_two_stores_never_share_a_host(host) {
        let world = World::start(1, Options::default()).await;
        // Separate home folders and so separate stores; both maintenances have the same name.
        let (first, second) = (Workspace::new(host), Workspace::new(host));
        for workspace in [&first, &second] {
            configure(&world, workspace, &maintenance("bios", "server_power = \"Off\""));
        }
        first.apply().await.succeeded();
        let marks = world.host("node1").await["metadata"]["annotations"].clone();
        second.try_plan().await.succeeded().says("It would wait for");
        let waits = second.start_apply();
        waits.until_it_logs("waiting for", SOON * 2).await;
        assert_eq!(world.host("node1").await["metadata"]["annotations"], marks);
        assert_eq!(resets(&world), 1, "only the holder switched the server off");
        first.destroy().await.succeeded();
        waits.wait(SOON * 4).await.succeeded();
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
        second.destroy().await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
    }
}

for_one_host! {
    async fn a_host_whose_bmc_is_replaced_by_that_of_another_server_leaves_that_alone(host) {
        let world = World::start(2, Options::default()).await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("bios", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        // The other server is held by another run, so the store contains it.
        let second = workspace.beside();
        configure(&world, &second, &maintenance("other", "").replace("\"node1\"", "\"node2\""));
        second.apply().await.succeeded();
        let bmc = world.host("node1").await["spec"]["bmc"].clone();
        let other = json!({"address": world.address("node2"), "credentialsName": "node2-bmc"});
        world.merge("BareMetalHost", "node1", json!({"spec": {"bmc": other}})).await;
        let run = workspace.destroy().await.failed();
        run.says("is not the locked server").says("release --force --accept-as-is");
        assert_eq!(world.simulator.system("node2").unwrap().power, PowerState::On);
        let touched = world.simulator.journal(&JournalQuery::system("node2"));
        let changes: Vec<_> = touched.iter().filter(|it| it.method != "GET" && !it.path.contains("Session")).collect();
        assert!(changes.is_empty(), "{changes:?}");
        second.destroy().await.succeeded();
        world.merge("BareMetalHost", "node1", json!({"spec": {"bmc": bmc}})).await;
        workspace.destroy().await.succeeded();
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn an_annotation_that_another_author_writes_at_the_same_moment_stays(host) {
        let world = World::start(1, Options::default()).await;
        let proxy = Proxy::to(world.kubernetes).await;
        let kubeconfig = world.kubernetes.kubeconfig_at(&proxy.url(), "admin");
        let workspace = Workspace::new(host);
        configure_as(&kubeconfig, &world, &workspace, "", &maintenance("bios", "server_power = \"Off\""));
        let detaches = proxy.hold_first(|seen| seen.method == "PATCH" && seen.body.contains(DETACHED));
        let apply = workspace.start_apply();
        eventually("it detaches the host", SOON * 2, async || detaches.has_come().then_some(())).await;
        world.annotate("node1", json!({ DETACHED: "disk swap by carol" })).await;
        detaches.goes_on();
        apply.until_it_logs("another author detached", SOON * 2).await;
        assert_eq!(world.host("node1").await["metadata"]["annotations"][DETACHED], "disk swap by carol");
        assert_eq!((world.traces("node1").await, resets(&world)), (vec![DETACHED.to_owned()], 0));
        world.annotate("node1", json!({ DETACHED: null })).await;
        apply.wait(SOON * 4).await.succeeded();
        workspace.destroy().await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_host_that_is_deleted_while_its_release_is_written_counts_as_left(host) {
        let world = World::start(1, Options::default()).await;
        let proxy = Proxy::to(world.kubernetes).await;
        let kubeconfig = world.kubernetes.kubeconfig_at(&proxy.url(), "admin");
        let workspace = Workspace::new(host);
        let off = maintenance("bios", "server_power = \"Off\"");
        configure_as(&kubeconfig, &world, &workspace, "hold = \"power_off\"", &off);
        workspace.apply().await.succeeded();
        let leaves = proxy.hold_first(|seen| seen.method == "PATCH" && seen.path.contains("baremetalhosts/node1"));
        let destroy = workspace.start_destroy();
        eventually("it leaves the host", SOON * 2, async || leaves.has_come().then_some(())).await;
        world.delete("node1").await;
        eventually("the operator deletes it", SOON, async || world.find("node1").await.is_none().then_some(())).await;
        leaves.goes_on();
        destroy.wait(SOON * 2).await.succeeded();
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_one_host! {
    async fn a_host_that_a_person_takes_back_is_told_and_not_touched(host) {
        let world = World::start(1, Options::default()).await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("bios", ""));
        workspace.apply().await.succeeded();
        let all = world.host("node1").await["metadata"]["annotations"].clone();
        let gone: serde_json::Map<String, Value> =
            all.as_object().unwrap().keys().map(|key| (key.clone(), Value::Null)).collect();
        world.annotate("node1", Value::Object(gone)).await;
        workspace.refresh().await.succeeded().says("External maintenance system revoked the server");
        assert!(workspace.resource(HELD).await.is_some());
        workspace.destroy().await.succeeded();
        assert_eq!(resets(&world), 0);
        world.until("node1", "managed", |host| host["status"]["operationalStatus"] == "OK").await;
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        assert_eq!(world.traces("node1").await, Vec::<String>::new(), "our annotations still block other consumers");
    }
}

for_one_host! {
    async fn a_key_whose_marks_a_person_removed_keeps_no_host_off(host) {
        let world = World::start(1, Options::default()).await;
        let workspace = Workspace::new(host);
        configure_with(&world, &workspace, "hold = \"power_off\"", &maintenance("bios", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        let all = world.host("node1").await["metadata"]["annotations"].clone();
        let marks = all.as_object().unwrap().keys().filter(|key| key.starts_with("terraform-provider-metal/"));
        let gone: serde_json::Map<String, Value> = marks.map(|key| (key.clone(), Value::Null)).collect();
        assert!(!gone.is_empty());
        world.annotate("node1", Value::Object(gone)).await;
        workspace.destroy().await.succeeded();
        world.until("node1", "on", |host| host["status"]["poweredOn"] == true).await;
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn two_runs_and_a_plain_redfish_configuration_meet_in_one_lock(host) {
        let world = World::start(1, Options::default()).await;
        let first = Workspace::new(host);
        configure(&world, &first, &maintenance("bios", ""));
        first.apply().await.succeeded();
        // A configuration that uses only the BMC waits for the host's maintenance.
        let (again, plain) = (first.beside(), first.beside());
        let fleet = Fleet { simulator: world.simulator.clone() };
        fleet.configure(&plain, &maintenance("disk", ""));
        let disk = plain.start_apply();
        let waits = async |name: &str| {
            eventually("it waits", SOON, async || {
                let queue = first.metal(&["queue"]).await.succeeded().stdout;
                queue.contains(name).then_some(())
            })
            .await;
        };
        waits("ops/disk").await;
        first.destroy().await.succeeded();
        disk.wait(SOON * 2).await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new(), "a Redfish maintenance wrote to the host");
        // Another run with the Metal3 backend waits too, without marking the host.
        configure(&world, &again, &maintenance("nic", ""));
        let nic = again.start_apply();
        waits("ops/nic").await;
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
        plain.destroy().await.succeeded();
        nic.wait(SOON * 2).await.succeeded();
        let marked = world.host("node1").await["metadata"]["annotations"]["terraform-provider-metal/maintenance"].clone();
        assert_eq!(marked, "ops/nic");
        again.destroy().await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn an_overdue_hold_is_ended_and_the_host_managed_before_the_next_has_it(host) {
        let world = World::start(1, Options::default()).await;
        let (first, marks) = (Workspace::new(host), "terraform-provider-metal/maintenance");
        configure(&world, &first, &maintenance("bios", "server_power = \"Off\"\n  expires_after = \"1s\""));
        first.apply().await.succeeded();
        let second = first.beside();
        configure(&world, &second, &maintenance("next", ""));
        second.apply().await.succeeded();
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On, "the server was not restored between the two maintenances");
        assert_eq!(world.host("node1").await["metadata"]["annotations"][marks], "ops/next");
        first.refresh().await.succeeded().says("Maintenance has expired");
        first.destroy().await.succeeded();
        let host = world.host("node1").await;
        assert_eq!((&host["metadata"]["annotations"][marks], &host["status"]["operationalStatus"]), (&json!("ops/next"), &json!("detached")));
        second.destroy().await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
        assert_eq!(resets(&world), 2, "off and on");
    }
}
