//! `metal_server_operation`: one power operation per trigger, under the lock.

use bmc_simulator::{Fault, HeldQuery, Personality, Phase, PowerState, ResetType, SimulatorConfig};

use crate::support::{
    simulator::{Fleet, SOON, maintenance},
    wait::eventually,
    workspace::Workspace,
};

const ADDRESS: &str = "metal_server_operation.now";

fn operation(what: &str, more: &str) -> String {
    let policy = if more.contains("policy") || more.contains("maintenance_id") { "" } else { "policy = \"Enforced\"" };
    format!(
        "resource \"metal_server_operation\" \"now\" {{\n  server = \"node1\"\n  namespace = \"tests\"\n  name = \"op\"\n  \
         operation = \"{what}\"\n  {policy}\n  {more}\n}}\n"
    )
}

for_each_host! {
    async fn it_is_made_once_per_trigger_and_destroy_touches_nothing(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &operation("ForceRestart", "reason = \"hangs\""));
        workspace.try_plan().await.succeeded().says("node1 is restarted without an operating system shutdown");
        workspace.apply().await.succeeded();
        let made = workspace.resource(ADDRESS).await.unwrap();
        assert_eq!((&made["state"], &made["outcome"]), (&"Completed".into(), &"Proven".into()), "{made}");
        assert!(workspace.plan().await.changes().is_empty());
        // Descriptive attributes change in place, without an operation.
        fleet.configure(&workspace, &operation("ForceRestart", "reason = \"hung\""));
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
        // The server is free, and the queue omits ended operations.
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");

        fleet.configure(&workspace, &operation("ForceRestart", "triggers = { run = \"2\" }"));
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["ForceRestart", "ForceRestart"]);
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.resets("node1").len(), 2);
        // Recreated after a destroy, the resource runs the operation again.
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1").len(), 3);
    }
}

for_one_host! {
    async fn a_plan_says_that_an_operation_of_a_lost_state_was_made(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &operation("ForceRestart", "triggers = { run = \"1\" }"));
        workspace.apply().await.succeeded();
        std::fs::remove_file(workspace.folder().join("terraform.tfstate")).unwrap();
        let plan = workspace.try_plan().await.succeeded();
        plan.says("An operation has already run").says("tests/op already ran ForceRestart at");
        plan.says("Nothing will be sent");
        plan.is_silent_about("Queue:").is_silent_about("Takes over");
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
        // `-replace` runs the operation again.
        let again = ["apply", "-auto-approve", "-input=false", "-no-color", "-replace=metal_server_operation.now"];
        workspace.run(&again).await.succeeded().is_silent_about("has already run");
        assert_eq!(fleet.resets("node1").len(), 2);
    }
}

for_each_host! {
    async fn each_leads_to_what_its_name_says(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        for (what, power) in [
            ("ForceOff", PowerState::Off),
            ("On", PowerState::On),
            ("GracefulShutdown", PowerState::Off),
            ("On", PowerState::On),
            ("PowerCycle", PowerState::On),
            ("GracefulRestart", PowerState::On),
        ] {
            fleet.configure(&workspace, &operation(what, "proof = \"power\""));
            workspace.apply().await.succeeded();
            let made = workspace.resource(ADDRESS).await.unwrap();
            assert_eq!(made["outcome"], "Proven", "{what}: {made}");
            assert_eq!(fleet.system("node1").power, power, "{what}");
        }
        fleet.configure(&workspace, &operation("Nmi", "proof = \"accepted\""));
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(ADDRESS).await.unwrap()["outcome"], "Accepted");
        fleet.configure(&workspace, &operation("ForceRestart", "proof = \"boot\""));
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(ADDRESS).await.unwrap()["outcome"], "Proven");
        assert_eq!(
            fleet.resets("node1"),
            ["ForceOff", "On", "GracefulShutdown", "On", "PowerCycle", "GracefulRestart", "Nmi", "ForceRestart"]
        );
    }
}

for_each_host! {
    async fn a_server_that_is_off_is_skipped_started_or_an_error(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.simulator.set_power("node1", PowerState::Off).unwrap();
        fleet.until("node1", PowerState::Off).await;
        fleet.configure(&workspace, &operation("ForceRestart", ""));
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(ADDRESS).await.unwrap()["outcome"], "Skipped");
        fleet.configure(&workspace, &operation("ForceRestart", "when_off = \"error\"\n  triggers = { n = \"2\" }"));
        workspace.apply().await.failed().says("ForceRestart of node1 failed").says("the server is off");
        assert!(fleet.resets("node1").is_empty());
        fleet.configure(&workspace, &operation("ForceRestart", "when_off = \"power_on\"\n  triggers = { n = \"3\" }"));
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["On"]);
    }
}

for_each_host! {
    async fn it_waits_for_its_turn_or_acts_under_a_hold(host) {
        let (fleet, holder) = (Fleet::new(1).await, Workspace::new(host));
        let other = holder.beside();
        fleet.configure(&holder, &maintenance("node1", "m", ""));
        holder.apply().await.succeeded();
        fleet.configure(&other, &operation("ForceRestart", ""));
        // Same owner: a separate lock would wait for this configuration's own maintenance.
        other.apply().await.failed().says("node1 is held by tests/m").says("maintenance_id");
        let theirs = operation("ForceRestart", "").replace("\"op\"", "\"theirs\"");
        fleet.configure_with(&other, "owner = \"others\"", &theirs);
        let waiting = other.start_apply();
        waiting.until_it_logs("queued, 1 ahead: tests/m", SOON).await;
        assert!(fleet.resets("node1").is_empty());
        let under = operation("PowerCycle", "maintenance_id = metal_server_maintenance.held.id");
        fleet.configure(&holder, &format!("{}{under}", maintenance("node1", "m", "")));
        holder.try_plan().await.succeeded().says("It happens under tests/m");
        holder.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["PowerCycle"]);
        assert!(holder.plan().await.changes().is_empty());
        holder.destroy().await.succeeded();
        waiting.wait(SOON).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["PowerCycle", "ForceRestart"]);
    }
}

