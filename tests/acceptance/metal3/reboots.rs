//! Operations on managed hosts: the operator reboots them through the plain annotation.

use bmc_simulator::{JournalQuery, PowerState};
use serde_json::{Value, json};

use super::configure_with;
use crate::{
    servers::metal3::{operator::Options, world::World},
    support::{simulator::SOON, workspace::Workspace},
};

const ONCE: &str = "metal_server_operation.once";
const REBOOT: &str = "reboot.metal3.io";

fn configure(world: &World, workspace: &Workspace, operation: &str) {
    let body = format!(
        r#"
resource "metal_server_operation" "once" {{
  server    = "node1"
  namespace = "ops"
  name      = "restart"
  policy    = "Enforced"
  operation = "{operation}"
}}
"#
    );
    configure_with(world, workspace, "hold = \"power_off\"", &body);
}

/// Returns the machine's reset types in order, all sent by the operator. Its repetitions count
/// once.
fn resets(world: &World) -> Vec<String> {
    let journal = world.simulator.journal(&JournalQuery::system("node1"));
    let resets = journal.iter().filter(|entry| entry.path.contains("ComputerSystem.Reset"));
    let mut all: Vec<String> = resets
        .map(|entry| {
            assert_eq!(entry.user_agent.as_deref(), Some("ironic"), "{entry:?}");
            entry.body.clone().unwrap_or_default()["ResetType"].as_str().unwrap_or_default().to_owned()
        })
        .collect();
    all.dedup();
    all
}

fn annotation(host: &Value, key: &str) -> Value {
    host["metadata"]["annotations"][key].clone()
}

for_one_host! {
    async fn a_host_that_stays_with_its_operator_is_rebooted_by_it(host) {
        let world = World::start(1, Options::default()).await;
        for (operation, off) in [("ForceRestart", "ForceOff"), ("GracefulRestart", "GracefulShutdown")] {
            let workspace = Workspace::new(host);
            let before = resets(&world).len();
            configure(&world, &workspace, operation);
            workspace.apply().await.succeeded();
            assert_eq!(workspace.resource(ONCE).await.unwrap()["outcome"], "Accepted");
            assert_eq!(resets(&world)[before..], [off, "On"], "by the operator, once");
            assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
            assert_eq!(world.traces("node1").await, Vec::<String>::new());
            workspace.plan().await.is_empty();
            workspace.destroy().await.succeeded();
        }
    }
}

for_one_host! {
    async fn a_reboot_of_another_author_is_waited_for_and_stays(host) {
        let world = World::start(1, Options::default()).await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, "ForceRestart");
        let theirs = "reboot.metal3.io/night-shift";
        world.annotate("node1", json!({theirs: "{\"mode\":\"hard\"}"})).await;
        world.until("node1", "kept off", |host| host["status"]["poweredOn"] == false).await;
        let apply = workspace.start_apply();
        apply.until_it_logs("which has the annotation reboot.metal3.io/night-shift of another author", SOON * 2).await;
        assert_eq!(annotation(&world.host("node1").await, theirs), "{\"mode\":\"hard\"}");
        assert_eq!(world.traces("node1").await, [theirs]);
        world.annotate("node1", json!({theirs: null})).await;
        apply.wait(SOON * 4).await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn what_the_operator_would_ignore_or_undo_is_refused(host) {
        let world = World::empty(1, Options::default()).await;
        world.add("node1", json!({})).await;
        world.until("node1", "available", |host| host["status"]["provisioning"]["state"] == "available").await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, "ForceRestart");
        workspace.try_plan().await.failed().says("reboots provisioned hosts only").says("is available");
        configure(&world, &workspace, "ForceOff");
        workspace.try_plan().await.failed().says("can only restart a host");
        configure(&world, &workspace, "PowerCycle");
        world.merge("BareMetalHost", "node1", json!({"spec": {"disablePowerOff": true}})).await;
        workspace.try_plan().await.failed().says("spec.disablePowerOff");
        world.merge("BareMetalHost", "node1", json!({"spec": {"disablePowerOff": null, "online": false}})).await;
        workspace.try_plan().await.failed().says("spec.online").says("is false");
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_reboot_that_the_operator_never_makes_is_removed_by_prune(host) {
        let world = World::start(1, Options::default()).await;
        let awake = world.running.operator.options.awake.clone();
        let mut workspace = Workspace::new(host);
        let kubeconfig = world.kubernetes.user("admin", &["system:masters"]).display().to_string();
        workspace.set("METAL_KUBECONFIG", kubeconfig).set("METAL_KUBE_NAMESPACE", &world.namespace);
        configure(&world, &workspace, "ForceRestart");
        awake.close();
        workspace.apply().await.succeeded().says("An operation could not be proven");
        assert_eq!(world.traces("node1").await, [REBOOT]);
        // Another author's annotation is not removed.
        let ours = annotation(&world.host("node1").await, REBOOT);
        world.annotate("node1", json!({REBOOT: ""})).await;
        workspace.metal(&["--backend", "metal3", "prune"]).await.succeeded().says("No orphaned requests");
        assert_eq!(world.traces("node1").await, [REBOOT]);
        world.annotate("node1", json!({REBOOT: ours})).await;
        workspace.metal(&["--backend", "metal3", "prune"]).await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
        awake.open();
        assert_eq!(resets(&world), Vec::<String>::new());
    }
}
