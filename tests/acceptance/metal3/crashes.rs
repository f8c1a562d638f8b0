//! Kills the provider while it enters and leaves a host. The next run continues, and no marks
//! remain.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bmc_simulator::PowerState;
use tokio::sync::Notify;

use super::{HELD, configure, configure_as, configure_with, maintenance};
use crate::{
    servers::{
        kubernetes_proxy::{Deal, Proxy},
        metal3::{
            operator::Options,
            world::{DETACHED, World},
        },
    },
    support::{images::Images, simulator::SOON, wait::eventually, workspace::Workspace},
};

for_one_host! {
    async fn a_run_that_is_killed_on_its_way_in_or_out_is_continued(host) {
        let world = World::start(1, Options::default()).await;
        let awake = world.running.operator.options.awake.clone();
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("bios", "server_power = \"Off\""));

        // Marked, but the operator has not reacted.
        awake.close();
        let apply = workspace.start_apply();
        world.until("node1", "marked", |host| !host["metadata"]["annotations"][DETACHED].is_null()).await;
        apply.kill_everything();
        drop(apply);
        awake.open();
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);

        // Restored and released, but the operator has not reacted.
        awake.close();
        let destroy = workspace.start_destroy();
        world.until("node1", "released", |host| host["metadata"]["annotations"][DETACHED].is_null()).await;
        destroy.kill_everything();
        drop(destroy);
        assert!(!world.traces("node1").await.is_empty());
        awake.open();
        workspace.destroy().await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
        let host = world.host("node1").await;
        assert_eq!((&host["status"]["operationalStatus"], &host["status"]["poweredOn"]), (&"OK".into(), &true.into()));
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_one_host! {
    async fn a_run_that_is_killed_while_it_keeps_a_host_off_or_releases_it_is_continued(host) {
        let world = World::start(1, Options::default()).await;
        let awake = world.running.operator.options.awake.clone();
        let workspace = Workspace::new(host);
        configure_with(&world, &workspace, "hold = \"power_off\"", &maintenance("bios", "server_power = \"Off\""));
        let key = |host: &serde_json::Value| {
            let all = host["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
            all.keys().any(|key| key.starts_with("reboot.metal3.io/"))
        };
        awake.close();
        let apply = workspace.start_apply();
        world.until("node1", "marked", key).await;
        apply.kill_everything();
        drop(apply);
        awake.open();
        workspace.apply().await.succeeded();
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);

        // The key is removed, but the operator has not powered the host on.
        awake.close();
        let destroy = workspace.start_destroy();
        world.until("node1", "released", |host| !key(host)).await;
        destroy.kill_everything();
        drop(destroy);
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
        assert!(!world.traces("node1").await.is_empty());
        awake.open();
        workspace.destroy().await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_one_host! {
    async fn a_run_that_is_killed_with_a_medium_in_the_drive_is_continued(host) {
        let (world, images, workspace) = (World::start(1, Options::default()).await, Images::start().await, Workspace::new(host));
        let boot = format!("boot_configuration = {{ method = \"virtual_media\", image = \"{}\" }}", images.url("rescue.iso"));
        configure(&world, &workspace, &maintenance("bios", &format!("server_power = \"On\"\n  {boot}")));
        let filled = || !world.simulator.system("node1").unwrap().media.is_empty();
        let apply = workspace.start_apply();
        eventually("the drive is filled", SOON * 2, async || filled().then_some(())).await;
        apply.kill_everything();
        let _ = apply.wait(SOON).await;
        workspace.apply().await.succeeded();
        assert!(filled());

        let destroy = workspace.start_destroy();
        eventually("the drive is empty", SOON * 2, async || (!filled()).then_some(())).await;
        destroy.kill_everything();
        let _ = destroy.wait(SOON).await;
        workspace.destroy().await.succeeded();
        assert!(!filled());
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
        world.simulator.wait_power("node1", PowerState::On, SOON).await.expect("as it was");
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_one_host! {
    async fn a_run_that_is_killed_while_it_removes_its_annotations_leaves_none(host) {
        // Before the request arrives, and after it with its reply lost.
        for arrives in [false, true] {
            let (world, workspace) = (World::start(1, Options::default()).await, Workspace::new(host));
            let proxy = Proxy::to(world.kubernetes).await;
            configure_as(&world.kubernetes.kubeconfig_at(&proxy.url(), "admin"), &world, &workspace, "", &maintenance("bios", ""));
            workspace.apply().await.succeeded();
            let (sent, never) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
            let told = Arc::clone(&sent);
            proxy.rule(move |seen| {
                let removes = seen.method == "PATCH" && seen.body.contains("\"terraform-provider-metal/uid\":null");
                told.fetch_or(removes, Ordering::SeqCst);
                match removes {
                    false => Deal::Pass,
                    true if arrives => Deal::LoseReply,
                    true => Deal::Wait(Arc::clone(&never)),
                }
            });
            let destroy = workspace.start_destroy();
            eventually("the annotations' removal is sent", SOON * 2, async || sent.load(Ordering::SeqCst).then_some(())).await;
            destroy.kill_everything();
            drop(destroy);
            proxy.rule(|_| Deal::Pass);
            workspace.destroy().await.succeeded();
            assert_eq!(world.traces("node1").await, Vec::<String>::new());
            workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        }
    }
}

for_one_host! {
    async fn a_dead_operator_ends_the_wait_in_time_and_leaves_nothing(host) {
        let mut world = World::start(1, Options::default()).await;
        let workspace = Workspace::new(host);
        let short = "server_power = \"Off\"\n  timeouts = { create = \"6s\", delete = \"30s\" }";
        configure(&world, &workspace, &maintenance("bios", short));
        world.running.stop();
        workspace.apply().await.failed().says("timeouts.create ended");
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
        // The operator's write proves that it manages the host: it finds the host powered off.
        world.simulator.set_power("node1", PowerState::Off).unwrap();
        world.restart();
        // No marks remain, whichever attempt released it.
        eventually("our annotations are removed from the host", SOON * 3, async || {
            workspace.destroy().await;
            workspace.metal(&["prune"]).await;
            world.traces("node1").await.is_empty().then_some(())
        })
        .await;
        world.until("node1", "managed", |host| host["status"]["operationalStatus"] == "OK").await;
    }
}
