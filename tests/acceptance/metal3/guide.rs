//! Checks the guide: its role is sufficient, and its example works.

use std::{fs, path::Path};

use super::{configure_as, maintenance};
use crate::{
    servers::metal3::{operator::Options, world::World},
    support::{provider, simulator::SOON, wait::eventually, workspace::Workspace},
};

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// Applies the role file for a user and a world's hosts.
fn give_role(world: &World, user: &str) {
    let roles = page("roles/metal3.yaml").replace("namespace: metal3", &format!("namespace: {}", world.namespace));
    // Cluster-scoped objects get names that are unique to the test.
    let roles = roles.replace("metal-maintenance-cluster", &format!("metal-maintenance-{}", world.namespace));
    let roles = roles.replace("name: metal-runners", &format!("name: {user}")).replace("kind: Group", "kind: User");
    world.kubernetes.apply(&roles);
}

for_one_host! {
    async fn the_role_of_the_guide_is_enough_and_what_is_missing_is_named(host) {
        let world = World::start(1, Options::default()).await;
        let workspace = Workspace::new(host);
        let user = format!("runner-{}", world.namespace);
        let kubeconfig = world.kubernetes.user(&user, &[]);
        configure_as(&kubeconfig, &world, &workspace, "", &maintenance("bios", "server_power = \"Off\""));
        workspace.apply().await.failed().says("the verb \"list\" on").says("baremetalhosts.metal3.io");
        give_role(&world, &user);
        workspace.apply().await.succeeded();
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn the_role_of_the_guide_is_enough_to_see_that_a_host_was_deleted(host) {
        let world = World::start(1, Options::default()).await;
        let workspace = Workspace::new(host);
        let user = format!("runner-{}", world.namespace);
        let kubeconfig = world.kubernetes.user(&user, &[]);
        give_role(&world, &user);
        configure_as(&kubeconfig, &world, &workspace, "hold = \"power_off\"", &maintenance("bios", "server_power = \"Off\""));
        eventually("the role takes effect", SOON, async || workspace.try_plan().await.status.success().then_some(())).await;
        workspace.apply().await.succeeded();
        world.delete("node1").await;
        eventually("the operator deletes it", SOON, async || world.find("node1").await.is_none().then_some(())).await;
        workspace.destroy().await.succeeded();
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

/// Configures an example from `examples/guides` for the world's host.
async fn example(world: &World, workspace: &mut Workspace, name: &str) {
    let text = page(&format!("examples/guides/{name}/main.tf"));
    workspace.write("main.tf", &text.replace("localhost/metal-maintenance/metal", provider::SOURCE));
    for (name, value) in [
        ("host", "node1".to_owned()),
        ("namespace", world.namespace.clone()),
        ("kubeconfig", world.kubernetes.user("ci", &["system:masters"]).display().to_string()),
    ] {
        workspace.set(&format!("TF_VAR_{name}"), value);
    }
    workspace.run(&["init", "-no-color", "-input=false"]).await;
}

for_one_host! {
    async fn the_example_of_a_restart_works_and_another_value_repeats_it(host) {
        let world = World::start(1, Options::default()).await;
        let mut workspace = Workspace::new(host);
        example(&world, &mut workspace, "metal3-restart").await;
        for kernel in ["6.12.9", "6.12.10"] {
            workspace.set("TF_VAR_kernel", kernel);
            workspace.apply().await.succeeded().says("outcome = \"Accepted\"");
        }
        let boots = world.simulator.boots("node1").unwrap().len();
        assert!(boots >= 2, "{boots}");
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}

for_each_host! {
    async fn the_example_of_the_guide_works(host) {
        let world = World::start(1, Options::default()).await;
        let mut workspace = Workspace::new(host);
        example(&world, &mut workspace, "metal3").await;
        workspace.apply().await.succeeded().says("state = \"InMaintenance\"");
        workspace.destroy().await.succeeded();
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}
