//! Checks the guide: its role is sufficient and minimal, and its example works.

use std::{fs, path::Path};

use super::{HELD, cluster, maintenance};
use crate::{
    servers::ironcore::{Options, api::text, family::Family, world::World},
    support::{provider, simulator::SOON, workspace::Workspace},
};

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// Binds a role from the guide to a user.
fn give_role(world: &World, name: &str, user: &str) {
    let binding = format!(
        r"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {name}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {name}
subjects:
  - kind: User
    apiGroup: rbac.authorization.k8s.io
    name: {user}
"
    );
    world.kubernetes.apply(&format!("{}\n---\n{binding}", role(name)));
}

fn configure(world: &World, user: &str, workspace: &Workspace, body: &str) {
    let kubeconfig = world.kubernetes.user(user, &[]);
    workspace.configure(&format!(
        "provider \"metal\" {{\n  metal_operator = {{\n    kubeconfig = \"{}\"\n    bmc_insecure = true\n  }}\n}}\n{body}",
        kubeconfig.display()
    ));
}

/// Returns the guide's role of this name.
pub fn role(name: &str) -> String {
    let guide = page("docs/guides/metal-operator.md");
    let blocks = guide.split("```yaml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0.to_owned());
    let mut roles = blocks.filter(|role| role.contains(&format!("  name: {name}\n")));
    roles.next().expect("the guide has the role")
}

/// Returns the guide's code block in a language that contains `holds`.
fn block(guide: &str, language: &str, holds: &str) -> String {
    let (text, fence) = (page(guide), format!("```{language}\n"));
    let blocks = text.split(&fence).skip(1).map(|rest| rest.split_once("```").unwrap().0.to_owned());
    let mut found = blocks.filter(|block| block.contains(holds));
    found.next().unwrap_or_else(|| panic!("{guide} lacks a {language} block with {holds:?}"))
}

/// Returns a kubeconfig with the guide's context for a runner or owner, whose group has a store
/// role.
fn in_context(world: &World, name: &str, group: &str) -> String {
    let kubeconfig = world.kubernetes.user(name, &[group]);
    let text = fs::read_to_string(&kubeconfig).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["contexts"][0]["name"] = "prod-metal".into();
    fs::write(&kubeconfig, config.to_string()).unwrap();
    kubeconfig.display().to_string()
}

/// Boot configuration under the hold.
const RESCUE: &str = r#"
resource "metal_server_boot_configuration" "rescue" {
  server         = "node1"
  maintenance_id = metal_server_maintenance.held.id
  method         = "boot_operator"
  image          = "registry.example/rescue:3"
  server_power   = "On"
}
"#;

/// A server claimed with an ignition, whose Node approves every maintenance.
const OWNED: &str = r#"
resource "metal_server_claim" "db" {
  server       = "node1"
  namespace    = "default"
  name         = "db"
  image        = "registry.example/os:1"
  server_power = "On"
  ignition     = { file = "${path.module}/os.ign" }
}

resource "metal_maintenance_approval" "all" {
  server     = "node1"
  all        = true
  node       = "worker-7"
  depends_on = [metal_server_claim.db]
}
"#;

/// Returns the image that the operator boots during the maintenance.
async fn image(world: &World) -> String {
    let requests = world.list(world.maintenances()).await;
    text(&requests[0], "/spec/serverBootConfigurationTemplate/spec/image").to_owned()
}

for_one_host! {
    async fn the_role_of_the_guide_is_enough_and_what_is_missing_is_named(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        world.claim("node1", "owners", "claim1").await;
        let workspace = Workspace::new(host);
        workspace.write("bios.ign", "{\"ignition\":{\"version\":\"3.3.0\"}}");
        let boot = "server_power = \"On\"\n  boot_configuration = { method = \"boot_operator\", image = \"registry.example/bios:2\", ignition = { file = \"${path.module}/bios.ign\" } }";
        let hold = maintenance("Enforced", boot);
        configure(&world, "runner", &workspace, &hold);
        // Without a role, a plan reports the missing permissions and an apply changes nothing.
        workspace.try_plan().await.succeeded().says("the verb \"list\" on").says("servers.metal.ironcore.dev");
        workspace.apply().await.failed().says("was denied").says("the verb \"list\" on");

        give_role(&world, "metal-maintenance", "runner");
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        // Another image is booted in between. The process that restores the first image does not
        // get its file.
        configure(&world, "runner", &workspace, &(hold + RESCUE));
        workspace.apply().await.succeeded();
        assert_eq!(image(&world).await, "registry.example/rescue:3");
        let undo = ["destroy", "-target=metal_server_boot_configuration.rescue", "-auto-approve", "-input=false", "-no-color"];
        workspace.run(&undo).await.succeeded();
        assert_eq!(image(&world).await, "registry.example/bios:2");
        workspace.destroy().await.succeeded();
        world.until_state("node1", "Reserved").await;
        assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn the_role_of_the_guide_is_enough_for_parking(host) {
        let world = cluster(Family::Parked, 1, Options::default()).await;
        let workspace = Workspace::new(host);
        configure(&world, "runner", &workspace, &maintenance("Enforced", "server_power = \"On\""));
        give_role(&world, "metal-maintenance", "runner");
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
        world.until_state("node1", "Available").await;
    }
}

for_one_host! {
    async fn the_role_of_an_owner_is_enough_to_claim_and_to_approve(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        world.kubernetes.apply("apiVersion: v1\nkind: Node\nmetadata: {name: worker-7}\n");
        let workspace = Workspace::new(host);
        workspace.write("os.ign", "{\"ignition\":{\"version\":\"3.3.0\"}}");
        give_role(&world, "metal-owner", "owner");
        configure(&world, "owner", &workspace, OWNED);
        workspace.apply().await.succeeded();
        world.until_state("node1", "Reserved").await;
        configure(&world, "owner", &workspace, &OWNED.replace("os:1", "os:2"));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
        world.until_state("node1", "Available").await;
    }
}

for_each_host! {
    async fn the_guide_can_be_walked_from_its_first_example_to_the_release(host) {
        const GUIDE: &str = "docs/guides/metal-operator.md";
        let world = cluster(Family::V0_7, 2, Options::default()).await;
        world.claim("node1", "owners", "claim1").await;
        give_role(&world, "metal-maintenance", "runner");
        give_role(&world, "metal-owner", "ada");

        // The first example, unchanged except for the server's name.
        let mut runner = Workspace::new(host);
        runner.set("KUBECONFIG", in_context(&world, "runner", "metal-runners"));
        let roles = runner.metal(&["store", "roles", "kubernetes"]).await.succeeded();
        world.kubernetes.apply(&roles.stdout);
        let example = block(GUIDE, "hcl", "coordination_url").replace("rack1-node7", "node1");
        runner.configure(&example);
        runner.write("bios.ign", "{\"ignition\":{\"version\":\"3.3.0\"}}");
        let plan = runner.try_plan().await.succeeded();
        plan.says("Namespace \"maintenance\" does not exist").says("An approval is missing");
        plan.says("boots by boot_operator from registry.example/bios-update@sha256:9f86");
        plan.is_silent_about("approval not required").is_silent_about("not a URL");
        world.kubernetes.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: maintenance}\n");
        let waiting = runner.start_apply();
        waiting.until_it_logs("approval", SOON).await;

        // The guide's commands, in its environment.
        let mut owner = runner.beside();
        owner.set("KUBECONFIG", in_context(&world, "ada", "metal-approvers"));
        for line in block(GUIDE, "sh", "export METAL_OWNER").lines().filter_map(|line| line.strip_prefix("export ")) {
            let (name, value) = line.split_once('=').unwrap();
            owner.set(name, value.trim_matches('"'));
            runner.set(name, value.trim_matches('"'));
        }
        for line in block(GUIDE, "sh", "approve ops/bios-2-19").lines() {
            let words: Vec<&str> = line.split('#').next().unwrap().split_whitespace().skip(1).collect();
            if words.contains(&"withdraw") {
                continue;
            }
            let run = owner.metal(&words).await.succeeded();
            run.says(if words.contains(&"claims") { "claim1" } else { "ops/bios-2-19" });
        }
        // With resources instead of commands, the owner needs the same store permissions.
        let claims = owner.beside();
        claims.write("os.ign", "{\"ignition\":{\"version\":\"3.3.0\"}}");
        world.kubernetes.apply("apiVersion: v1\nkind: Node\nmetadata: {name: worker-7}\n");
        let there = "provider \"metal\" {\n  coordination_url = \"kubernetes://metal?context=prod-metal\"\n  owner = \"team-storage\"\n  \
                     metal_operator = { context = \"prod-metal\" }\n}\n";
        claims.configure(&(there.to_owned() + &OWNED.replace("node1", "node2")));
        claims.apply().await.succeeded();
        claims.destroy().await.succeeded();
        waiting.wait(SOON).await.succeeded();
        let held = runner.resource("metal_server_maintenance.bios").await.unwrap();
        assert_eq!(held["state"], "InMaintenance");

        let release = block(GUIDE, "sh", "release ops/bios-2-19 --force --generation");
        let release = release.lines().find(|line| line.contains("release ops")).unwrap();
        let release = release.replace("--generation 12", &format!("--generation {}", held["generation"]));
        let (words, reason) = release.split_once(" --reason ").unwrap();
        let mut words: Vec<&str> = words.split_whitespace().skip(1).collect();
        words.extend(["--reason", reason.trim_matches('"')]);
        runner.metal(&words).await.succeeded().says("ops/bios-2-19 has ended");
        world.until_state("node1", "Reserved").await;
        runner.metal(&["--metal-operator", "queue"]).await.succeeded().says("No server is held");
    }
}

for_each_host! {
    async fn the_example_of_the_guide_works(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        let mut workspace = Workspace::new(host);
        let text = page("examples/guides/metal-operator/main.tf");
        fs::write(workspace.folder().join("main.tf"), text.replace("localhost/metal-maintenance/metal", provider::SOURCE)).unwrap();
        workspace.set("TF_VAR_server", "node1");
        workspace.set("TF_VAR_kubeconfig", world.kubernetes.kubeconfig().display().to_string());
        workspace.apply().await.succeeded().says("state = \"InMaintenance\"");
        world.simulator.wait_power("node1", bmc_simulator::PowerState::Off, SOON).await.unwrap();
        workspace.destroy().await.succeeded();
    }
}
