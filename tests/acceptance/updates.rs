//! In-place changes of a hold. A failed change restores the previous hold and stays in the state.

use std::time::Duration;

use bmc_simulator::{Fault, JournalQuery, PowerState, SimulatorConfig};
use serde_json::Value;

use crate::support::{
    images::Images,
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

const HELD: &str = "metal_server_maintenance.held";

fn boots(image: &str, more: &str) -> String {
    let boot = format!("boot_configuration = {{ method = \"virtual_media\", image = \"{image}\"{more} }}");
    maintenance("node1", "m", &format!("server_power = \"On\"\n  {boot}\n  timeouts = {{ update = \"4s\" }}"))
}

/// A readiness check that never succeeds.
fn never_ready(images: &Images) -> String {
    format!(", ready_when = {{ url = \"{}\" }}", images.url("not-yet"))
}

async fn held(workspace: &Workspace) -> Value {
    workspace.resource(HELD).await.expect("it is in the state")
}

/// Returns the only hold as shown by the command line.
async fn queue(workspace: &Workspace) -> Value {
    let queue = workspace.metal(&["queue", "--json"]).await.succeeded();
    let queue: Value = serde_json::from_str(&queue.stdout).unwrap();
    assert_eq!(queue["queue"].as_array().map(Vec::len), Some(1), "{queue}");
    queue["queue"][0].clone()
}

for_each_host! {
    async fn what_can_be_checked_is_checked_before_a_held_server_is_touched(host) {
        let (fleet, images, workspace) = (Fleet::new(1).await, Images::start().await, Workspace::new(host));
        let good = boots(&images.url("rescue.iso"), "");
        fleet.configure(&workspace, &good);
        workspace.apply().await.succeeded();
        let (asked, changes) = (fleet.simulator.sequence(), fleet.changes("node1"));
        let wrong = "0".repeat(64);
        for (body, why) in [
            (boots(&images.url("missing.bin"), ""), "404"),
            (boots(&images.url("other.iso"), &format!(", image_sha256 = \"{wrong}\"")), "SHA-256"),
            (boots("http://127.0.0.1:1/x.iso", ""), "127.0.0.1:1"),
        ] {
            fleet.configure(&workspace, &body);
            let run = workspace.apply().await.failed();
            run.says("Update of the maintenance of node1 was refused").says(why);
            run.says("The server was not changed and stays held by tests/m (InMaintenance, power On)");
            assert_eq!(fleet.changes("node1"), changes, "{}", run.output);
            let now = held(&workspace).await;
            assert_eq!(now["state"], "InMaintenance");
            assert!(now["boot_configuration"]["image"].as_str().unwrap().contains("rescue.iso"), "{now}");
            assert_eq!(queue(&workspace).await["state"], "InMaintenance");
        }
        assert!(fleet.simulator.sequence() > asked);
        fleet.configure(&workspace, &good);
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert!(fleet.runs("node1").contains("Disk"), "{}", fleet.runs("node1"));
    }
}

for_one_host! {
    async fn a_change_that_fails_half_way_is_undone_and_the_server_stays_held(host) {
        let (fleet, images, workspace) = (Fleet::new(1).await, Images::start().await, Workspace::new(host));
        let good = boots(&images.url("rescue.iso"), "");
        fleet.configure(&workspace, &good);
        workspace.apply().await.succeeded();
        let before = fleet.system("node1");
        fleet.configure(&workspace, &boots(&images.url("other.iso"), &never_ready(&images)));
        let run = workspace.apply().await.failed();
        run.says("Update of the maintenance of node1 failed").says("timeouts.update ended at step");
        run.says("was undone").says("stays held by tests/m");
        run.is_silent_about("the resource was not saved");
        let now = held(&workspace).await;
        assert_eq!((now["state"].as_str(), now["power_state"].as_str()), (Some("InMaintenance"), Some("On")), "{now}");
        assert!(now["boot_configuration"]["image"].as_str().unwrap().contains("rescue.iso"), "{now}");
        let after = fleet.system("node1");
        assert_eq!((after.power, &after.media), (before.power, &before.media));
        assert!(fleet.runs("node1").contains("rescue.iso"), "{}", fleet.runs("node1"));
        assert_eq!(queue(&workspace).await["state"], "InMaintenance");
        fleet.configure(&workspace, &good);
        workspace.plan().await.is_empty();
        // After the check succeeds, the same change works.
        images.also_serves("not-yet");
        fleet.configure(&workspace, &boots(&images.url("other.iso"), &never_ready(&images)));
        workspace.apply().await.succeeded();
        assert!(fleet.runs("node1").contains("other.iso"), "{}", fleet.runs("node1"));
        workspace.destroy().await.succeeded();
        assert!(fleet.runs("node1").contains("Disk"), "{}", fleet.runs("node1"));
    }
}

for_one_host! {
    async fn a_hold_that_booted_nothing_is_left_so_when_its_first_boot_fails(host) {
        let (fleet, images, workspace) = (Fleet::new(1).await, Images::start().await, Workspace::new(host));
        let plain = maintenance("node1", "m", "timeouts = { update = \"4s\" }");
        fleet.configure(&workspace, &plain);
        workspace.apply().await.succeeded();
        let before = fleet.system("node1");
        fleet.configure(&workspace, &boots(&images.url("other.iso"), &never_ready(&images)));
        workspace.apply().await.failed().says("Update of the maintenance of node1 failed").says("was undone");
        let after = fleet.system("node1");
        assert_eq!((after.power, &after.boot, &after.media), (before.power, &before.boot, &before.media));
        assert!(fleet.runs("node1").contains("Disk"), "{}", fleet.runs("node1"));
        assert_eq!(held(&workspace).await["state"], "InMaintenance");
        assert_eq!(queue(&workspace).await["state"], "InMaintenance");
        fleet.configure(&workspace, &plain);
        workspace.plan().await.is_empty();
        let resets = fleet.resets("node1");
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.resets("node1"), resets, "the destroy reset a server that was already restored");
    }
}

