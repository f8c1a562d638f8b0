//! Many parallel runs: one holder at a time, the others wait with a reason, and all finish.

use std::time::Duration;

use bmc_simulator::{JournalQuery, SimulatorConfig};

use crate::support::{
    host::Host,
    images::Images,
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

for_one_host! {
    async fn the_second_run_waits_with_a_reason_and_then_gets_the_server(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        let second = first.beside();
        fleet.configure(&first, &maintenance("node1", "first", "server_power = \"Off\""));
        fleet.configure(&second, &maintenance("node1", "second", "server_power = \"Off\""));
        first.apply().await.succeeded();
        let waiting = second.start_apply();
        let line = waiting.until_it_logs("queued, ", SOON).await;
        assert!(line.contains("1 ahead: tests/first (InMaintenance"), "{line}");
        let queue = first.metal(&["queue", "--json"]).await.succeeded();
        let queue: serde_json::Value = serde_json::from_str(&queue.stdout).unwrap();
        let queue = &queue["queue"];
        assert_eq!((&queue[0]["id"], &queue[0]["position"]), (&"tests/first".into(), &0.into()));
        assert_eq!((&queue[1]["id"], &queue[1]["position"]), (&"tests/second".into(), &1.into()));
        let asked = fleet.simulator.sequence();
        first.destroy().await.succeeded();
        waiting.wait(SOON).await.succeeded();
        second.destroy().await.succeeded();
        // One after the other: off and on for each run.
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On", "GracefulShutdown", "On"]);
        assert!(fleet.simulator.sequence() > asked);
    }
}

/// Fifty runs for ten servers, each of which powers its server off and releases it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_runs_for_ten_servers_never_meet_and_all_finish() {
    const SERVERS: usize = 10;
    const RUNS: usize = 50;
    let fleet = Fleet::with(SimulatorConfig::with_systems(SERVERS)).await;
    let images = Images::start().await;
    let user = Workspace::new(Host::OpenTofu);
    let mut runs = Vec::new();
    for n in 0..RUNS {
        let workspace = user.beside();
        let more = format!(
            "server_power = \"Off\"\n  wait_for = \"Completed\"\n  complete_when = {{ url = \"{}\" }}\n  timeouts = {{ create = \"10m\" }}",
            images.url("done.iso")
        );
        fleet.configure(&workspace, &maintenance(&format!("node{}", n % SERVERS + 1), &format!("m{n}"), &more));
        let run = workspace.start_apply();
        runs.push((workspace, run));
    }
    for (_workspace, run) in runs {
        run.wait(Duration::from_mins(5)).await.succeeded();
    }
    for server in 1..=SERVERS {
        let node = format!("node{server}");
        let expected: Vec<&str> = ["GracefulShutdown", "On"].into_iter().cycle().take(2 * RUNS / SERVERS).collect();
        assert_eq!(fleet.resets(&node), expected, "{node}: two holders would mix their resets");
        let refused = fleet.simulator.journal(&JournalQuery { status: Some(409), ..JournalQuery::system(&node) });
        assert!(refused.is_empty(), "{refused:?}");
    }
    user.metal(&["queue"]).await.succeeded().says("No server is held");
}

for_one_host! {
    async fn a_wait_that_ends_keeps_its_place_and_says_what_it_waited_for(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        let second = first.beside();
        fleet.configure(&first, &maintenance("node1", "first", ""));
        first.apply().await.succeeded();
        fleet.configure(&second, &maintenance("node1", "second", "timeouts = { create = \"2s\" }"));
        let run = second.apply().await.failed();
        run.says("node1 was not available in time").says("1 ahead: tests/first").says("is reserved for 15m");
        assert!(second.resource("metal_server_maintenance.held").await.is_none());
        first.metal(&["queue"]).await.succeeded().says("NO PROCESS; queue position reserved until").says("apply again to continue");
        first.destroy().await.succeeded();
        second.apply().await.succeeded();
        second.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn a_waiter_that_was_killed_blocks_nobody_and_finds_its_place_again(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        let (second, third) = (first.beside(), first.beside());
        fleet.configure(&first, &maintenance("node1", "first", ""));
        fleet.configure(&second, &maintenance("node1", "second", ""));
        fleet.configure(&third, &maintenance("node1", "third", ""));
        first.apply().await.succeeded();
        let doomed = second.start_apply();
        doomed.until_it_logs("queued, ", SOON).await;
        doomed.kill_everything();
        drop(doomed);
        let waiting = third.start_apply();
        waiting.until_it_logs("queued, ", SOON).await;
        first.destroy().await.succeeded();
        // The killed run is ahead until its lease ends after 30 s.
        waiting.wait(SOON * 2).await.succeeded();
        let back = second.start_apply();
        back.until_it_logs("adopted an earlier run's record", SOON).await;
        third.destroy().await.succeeded();
        back.wait(SOON).await.succeeded();
        second.destroy().await.succeeded();
    }
}
