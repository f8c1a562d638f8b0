//! The action `metal_server_operation`, invoked manually and by changes to a resource. Terraform
//! only, because the pinned OpenTofu does not support actions.

use bmc_simulator::{Fault, HeldQuery, JournalQuery, Phase, PowerState};

use crate::support::{
    host::Host,
    run::Run,
    simulator::{Fleet, SOON, maintenance},
    wait::eventually,
    workspace::Workspace,
};

const INVOKE: [&str; 5] =
    ["apply", "-auto-approve", "-input=false", "-no-color", "-invoke=action.metal_server_operation.now"];
const PLAN: [&str; 4] = ["plan", "-input=false", "-no-color", INVOKE[4]];

fn action(what: &str, more: &str) -> String {
    let policy = if more.contains("policy") || more.contains("maintenance_id") { "" } else { "policy = \"Enforced\"" };
    format!(
        "action \"metal_server_operation\" \"now\" {{\n  config {{\n    server = \"node1\"\n    namespace = \"tests\"\n    name = \
         \"op\"\n    operation = \"{what}\"\n    {policy}\n    {more}\n  }}\n}}\n"
    )
}

/// A resource that triggers the action on creation and change.
fn trigger(input: &str) -> String {
    format!(
        "resource \"terraform_data\" \"firmware\" {{\n  input = \"{input}\"\n  lifecycle {{\n    action_trigger {{\n      events = \
         [after_create, after_update]\n      actions = [action.metal_server_operation.now]\n    }}\n  }}\n}}\n"
    )
}

async fn world() -> (Fleet, Workspace) {
    (Fleet::new(1).await, Workspace::new(Host::Terraform))
}

