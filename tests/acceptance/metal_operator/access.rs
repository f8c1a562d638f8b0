//! Valid and invalid ways to access a cluster, and a cluster outage: messages and retained state.

use std::path::Path;

use serde_json::{Value, json};

use super::{
    HELD, cluster, configure, maintenance,
    strangers::{comes_back, goes_away, ours},
};
use crate::{
    servers::{
        ironcore::{Options, family::Family, world::World},
        kubernetes::Kubernetes,
    },
    support::{host::Host, workspace::Workspace},
};

/// Configures this `metal_operator` block.
fn configure_as(workspace: &Workspace, block: &str) {
    workspace.configure(&format!(
        r#"
provider "metal" {{
  graceful_shutdown_timeout = "4s"
  power_timeout             = "4s"
  metal_operator = {{
    bmc_insecure = true
    {block}
  }}
}}
{}
"#,
        maintenance("Enforced", "")
    ));
}

/// Returns a kubeconfig with another user.
fn kubeconfig(world: &World, folder: &Path, name: &str, user: &Value) -> String {
    let text = std::fs::read_to_string(world.kubernetes.kubeconfig()).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["users"][0]["user"] = user.clone();
    let path = folder.join(name);
    std::fs::write(&path, config.to_string()).unwrap();
    format!("kubeconfig = {:?}", path.display().to_string())
}

/// Returns a kubeconfig user whose token comes from a command.
fn exec(script: &str) -> Value {
    json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
        "interactiveMode": "Never",
    }})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_into_a_cluster_works_or_says_why_not() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    let workspace = Workspace::new(Host::OpenTofu);
    let folder = workspace.folder().to_path_buf();
    let token = Kubernetes::token("admin");
    std::fs::write(folder.join("token"), &token).unwrap();
    std::fs::write(folder.join("wrong"), "somebody").unwrap();
    let file = |name: &str| format!("{:?}", folder.join(name).display().to_string());
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token},
    });
    let ca = format!("{:?}", world.kubernetes.ca_file().display().to_string());
    let host = format!("host = {:?}\n    ca_certificate_file = {ca}", world.kubernetes.url());
    let right = [
        ("an exec plugin", kubeconfig(&world, &folder, "exec", &exec(&format!("echo '{credential}'")))),
        ("a token file", kubeconfig(&world, &folder, "file", &json!({"tokenFile": folder.join("token")}))),
        ("host, token and authority", format!("{host}\n    token_file = {}", file("token"))),
    ];
    for (way, block) in &right {
        configure_as(&workspace, block);
        let plan = workspace.try_plan().await.succeeded();
        assert!(plan.words().contains("Server: Available, unclaimed"), "{way}: {}", plan.output);
    }
    // The last way works for writes, too.
    workspace.apply().await.succeeded();
    workspace.destroy().await.succeeded();
    let admin = world.kubernetes.kubeconfig();
    let nobody = world.kubernetes.kubeconfig_of("nobody");
    // The plan succeeds with a warning, and the apply fails with the same text.
    let wrong = [
        (
            "a plugin that fails",
            kubeconfig(&world, &folder, "fails", &exec("echo no such account >&2; exit 3")),
            "exec",
        ),
        (
            "a plugin that is not there",
            kubeconfig(
                &world,
                &folder,
                "none",
                &json!({"exec": {
                    "apiVersion": "client.authentication.k8s.io/v1", "command": "/nowhere/plugin", "interactiveMode": "Never",
                }}),
            ),
            "/nowhere/plugin",
        ),
        ("no file", "kubeconfig = \"/nowhere/kubeconfig\"".to_owned(), "/nowhere/kubeconfig"),
        (
            "no context",
            format!("kubeconfig = {:?}\n    context = \"elsewhere\"", admin.display().to_string()),
            "elsewhere",
        ),
        ("a wrong token", format!("{host}\n    token_file = {}", file("wrong")), "does not accept the credentials"),
        (
            "no rights",
            format!("kubeconfig = {:?}", nobody.display().to_string()),
            "the verb \"list\" on \"servers.metal.ironcore.dev\"",
        ),
        ("nobody there", "host = \"https://127.0.0.1:9\"".to_owned(), "127.0.0.1:9"),
    ];
    for (what, block, says) in &wrong {
        configure_as(&workspace, block);
        let plan = workspace.try_plan().await;
        assert!(plan.words().contains(says), "{what}: the plan does not report {says:?}:\n{}", plan.output);
        assert!(!plan.output.contains(&token), "{what}: a token is shown");
    }
    let (_, denied, says) = &wrong[5];
    configure_as(&workspace, denied);
    workspace.apply().await.failed().says(says);
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_the_operator_is_told_so() {
    let kubernetes = Kubernetes::start();
    let workspace = Workspace::new(Host::Terraform);
    configure_as(&workspace, &format!("kubeconfig = {:?}", kubernetes.kubeconfig().display().to_string()));
    workspace.try_plan().await.says("metal-operator's definitions are not installed");
    workspace.apply().await.failed().says("metal-operator's definitions are not installed");
}

for_one_host! {
    async fn a_cluster_that_is_away_is_waited_for_or_told_and_nothing_is_dropped(host) {
        let mut world = cluster(Family::V0_7, 1, Options::default()).await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("Enforced", "server_power = \"On\"\n  timeouts = { delete = \"8s\" }"));
        workspace.apply().await.succeeded();
        let uid = ours(&world, "node1").await.unwrap().metadata.uid;
        let other = workspace.beside();
        configure(&world, &other, &maintenance("Enforced", "").replace("\"bios\"", "\"other\""));
        let address = world.kubernetes.url();
        goes_away(&mut world);
        let plan = other.try_plan().await.succeeded();
        plan.says("The server's capabilities were not checked").says("The external system's actions were not checked").says(&address);
        workspace.refresh().await.succeeded().says("Its last known values are kept").says(&address);
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        let destroy = workspace.run(&["destroy", "-refresh=false", "-auto-approve", "-input=false", "-no-color"]).await;
        destroy.failed().says("node1").says("The server stays held").says(&address);
        assert!(workspace.resource(HELD).await.is_some());
        comes_back(&mut world);
        assert_eq!(ours(&world, "node1").await.unwrap().metadata.uid, uid);
        workspace.destroy().await.succeeded();
        world.until_state("node1", "Available").await;
    }
}
