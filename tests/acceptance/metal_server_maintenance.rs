//! `metal_server_maintenance`: hold, preparation and release.

use bmc_simulator::{Fault, PowerState};
use serde_json::json;

use crate::support::{
    images::Images,
    simulator::{Fleet, maintenance},
    sushy::{Options, Sushy},
    workspace::Workspace,
};

fn rescue(images: &Images) -> String {
    format!(
        r#"
  server_power = "On"
  boot_configuration = {{ method = "virtual_media", image = "{}" }}
"#,
        images.url("rescue.iso")
    )
}

for_each_host! {
    async fn a_server_is_held_booted_and_given_back(host) {
        let (fleet, images, workspace) = (Fleet::new(1).await, Images::start().await, Workspace::new(host));
        let before = fleet.system("node1");
        fleet.configure(&workspace, &maintenance("node1", "rescue", &rescue(&images)));
        let plan = workspace.plan().await;
        plan.run.says("node1 is switched off and boots by virtual_media");
        assert_eq!(fleet.changes("node1"), [""; 0], "a plan changes nothing");
        workspace.apply().await.succeeded();
        assert!(fleet.runs("node1").contains("rescue.iso"), "{}", fleet.runs("node1"));
        let held = workspace.resource("metal_server_maintenance.held").await.unwrap();
        assert_eq!(held["state"], "InMaintenance");
        assert_eq!(held["previous_power_state"], "On");
        workspace.plan().await.is_empty();
        workspace.metal(&["queue"]).await.succeeded().says("tests/rescue");
        workspace.destroy().await.succeeded();
        let after = fleet.system("node1");
        assert_eq!((after.power, &after.boot, &after.media), (before.power, &before.boot, &before.media));
        assert!(fleet.runs("node1").contains("Disk"), "{}", fleet.runs("node1"));
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On", "GracefulShutdown", "On"]);
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_one_host! {
    async fn an_emulator_that_is_not_ours_is_held_and_given_back(host) {
        let sushy = Sushy::start(Options { powered_on: true, ..Options::default() }).await;
        let images = Images::start().await;
        let workspace = Workspace::new(host);
        let system = format!("/redfish/v1/Systems/{}", sushy.system(1));
        let client = sushy.client();
        let before = client.machine(&system).await;
        workspace.write("bmc-ca.pem", &std::fs::read_to_string(&sushy.certificates().unwrap().authority).unwrap());
        workspace.configure(&format!(
            r#"
provider "metal" {{
  redfish = {{
    servers  = {{ node1 = {{ endpoint = "{url}", system_id = "{id}" }} }}
    username = "admin"
    password = "{password}"
    ca_certificate_file = "${{path.module}}/bmc-ca.pem"
  }}
}}
{body}
"#,
            url = sushy.url(),
            id = sushy.system(1),
            password = sushy.password(),
            body = maintenance("node1", "rescue", &rescue(&images)),
        ));
        workspace.apply().await.succeeded();
        let during = client.machine(&system).await;
        assert_eq!((during.power.as_str(), &during.boot["BootSourceOverrideTarget"]), ("On", &json!("Cd")));
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert_eq!(client.machine(&system).await, before);
    }
}

for_each_host! {
    async fn what_changes_in_place_keeps_the_hold(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", "reason = \"one\""));
        workspace.apply().await.succeeded();
        fleet.configure(&workspace, &maintenance("node1", "m", "reason = \"two\"\n  server_power = \"Off\""));
        let plan = workspace.plan().await;
        assert_eq!(plan.changes(), [("metal_server_maintenance.held".to_owned(), vec!["update".to_owned()])]);
        workspace.apply().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::Off);
        workspace.metal(&["show", "tests/m"]).await.succeeded().says("\"two\"");
        workspace.plan().await.is_empty();
        fleet.configure(&workspace, &maintenance("node1", "m", "triggers = { run = \"2\" }"));
        let plan = workspace.plan().await;
        assert_eq!(plan.changes()[0].1, ["delete", "create"]);
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
    }
}

for_each_host! {
    async fn an_import_by_name_finds_the_hold_again(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let body = maintenance("node1", "m", "server_power = \"Off\"\n  expires_after = \"2h\"");
        fleet.configure(&workspace, &body);
        workspace.apply().await.succeeded();
        let lost = workspace.beside();
        fleet.configure(&lost, &body);
        lost.import("metal_server_maintenance.held", "tests/m").await.succeeded();
        lost.apply().await.succeeded().says("0 added, 1 changed");
        lost.plan().await.is_empty();
        lost.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
    }
}

