//! Every plan that powers or boots a server reports it, in each resource's diff and in warnings
//! that do not hide each other.

use serde_json::json;

use crate::{
    golden::diagnostics,
    support::{
        host::Host,
        simulator::{Fleet, maintenance},
        workspace::Workspace,
    },
};

const HELD: &str = "metal_server_maintenance.held";
const SWITCHED: &str = "Servers will be switched or booted";
const RESTORED: &str = "Servers will be switched or booted to restore them";

/// Returns the provider's complete diagnostics for a plan.
async fn said(workspace: &Workspace, more: &[&str]) -> String {
    let arguments = [&["plan", "-input=false", "-json"], more].concat();
    diagnostics(&workspace.run(&arguments).await.succeeded().stdout)
}

for_each_host! {
    async fn each_change_of_a_maintenance_tells_its_effect(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let configure = |more: &str| fleet.configure(&workspace, &maintenance("node1", "m", more));
        configure("server_power = \"Off\"");
        let plan = workspace.plan().await;
        assert_eq!(plan.change(HELD)["after"]["effect"], "node1 is switched off");
        workspace.apply_saved(&plan).await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["effect"], "node1 is switched off");
        // In-place change.
        configure("server_power = \"On\"");
        let plan = workspace.plan().await;
        assert_eq!(plan.change(HELD)["actions"], json!(["update"]));
        assert_eq!(plan.change(HELD)["after"]["effect"], "node1 is switched on");
        plan.run.says(SWITCHED).says("node1 is switched on. Now: Off.");
        configure("server_power = \"Off\"\n  expires_after = \"9h\"");
        let plan = workspace.plan().await;
        assert_eq!(plan.change(HELD)["after"]["effect"], "node1 is switched off");
        plan.run.is_silent_about(SWITCHED);
        // Release and replacement.
        let destroy = said(&workspace, &["-destroy"]).await;
        assert!(destroy.contains(RESTORED) && destroy.contains("node1 is switched on."), "{destroy}");
        let replace = said(&workspace, &["-replace", HELD]).await;
        assert!(!replace.contains("is ahead"), "{replace}");
        configure("server_power = \"Off\"\n  triggers = { run = \"2\" }");
        let triggered = said(&workspace, &[]).await;
        assert_eq!(triggered.matches(RESTORED).count(), 1, "{triggered}");
        assert!(triggered.contains("node1 is switched on.") && triggered.contains("node1 is switched off."), "{triggered}");
        assert!(!triggered.contains("is ahead"), "{triggered}");
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn a_hold_that_switches_nothing_is_quiet_when_it_ends(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", ""));
        let plan = workspace.plan().await;
        assert_eq!(plan.change(HELD)["after"]["effect"], "node1 is locked; power and boot do not change");
        workspace.apply_saved(&plan).await.succeeded();
        let destroy = said(&workspace, &["-destroy"]).await;
        assert!(!destroy.contains("switched"), "{destroy}");
    }
}

