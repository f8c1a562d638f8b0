//! A held host outside apply and destroy: import, forced release, `prune`, and a cluster outage.

use std::fs;

use bmc_simulator::PowerState;
use serde_json::{Map, Value, json};

use super::{HELD, configure, configure_as, configure_with, maintenance};
use crate::{
    servers::{
        cluster_api,
        metal3::{
            operator::Options,
            world::{DETACHED, World},
        },
        toxiproxy::Toxiproxy,
    },
    support::{host::Host, run::Run, simulator::SOON, wait::eventually, workspace::Workspace},
};

/// Configures the command line for a world's hosts.
fn reaches(world: &World, workspace: &mut Workspace) {
    let kubeconfig = world.kubernetes.user("admin", &["system:masters"]).display().to_string();
    workspace.set("METAL_KUBECONFIG", kubeconfig).set("METAL_KUBE_NAMESPACE", &world.namespace);
}

/// Returns the arguments for a forced release of `ops/bios`.
async fn forced(workspace: &Workspace) -> Vec<String> {
    let generation = workspace.generation("ops/bios").await;
    let words = [
        "--backend",
        "metal3",
        "release",
        "ops/bios",
        "--force",
        "--generation",
        &generation,
        "--reason",
        "node needed",
    ];
    words.map(str::to_owned).to_vec()
}