for_each_host! {
    async fn a_step_that_fails_leaves_nothing_behind(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let more = r#"
  server_power = "On"
  boot_configuration = { method = "virtual_media", image = "http://127.0.0.1:9/missing.iso" }"#;
        fleet.configure(&workspace, &maintenance("node1", "m", more));
        workspace.apply().await.failed().says("node1 could not be prepared");
        assert!(workspace.resource("metal_server_maintenance.held").await.is_none());
        assert_eq!(fleet.resets("node1"), [""; 0]);
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_each_host! {
    async fn a_hold_that_was_released_by_force_is_dropped_and_left_alone(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        let held = workspace.resource("metal_server_maintenance.held").await.unwrap();
        let generation = held["generation"].to_string();
        fleet.command_line(&mut workspace);
        let release = |generation: &str| {
            ["release", "tests/m", "--force", "--generation", generation, "--reason", "node needed"].map(str::to_owned)
        };
        let wrong = release("99");
        workspace.metal(&wrong.each_ref().map(String::as_str)).await.failed().says("generation 99 was given");
        let right = release(&generation);
        workspace.metal(&right.each_ref().map(String::as_str)).await.succeeded().says("is in its prior state (On)");
        assert_eq!(fleet.system("node1").power, PowerState::On);
        let resets = fleet.resets("node1");
        let run = workspace.refresh().await.succeeded();
        run.says("A maintenance was released outside this configuration");
        assert!(workspace.resource("metal_server_maintenance.held").await.is_none());
        assert_eq!(fleet.resets("node1"), resets, "nothing more was done to the server");
    }
}

for_each_host! {
    async fn a_maintenance_completed_by_hand_is_requested_again(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        let dependent = "resource \"terraform_data\" \"inside\" {\n  input = metal_server_maintenance.held.started_at\n}\n";
        let off = maintenance("node1", "m", "server_power = \"Off\"") + dependent;
        fleet.configure(&workspace, &off);
        workspace.apply().await.succeeded();
        fleet.command_line(&mut workspace);
        workspace.metal(&["release", "tests/m"]).await.succeeded();
        workspace.refresh().await.succeeded().says("Maintenance has ended");
        let plan = workspace.plan().await;
        plan.run.says("Maintenance has ended").says("node1 is not locked any more");
        assert_eq!(plan.change("metal_server_maintenance.held")["actions"], json!(["delete", "create"]));
        assert_eq!(fleet.system("node1").power, PowerState::On);
        workspace.apply().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::Off);
        workspace.plan().await.is_empty().run.is_silent_about("has ended");
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
    }
}

for_each_host! {
    async fn a_maintenance_that_ended_is_kept_where_asked_and_never_changes(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        let kept = |more: &str| maintenance("node1", "m", &format!("on_end = \"keep\"\n  {more}"));
        fleet.configure(&workspace, &kept(""));
        workspace.apply().await.succeeded();
        fleet.command_line(&mut workspace);
        workspace.metal(&["release", "tests/m"]).await.succeeded();
        workspace.plan().await.is_empty().run.says("Maintenance has ended").says("on_end = \"keep\"");
        workspace.refresh().await.succeeded();
        assert_eq!(workspace.resource("metal_server_maintenance.held").await.unwrap()["state"], "Completed");
        fleet.configure(&workspace, &kept("server_power = \"Off\""));
        workspace.try_plan().await.failed().says("has ended and cannot change").says("changing server_power would \
                                                                                      have no effect");
        fleet.configure(&workspace, &kept("reason = \"noted\""));
        workspace.apply().await.succeeded();
        let resets = fleet.resets("node1");
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.resets("node1"), resets);
    }
}

for_each_host! {
    async fn a_maintenance_that_ends_between_plan_and_apply_is_not_changed(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", ""));
        workspace.apply().await.succeeded();
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        let plan = workspace.plan().await;
        fleet.command_line(&mut workspace);
        workspace.metal(&["release", "tests/m"]).await.succeeded();
        workspace.apply_saved(&plan).await.failed().says("has ended and cannot change").says("(completed by");
        assert_eq!(fleet.system("node1").power, PowerState::On);
        let plan = workspace.plan().await;
        assert_eq!(plan.changes()[0].1, ["delete", "create"]);
    }
}

for_one_host! {
    async fn the_apply_of_a_saved_change_names_the_person_who_released_the_maintenance(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", ""));
        workspace.apply().await.succeeded();
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        let plan = workspace.plan().await;
        fleet.command_line(&mut workspace);
        let generation = workspace.generation("tests/m").await;
        let release = ["release", "tests/m", "--force", "--generation", &generation, "--reason", "node needed"];
        workspace.metal(&release).await.succeeded();
        let run = workspace.apply_saved(&plan).await.failed();
        run.says("has ended and cannot change").says("(released by").says("\"node needed\"");
        assert_eq!(fleet.system("node1").power, PowerState::On);
    }
}

