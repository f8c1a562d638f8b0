//! State that a host can pass or lose: a destroy always returns the server.

mod matrix;
mod proxy;
mod takeover;

use std::time::Duration;

use bmc_simulator::{Fault, HeldQuery, Phase, PowerState, SystemStatus};

use crate::support::{
    simulator::{Fleet, SOON, maintenance},
    wait::eventually,
    workspace::Workspace,
};

/// Arguments of an apply and a destroy that use the state without a refresh.
const APPLY: [&str; 5] = ["apply", "-auto-approve", "-refresh=false", "-input=false", "-no-color"];
const DESTROY: [&str; 5] = ["destroy", "-auto-approve", "-refresh=false", "-input=false", "-no-color"];

/// Two resources that change a server and restore it: address, and configuration that starts the
/// server by PXE.
fn kinds() -> [(&'static str, String); 2] {
    let boots = "server_power = \"On\"\n  timeouts = { create = \"60s\", delete = \"60s\" }";
    let held = format!("{boots}\n  boot_configuration = {{ method = \"pxe\" }}");
    let boot = format!(
        "resource \"metal_server_boot_configuration\" \"boot\" {{\n  server = \"node1\"\n  method = \"pxe\"\n  {boots}\n}}\n"
    );
    [
        ("metal_server_maintenance.held", maintenance("node1", "m", &held)),
        ("metal_server_boot_configuration.boot", boot),
    ]
}

/// A server that switches off and does not start: every later reset is refused.
fn does_not_start() -> Fault {
    Fault::error(400, "The chassis is open").on_request("POST", "*Reset")
}

/// Fails unless the server is as before and nothing holds it.
async fn is_returned(fleet: &Fleet, workspace: &Workspace, before: &SystemStatus, what: &str) {
    fleet.until("node1", PowerState::On).await;
    let after = fleet.system("node1");
    assert_eq!((&after.boot, &after.media), (&before.boot, &before.media), "{what}");
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}

for_each_host! {
    async fn a_release_that_fails_is_continued_by_every_later_run(host) {
        for (address, body) in kinds() {
            for refresh in [true, false] {
                let what = format!("{address}, refresh {refresh}");
                let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
                let before = fleet.system("node1");
                fleet.configure(&workspace, &body);
                // Create switches the server off and cannot start it, and neither can its restore.
                let fault = fleet.simulator.inject(does_not_start().skip(1));
                workspace.apply().await.failed();
                assert!(workspace.resource(address).await.is_some(), "{what}");
                // Hosts send no private state when they destroy a tainted resource.
                let apply = if refresh { vec!["apply", "-auto-approve", "-input=false", "-no-color"] } else { APPLY.to_vec() };
                for _ in 0..2 {
                    workspace.run(&apply).await.failed().says("The chassis is open").is_silent_about("was not found");
                }
                fleet.simulator.remove_fault(fault).unwrap();
                workspace.run(&apply).await.succeeded().says("1 added, 0 changed, 1 destroyed");
                workspace.plan().await.is_empty();
                workspace.destroy().await.succeeded();
                is_returned(&fleet, &workspace, &before, &what).await;
            }
        }
    }
}

for_each_host! {
    async fn a_tainted_resource_is_destroyed_after_a_destroy_that_failed_or_was_killed(host) {
        for (address, body) in kinds() {
            for killed in [false, true] {
                let what = format!("{address}, killed {killed}");
                let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
                let before = fleet.system("node1");
                fleet.configure(&workspace, &body);
                workspace.apply().await.succeeded();
                workspace.run(&["taint", address]).await.succeeded();
                let fault = fleet.simulator.inject(does_not_start());
                if killed {
                    let run = workspace.start(&DESTROY);
                    eventually("a refused reset", SOON, async || {
                        fleet.simulator.faults().iter().any(|fault| fault.met > 0).then_some(())
                    })
                    .await;
                    run.kill_everything();
                } else {
                    workspace.run(&DESTROY).await.failed().says("The chassis is open");
                }
                workspace.run(&DESTROY).await.failed().says("The chassis is open");
                fleet.simulator.remove_fault(fault).unwrap();
                workspace.run(&DESTROY).await.succeeded().says("1 destroyed");
                is_returned(&fleet, &workspace, &before, &what).await;
            }
        }
    }
}

/// Removes all private data, as hosts do after a provider crash.
fn loses_private_data(workspace: &Workspace) {
    let file = workspace.folder().join("terraform.tfstate");
    let mut state: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut lost = 0;
    for resource in state["resources"].as_array_mut().unwrap() {
        for instance in resource["instances"].as_array_mut().unwrap() {
            lost += usize::from(instance.as_object_mut().unwrap().remove("private").is_some());
        }
    }
    assert!(lost > 0, "{state}");
    std::fs::write(file, state.to_string()).unwrap();
}

for_one_host! {
    async fn a_state_without_private_data_works_for_every_kind(host) {
        let (fleet, workspace) = (Fleet::new(2).await, Workspace::new(host));
        let before = fleet.system("node1");
        let body = |reason: &str| {
            let held = maintenance("node1", "m", &format!("reason = \"{reason}\"\n  server_power = \"Off\""));
            let operation = "resource \"metal_server_operation\" \"now\" {\n  server = \"node2\"\n  namespace = \"ops\"\n  name = \"now\"\n  operation = \"PowerCycle\"\n  policy = \"Enforced\"\n}\n";
            held + operation + &crate::lists::beside_a_maintenance("node1")
        };
        for refresh in [true, false] {
            fleet.configure(&workspace, &body("one"));
            workspace.apply().await.succeeded();
            loses_private_data(&workspace);
            if refresh {
                workspace.plan().await.is_empty();
            }
            // A change finds its record, too.
            fleet.configure(&workspace, &body("two"));
            let mut apply = APPLY.to_vec();
            apply.retain(|argument| !refresh || *argument != "-refresh=false");
            workspace.run(&apply).await.succeeded().says("0 added, 1 changed");
            loses_private_data(&workspace);
            let mut destroy = DESTROY.to_vec();
            destroy.retain(|argument| !refresh || *argument != "-refresh=false");
            workspace.run(&destroy).await.succeeded().says("5 destroyed");
            is_returned(&fleet, &workspace, &before, &format!("refresh {refresh}")).await;
        }
    }
}

for_one_host! {
    async fn a_state_from_before_a_killed_replacement_finds_the_new_record(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let before = fleet.system("node1");
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        let file = workspace.folder().join("terraform.tfstate");
        let old = std::fs::read(&file).unwrap();
        // The release switches the server on, and the create switches it off again.
        let fault = fleet.simulator.inject(Fault::hold(Phase::After).on_request("POST", "*Reset").skip(1).times(1));
        let replace = ["apply", "-auto-approve", "-input=false", "-no-color", "-replace=metal_server_maintenance.held"];
        let run = workspace.start(&replace);
        fleet.simulator.wait_held(&HeldQuery::default(), SOON).await.unwrap();
        run.kill_everything();
        fleet.simulator.remove_fault(fault).unwrap();
        fleet.simulator.release_all();
        std::fs::write(&file, old).unwrap();
        workspace.run(&DESTROY).await.succeeded().says("1 destroyed");
        is_returned(&fleet, &workspace, &before, "an old state").await;
    }
}

for_one_host! {
    async fn a_replacement_that_is_created_first_is_refused_immediately_under_its_name(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let before = fleet.system("node1");
        let body = maintenance("node1", "m", "lifecycle {\n    create_before_destroy = true\n  }");
        fleet.configure(&workspace, &body);
        workspace.apply().await.succeeded();
        let replace = ["apply", "-auto-approve", "-input=false", "-no-color", "-replace=metal_server_maintenance.held"];
        workspace.start(&replace).wait(Duration::from_mins(1)).await.failed().says("Another state manages tests/m");
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        is_returned(&fleet, &workspace, &before, "create_before_destroy").await;
    }
}
