//! `metal_server_boot_configuration`: what a server boots, under a hold and in a turn of its own.

use bmc_simulator::{JournalQuery, PowerState};
use serde_json::json;

use crate::support::{
    images::{Images, SHA256},
    simulator::{Fleet, SOON, maintenance},
    wait::eventually,
    workspace::Workspace,
};

fn boot(more: &str) -> String {
    format!(
        r#"
resource "metal_server_boot_configuration" "boot" {{
  server = "node1"
  {more}
}}
"#
    )
}

const ADDRESS: &str = "metal_server_boot_configuration.boot";

for_each_host! {
    async fn every_method_boots_what_it_says_and_is_put_back(host) {
        let images = Images::start().await;
        for (method, image, runs) in [
            ("virtual_media", Some("rescue.iso"), "rescue.iso"),
            ("http", Some("rescue.efi"), "rescue.efi"),
            ("pxe", None, "Pxe"),
            ("disk", None, "Disk"),
        ] {
            let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
            let before = fleet.system("node1");
            let image = image.map(|name| format!("image = \"{}\"", images.url(name))).unwrap_or_default();
            fleet.configure(&workspace, &boot(&format!("method = \"{method}\"\n  {image}\n  server_power = \"On\"")));
            workspace.apply().await.succeeded();
            let made = workspace.resource(ADDRESS).await.unwrap();
            assert_eq!((&made["state"], &made["message"]), (&json!("Ready"), &json!(null)), "{method}");
            let boots = format!("{:?}", fleet.simulator.boots("node1").unwrap().last().unwrap().booted_from).to_lowercase();
            assert!(boots.contains(&runs.to_lowercase()) || (method == "pxe" && boots.contains("network")), "{method}: {boots}");
            workspace.metal(&["queue"]).await.succeeded().is_silent_about("Preparing");
            workspace.plan().await.is_empty();
            workspace.destroy().await.succeeded();
            let after = fleet.system("node1");
            assert_eq!((after.power, &after.boot, &after.media), (before.power, &before.boot, &before.media), "{method}");
        }
    }
}

for_each_host! {
    async fn under_a_hold_it_takes_no_turn_of_its_own(host) {
        let (fleet, images, workspace) = (Fleet::new(1).await, Images::start().await, Workspace::new(host));
        let body = maintenance("node1", "m", "")
            + &boot(&format!(
                "maintenance_id = metal_server_maintenance.held.id\n  method = \"virtual_media\"\n  image = \"{}\"\n  server_power = \"On\"",
                images.url("rescue.iso")
            ));
        fleet.configure(&workspace, &body);
        workspace.apply().await.succeeded();
        assert!(fleet.runs("node1").contains("rescue.iso"));
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert!(fleet.runs("node1").contains("Disk"));
        assert_eq!(fleet.system("node1").power, PowerState::On);
    }
}

for_each_host! {
    async fn without_maintenance_id_a_server_held_by_ourselves_is_refused_with_advice(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", ""));
        workspace.apply().await.succeeded();
        fleet.configure(&workspace, &(maintenance("node1", "m", "") + &boot("method = \"pxe\"")));
        workspace.apply().await.failed().says("node1 is held by tests/m").says("Set maintenance_id");
        fleet.configure(
            &workspace,
            &(maintenance("node1", "m", "") + &boot("method = \"pxe\"\n  maintenance_id = \"tests/nothing\"")),
        );
        workspace.apply().await.failed().says("tests/nothing does not exist");
        fleet.configure(&workspace, &maintenance("node1", "m", ""));
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.changes("node1"), [""; 0]);
    }
}

for_each_host! {
    async fn a_wrong_image_is_found_before_the_server_is_touched(host) {
        let (fleet, images, workspace) = (Fleet::new(1).await, Images::start().await, Workspace::new(host));
        let with = |name: &str, digest: &str| {
            boot(&format!(
                "method = \"virtual_media\"\n  image = \"{}\"\n  image_sha256 = \"{digest}\"\n  server_power = \"On\"",
                images.url(name)
            ))
        };
        fleet.configure(&workspace, &with("rescue.iso", &"0".repeat(64)));
        workspace.apply().await.failed().says("has the SHA-256").says(SHA256);
        fleet.configure(&workspace, &with("nothing", SHA256));
        workspace.apply().await.failed().says("answered 404");
        assert_eq!(fleet.changes("node1"), [""; 0], "the server was touched");
        assert!(workspace.resource(ADDRESS).await.is_none());
        fleet.configure(&workspace, &with("rescue.iso", SHA256));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn the_server_is_not_switched_on_before_the_preparer_says_ready(host) {
        let (fleet, preparer, workspace) = (Fleet::new(1).await, Images::start().await, Workspace::new(host));
        let ready = preparer.url("ready");
        fleet.configure(
            &workspace,
            &boot(&format!("method = \"pxe\"\n  server_power = \"On\"\n  ready_when = {{ url = \"{ready}\" }}")),
        );
        let run = workspace.start_apply();
        run.until_it_logs("waiting for the boot environment", SOON).await;
        eventually("several questions", SOON, async || (preparer.asked() > 2).then_some(())).await;
        assert_eq!(fleet.system("node1").power, PowerState::Off, "switched on before it was ready");
        preparer.also_serves("ready");
        run.wait(SOON).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn a_medium_that_was_there_before_is_put_back(host) {
        let (fleet, images, workspace) = (Fleet::new(1).await, Images::start().await, Workspace::new(host));
        let change = bmc_simulator::SystemChange {
            insert: Some(bmc_simulator::InsertChange { device: "Cd".into(), image: images.url("theirs.iso") }),
            ..bmc_simulator::SystemChange::default()
        };
        fleet.simulator.change_system("node1", change).unwrap();
        let before = fleet.system("node1");
        assert_eq!(before.media.len(), 1, "{:?}", before.media);
        fleet.configure(
            &workspace,
            &boot(&format!("method = \"virtual_media\"\n  image = \"{}\"\n  server_power = \"On\"", images.url("rescue.iso"))),
        );
        workspace.apply().await.succeeded();
        assert!(fleet.runs("node1").contains("rescue.iso"));
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").media, before.media);
        let ejects = fleet.simulator.journal(&JournalQuery::system("node1").request("POST", "*EjectMedia"));
        assert_eq!(ejects.len(), 2);
        let running = fleet.simulator.events("node1", 0).unwrap();
        assert!(!format!("{running:?}").contains("ejected_while_running: true"), "{running:?}");
    }
}
