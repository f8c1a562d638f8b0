//! Tests the harness without the provider: both hosts, their exit codes, plans and state, and the
//! effect of interrupts and kills.

use std::fs;

use serde_json::json;

use crate::support::{
    host::Host,
    process,
    wait::{PATIENCE, eventually},
    workspace::Workspace,
};

fn builtin(configuration: &str) -> impl Fn(Host) -> Workspace {
    move |host| {
        let workspace = Workspace::new(host);
        workspace.write("main.tf", configuration);
        workspace
    }
}

const ONE: &str = r#"
resource "terraform_data" "one" {
  input = "first"
}
output "kept" {
  value = terraform_data.one.output
}
"#;

/// A resource whose provisioner prints its process ID and waits for the file `end`; `exec` keeps
/// it a single process.
const WAITING: &str = r#"
resource "terraform_data" "waiting" {
  provisioner "local-exec" {
    command = "echo waiting $$; exec tail -f /dev/null"
  }
}
"#;

for_each_host! {
    async fn versions_are_the_pinned_ones(host) {
        let version = Workspace::new(host).json(&["version", "-json"]).await;
        let expected = match host {
            Host::OpenTofu => "1.6.2",
            Host::Terraform => "1.15.5",
        };
        assert_eq!(version["terraform_version"], expected);
    }
}

for_each_host! {
    async fn apply_plan_destroy(host) {
        let workspace = builtin(ONE)(host);

        let plan = workspace.plan().await;
        let create = vec!["create".to_owned()];
        assert_eq!(plan.changes(), [("terraform_data.one".to_owned(), create)]);
        assert_eq!(plan.change("terraform_data.one")["after"]["input"], "first");

        workspace.apply_saved(&plan).await.succeeded().says("1 added, 0 changed, 0 destroyed");
        let one = workspace.resource("terraform_data.one").await.expect("created");
        assert_eq!(one["output"], "first");
        workspace.plan().await.is_empty();
        let kept = workspace.json(&["output", "-json"]).await;
        assert_eq!(kept["kept"]["value"], "first");

        workspace.destroy().await.succeeded().says("1 destroyed");
        assert_eq!(workspace.resource("terraform_data.one").await, None);
    }
}

for_each_host! {
    async fn import_and_refresh(host) {
        let workspace = builtin("resource \"terraform_data\" \"one\" {}\n")(host);
        workspace.import("terraform_data.one", "an-id").await.succeeded();
        workspace.refresh().await.succeeded();
        let one = workspace.resource("terraform_data.one").await.expect("imported");
        assert_eq!(one["id"], json!("an-id"));
    }
}

for_each_host! {
    async fn a_wrong_configuration_is_an_error_with_words(host) {
        let workspace = builtin("resource \"terraform_data\" \"one\" { nonsense = 1 }\n")(host);
        let run = workspace.try_plan().await.failed();
        assert_eq!(run.status.code(), Some(1));
        run.says("An argument named \"nonsense\" is not expected here.");
    }
}

for_each_host! {
    async fn an_interrupt_ends_the_run_in_order(host) {
        let workspace = builtin(WAITING)(host);
        let apply = workspace.start_apply();
        apply.until_it_says("): waiting ", PATIENCE).await;
        apply.interrupt();
        let run = apply.wait(PATIENCE).await.failed();
        assert_eq!(run.status.code(), Some(1), "{}", run.output);
        run.says("Gracefully shutting down");
        // The state was written: a created resource whose provisioner failed is tainted.
        let state = fs::read_to_string(workspace.folder().join("terraform.tfstate")).unwrap();
        assert!(state.contains("tainted"), "{state}");
    }
}

for_each_host! {
    async fn kill_minus_9_ends_the_host_and_leaves_its_children(host) {
        let workspace = builtin(WAITING)(host);
        let apply = workspace.start_apply();
        apply.until_it_says("): waiting ", PATIENCE).await;
        let pid = apply.pid();
        let children = process::descendants(pid);
        assert!(!children.is_empty(), "{}", apply.output());

        apply.kill_host();
        eventually("the host process has ended", PATIENCE, async || (!process::is_alive(pid)).then_some(())).await;
        assert!(children.iter().all(|child| process::is_alive(*child)));

        apply.kill_everything();
        eventually("the child processes have ended", PATIENCE, async || {
            children.iter().all(|child| !process::is_alive(*child)).then_some(())
        })
        .await;
        let run = apply.wait(PATIENCE).await.failed();
        assert_eq!(run.status.code(), None, "killed, not ended: {}", run.status);
    }
}

for_each_host! {
    async fn output_comes_while_the_run_goes_on(host) {
        // The provisioner waits for a file that the test creates after the first line.
        let workspace = builtin(
            r#"resource "terraform_data" "one" {
                 provisioner "local-exec" {
                   command = "echo ready to go on; until [ -e go-on ]; do sleep 0.02; done"
                 }
               }"#,
        )(host);
        let apply = workspace.start_apply();
        apply.until_it_says("): ready to go on", PATIENCE).await;
        workspace.write("go-on", "");
        apply.wait(PATIENCE).await.succeeded();
    }
}

for_each_host! {
    async fn workspaces_of_one_user_share_the_home_and_nothing_else(host) {
        let first = builtin(ONE)(host);
        let second = first.beside();
        second.write("main.tf", ONE);
        first.apply().await.succeeded();
        assert_eq!(first.state_home(), second.state_home());
        assert_eq!(second.resource("terraform_data.one").await, None);
        let states: Vec<_> = first
            .everything_written()
            .into_iter()
            .filter(|(path, _)| path.ends_with("terraform.tfstate"))
            .collect();
        assert_eq!(states.len(), 1);
        assert!(String::from_utf8_lossy(&states[0].1).contains("first"));
    }
}
