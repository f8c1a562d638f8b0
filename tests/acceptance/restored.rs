//! A restored coordination store: no server is touched, and no state is lost.

use std::{fs, path::PathBuf};

use bmc_simulator::PowerState;

use crate::support::{
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

/// The embedded store's file, which is closed between two runs.
struct File(PathBuf);

impl File {
    fn of(workspace: &Workspace) -> Self {
        Self(workspace.state_home().join("terraform-provider-metal/coordination.sqlite"))
    }

    fn beside(&self, end: &str) -> PathBuf {
        PathBuf::from(format!("{}{end}", self.0.display()))
    }

    fn save(&self) {
        assert!(!self.beside("-wal").exists(), "a process has the store open");
        fs::copy(&self.0, self.beside(".copy")).unwrap();
    }

    fn restore(&self) {
        for left in ["-wal", "-shm"] {
            let _ = fs::remove_file(self.beside(left));
        }
        fs::copy(self.beside(".copy"), &self.0).unwrap();
    }
}

const WENT_BACK: &str = "The coordination store of node1 went back in time";

for_one_host! {
    async fn a_hold_that_a_restored_store_does_not_know_stays_in_the_state(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let file = File::of(&workspace);
        fleet.configure(&workspace, &maintenance("node1", "before", ""));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
        file.save();
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        let changes = fleet.changes("node1");
        file.restore();

        workspace.try_plan().await.failed().says(WENT_BACK).says("store restored --reason");
        workspace.destroy().await.failed().says(WENT_BACK).says("the store does not contain it");
        workspace.metal(&["store", "restored", "--reason", "disk 3 failed"]).await.succeeded().says("No maintenance");
        // The plan repeats the error, because the lost commits stay lost.
        workspace.try_plan().await.failed().says(WENT_BACK);
        let held = workspace.resource("metal_server_maintenance.held").await.expect("it is kept");
        assert_eq!(held["previous_power_state"], "On");
        assert_eq!(fleet.changes("node1"), changes, "the server was changed");
    }
}

for_one_host! {
    async fn a_hold_of_a_restored_store_is_released_after_an_inspection_only(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let file = File::of(&workspace);
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        file.save();
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"On\""));
        workspace.apply().await.succeeded();
        let changes = fleet.changes("node1");
        file.restore();

        // The record exists with an older generation.
        let plan = workspace.try_plan().await.failed();
        plan.says(WENT_BACK).says("the state recorded generation 2 of tests/m, but the store has 1");
        workspace.destroy().await.failed().says(WENT_BACK);
        workspace.metal(&["store", "restored", "--reason", " "]).await.failed().says("--reason must not be empty");
        workspace
            .metal(&["store", "restored", "--reason", "disk 3 failed", "--seen", "7"])
            .await
            .succeeded()
            .says("generation 1000007 or higher")
            .says("tests/m")
            .says("prior power: On");
        workspace.metal(&["queue"]).await.succeeded().says("inspection");
        workspace.destroy().await.failed().says("tests/m waits for an inspection").says("disk 3 failed");
        assert_eq!(fleet.changes("node1"), changes, "the server was changed");

        workspace.metal(&["store", "inspected", "tests/m", "--reason", "it is on"]).await.succeeded();
        workspace.metal(&["store", "inspected", "tests/m", "--reason", "again"]).await.succeeded().says("does not wait");
        workspace.destroy().await.succeeded();
        fleet.until("node1", PowerState::On).await;
        let audit = workspace.metal(&["show", "tests/m"]).await.succeeded();
        audit.says("restored").says("disk 3 failed").says("inspected").says("it is on");
        workspace.metal(&["store", "check"]).await.succeeded().says("is in order");
    }
}
