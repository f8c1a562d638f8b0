//! What the guide says: its role is enough and nothing in it is too much, and its example works.

use std::{fs, path::Path};

use super::{HELD, cluster, maintenance};
use crate::{
    servers::ironcore::{Options, family::Family, world::World},
    support::{provider, simulator::SOON, workspace::Workspace},
};

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The role of the guide, given to the user `runner`.
fn give_role(world: &World, role: &str) {
    let binding = r"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: metal-maintenance
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: metal-maintenance
subjects:
  - kind: User
    apiGroup: rbac.authorization.k8s.io
    name: runner
";
    world.kubernetes.apply(&format!("{role}\n---\n{binding}"));
}

fn configure(world: &World, workspace: &Workspace, body: &str) {
    let kubeconfig = world.kubernetes.user("runner", &[]);
    workspace.configure(&format!(
        "provider \"metal\" {{\n  metal_operator = {{\n    kubeconfig = \"{}\"\n    bmc_insecure = true\n  }}\n}}\n{body}",
        kubeconfig.display()
    ));
}

fn role() -> String {
    let guide = page("docs/guides/metal-operator.md");
    let (_, rest) = guide.split_once("```yaml\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

for_each_host! {
    async fn the_role_of_the_guide_is_enough_and_what_is_missing_is_named(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        world.claim("node1", "owners", "claim1").await;
        let workspace = Workspace::new(host);
        workspace.write("bios.ign", "{\"ignition\":{\"version\":\"3.3.0\"}}");
        let boot = "server_power = \"On\"\n  boot_configuration = { method = \"boot_operator\", image = \"registry.example/bios:2\", ignition = { file = \"${path.module}/bios.ign\" } }";
        configure(&world, &workspace, &maintenance("Enforced", boot));
        // Without any role a plan says what it lacks, and an apply does nothing.
        workspace.try_plan().await.succeeded().says("the verb \"list\" on").says("servers.metal.ironcore.dev");
        workspace.apply().await.failed().says("may not be used").says("the verb \"list\" on");

        give_role(&world, &role());
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        workspace.destroy().await.succeeded();
        world.until_state("node1", "Reserved").await;
        assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
    }
}

for_each_host! {
    async fn the_role_of_the_guide_is_enough_for_parking(host) {
        let world = cluster(Family::Parked, 1, Options::default()).await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("Enforced", "server_power = \"On\""));
        give_role(&world, &role());
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
        world.until_state("node1", "Available").await;
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