for_one_host! {
    async fn a_change_that_cannot_be_undone_stays_held_and_goes_on_later(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let power = |power: &str| {
            maintenance("node1", "m", &format!("server_power = \"{power}\"\n  timeouts = {{ update = \"3s\", delete = \"3s\" }}"))
        };
        fleet.configure(&workspace, &power("Off"));
        workspace.apply().await.succeeded();
        let _ = fleet.simulator.inject(Fault::error(500, "The service failed.").on_request("POST", "*Reset"));
        fleet.configure(&workspace, &power("On"));
        let run = workspace.apply().await.failed();
        run.says("Update of the maintenance of node1 failed").says("stays held by tests/m");
        assert_eq!(queue(&workspace).await["id"], "tests/m");
        fleet.simulator.clear_faults();
        workspace.apply().await.succeeded();
        fleet.until("node1", PowerState::On).await;
        assert_eq!(held(&workspace).await["state"], "InMaintenance");
        workspace.destroy().await.succeeded();
    }
}

/// Next command after a killed or interrupted update.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    ApplyAgain,
    ApplyThePrevious,
    Destroy,
}

for_one_host! {
    async fn an_update_that_is_cut_off_is_gone_on_with_undone_or_given_back(host) {
        for kill in [true, false] {
            for then in [Then::ApplyAgain, Then::ApplyThePrevious, Then::Destroy] {
                let what = format!("kill {kill}, then {then:?}");
                let mut config = SimulatorConfig::with_systems(1);
                config.behaviour.graceful_shutdown = Duration::from_secs(1);
                let (fleet, images, workspace) = (Fleet::with(config).await, Images::start().await, Workspace::new(host));
                let before = fleet.system("node1");
                let rescue = boots(&images.url("rescue.iso"), "").replace("4s", "1m");
                let other = boots(&images.url("other.iso"), "").replace("4s", "1m");
                fleet.configure(&workspace, &rescue);
                workspace.apply().await.succeeded();
                fleet.configure(&workspace, &other);
                let skip = fleet.resets("node1").len();
                let run = workspace.start_apply();
                let query = JournalQuery::system("node1").request("POST", "*Reset*");
                fleet.simulator.wait_journal(&query, skip + 1, SOON).await.unwrap();
                if kill {
                    run.kill_everything();
                    drop(run);
                } else {
                    run.interrupt();
                    run.wait(SOON).await;
                }
                assert_eq!(queue(&workspace).await["state"], "Preparing", "{what}");
                match then {
                    Then::ApplyAgain => {
                        workspace.apply().await.succeeded();
                        assert!(fleet.runs("node1").contains("other.iso"), "{what}: {}", fleet.runs("node1"));
                    }
                    Then::ApplyThePrevious => {
                        fleet.configure(&workspace, &rescue);
                        workspace.apply().await.succeeded();
                        assert!(fleet.runs("node1").contains("rescue.iso"), "{what}: {}", fleet.runs("node1"));
                    }
                    Then::Destroy => {}
                }
                if then != Then::Destroy {
                    workspace.plan().await.is_empty();
                    assert_eq!(held(&workspace).await["state"], "InMaintenance", "{what}");
                }
                workspace.destroy().await.succeeded();
                let after = fleet.system("node1");
                assert_eq!((after.power, &after.boot, &after.media), (before.power, &before.boot, &before.media), "{what}");
                assert!(fleet.runs("node1").contains("Disk"), "{what}: {}", fleet.runs("node1"));
            }
        }
    }
}

