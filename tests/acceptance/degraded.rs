//! A BMC or a store without response never fails the refresh of other servers.

use std::time::Duration;

use bmc_simulator::{Availability, Fault};

use crate::support::{
    host::Host,
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

fn all(count: usize) -> String {
    format!(
        r#"
resource "metal_server_maintenance" "all" {{
  count        = {count}
  server       = "node${{count.index + 1}}"
  namespace    = "tests"
  name         = "m${{count.index + 1}}"
  policy       = "Enforced"
  server_power = "On"
}}
"#
    )
}

for_one_host! {
    async fn one_dead_bmc_of_five_is_a_warning(host) {
        let (fleet, workspace) = (Fleet::new(5).await, Workspace::new(host));
        fleet.configure(&workspace, &all(5));
        workspace.apply().await.succeeded();
        let bmc = fleet.simulator.bmc_of("node3").unwrap();
        for dead in [Availability::Refusing, Availability::Silent] {
            fleet.simulator.set_availability(&bmc, dead).await.unwrap();
            let run = workspace.refresh().await.succeeded();
            run.says("BMC did not answer").says("node3");
        }
        fleet.simulator.set_availability(&bmc, Availability::Up).await.unwrap();
        let fault = fleet.simulator.inject(Fault::error(500, "broken").on_system("node3"));
        workspace.refresh().await.succeeded().says("BMC did not answer");
        fleet.simulator.remove_fault(fault).unwrap();
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_bmc_does_not_hold_up_ctrl_c() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, &all(1));
    // Longer than the allowed time after an interrupt.
    let path = workspace.folder().join("main.tf");
    let patient =
        std::fs::read_to_string(&path).unwrap().replace("request_timeout = \"3s\"", "request_timeout = \"15s\"");
    assert!(patient.contains("15s"));
    std::fs::write(&path, patient).unwrap();
    workspace.apply().await.succeeded();
    let bmc = fleet.simulator.bmc_of("node1").unwrap();
    fleet.simulator.set_availability(&bmc, Availability::Silent).await.unwrap();
    let run = workspace.start(&["plan", "-refresh-only", "-input=false", "-no-color"]);
    run.until_it_says("Refreshing state", SOON).await;
    run.interrupt();
    run.wait(Duration::from_secs(12)).await;
    fleet.simulator.set_availability(&bmc, Availability::Up).await.unwrap();
    workspace.destroy().await.succeeded();
}

/// Starts a process that locks the embedded store exclusively until it ends.
async fn locked(workspace: &Workspace) -> tokio::process::Child {
    locked_with(workspace, "PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE").await
}

/// Starts a process that runs these statements and ends with its transaction.
pub async fn locked_with(workspace: &Workspace, how: &str) -> tokio::process::Child {
    let file = workspace.state_home().join("terraform-provider-metal/coordination.sqlite");
    assert!(file.exists(), "{}", file.display());
    let script = "import sqlite3, sys\nd = sqlite3.connect(sys.argv[1], isolation_level=None)\nfor how in sys.argv[2].split(';'):\n    d.execute(how)\nprint('locked', flush=True)\nsys.stdin.read()\n";
    let mut lock = tokio::process::Command::new("python3")
        .args(["-c", script])
        .arg(&file)
        .arg(how)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut said = [0; 6];
    tokio::io::AsyncReadExt::read_exact(lock.stdout.as_mut().unwrap(), &mut said).await.unwrap();
    lock
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_store_keeps_what_is_known() {
    let (fleet, workspace) = (Fleet::new(2).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, &all(2));
    workspace.apply().await.succeeded();
    let mut lock = locked(&workspace).await;
    let run = workspace.refresh().await;
    lock.kill().await.unwrap();
    run.succeeded();
    assert!(workspace.resource("metal_server_maintenance.all[1]").await.is_some());
    workspace.plan().await.is_empty();
    workspace.destroy().await.succeeded();
}

for_one_host! {
    async fn a_tainted_resource_is_not_given_up_when_its_store_does_not_answer(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", "timeouts = { delete = \"5s\" }"));
        workspace.apply().await.succeeded();
        workspace.run(&["taint", "metal_server_maintenance.held"]).await.succeeded();
        let mut lock = locked(&workspace).await;
        let run = workspace.run(&["destroy", "-refresh=false", "-auto-approve", "-input=false", "-no-color"]).await;
        lock.kill().await.unwrap();
        run.failed().is_silent_about("Remove the resource from the state");
        assert!(workspace.resource("metal_server_maintenance.held").await.is_some());
        workspace.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn a_server_that_shows_no_power_state_is_not_switched(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let hold = |more: &str| maintenance("node1", "m", more);
        fleet.configure(&workspace, &hold("server_power = \"Off\""));
        for value in [serde_json::Value::Null, "Resetting".into()] {
            let plan = workspace.plan().await;
            let fault = fleet.simulator.inject(Fault::show("/PowerState", value));
            workspace.try_plan().await.failed().says("The state of node1 is not known").says("shows no power state").says("server_power");
            workspace.apply_saved(&plan).await.failed().says("The state of node1 is not known");
            assert_eq!(fleet.changes("node1"), [] as [String; 0], "a server with an unknown power state was changed");
            fleet.simulator.remove_fault(fault).unwrap();
        }
        // A lock alone does not need the power state.
        let fault = fleet.simulator.inject(Fault::show("/PowerState", serde_json::Value::Null));
        fleet.configure(&workspace, &hold(""));
        workspace.apply().await.succeeded();
        fleet.simulator.remove_fault(fault).unwrap();
        // The power is read before its first change.
        fleet.configure(&workspace, &hold("server_power = \"Off\""));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
        let system = fleet.simulator.system("node1").unwrap();
        assert_eq!(system.power, bmc_simulator::PowerState::On, "as it was");
    }
}

/// The host and the command line report the same error for a store that cannot be created.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_cannot_be_made_is_an_error_that_names_it() {
    let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, &maintenance("node1", "m", ""));
    workspace.set("METAL_COORDINATION_URL", "sqlite:///proc/nowhere/x.sqlite");
    workspace.try_plan().await.failed().says("The coordination store cannot be opened").says("/proc/nowhere");
}