for_one_host! {
    async fn a_hold_whose_destroy_failed_is_released_and_requested_again(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\"\n  timeouts = { delete = \"3s\" }"));
        workspace.apply().await.succeeded();
        let _ = fleet.simulator.inject(Fault::error(503, "busy").on_request("POST", "*Reset"));
        workspace.destroy().await.failed();
        fleet.simulator.clear_faults();
        let plan = workspace.plan().await;
        assert_eq!(plan.change("metal_server_maintenance.held")["actions"], json!(["delete", "create"]));
        workspace.apply().await.succeeded();
        let held = workspace.resource("metal_server_maintenance.held").await.unwrap();
        assert_eq!((&held["state"], fleet.system("node1").power), (&json!("InMaintenance"), PowerState::Off));
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn one_apply_runs_the_whole_maintenance(host) {
        let mut config = bmc_simulator::SimulatorConfig::with_systems(1);
        config.behaviour.image_works_then_off = Some(std::time::Duration::from_millis(300));
        let (fleet, images, workspace) = (Fleet::with(config).await, Images::start().await, Workspace::new(host));
        let more = format!("{}\n  wait_for = \"Completed\"\n  complete_when = {{ power_state = \"Off\" }}", rescue(&images));
        fleet.configure(&workspace, &maintenance("node1", "m", &more));
        workspace.apply().await.succeeded();
        let held = workspace.resource("metal_server_maintenance.held").await.unwrap();
        assert_eq!(held["state"], "Completed");
        fleet.until("node1", PowerState::On).await;
        assert!(fleet.runs("node1").contains("Disk"));
        workspace.plan().await.is_empty();
    }
}

for_each_host! {
    async fn the_same_name_with_another_wish_is_refused_at_once(host) {
        let (fleet, workspace) = (Fleet::new(2).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", "reason = \"disk\""));
        workspace.apply().await.succeeded();
        let other = workspace.beside();
        fleet.configure(&other, &maintenance("node1", "m", "reason = \"memory\""));
        other.apply().await.failed().says("exists with another specification").says("\"disk\"").says("\"memory\"");
        fleet.configure(&other, &maintenance("node2", "m", "reason = \"disk\""));
        other.apply().await.failed().says("already used for another server");
    }
}

for_each_host! {
    async fn another_store_keeps_the_state_and_names_both(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        let other = workspace.root().join("other.sqlite");
        workspace.set("METAL_COORDINATION_URL", format!("sqlite://{}", other.display()));
        workspace.try_plan().await.failed().says("is in another coordination store");
        assert!(workspace.resource("metal_server_maintenance.held").await.is_some());
    }
}

for_each_host! {
    async fn a_place_is_enqueued_without_waiting_and_driven_by_a_later_run(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "first", ""));
        workspace.apply().await.succeeded();
        let other = workspace.beside();
        fleet.configure(&other, &maintenance("node1", "second", "wait_for = \"Enqueued\""));
        other.apply().await.succeeded();
        let held = other.resource("metal_server_maintenance.held").await.unwrap();
        assert_eq!((&held["state"], &held["queue_position"]), (&json!("Pending"), &json!(1)));
        other.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        other.apply().await.succeeded();
        let held = other.resource("metal_server_maintenance.held").await.unwrap();
        assert_eq!(held["state"], "InMaintenance");
        other.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn a_hold_that_is_replaced_is_given_back_and_taken_anew(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        workspace.run(&["apply", "-auto-approve", "-replace=metal_server_maintenance.held"]).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On", "GracefulShutdown"]);
        // A tainted state or changed triggers also replace it.
        workspace.run(&["taint", "metal_server_maintenance.held"]).await.succeeded();
        workspace.apply().await.succeeded();
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\"\n  triggers = { run = \"2\" }"));
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1").len(), 7);
        workspace.destroy().await.succeeded();
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

for_each_host! {
    async fn a_postcondition_keeps_dependents_of_an_enqueued_maintenance_from_running(host) {
        let (fleet, holder) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&holder, &maintenance("node1", "first", ""));
        holder.apply().await.succeeded();
        let workspace = holder.beside();
        let condition = "lifecycle {\n    postcondition {\n      condition     = self.state == \"InMaintenance\"\n      error_message = \"node1 is not held yet.\"\n    }\n  }";
        let dependent = "resource \"terraform_data\" \"flash\" {\n  input = metal_server_maintenance.held.id\n}\n";
        let body = |more: &str| maintenance("node1", "second", &format!("wait_for = \"Enqueued\"\n  {more}")) + dependent;
        fleet.configure(&workspace, &body(condition));
        workspace.plan().await.run.says("Dependents can run before the server is locked").says("postcondition");
        workspace.apply().await.failed().says("node1 is not held yet.");
        assert!(workspace.resource("terraform_data.flash").await.is_none());
        assert_eq!(workspace.resource("metal_server_maintenance.held").await.unwrap()["state"], "Pending");
        workspace.try_plan().await.failed().says("node1 is not held yet.").says("Dependents can run before");
        holder.destroy().await.succeeded();
        workspace.apply().await.succeeded();
        assert!(workspace.resource("terraform_data.flash").await.is_some());
        workspace.plan().await.is_empty().run.is_silent_about("Dependents can run");
    }
}
