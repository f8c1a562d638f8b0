//! A forced release lasts: the next run of the same configuration does not acquire the server
//! again.

use bmc_simulator::PowerState;

use crate::support::{
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

const HELD: &str = "metal_server_maintenance.held";

fn off(more: &str) -> String {
    maintenance("node1", "m", &format!("server_power = \"Off\"\n  timeouts = {{ create = \"3s\" }}\n  {more}"))
}

/// Releases the only maintenance, like a colleague in need of the server.
async fn release(workspace: &Workspace, more: &[&str]) {
    let generation = workspace.generation("tests/m").await;
    let common = ["release", "tests/m", "--force", "--generation", &generation, "--reason", "node needed"];
    workspace.metal(&[common.as_slice(), more].concat()).await.succeeded();
}

for_one_host! {
    async fn a_released_name_is_refused_until_it_is_allowed_or_asks_for_another_run(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &off(""));
        workspace.apply().await.succeeded();
        fleet.command_line(&mut workspace);
        release(&workspace, &[]).await;
        fleet.until("node1", PowerState::On).await;
        let resets = fleet.resets("node1");
        // The next CI run, with and without the state.
        let fresh = workspace.beside();
        for (run, plans) in [(&workspace, true), (&fresh, false)] {
            fleet.configure(run, &off(""));
            // The plan only warns if its state contains the maintenance: see `names.rs`.
            let plan = run.try_plan().await;
            assert_eq!(plan.status.success(), plans, "{}", plan.output);
            plan.says("released tests/m at").says("(\"node needed\", generation").says("release --allow tests/m");
            let refused = run.apply().await.failed();
            refused.says("A released name is refused for node1");
            refused.says("(\"node needed\", generation").says("triggers");
            assert_eq!(fleet.resets("node1"), resets, "{}", refused.output);
            assert!(run.resource(HELD).await.is_none());
            // A new reason does not start a new run.
            fleet.configure(run, &off("reason = \"again\""));
            run.apply().await.failed().says("A released name is refused for node1");
        }
        workspace.metal(&["show", "tests/m"]).await.succeeded().says("stays refused");
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        // A new name is another maintenance; new triggers are another run.
        let other = workspace.beside();
        fleet.configure(&other, &off("").replace("\"m\"", "\"other\""));
        other.apply().await.succeeded();
        other.destroy().await.succeeded();
        let again = workspace.beside();
        fleet.configure(&again, &off("triggers = { run = \"2\" }"));
        again.apply().await.succeeded();
        again.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
        // The earlier exception was for other triggers, so the second release needs `--allow`.
        fleet.configure(&again, &off(""));
        again.apply().await.succeeded();
        release(&workspace, &[]).await;
        again.apply().await.failed().says("A released name is refused for node1");
        workspace.metal(&["release", "--allow", "tests/m"]).await.succeeded().says("tests/m is allowed again");
        workspace.metal(&["release", "--allow", "tests/m"]).await.failed().says("tests/m is not refused");
        again.apply().await.succeeded();
        again.destroy().await.succeeded();
        workspace.metal(&["show", "tests/m"]).await.succeeded().says("allowed");
    }
}

for_one_host! {
    async fn a_waiter_that_a_person_released_is_refused_too(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        let (holder, waiter) = (workspace.beside(), workspace.beside());
        fleet.configure(&workspace, &off(""));
        fleet.configure(&holder, &maintenance("node1", "first", ""));
        holder.apply().await.succeeded();
        fleet.configure(&waiter, &off("").replace("3s", "2m"));
        let waiting = waiter.start_apply();
        waiting.until_it_logs("queued, ", SOON).await;
        fleet.command_line(&mut workspace);
        release(&workspace, &[]).await;
        let ended = waiting.wait(SOON).await.failed();
        ended.says("The request for node1 was ended").says("\"node needed\"").is_silent_about("Lost the lock");
        holder.destroy().await.succeeded();
        waiter.apply().await.failed().says("A released name is refused for node1");
        workspace.metal(&["release", "--allow", "tests/m"]).await.succeeded();
        waiter.apply().await.succeeded();
        waiter.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn a_block_keeps_everything_away_and_is_shown_everywhere(host) {
        let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &off(""));
        workspace.apply().await.succeeded();
        fleet.command_line(&mut workspace);
        release(&workspace, &["--block", "4h"]).await;
        let other = workspace.beside();
        let asks = maintenance("node1", "other", "timeouts = { create = \"2s\" }");
        let data = "data \"metal_server\" \"node\" {\n  name = \"node1\"\n}\ndata \"metal_maintenance_queue\" \"all\" {}\n";
        fleet.configure(&other, &format!("{asks}{data}"));
        other.try_plan().await.succeeded().says("Block: until").says("(\"node needed\")");
        let refused = other.apply().await.failed();
        refused.says("node1 was not available in time").says("blocked until");
        fleet.configure(&other, data);
        other.apply().await.succeeded();
        let server = other.resource("data.metal_server.node").await.unwrap();
        assert_eq!(server["block"]["reason"], "node needed", "{server}");
        let queue = other.resource("data.metal_maintenance_queue.all").await.unwrap();
        assert_eq!((&queue["entries"][0]["state"], &queue["entries"][0]["id"]), (&"Blocked".into(), &"tests/m".into()), "{queue}");
        let queue = workspace.metal(&["queue"]).await.succeeded();
        queue.says("Blocked").says("waits for: the block to end");
        workspace.metal(&["show", "tests/m"]).await.succeeded().says("block").says("node needed");
        let resets = fleet.resets("node1");
        // Even a higher priority does not end the block.
        fleet.configure(&other, &maintenance("node1", "urgent", "priority = 100\n  timeouts = { create = \"2s\" }"));
        other.apply().await.failed().says("blocked until");
        assert_eq!(fleet.resets("node1"), resets);
        // A waiter acquires the lock when the block ends.
        fleet.configure(&other, &maintenance("node1", "urgent", "priority = 100"));
        let waiting = other.start_apply();
        waiting.until_it_logs("blocked until", SOON).await;
        workspace.metal(&["release", "--allow", "tests/m"]).await.succeeded().says("The block of node1 has ended");
        waiting.wait(SOON).await.succeeded();
        other.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn the_command_line_says_what_a_release_needs(host) {
        let workspace = Workspace::new(host);
        workspace.metal(&["release", "tests/m", "--force", "--reason", "x"]).await.failed().says("--generation");
        workspace.metal(&["release", "tests/m", "--force", "--generation", "1"]).await.failed().says("--reason");
        let soon = ["release", "tests/m", "--force", "--generation", "1", "--reason", "x", "--block", "soon"];
        workspace.metal(&soon).await.failed().says("soon");
        workspace.metal(&["release", "--allow", "tests/m"]).await.failed().says("tests/m is not refused");
    }
}
