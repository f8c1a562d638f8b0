//! One server has one lock, whatever identity it currently reports.

use bmc_simulator::{Identity, SimulatorConfig, SystemChange, SystemUuid};

use crate::support::{
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

const NEW_BOARD: &str = "5d5d5544-0037-4010-8052-b4c04f4d3332";

/// Changes the UUID that a server reports.
fn report(fleet: &Fleet, server: &str, uuid: SystemUuid) {
    let identity = Identity { uuid, ..fleet.system(server).identity };
    let change = SystemChange { identity: Some(identity), ..SystemChange::default() };
    fleet.simulator.change_system(server, change).unwrap();
}

/// Returns the lock keys of all held servers and waiters.
async fn lock_keys(workspace: &Workspace) -> Vec<String> {
    let queue = workspace.metal(&["queue", "--json"]).await.succeeded();
    let queue: serde_json::Value = serde_json::from_str(&queue.stdout).unwrap();
    queue["queue"].as_array().unwrap().iter().map(|line| line["lock_key"].as_str().unwrap().to_owned()).collect()
}

for_each_host! {
    async fn a_bmc_that_hides_its_uuid_gives_no_second_lock(host) {
        let (fleet, holder) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure_with(&holder, "owner = \"team-a\"", &maintenance("node1", "m", ""));
        holder.apply().await.succeeded();
        report(&fleet, "node1", SystemUuid::Missing);
        let other = holder.beside();
        fleet.configure_with(&other, "owner = \"team-b\"", &maintenance("node1", "w", "wait_for = \"Enqueued\""));
        other.apply().await.succeeded();
        let keys = lock_keys(&other).await;
        assert_eq!(keys.len(), 2, "{keys:?}");
        assert_eq!(keys[0], keys[1], "one server is held under two locks");
        holder.metal(&["store", "check"]).await.succeeded();
        other.destroy().await.succeeded();
        holder.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn a_server_without_uuid_is_refused_until_lock_key_names_it(host) {
        let mut config = SimulatorConfig::with_systems(1);
        config.systems[0].uuid = Some(SystemUuid::Nil);
        let (fleet, workspace) = (Fleet::with(config).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", ""));
        let refused = workspace.apply().await.failed();
        refused.says("node1 reports no system UUID").says("Nothing was done to the server.").says("set lock_key for this server");
        assert_eq!(fleet.changes("node1"), Vec::<String>::new());
        let inventory = fleet.simulator.inventory().replacen("\"node1\":\n", "\"node1\":\n  lock_key: rack1-node7\n", 1);
        assert!(inventory.contains("lock_key"), "{inventory}");
        workspace.write("servers.yaml", &inventory);
        workspace.apply().await.succeeded();
        assert_eq!(lock_keys(&workspace).await, ["rack1-node7"]);
        // Another configuration without `lock_key` finds the same lock by serial number and
        // address.
        let other = workspace.beside();
        fleet.configure_with(&other, "owner = \"team-b\"", &maintenance("node1", "w", "wait_for = \"Enqueued\""));
        other.apply().await.succeeded();
        assert_eq!(lock_keys(&workspace).await, ["rack1-node7", "rack1-node7"]);
        other.destroy().await.succeeded();
        workspace.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn a_new_mainboard_is_refused_until_a_person_moves_its_identifiers(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure_with(&workspace, "owner = \"team\"", &maintenance("node1", "m", ""));
        workspace.apply().await.succeeded();
        let old = lock_keys(&workspace).await.remove(0);
        report(&fleet, "node1", SystemUuid::Real(NEW_BOARD.parse().unwrap()));
        let other = workspace.beside();
        fleet.configure_with(&other, "owner = \"team-b\"", &maintenance("node1", "w", ""));
        let refused = other.apply().await.failed();
        refused.says("node1 is known under another lock").says(&format!("belongs to the lock {old}")).says(NEW_BOARD);
        let shown = refused.words();
        // The serial number can contain spaces.
        let serial = shown.split_once("serial:").unwrap().1.split_once(" belongs to").unwrap().0;
        let serial = format!("serial:{serial}");
        let address = shown.split_whitespace().find(|word| word.starts_with("address:")).unwrap().to_owned();

        let rebind = ["server", "rebind", "team/node1", &serial, &address, "--key", NEW_BOARD];
        other.metal(&rebind).await.failed().says("--reason");
        let rebind: Vec<&str> = rebind.into_iter().chain(["--reason", "new mainboard"]).collect();
        other.metal(&rebind).await.failed().says(&format!("the lock {old} is in use by tests/m"));
        let unknown = ["server", "rebind", "team/nobody", "--key", NEW_BOARD, "--reason", "new mainboard"];
        other.metal(&unknown).await.failed().says("team/nobody");
        workspace.destroy().await.succeeded();
        other.metal(&rebind).await.succeeded().says(&format!("{serial}: {old} -> {NEW_BOARD}"));
        for key in [old.as_str(), NEW_BOARD] {
            other.metal(&["server", "history", key]).await.succeeded().says("rebound").says("new mainboard");
        }
        other.apply().await.succeeded();
        assert_eq!(lock_keys(&other).await, [NEW_BOARD]);
        other.metal(&["store", "check"]).await.succeeded();
        // The old name refers to it, too.
        fleet.configure_with(&workspace, "owner = \"team\"", &maintenance("node1", "m", "wait_for = \"Enqueued\""));
        workspace.apply().await.succeeded();
        assert_eq!(lock_keys(&other).await, [NEW_BOARD, NEW_BOARD]);
        workspace.destroy().await.succeeded();
        other.destroy().await.succeeded();
    }
}
