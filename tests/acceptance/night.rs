//! The command line at night: dead, interrupted and working processes, stuck steps and their
//! causes.

use std::time::{Duration, Instant};

use bmc_simulator::{Fault, Phase, SimulatorConfig};
use serde_json::Value;

use crate::support::{
    host::Host,
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

/// Returns a `queue` row.
async fn row(workspace: &Workspace, id: &str) -> Value {
    let queue = workspace.metal(&["queue", "--json"]).await.succeeded();
    let queue: Value = serde_json::from_str(&queue.stdout).unwrap();
    queue["queue"].as_array().unwrap().iter().find(|row| row["id"] == id).cloned().unwrap_or_default()
}

/// Runs the command that `queue` suggests below a maintenance.
async fn next(workspace: &Workspace, id: &str) -> crate::support::run::Run {
    let queue = workspace.metal(&["queue"]).await.succeeded();
    let suggested = format!("next: terraform-provider-metal show {id}");
    queue.says(&suggested);
    workspace.metal(&["show", id]).await.succeeded()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_is_seen_within_a_second_and_a_working_one_is_not_mistaken_for_it() {
    let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
    fleet.command_line(&mut workspace);
    let held = Fault::hold(Phase::Before).on_request("POST", "*Reset").on_system("node1").times(1);
    let fault = fleet.simulator.inject(held);
    let run = workspace.start_apply();
    run.until_it_logs("GracefulShutdown", SOON).await;
    let working = row(&workspace, "tests/m").await;
    assert_eq!((&working["process"], &working["state"]), (&"Working".into(), &"Preparing".into()), "{working}");
    workspace.metal(&["queue"]).await.succeeded().is_silent_about("NO PROCESS");

    run.kill_everything();
    let killed_at = Instant::now();
    let killed = row(&workspace, "tests/m").await;
    assert!(killed_at.elapsed() < Duration::from_secs(5), "the command itself took {:?}", killed_at.elapsed());
    assert_eq!((&killed["process"], &killed["attended"]), (&"Killed".into(), &false.into()), "{killed}");
    workspace.metal(&["queue"]).await.succeeded().says("NO PROCESS: killed; apply again to continue");
    let why = workspace.metal(&["why", "node1"]).await.succeeded();
    why.says("node1 is held by tests/m of default").says("Process: NO PROCESS: killed");
    why.says("Next: terraform-provider-metal release tests/m --owner default");
    let shown = next(&workspace, "tests/m").await;
    shown.says("process NO PROCESS: killed").says("next terraform-provider-metal release tests/m --owner default");
    fleet.simulator.remove_fault(fault).unwrap();
    workspace.metal(&["release", "tests/m", "--owner", "default"]).await.succeeded();
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_and_stuck_runs_are_shown_with_their_causes() {
    let mut config = SimulatorConfig::with_systems(2);
    config.behaviour.graceful_shutdown = Duration::from_secs(2);
    let (fleet, mut interrupted) = (Fleet::with(config).await, Workspace::new(Host::OpenTofu));
    let stuck = interrupted.beside();
    fleet.configure(&interrupted, &maintenance("node1", "interrupted", "server_power = \"Off\""));
    fleet.configure(&stuck, &maintenance("node2", "stuck", "server_power = \"Off\""));
    stuck.apply().await.succeeded();
    let run = interrupted.start_apply();
    run.until_it_logs("GracefulShutdown", SOON).await;
    run.interrupt();
    run.wait(SOON).await.says("Preparing a server was interrupted");
    let fault =
        fleet.simulator.inject(Fault::error(400, "the door is open").on_request("POST", "*Reset").on_system("node2"));
    stuck.destroy().await.failed().says("the door is open");

    let queue = interrupted.metal(&["queue"]).await.succeeded();
    queue.says("NO PROCESS: interrupted; apply again to continue").says("step: setting the power");
    queue.says("STUCK:").says("the door is open").says("destroy again to continue");
    next(&interrupted, "tests/interrupted").await.says("process NO PROCESS: interrupted");
    next(&interrupted, "tests/stuck").await.says("stuck:").says("the door is open");
    assert_eq!(row(&stuck, "tests/stuck").await["process"], "Detached");

    // A server that is not in the inventory cannot be restored: nothing is recorded or done.
    fleet.command_line(&mut interrupted);
    let before = row(&interrupted, "tests/stuck").await;
    let inventory = std::fs::read_to_string(stuck.folder().join("servers.yaml")).unwrap();
    interrupted.write("servers.yaml", &inventory.replace("node2", "node9"));
    let generation = before["generation"].to_string();
    let release = ["release", "tests/stuck", "--force", "--generation", &generation, "--reason", "night"];
    for command in [&["release", "tests/stuck"][..], &release] {
        let refused = interrupted.metal(command).await.failed();
        refused.says("server \"node2\" is not configured").says("Nothing was done.").is_silent_about("did not answer");
    }
    assert_eq!(row(&interrupted, "tests/stuck").await, before);
    interrupted.write("servers.yaml", &inventory);

    fleet.simulator.remove_fault(fault).unwrap();
    stuck.destroy().await.succeeded();
    interrupted.destroy().await.succeeded();
}

/// `check` must not report the memory store that replaces a missing file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_does_not_contradict_itself_about_a_store_that_does_not_exist_yet() {
    let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, "");
    fleet.command_line(&mut workspace);
    let check = workspace.metal(&["check"]).await.succeeded();
    check
        .says("does not exist yet: the first apply creates it")
        .is_silent_about("memory")
        .is_silent_about("NOT usable");
    workspace.write("file", "");
    workspace.set("METAL_COORDINATION_URL", format!("sqlite://{}/file/x.sqlite", workspace.folder().display()));
    let check = workspace.metal(&["check"]).await;
    assert_eq!(check.status.code(), Some(3), "{}", check.output);
    check.says("NOT usable it cannot be created").says("is not a folder").is_silent_about("the first apply");
}