for_each_host! {
    async fn killed_after_the_bmc_accepted_it_is_not_made_again(host) {
        for phase in [Phase::Before, Phase::After] {
            let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
            fleet.configure(&workspace, &operation("ForceRestart", ""));
            let fault = Fault::hold(phase).on_request("POST", "*ComputerSystem.Reset").times(1);
            let _ = fleet.simulator.inject(fault);
            let run = workspace.start_apply();
            let query = HeldQuery::default();
            eventually("a held reset", SOON, async || fleet.simulator.held(&query).into_iter().next()).await;
            run.kill_everything();
            drop(run);
            // The BMC detects the disconnect.
            let gone = async || fleet.simulator.held(&query).is_empty().then_some(());
            eventually("the BMC closes the interrupted request", SOON, gone).await;
            let applied = |fleet: &Fleet| fleet.simulator.journal(&bmc_simulator::JournalQuery::system("node1").request("POST", "*ComputerSystem.Reset")).iter().filter(|entry| entry.applied).count();
            let before = applied(&fleet);
            let again = workspace.apply().await.succeeded();
            let made = workspace.resource(ADDRESS).await.unwrap();
            if before == 1 {
                assert_eq!((applied(&fleet), &made["outcome"]), (1, &"Proven".into()), "{phase:?}: sent twice");
            } else {
                // The request never arrived, but nothing proves that, so it is not repeated.
                assert_eq!((applied(&fleet), &made["outcome"]), (0, &"Unproven".into()), "{phase:?}");
                again.says("An operation could not be proven").says("change triggers");
            }
            assert!(workspace.plan().await.changes().is_empty());
        }
    }
}

for_each_host! {
    async fn a_lost_reply_is_answered_by_looking(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &operation("PowerCycle", ""));
        let _ = fleet.simulator.inject(Fault::lose_reply().on_request("POST", "*ComputerSystem.Reset").times(1));
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(ADDRESS).await.unwrap()["outcome"], "Proven");
        assert_eq!(fleet.resets("node1"), ["PowerCycle"]);
    }
}

for_each_host! {
    async fn what_cannot_be_done_is_refused_at_plan(host) {
        let mut personality = Personality::generic();
        personality.power.reset_types = vec![ResetType::On, ResetType::ForceOff, ResetType::ForceRestart];
        personality.power.shows_boot_progress = false;
        let fleet = Fleet::with(SimulatorConfig::with_systems(1).with_personality(personality)).await;
        let workspace = Workspace::new(host);
        for (what, more, says) in [
            ("PowerCycle", "", "does not accept PowerCycle; it lists"),
            ("Reboot", "", "Invalid value"),
            ("ForceRestart", "proof = \"boot\"", "does not report boot progress"),
            ("Nmi", "proof = \"boot\"", "Not for this operation"),
            ("ForceRestart", "when_off = \"panic\"", "Invalid value"),
            (
                "ForceRestart",
                "maintenance_id = \"tests/m\"\n  window = { schedule = \"0 22 * * *\", duration = \"1h\" }",
                "Not under a maintenance",
            ),
            ("ForceRestart", "maintenance_id = \"m\"", "Not the id of a maintenance"),
            ("ForceRestart", "policy = \"Enforced\"\n  escalate_after = \"1h\"", "Only with OwnerApproval"),
            ("ForceRestart", "window = { schedule = \"0 22 30 2 *\", duration = \"1h\" }", "never opens"),
        ] {
            fleet.configure(&workspace, &operation(what, more));
            workspace.try_plan().await.failed().says(says).says("on main.tf line");
        }
        let without = operation("ForceRestart", "").replace("policy = \"Enforced\"", "");
        fleet.configure(&workspace, &without);
        workspace.try_plan().await.failed().says("A policy is needed");
        assert_eq!(fleet.changes("node1"), [""; 0]);
    }
}

for_each_host! {
    async fn an_operation_on_a_claimed_server_asks_its_owner(host) {
        let (fleet, owner) = (Fleet::new(1).await, Workspace::new(host));
        let asker = owner.beside();
        let claim = "resource \"metal_server_claim\" \"db\" {\n  server = \"node1\"\n  namespace = \"db\"\n  name = \"a\"\n}\n";
        fleet.configure_with(&owner, "owner = \"team-db\"", claim);
        owner.apply().await.succeeded();
        fleet.configure(&asker, &operation("ForceRestart", "policy = \"OwnerApproval\""));
        let waiting = asker.start_apply();
        waiting.until_it_logs("waiting for approval by team-db", SOON).await;
        owner.try_plan().await.succeeded().says("the server is restarted without an operating system shutdown");
        owner.metal(&["approve", "tests/op", "--owner", "team-db"]).await.succeeded();
        waiting.wait(SOON).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
    }
}