for_each_host! {
    async fn a_change_of_the_reason_leaves_every_output_known(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let body = |more: &str| maintenance("node1", "m", &format!("server_power = \"Off\"\n  {more}"));
        fleet.configure(&workspace, &body("reason = \"one\""));
        workspace.apply().await.succeeded();
        workspace.plan().await.is_empty();
        let before = workspace.resource(HELD).await.unwrap();
        let changes = fleet.changes("node1");
        fleet.configure(&workspace, &body("reason = \"two\"\n  expires_after = \"9h\""));
        let plan = workspace.plan().await;
        let change = plan.change(HELD);
        assert_eq!(change["actions"], serde_json::json!(["update"]));
        let unknown = change["after_unknown"].as_object().unwrap();
        assert!(unknown.values().all(|value| !value.as_bool().unwrap_or_default()), "{unknown:?}");
        workspace.apply_saved(&plan).await.succeeded();
        let after = workspace.resource(HELD).await.unwrap();
        for output in ["id", "state", "generation", "lock_key", "power_state", "effect", "started_at"] {
            assert_eq!(after[output], before[output], "{output}");
        }
        workspace.metal(&["show", "tests/m"]).await.succeeded().says("\"two\"").says("expires").says("changed");
        assert_eq!(fleet.changes("node1"), changes);
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
    }
}

for_each_host! {
    async fn a_power_that_drifted_is_warned_of_and_restored_where_asked(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let body = |drift: &str| maintenance("node1", "m", &format!("server_power = \"On\"\n  on_drift = \"{drift}\""));
        fleet.configure(&workspace, &body("warn"));
        workspace.apply().await.succeeded();
        fleet.simulator.set_power("node1", PowerState::Off).unwrap();
        let plan = workspace.plan().await;
        plan.is_empty();
        plan.run.says("Power state differs from server_power").says("The plan does not correct it");
        fleet.configure(&workspace, &body("restore"));
        let plan = workspace.plan().await;
        assert_eq!(plan.change(HELD)["actions"], serde_json::json!(["update"]));
        assert_eq!(plan.change(HELD)["after"]["effect"], "node1 is switched on again, because its power is Off");
        plan.run.says("Servers will be switched or booted");
        assert_eq!(fleet.system("node1").power, PowerState::Off, "a plan changes nothing");
        workspace.apply_saved(&plan).await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
        workspace.plan().await.is_empty().run.is_silent_about("differs");
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn a_server_that_drifted_boots_its_image_again(host) {
        let (fleet, images, workspace) = (Fleet::new(1).await, Images::start().await, Workspace::new(host));
        let boot = format!("boot_configuration = {{ method = \"virtual_media\", image = \"{}\" }}", images.url("rescue.iso"));
        let body = maintenance("node1", "m", &format!("server_power = \"On\"\n  on_drift = \"restore\"\n  {boot}"));
        fleet.configure(&workspace, &body);
        workspace.apply().await.succeeded();
        fleet.simulator.set_power("node1", PowerState::Off).unwrap();
        workspace.apply().await.succeeded();
        assert!(fleet.runs("node1").contains("rescue.iso"), "{}", fleet.runs("node1"));
        assert_eq!(fleet.system("node1").power, PowerState::On);
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert!(fleet.runs("node1").contains("Disk"), "{}", fleet.runs("node1"));
    }
}