async fn release(workspace: &Workspace) -> Run {
    let arguments = forced(workspace).await;
    workspace.metal(&words(&arguments)).await
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// Asserts that the host is managed, provisioned, powered as in its spec, unmarked and unlocked.
async fn is_as_before(world: &World, workspace: &Workspace) {
    let host = world.host("node1").await;
    assert_eq!(host["status"]["operationalStatus"], "OK", "{host}");
    assert_eq!(host["status"]["provisioning"]["state"], "provisioned", "{host}");
    assert_eq!((&host["spec"]["online"], &host["status"]["poweredOn"]), (&json!(true), &json!(true)), "{host}");
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
    assert_eq!(world.traces("node1").await, Vec::<String>::new());
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}

for_one_host! {
    async fn a_held_host_is_imported_and_released_without_its_state(host) {
        let world = World::start(1, Options::default()).await;
        let mut workspace = Workspace::new(host);
        reaches(&world, &mut workspace);
        let body = maintenance("bios", "server_power = \"Off\"");
        configure(&world, &workspace, &body);
        workspace.apply().await.succeeded();
        let before = world.host("node1").await;
        workspace.run(&["state", "rm", HELD]).await.succeeded();
        workspace.import(HELD, "ops/bios").await.succeeded();
        workspace.apply().await.succeeded().says("0 added, 1 changed");
        workspace.plan().await.is_empty();
        assert_eq!(world.host("node1").await["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
        if host == Host::Terraform {
            let other = workspace.beside();
            let identity = "identity = {\n    namespace = \"ops\"\n    name = \"bios\"\n  }";
            configure(&world, &other, &format!("{body}\nimport {{\n  to = {HELD}\n  {identity}\n}}\n"));
            other.plan().await.run.says("1 to import, 0 to add, 1 to change, 0 to destroy");
            other.apply().await.succeeded();
            other.plan().await.is_empty();
        }

        fs::remove_file(workspace.folder().join("terraform.tfstate")).unwrap();
        release(&workspace).await.succeeded().says("is in its prior state");
        is_as_before(&world, &workspace).await;
        // The configuration still exists. It can acquire the host again after `release --allow`.
        workspace.apply().await.failed().says("A released name is refused");
        workspace.metal(&["release", "--allow", "ops/bios"]).await.succeeded();
        workspace.apply().await.succeeded();
        assert_eq!(world.host("node1").await["status"]["operationalStatus"], "detached");
        workspace.destroy().await.succeeded();
        is_as_before(&world, &workspace).await;
    }
}

for_one_host! {
    async fn a_run_that_was_killed_while_it_entered_is_released_by_a_person(host) {
        let world = World::start(1, Options::default()).await;
        let awake = world.running.operator.options.awake.clone();
        let mut workspace = Workspace::new(host);
        reaches(&world, &mut workspace);
        configure(&world, &workspace, &maintenance("bios", "server_power = \"Off\""));
        // Killed before the operator reacted, and after the host was detached.
        for detached in [false, true] {
            if !detached {
                awake.close();
            }
            let apply = workspace.start_apply();
            world
                .until("node1", "entered", |host| {
                    !host["metadata"]["annotations"][DETACHED].is_null()
                        && (!detached || host["status"]["operationalStatus"] == "detached")
                })
                .await;
            apply.kill_everything();
            drop(apply);
            // Its lock is held, so its marks are not orphaned.
            workspace.metal(&["--backend", "metal3", "prune"]).await.succeeded();
            assert!(!world.host("node1").await["metadata"]["annotations"][DETACHED].is_null());
            awake.open();
            let said = release(&workspace).await.succeeded();
            // The operator detached the host, possibly unnoticed by the killed run.
            assert!(detached || said.words().contains("had not been touched"), "{}", said.words());
            is_as_before(&world, &workspace).await;
            workspace.metal(&["release", "--allow", "ops/bios"]).await.succeeded();
        }
    }
}

for_one_host! {
    async fn a_hold_that_a_dead_run_left_behind_is_pruned_and_the_marks_of_others_stay(host) {
        let world = World::start(1, Options::default()).await;
        tokio::task::spawn_blocking(|| cluster_api::world::install(world.kubernetes)).await.unwrap();
        let mut workspace = Workspace::new(host);
        reaches(&world, &mut workspace);
        configure(&world, &workspace, &maintenance("bios", ""));
        workspace.apply().await.succeeded();
        let held = world.host("node1").await;
        workspace.destroy().await.succeeded();
        is_as_before(&world, &workspace).await;
        // As if the former run had died between its record and the host change.
        let ours: Map<String, Value> = held["metadata"]["annotations"].as_object().unwrap().clone();
        let change = json!({"metadata": {"annotations": ours}, "spec": {"consumerRef": held["spec"]["consumerRef"]}});
        world.merge("BareMetalHost", "node1", change.clone()).await;
        world.until("node1", "detached", |host| host["status"]["operationalStatus"] == "detached").await;
        eventually("our annotations are removed from the host", SOON * 2, async || {
            workspace.metal(&["--backend", "metal3", "prune"]).await.succeeded();
            world.traces("node1").await.is_empty().then_some(())
        })
        .await;
        world.until("node1", "managed", |host| host["status"]["operationalStatus"] == "OK").await;
        // A backend without permissions does not stop `prune` for the others.
        world.merge("BareMetalHost", "node1", change).await;
        world.until("node1", "detached", |host| host["status"]["operationalStatus"] == "detached").await;
        let without_rights = world.kubernetes.user("stranger", &[]);
        workspace.set("METAL_CLUSTER_API_KUBECONFIG", without_rights.display().to_string());
        eventually("our annotations are removed from the host", SOON * 2, async || {
            workspace.metal(&["--backend", "metal3", "prune"]).await.failed().says("could not be listed");
            world.traces("node1").await.is_empty().then_some(())
        })
        .await;
        workspace.set("METAL_CLUSTER_API_KUBECONFIG", world.kubernetes.kubeconfig().display().to_string());
        world.until("node1", "managed", |host| host["status"]["operationalStatus"] == "OK").await;
        // A person's annotation stays.
        world.annotate("node1", json!({DETACHED: "disk swap by carol"})).await;
        workspace.metal(&["--backend", "metal3", "prune"]).await.succeeded().says("No orphaned requests");
        assert_eq!(world.host("node1").await["metadata"]["annotations"][DETACHED], "disk swap by carol");
    }
}

for_one_host! {
    async fn a_key_or_consumer_that_a_dead_run_left_without_our_annotations_is_pruned(host) {
        let world = World::start(1, Options::default()).await;
        let mut workspace = Workspace::new(host);
        reaches(&world, &mut workspace);
        configure_with(&world, &workspace, "hold = \"power_off\"", &maintenance("bios", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        let held = world.host("node1").await["metadata"]["annotations"].clone();
        let uid = held["terraform-provider-metal/uid"].as_str().unwrap();
        let (key, value) = { held.as_object().unwrap().iter() }.find(|(key, _)| key.contains("reboot.metal3.io/")).unwrap();
        assert!(value.as_str().unwrap().contains(uid), "{value}");
        workspace.destroy().await.succeeded();
        is_as_before(&world, &workspace).await;
        let consumer = json!({
            "apiVersion": "terraform-provider-metal/v1", "kind": "Maintenance", "name": uid, "namespace": world.namespace,
        });
        let left = [
            json!({ "metadata": { "annotations": { key: value } } }),
            json!({ "spec": { "consumerRef": consumer } }),
        ];
        for change in left {
            world.merge("BareMetalHost", "node1", change).await;
            workspace.metal(&["--backend", "metal3", "prune"]).await.succeeded();
            assert_eq!(world.traces("node1").await, Vec::<String>::new());
        }
        // A maintenance that is missing in this store can belong to another store.
        let theirs = "reboot.metal3.io/terraform-provider-metal.01234567-89ab-7def-8123-456789abcdef";
        world.annotate("node1", json!({ theirs: "{\"mode\":\"soft\"}" })).await;
        workspace.metal(&["--backend", "metal3", "prune"]).await.succeeded().says("No orphaned requests");
        assert_eq!(world.traces("node1").await, [theirs]);
    }
}

for_one_host! {
    async fn a_cluster_that_is_away_while_a_host_is_waited_for_or_detached_is_waited_out(host) {
        let world = World::start(1, Options::default()).await;
        let awake = world.running.operator.options.awake.clone();
        let way = Toxiproxy::to(&world.kubernetes.host());
        let kubeconfig = world.kubernetes.kubeconfig_at(&format!("https://{}", way.host()), "admin");
        let workspace = Workspace::new(host);
        configure_as(&kubeconfig, &world, &workspace, "", &maintenance("bios", "server_power = \"Off\""));
        // Another author detached the host.
        world.annotate("node1", json!({ DETACHED: "disk swap by carol" })).await;
        let apply = workspace.start_apply();
        apply.until_it_logs("another author detached", SOON).await;
        way.cut();
        apply.until_it_logs("trying again", SOON).await;
        world.annotate("node1", json!({ DETACHED: null })).await;
        // The operator stops before it reads this, and would keep the host detached for the other
        // author.
        world.until("node1", "managed", |host| host["status"]["operationalStatus"] == "OK").await;
        awake.close();
        way.mend();
        let entered = |host: &Value| host["metadata"]["annotations"][DETACHED].as_str().is_some_and(|it| it.contains("terraform"));
        world.until("node1", "entered", entered).await;
        // The operator detaches the host while the provider is disconnected.
        way.cut();
        awake.open();
        world.until("node1", "detached", |host| host["status"]["operationalStatus"] == "detached").await;
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
        way.mend();
        apply.wait(SOON * 4).await.succeeded();
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
        // A refresh without the cluster warns and keeps the state.
        way.cut();
        workspace.refresh().await;
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        way.mend();
        workspace.destroy().await.succeeded();
        is_as_before(&world, &workspace).await;
    }
}

for_one_host! {
    async fn a_cluster_that_is_away_during_a_release_is_waited_out(host) {
        let world = World::start(1, Options::default()).await;
        let awake = world.running.operator.options.awake.clone();
        let way = Toxiproxy::to(&world.kubernetes.host());
        let kubeconfig = world.kubernetes.kubeconfig_at(&format!("https://{}", way.host()), "admin");
        let mut workspace = Workspace::new(host);
        reaches(&world, &mut workspace);
        workspace.set("METAL_KUBECONFIG", kubeconfig.display().to_string());
        configure_as(&kubeconfig, &world, &workspace, "", &maintenance("bios", "server_power = \"Off\""));

        // Outages before the first change and during re-attachment, for a forced release and a
        // destroy.
        for by_hand in [true, false] {
            workspace.apply().await.succeeded();
            let arguments = forced(&workspace).await;
            let version = world.host("node1").await["metadata"]["resourceVersion"].clone();
            way.cut();
            let releases =
                if by_hand { workspace.start_metal(&words(&arguments)) } else { workspace.start_destroy() };
            eventually("the release is retried", SOON, async || {
                (releases.output() + &releases.log()).contains("trying again").then_some(())
            })
            .await;
            assert_eq!(world.host("node1").await["metadata"]["resourceVersion"], version);
            awake.close();
            way.mend();
            world.until("node1", "released", |host| host["metadata"]["annotations"][DETACHED].is_null()).await;
            way.cut();
            awake.open();
            world.until("node1", "on again", |host| host["status"]["poweredOn"] == true).await;
            assert!(!world.traces("node1").await.is_empty(), "our annotations were removed before the operator's reaction was observed");
            way.mend();
            releases.wait(SOON * 4).await.succeeded();
            is_as_before(&world, &workspace).await;
            if by_hand {
                workspace.metal(&["release", "--allow", "ops/bios"]).await.succeeded();
            }
        }
    }
}
