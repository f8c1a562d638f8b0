//! `metal_server_boot_configuration`: the boot source, under a hold and with its own lock.

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

for_one_host! {
    async fn what_is_found_wrong_only_when_it_is_applied_touches_no_server(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let late = "resource \"terraform_data\" \"late\" {\n  input = \"http://images/rescue.iso\"\n}\n";
        let body = boot("method = \"pxe\"\n  image = terraform_data.late.output\n  server_power = \"On\"");
        fleet.configure(&workspace, &(late.to_owned() + &body));
        workspace.try_plan().await.succeeded();
        workspace.apply().await.failed().says("This method does not boot an image");
        assert_eq!(fleet.changes("node1"), [""; 0]);
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_one_host! {
    async fn one_that_is_tainted_is_restored_and_made_again(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let before = fleet.system("node1");
        fleet.configure(&workspace, &boot("method = \"pxe\"\n  server_power = \"On\""));
        workspace.apply().await.succeeded();
        workspace.refresh().await.succeeded();
        workspace.run(&["taint", ADDRESS]).await.succeeded();
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(ADDRESS).await.unwrap()["state"], "Ready");
        workspace.plan().await.is_empty();
        workspace.run(&["taint", ADDRESS]).await.succeeded();
        workspace.destroy().await.succeeded();
        let after = fleet.system("node1");
        assert_eq!((after.power, &after.boot, &after.media), (before.power, &before.boot, &before.media));
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
        workspace.apply().await.failed().says("in this configuration").says("tests/m").says("maintenance_id");
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

/// Returns a server claimed by one owner and booted by another team.
async fn of_another_owner(host: crate::support::host::Host) -> (Fleet, Workspace, Workspace) {
    let (fleet, ours) = (Fleet::new(1).await, Workspace::new(host));
    let theirs = ours.beside();
    let claim = "resource \"metal_server_claim\" \"db\" {\n  server = \"node1\"\n  namespace = \"db\"\n  name = \"primary\"\n}\n";
    fleet.configure_with(&theirs, "owner = \"team-db\"", claim);
    theirs.apply().await.succeeded();
    (fleet, ours, theirs)
}

fn as_ops(fleet: &Fleet, workspace: &Workspace, more: &str) {
    fleet.configure_with(workspace, "owner = \"team-ops\"", &boot(more));
}

const RECORD: &str = "boot-configuration/team-ops.node1";

for_one_host! {
    async fn its_own_turn_asks_the_owner_and_each_change_asks_again(host) {
        let (fleet, ours, theirs) = of_another_owner(host).await;
        as_ops(&fleet, &ours, "method = \"pxe\"\n  server_power = \"On\"");
        let plan = ours.try_plan().await.succeeded();
        plan.says("An approval is missing").says(&format!("no approval yet for {RECORD}")).is_silent_about("ahead");
        let waiting = ours.start_apply();
        waiting.until_it_logs("waiting for approval by team-db", SOON).await;
        ours.metal(&["queue"]).await.succeeded().says("approval by team-db");
        assert_eq!(fleet.changes("node1"), [""; 0]);
        theirs.metal(&["approve", RECORD, "--owner", "team-db"]).await.succeeded();
        waiting.wait(SOON).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
        ours.plan().await.is_empty();

        // The owner approved only the first boot.
        as_ops(&fleet, &ours, "method = \"disk\"\n  server_power = \"On\"");
        ours.try_plan().await.succeeded().says("An approval is missing").says("boots by disk");
        let waiting = ours.start_apply();
        let line = waiting.until_it_logs("waiting for approval by team-db", SOON).await;
        assert!(line.contains("the request changed after the approval"), "{line}");
        theirs.metal(&["claims"]).await.succeeded().says(RECORD).says("boots by disk");
        assert_eq!(fleet.resets("node1").len(), 2, "switched without an approval");
        theirs.metal(&["approve", RECORD, "--owner", "team-db"]).await.succeeded();
        waiting.wait(SOON).await.succeeded();
        assert_eq!(fleet.resets("node1").len(), 4);
        ours.metal(&["store", "check"]).await.succeeded();

        // Without a timely approval the previous configuration stays, and the server is free.
        let patient = "policy = \"OwnerApproval\"\n  timeouts = { update = \"3s\" }";
        as_ops(&fleet, &ours, &format!("method = \"pxe\"\n  server_power = \"On\"\n  {patient}"));
        let late = ours.apply().await.failed();
        late.says("Update of the boot configuration of node1 was refused").says("waiting for approval by team-db");
        assert_eq!(ours.resource(ADDRESS).await.unwrap()["method"], "disk");
        ours.metal(&["queue"]).await.succeeded().is_silent_about("waiting since");
        assert_eq!(fleet.resets("node1").len(), 4);

        // The release does not require a second approval.
        ours.destroy().await.succeeded();
        assert!(fleet.runs("node1").contains("Disk"));
    }
}

for_each_host! {
    async fn its_own_turn_waits_for_its_window_and_for_its_holder(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let window = "window = { schedule = \"0 3 1 1 *\", duration = \"1h\" }";
        fleet.configure(&workspace, &boot(&format!("method = \"pxe\"\n  {window}")));
        workspace.try_plan().await.failed().says("cannot be locked in time").says("timeouts.create");
        fleet.configure(&workspace, &boot(&format!("method = \"pxe\"\n  {window}\n  timeouts = {{ create = \"9000h\" }}")));
        workspace.try_plan().await.succeeded().says("A window is closed");
        let waiting = workspace.start_apply();
        waiting.until_it_logs("waiting for its window", SOON).await;
        waiting.interrupt();
        waiting.wait(SOON).await.failed().says("left the queue");

        // The own hold would block this forever, so the error names it.
        let hold = maintenance("node1", "m", "");
        fleet.configure(&workspace, &hold);
        workspace.apply().await.succeeded();
        fleet.configure(&workspace, &(hold.clone() + &boot("method = \"pxe\"")));
        let plan = workspace.try_plan().await.failed();
        plan.says("in this configuration").says("tests/m").says("maintenance_id").is_silent_about("1 ahead");
        fleet.configure(
            &workspace,
            &(hold.clone() + &boot("method = \"pxe\"\n  maintenance_id = metal_server_maintenance.held.id\n  window = { schedule = \"0 3 1 1 *\", duration = \"1h\" }")),
        );
        workspace.try_plan().await.failed().says("Not under a maintenance");
        fleet.configure(&workspace, &(hold + &boot("method = \"pxe\"\n  maintenance_id = metal_server_maintenance.held.id")));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn it_is_imported_and_has_one_state(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let hold = maintenance("node1", "m", "");
        for (body, id) in [
            (boot("method = \"pxe\"\n  server_power = \"Off\"\n  reason = \"PXE test\"\n  ticket = \"OPS-1\""), "boot-configuration/default.node1"),
            (hold + &boot("method = \"disk\"\n  maintenance_id = metal_server_maintenance.held.id"), "tests/m.boot"),
        ] {
            fleet.configure(&workspace, &body);
            workspace.apply().await.succeeded();
            workspace.plan().await.is_empty();
            // Another configuration of the same owner cannot adopt it with the same request.
            let second = workspace.beside();
            let alone = boot(body.rsplit_once("server = \"node1\"").unwrap().1.trim().trim_end_matches('}').trim_end());
            let alone = alone.replace("metal_server_maintenance.held.id", "\"tests/m\"");
            fleet.configure(&second, &alone);
            let refused = second.apply().await.failed();
            refused.says("Another state manages the boot configuration of node1").says("import block");
            refused.is_silent_about("choose another name");
            second.import(ADDRESS, id).await.succeeded();
            workspace.plan().await.is_empty();
            second.destroy().await.failed().says("was imported and not taken over");
            second.apply().await.succeeded().says("0 added, 1 changed");
            second.plan().await.is_empty();
            workspace.refresh().await.succeeded().says("The resource is dropped from this state");
            second.destroy().await.succeeded();
            fleet.configure(&workspace, "");
            workspace.apply().await.succeeded();
        }
        workspace.import(ADDRESS, "boot-configuration/default.node1").await.failed();
    }
}

for_each_host! {
    async fn another_one_of_the_same_server_is_told_in_its_own_words(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &boot("method = \"pxe\""));
        workspace.apply().await.succeeded();
        let second = workspace.beside();
        fleet.configure(&second, &boot("method = \"disk\""));
        let refused = second.apply().await.failed();
        refused.says("node1 has another boot configuration").says("boot-configuration/default.node1 is active");
        refused.is_silent_about("choose another name").is_silent_about("import it");
        workspace.destroy().await.succeeded();
    }
}
