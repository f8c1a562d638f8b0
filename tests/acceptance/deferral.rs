//! Deferred changes while the provider's configuration is unknown. Only experimental builds of
//! Terraform support this.

use std::fs;

use bmc_simulator::SystemConfig;
use serde_json::Value;

use crate::support::{
    host::{Host, tool},
    run::Run,
    simulator::{Fleet, maintenance},
    workspace::{RUN_LIMIT, Workspace},
};

const HELD: &str = "metal_server_maintenance.held";
const LATE: &str = "resource \"terraform_data\" \"late\" {\n  input = \"team-a\"\n}\n";
const LATE_OWNER: &str = "owner = terraform_data.late.output";

/// Runs a command in an experimental build with deferral.
async fn experimental(workspace: &Workspace, command: &str, more: &[&str]) -> Run {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/acceptance/support/experimental_terraform.py");
    let python = tool("terraform/bin/python");
    let arguments = ["-I", script, command, "-allow-deferral", "-input=false", "-no-color"];
    workspace.start_program(&python.to_string_lossy(), &[&arguments, more].concat()).wait(RUN_LIMIT).await
}

/// Returns a plan's deferred changes with their reasons.
async fn deferred(workspace: &Workspace, number: u32) -> Vec<String> {
    let file = workspace.folder().join(format!("deferring-{number}")).display().to_string();
    experimental(workspace, "plan", &[&format!("-out={file}")]).await.succeeded();
    let plan = workspace.json(&["show", "-json", &file]).await;
    let deferred = plan["deferred_changes"].as_array().into_iter().flatten();
    let shown = |change: &Value| {
        let (reason, change) = (&change["reason"], &change["resource_change"]);
        format!("{} {} {}", change["address"], change["change"]["actions"], reason).replace('"', "")
    };
    deferred.map(shown).collect()
}

#[tokio::test]
async fn everything_waits_for_the_run_in_which_the_provider_is_known() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::Terraform));
    let server = "data \"metal_server\" \"node1\" {\n  name = \"node1\"\n}\n";
    let body = format!("{LATE}{server}{}", maintenance("node1", "m", "server_power = \"Off\""));
    fleet.configure_with(&workspace, LATE_OWNER, &body);

    let waits = |actions: &str| format!("{HELD} [{actions}] provider_config_unknown");
    let read = "data.metal_server.node1 [read] provider_config_unknown".to_owned();
    assert_eq!(deferred(&workspace, 1).await, [read.clone(), waits("create")]);
    experimental(&workspace, "apply", &["-auto-approve"]).await.succeeded().says("1 added, 0 changed, 0 destroyed");
    assert_eq!(workspace.resource(HELD).await, None);
    assert_eq!(fleet.changes("node1"), [""; 0]);

    // The next run has all values.
    assert_eq!(deferred(&workspace, 2).await, [""; 0]);
    experimental(&workspace, "apply", &["-auto-approve"]).await.succeeded().says("1 added, 0 changed, 0 destroyed");
    assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");

    // With an unknown owner again, a held server stays held.
    let (before, body) = (workspace.resource(HELD).await, body.replace("input", "triggers_replace = 1\n  input"));
    fleet.configure_with(&workspace, LATE_OWNER, &body);
    assert_eq!(deferred(&workspace, 3).await, [read, waits("no-op")]);
    experimental(&workspace, "apply", &["-auto-approve"]).await.succeeded().says("1 added, 0 changed, 1 destroyed");
    assert_eq!(workspace.resource(HELD).await, before);
    assert_eq!(fleet.resets("node1"), ["GracefulShutdown"]);
    workspace.plan().await.is_empty();
    workspace.destroy().await.succeeded();
}

/// The lock and the work under it.
const LOCKED: &str = r#"
ephemeral "metal_server_lock" "run" {
  server    = "node1"
  namespace = "tests"
  name      = "run"
  policy    = "Enforced"
  applying  = terraform.applying
}
resource "terraform_data" "work" {
  provisioner "local-exec" {
    command     = "echo $KEY > key"
    environment = { KEY = ephemeral.metal_server_lock.run.lock_key }
  }
}
"#;

/// A host does not defer changes that depend on an ephemeral resource alone, and opens it in the
/// apply.
#[tokio::test]
async fn what_depends_on_a_lock_is_done_under_it_although_the_plan_deferred_it() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::Terraform));
    fleet.configure_with(&workspace, LATE_OWNER, &format!("{LATE}{LOCKED}"));
    assert_eq!(deferred(&workspace, 1).await, [""; 0]);
    experimental(&workspace, "apply", &["-auto-approve"]).await.succeeded().says("2 added, 0 changed, 0 destroyed");
    let key = fs::read_to_string(workspace.folder().join("key")).unwrap();
    assert_eq!(key.trim(), SystemConfig::default_uuid("node1").to_string());
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}
