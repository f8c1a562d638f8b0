//! `metal_server_operation` on a cluster: through the operator's annotation, under its own lock or
//! a hold.

use bmc_simulator::{JournalQuery, PowerState};
use serde_json::{Value, json};

use super::{cluster, configure, maintenance};
use crate::{
    servers::ironcore::{
        Operators, Options,
        api::{Key, Kind},
        family::{Family, OPERATION},
        world::World,
    },
    support::{simulator::SOON, workspace::Workspace},
};

const MADE: &str = "metal_server_operation.now";

fn operation(what: &str, more: &str) -> String {
    let policy = if more.contains("maintenance_id") { "" } else { "policy = \"Enforced\"" };
    format!(
        "resource \"metal_server_operation\" \"now\" {{\n  server = \"node1\"\n  namespace = \"tests\"\n  name = \"op\"\n  \
         operation = \"{what}\"\n  {policy}\n  {more}\n}}\n"
    )
}

/// Returns the resets sent to the machine by any client, after the first `since`.
fn resets(world: &World, since: usize) -> Vec<String> {
    let journal = world.simulator.journal(&JournalQuery::system("node1").request("POST", "*ComputerSystem.Reset"));
    let kinds = journal.iter().filter_map(|entry| Some(entry.body.as_ref()?["ResetType"].as_str()?.to_owned()));
    kinds.skip(since).collect()
}

async fn claimed(family: Family) -> World {
    let world = cluster(family, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    world
}

async fn ask_by_hand(world: &World, value: Value) {
    let change = json!({"metadata": {"annotations": {OPERATION: value}}});
    world.cluster.merge(Kind::Server, &Key::cluster("node1"), change).await.unwrap();
}

for_one_host! {
    async fn in_its_own_turn_the_operator_makes_it_once(host) {
        for family in [Family::V0_7, Family::Parked] {
            let world = claimed(family).await;
            let workspace = Workspace::new(host);
            let before = resets(&world, 0).len();
            configure(&world, &workspace, &operation("ForceRestart", ""));
            workspace.try_plan().await.succeeded().says("node1 is restarted without an operating system shutdown");
            workspace.apply().await.succeeded();
            let made = workspace.resource(MADE).await.unwrap();
            assert_eq!((&made["state"], &made["outcome"]), (&json!("Completed"), &json!("Accepted")), "{made}");
            assert_eq!(resets(&world, before), ["ForceRestart"], "{family:?}");
            assert_eq!(world.server("node1").await["metadata"]["annotations"].get(OPERATION), None);
            workspace.plan().await.is_empty();
            workspace.destroy().await.succeeded();
            assert_eq!(resets(&world, before).len(), 1);
            // The operator would revert this immediately, so the plan rejects it.
            configure(&world, &workspace, &operation("ForceOff", ""));
            let refused = workspace.try_plan().await.failed();
            refused.says("switch Server node1 back immediately").says("owners/claim1 wants its power On");
            workspace.apply().await.failed();
            configure(&world, &workspace, &operation("Nmi", "proof = \"accepted\""));
            if family == Family::V0_7 {
                workspace.try_plan().await.failed().says("does not accept Nmi");
            }
            assert_eq!(resets(&world, before).len(), 1);
        }
    }
}

for_one_host! {
    async fn it_waits_for_somebody_elses_maintenance_and_for_a_free_key(host) {
        let world = claimed(Family::V0_7).await;
        let spec = json!({"policy": "Enforced", "serverRef": {"name": "node1"}});
        let theirs = json!({"metadata": {"name": "theirs", "namespace": "default"}, "spec": spec});
        world.cluster.create(Kind::Legacy, theirs).await.unwrap();
        world.until_state("node1", "Maintenance").await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &operation("ForceRestart", ""));
        let before = resets(&world, 0).len();
        let apply = workspace.start_apply();
        apply.until_it_logs("now Maintenance for default/theirs", SOON).await;
        assert_eq!(resets(&world, before), Vec::<String>::new());
        world.cluster.delete(Kind::Legacy, &Key::within("default", "theirs")).await.unwrap();
        apply.wait(SOON).await.succeeded();
        assert_eq!(resets(&world, before), ["ForceRestart"]);

        // An annotation that pauses the operator stays until a person removes it.
        ask_by_hand(&world, json!("ignore")).await;
        configure(&world, &workspace, &operation("ForceRestart", "triggers = { again = \"1\" }"));
        let apply = workspace.start_apply();
        apply.until_it_logs("the operation \"ignore\" on the Server", SOON).await;
        assert_eq!(resets(&world, before).len(), 1);
        ask_by_hand(&world, Value::Null).await;
        apply.wait(SOON).await.succeeded();
        assert_eq!(resets(&world, before), ["ForceRestart", "ForceRestart"]);
    }
}

for_one_host! {
    async fn it_waits_for_a_parked_server(host) {
        let world = cluster(Family::Parked, 1, Options::default()).await;
        ask_by_hand(&world, json!("park")).await;
        world.until_state("node1", "Parked").await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &operation("PowerCycle", ""));
        let apply = workspace.start_apply();
        apply.until_it_logs("parked by an unnamed author", SOON).await;
        ask_by_hand(&world, json!("unpark")).await;
        apply.wait(SOON).await.succeeded();
        // The server is unclaimed and therefore off.
        assert_eq!(workspace.resource(MADE).await.unwrap()["outcome"], "Skipped");
    }
}

for_one_host! {
    async fn a_restart_that_the_operator_does_not_take_is_withdrawn_and_never_asked_for_twice(host) {
        let mut world = claimed(Family::V0_7).await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &operation("ForceRestart", ""));
        let before = resets(&world, 0).len();
        world.operators.stop();
        // The operator could already be executing the annotation, so the outcome is unknown.
        workspace.apply().await.succeeded().says("An operation could not be proven");
        assert!(!world.server("node1").await["metadata"]["annotations"].to_string().contains("hard-restart-server"));
        world.operators = Operators::start(world.cluster.client.clone(), Family::V0_7, Options::default());
        workspace.plan().await.is_empty();
        assert_eq!(resets(&world, before), [""; 0]);
    }
}

for_one_host! {
    async fn under_a_hold_the_operator_or_we_ourselves_make_it(host) {
        for family in [Family::V0_7, Family::Parked, Family::MaintenanceGroup] {
            let world = cluster(family, 1, Options::default()).await;
            let workspace = Workspace::new(host);
            let under = "maintenance_id = metal_server_maintenance.held.id";
            for (what, power) in
                [("ForceOff", PowerState::Off), ("On", PowerState::On), ("PowerCycle", PowerState::On), ("GracefulShutdown", PowerState::Off)]
            {
                configure(&world, &workspace, &(maintenance("Enforced", "") + &operation(what, under)));
                workspace.apply().await.succeeded();
                let made = workspace.resource(MADE).await.unwrap();
                assert_eq!(made["state"], "Completed", "{family:?} {what}: {made}");
                assert_eq!(world.simulator.system("node1").unwrap().power, power, "{family:?} {what}");
            }
            let last = resets(&world, 0);
            assert!(last.contains(&"PowerCycle".to_owned()), "{family:?}: {last:?}");
            workspace.destroy().await.succeeded();
            world.until_state("node1", "Available").await;
        }
    }
}