async fn invoke(workspace: &Workspace) -> Run {
    workspace.run(&INVOKE).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_invocation_by_hand_makes_it_once() {
    let (fleet, workspace) = world().await;
    fleet.configure(&workspace, &action("ForceRestart", "reason = \"hangs\""));
    workspace.run(&PLAN).await.succeeded().says("node1 is restarted without an operating system shutdown");
    assert!(fleet.resets("node1").is_empty(), "the plan restarted the server");
    let run = invoke(&workspace).await.succeeded();
    run.says("tests/op: node1 is restarted without an operating system shutdown");
    // Progress messages during the operation.
    run.says("tests/op on node1: ForceRestart").says("tests/op on node1: performed");
    assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
    invoke(&workspace).await.succeeded();
    assert_eq!(fleet.resets("node1"), ["ForceRestart", "ForceRestart"]);
    // An apply without `-invoke` runs nothing and leaves no record.
    workspace.apply().await.succeeded();
    assert_eq!(fleet.resets("node1").len(), 2);
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    workspace.metal(&["show", "tests/op"]).await.says("Completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_triggers_it_is_made_once_for_each_set() {
    let (fleet, workspace) = world().await;
    fleet.configure(&workspace, &action("PowerCycle", "triggers = { firmware = \"1\" }"));
    invoke(&workspace).await.succeeded();
    invoke(&workspace)
        .await
        .succeeded()
        .says("An operation has already run")
        .says("Change triggers to run the operation again");
    // Descriptive attributes run nothing.
    fleet.configure(&workspace, &action("PowerCycle", "triggers = { firmware = \"1\" }\n    reason = \"firmware\""));
    invoke(&workspace).await.succeeded().says("An operation has already run");
    assert_eq!(fleet.resets("node1"), ["PowerCycle"]);
    let plan = workspace.run(&PLAN).await.succeeded();
    plan.says("An operation has already run").says("tests/op already ran PowerCycle at").says("Nothing will be sent");
    plan.is_silent_about("is powered off and on again").is_silent_about("Queue:").is_silent_about("Takes over");
    fleet.configure(&workspace, &action("PowerCycle", "triggers = { firmware = \"2\" }"));
    let plan = workspace.run(&PLAN).await.succeeded();
    plan.says("node1 is powered off and on again").says("Queue: free").is_silent_about("A name is in use");
    plan.says("Ends tests/op first, an earlier invocation: it ran PowerCycle at").is_silent_about("has already run");
    invoke(&workspace).await.succeeded().is_silent_about("has already run");
    assert_eq!(fleet.resets("node1"), ["PowerCycle", "PowerCycle"]);
    // Its record remains without a lock, until a person ends it.
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    workspace.metal(&["show", "tests/op"]).await.succeeded().says("ran PowerCycle at").is_silent_about("InMaintenance");
    // As documented on its page.
    let page = include_str!("../../docs/actions/server_operation.md");
    assert!(page.contains("`terraform-provider-metal release NAMESPACE/NAME`."), "another command is tried below");
    workspace.metal(&["release", "tests/op"]).await.succeeded();
    workspace.metal(&["release", "tests/op"]).await.failed().says("tests/op has ended");
    invoke(&workspace).await.succeeded().is_silent_about("has already run").is_silent_about("was released by a person");
    assert_eq!(fleet.resets("node1").len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_resource_invokes_it() {
    let (fleet, workspace) = world().await;
    for (input, resets) in [("1", 1), ("1", 1), ("2", 2)] {
        fleet.configure(&workspace, &format!("{}{}", trigger(input), action("GracefulRestart", "")));
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1").len(), resets, "{input}");
    }
    // Many resources with one set of triggers run one restart, without an error.
    let many = trigger("x").replace("input =", "count = 3\n  input =");
    fleet.configure(&workspace, &format!("{many}{}", action("GracefulRestart", "triggers = { all = \"3\" }")));
    workspace.apply().await.succeeded().says("An operation has already run");
    assert_eq!(fleet.resets("node1").len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_hold_of_the_same_plan_it_happens_under_that_hold() {
    let (fleet, workspace) = world().await;
    let held = |firmware: &str| {
        let trigger = "lifecycle {\n    action_trigger {\n      events = [after_create]\n      actions = \
                       [action.metal_server_operation.now]\n    }\n  }";
        let more = format!("triggers = {{ firmware = \"{firmware}\" }}\n  {trigger}");
        maintenance("node1", "m", &more) + &action("ForceRestart", "maintenance_id = metal_server_maintenance.held.id")
    };
    for (number, firmware) in ["1", "2"].into_iter().enumerate() {
        fleet.configure(&workspace, &held(firmware));
        let run = workspace.apply().await.succeeded();
        run.says("It happens under").is_silent_about("Server is held by the same owner");
        assert_eq!(fleet.resets("node1").len(), number + 1);
    }
    workspace.destroy().await.succeeded();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_the_bmc_accepted_it_is_not_made_again() {
    for (phase, more) in [
        (Phase::Before, ""),
        (Phase::After, ""),
        (Phase::Before, "triggers = { n = \"1\" }"),
        (Phase::After, "triggers = { n = \"1\" }"),
    ] {
        let (fleet, workspace) = world().await;
        fleet.configure(&workspace, &action("ForceRestart", more));
        let fault = Fault::hold(phase).on_request("POST", "*ComputerSystem.Reset").times(1);
        let _ = fleet.simulator.inject(fault);
        let run = workspace.start(&INVOKE);
        let query = HeldQuery::default();
        eventually("a held reset", SOON, async || fleet.simulator.held(&query).into_iter().next()).await;
        run.kill_everything();
        drop(run);
        let gone = async || fleet.simulator.held(&query).is_empty().then_some(());
        eventually("the BMC closes the interrupted request", SOON, gone).await;
        let applied = || {
            let resets = JournalQuery::system("node1").request("POST", "*ComputerSystem.Reset");
            fleet.simulator.journal(&resets).iter().filter(|entry| entry.applied).count()
        };
        let before = applied();
        let again = invoke(&workspace).await.succeeded();
        assert_eq!(applied(), before, "{phase:?} {more}: sent twice");
        if before == 0 {
            again.says("An operation could not be proven");
        }
        // The killed invocation is answered now; the next invocation is independent.
        let next = invoke(&workspace).await.succeeded();
        if more.is_empty() {
            assert_eq!(applied(), before + 1, "{phase:?}");
        } else {
            next.says("An operation has already run");
            assert_eq!(applied(), before, "{phase:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_waits_for_its_turn_and_leaves_the_queue_at_an_interrupt() {
    let (fleet, holder) = world().await;
    let other = holder.beside();
    fleet.configure(&holder, &maintenance("node1", "m", ""));
    holder.apply().await.succeeded();
    fleet.configure_with(&other, "owner = \"others\"", &action("ForceRestart", ""));
    let waiting = other.start(&INVOKE);
    waiting.until_it_says("tests/op on node1: queued, 1 ahead: tests/m", SOON).await;
    waiting.interrupt();
    waiting.wait(SOON).await.failed().says("Waiting for node1 was interrupted").says("left the queue");
    holder.metal(&["queue"]).await.succeeded().is_silent_about("tests/op");

    let waiting = other.start(&INVOKE);
    waiting.until_it_says("tests/op on node1: queued, 1 ahead: tests/m", SOON).await;
    assert!(fleet.resets("node1").is_empty());
    let under = action("PowerCycle", "maintenance_id = \"tests/m\"").replace("\"op\"", "\"under\"");
    fleet.configure(&holder, &format!("{}{under}", maintenance("node1", "m", "")));
    invoke(&holder).await.succeeded();
    assert_eq!(fleet.resets("node1"), ["PowerCycle"]);
    holder.destroy().await.succeeded();
    waiting.wait(SOON).await.succeeded();
    assert_eq!(fleet.resets("node1"), ["PowerCycle", "ForceRestart"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_waiter_is_continued_and_another_operation_replaces_it() {
    let (fleet, holder) = world().await;
    let other = holder.beside();
    fleet.configure(&holder, &maintenance("node1", "m", ""));
    holder.apply().await.succeeded();
    for what in ["ForceRestart", "ForceOff"] {
        fleet.configure_with(&other, "owner = \"others\"", &action(what, ""));
        let waiting = other.start(&INVOKE);
        waiting.until_it_says("tests/op on node1: queued, 1 ahead: tests/m", SOON).await;
        waiting.kill_everything();
    }
    fleet.configure_with(&other, "owner = \"others\"", &action("ForceOff", ""));
    let waiting = other.start(&INVOKE);
    waiting.until_it_says("tests/op on node1: queued, 1 ahead: tests/m", SOON).await;
    holder.destroy().await.succeeded();
    waiting.wait(SOON).await.succeeded();
    assert_eq!(fleet.resets("node1"), ["ForceOff"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_an_error() {
    let (fleet, workspace) = world().await;
    for (what, more, says) in [
        ("Reboot", "", "Invalid value"),
        ("ForceRestart", "timeouts = { invoke = \"soon\" }", "timeouts.invoke"),
        ("ForceRestart", "maintenance_id = \"m\"", "Not the id of a maintenance"),
        ("ForceRestart", "window = { schedule = \"0 22 30 2 *\", duration = \"1h\" }", "never opens"),
    ] {
        fleet.configure(&workspace, &action(what, more));
        workspace.run(&PLAN).await.failed().says(says);
    }
    fleet.configure(&workspace, &action("ForceRestart", "").replace("node1", "node7"));
    workspace.run(&PLAN).await.failed().says("node7 is not configured");
    fleet.simulator.set_power("node1", PowerState::Off).unwrap();
    fleet.until("node1", PowerState::Off).await;
    fleet.configure(&workspace, &action("ForceRestart", "when_off = \"error\""));
    invoke(&workspace).await.failed().says("ForceRestart of node1 failed").says("the server is off");
    // The triggering resource is created, and does not invoke the action again on its own.
    fleet.configure(&workspace, &format!("{}{}", trigger("1"), action("ForceRestart", "when_off = \"error\"")));
    workspace.apply().await.failed().says("ForceRestart of node1 failed");
    workspace.plan().await.is_empty();
    assert!(fleet.changes("node1").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_works() {
    let (fleet, workspace) = world().await;
    let example = include_str!("../../examples/actions/metal_server_operation/action.tf");
    fleet.configure(&workspace, &example.replace("rack1-node7", "node1"));
    workspace.apply().await.succeeded();
    workspace.apply().await.succeeded();
    assert_eq!(fleet.resets("node1"), ["PowerCycle"]);
    let by_hand = INVOKE
        .map(|argument| if argument == INVOKE[4] { "-invoke=action.metal_server_operation.restart" } else { argument });
    workspace.run(&by_hand).await.succeeded();
    assert_eq!(fleet.resets("node1"), ["PowerCycle", "GracefulRestart"]);
}