for_each_host! {
    async fn the_update_that_drives_an_enqueued_maintenance_tells_its_effect(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let body = |wait_for: &str| maintenance("node1", "m", &format!("server_power = \"Off\"\n  wait_for = \"{wait_for}\""));
        fleet.configure(&workspace, &body("Enqueued"));
        let plan = workspace.plan().await;
        let later = "node1 is not touched yet. After a later apply: node1 is switched off";
        assert_eq!(plan.change(HELD)["after"]["effect"], later);
        workspace.apply_saved(&plan).await.succeeded();
        workspace.refresh().await.succeeded();
        let plan = workspace.plan().await;
        assert_eq!(plan.change(HELD)["actions"], json!(["update"]));
        assert_eq!(plan.change(HELD)["after"]["effect"], "node1 is switched off");
        plan.run.says(SWITCHED).says("node1 is switched off.");
        workspace.apply_saved(&plan).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown"]);
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn an_operation_and_a_boot_configuration_tell_their_effects(host) {
        let (fleet, workspace) = (Fleet::new(2).await, Workspace::new(host));
        fleet.configure(&workspace, r#"
resource "metal_server_operation" "now" {
  server    = "node1"
  namespace = "ops"
  name      = "restart"
  operation = "PowerCycle"
  policy    = "Enforced"
}
resource "metal_server_boot_configuration" "pxe" {
  server       = "node2"
  method       = "pxe"
  server_power = "On"
}
"#);
        let plan = workspace.plan().await;
        let effect = |address: &str| plan.change(address)["after"]["effect"].clone();
        assert_eq!(effect("metal_server_operation.now"), "node1 is powered off and on again");
        assert_eq!(effect("metal_server_boot_configuration.pxe"), "node2 boots by pxe; if it runs, it is switched off first");
        workspace.apply_saved(&plan).await.succeeded();
        workspace.plan().await.is_empty();
        let destroy = said(&workspace, &["-destroy"]).await;
        let restored = "node2 is switched off, restored to its prior boot configuration and switched on.";
        assert!(destroy.contains(restored), "{destroy}");
        assert!(!destroy.contains("node1"), "{destroy}");
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn a_plan_before_the_provider_is_configured_says_what_was_not_checked(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let body = format!(
            "resource \"terraform_data\" \"late\" {{\n  input = \"team-a\"\n}}\n{}",
            maintenance("node1", "m", "server_power = \"Off\"")
        );
        fleet.configure_with(&workspace, "owner = terraform_data.late.output", &body);
        let plan = workspace.plan().await;
        assert_eq!(plan.change(HELD)["after"]["effect"], "node1 is switched off");
        plan.run.says("A BMC was not checked").says("node1 is switched off (not checked)");
        workspace.apply_saved(&plan).await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["effect"], "node1 is switched off");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_shows_every_effect_and_hides_no_obstacle() {
    let (fleet, holder) = (Fleet::new(12).await, Workspace::new(Host::OpenTofu));
    let owner = holder.beside();
    let claim = "resource \"metal_server_claim\" \"db\" {\n  server = \"node11\"\n  namespace = \"db\"\n  name = \"a\"\n  contact = \"#db\"\n}\n";
    fleet.configure_with(&owner, "owner = \"team-db\"", claim);
    owner.apply().await.succeeded();
    fleet.configure(&holder, &maintenance("node12", "disk-swap", ""));
    holder.apply().await.succeeded();
    let all = holder.beside();
    let bmc = fleet.simulator.bmc_of("node10").unwrap();
    fleet.simulator.set_availability(&bmc, bmc_simulator::Availability::Refusing).await.unwrap();
    fleet.configure(
        &all,
        r#"
resource "metal_server_maintenance" "all" {
  count        = 12
  server       = "node${count.index + 1}"
  namespace    = "tests"
  name         = "bios-${count.index + 1}"
  policy       = "OwnerApproval"
  server_power = "Off"
  window       = count.index == 8 ? { schedule = "0 0 1 1 *", duration = "1h" } : null
  wait_for     = "Enqueued"
}
"#,
    );
    let plan = all.plan().await;
    for n in 1..=12 {
        let effect = plan.change(&format!("metal_server_maintenance.all[{}]", n - 1))["after"]["effect"].clone();
        assert!(effect.as_str().unwrap().contains(&format!("node{n} is switched off")), "{effect}");
    }
    // Each kind is shown, although the host merges similar warnings.
    for (summary, server) in [
        ("An approval is missing", "node11: team-db (contact: #db), no approval yet"),
        ("Other maintenance is ahead", "node12: 1 ahead: tests/disk-swap"),
        ("A BMC was not checked", "node10"),
        ("A window is closed", "node9: opens"),
    ] {
        plan.run.says(summary).says(server);
    }
}

const AFTER: &str = "node1 is switched off, after the release of tests/m";

/// Saves a plan with these arguments. Returns the planned change of the maintenance.
async fn saved(workspace: &Workspace, more: &[&str]) -> serde_json::Value {
    workspace.run(&[&["plan", "-input=false", "-no-color", "-out=saved"], more].concat()).await.succeeded();
    let plan = workspace.json(&["show", "-json", "saved"]).await;
    let changes = plan["resource_changes"].as_array().unwrap();
    changes.iter().find(|change| change["address"] == HELD).unwrap()["change"].clone()
}

const APPLY: [&str; 4] = ["apply", "-input=false", "-no-color", "saved"];

for_each_host! {
    async fn a_forced_replacement_names_the_release_in_its_effect_and_applies(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let body = |run: &str, more: &str| {
            let lifecycle = format!("server_power = \"Off\"\n  lifecycle {{\n    replace_triggered_by = [terraform_data.run]\n    {more}\n  }}");
            format!("resource \"terraform_data\" \"run\" {{\n  input = \"{run}\"\n}}\n{}", maintenance("node1", "m", &lifecycle))
        };
        fleet.configure(&workspace, &body("1", ""));
        workspace.apply().await.succeeded();
        // -replace, a second plan before apply, no refresh, and a tainted object.
        for (arguments, taint, plans_again) in
            [(&["-replace", HELD][..], false, false), (&["-replace", HELD][..], false, true), (&["-refresh=false", "-replace", HELD][..], false, false), (&[][..], true, false)]
        {
            if taint {
                workspace.run(&["taint", HELD]).await.succeeded();
            }
            let change = saved(&workspace, arguments).await;
            let expected = (json!(["delete", "create"]), json!(AFTER));
            assert_eq!((&change["actions"], &change["after"]["effect"]), (&expected.0, &expected.1), "{arguments:?} {taint}");
            if plans_again {
                workspace.plan().await.is_empty();
            }
            workspace.run(&APPLY).await.succeeded();
            assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
            workspace.plan().await.is_empty();
        }
        fleet.configure(&workspace, &body("2", ""));
        assert_eq!(saved(&workspace, &[]).await["after"]["effect"], AFTER);
        workspace.run(&APPLY).await.succeeded();
        workspace.plan().await.is_empty();
        // Under create_before_destroy the create fails with its real cause.
        fleet.configure(&workspace, &body("2", "create_before_destroy = true"));
        workspace.apply().await.succeeded();
        for forced in ["-replace", "replace_triggered_by", "taint"] {
            match forced {
                "taint" => drop(workspace.run(&["taint", HELD]).await.succeeded()),
                "replace_triggered_by" => fleet.configure(&workspace, &body("3", "create_before_destroy = true")),
                _ => {}
            }
            let change = saved(&workspace, if forced == "-replace" { &["-replace", HELD] } else { &[] }).await;
            assert_eq!((&change["actions"], &change["after"]["effect"]), (&json!(["create", "delete"]), &json!(AFTER)));
            let refused = workspace.run(&APPLY).await.failed();
            refused.says("Another state manages tests/m").is_silent_about("inconsistent");
            assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        }
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, bmc_simulator::PowerState::On);
    }
}
