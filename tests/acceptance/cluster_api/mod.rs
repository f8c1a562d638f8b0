//! Cluster API Machines: requested before their server is held, and released after it runs again.
//!
//! Setup: a real API server, the project's own BMC simulator, and stand-ins for
//! baremetal-operator, the runtime extension and the maintenance-controller. The last two were
//! compared with recordings (`tests/cluster_api/table.txt`).

pub mod chain;
mod crashes;
mod economy;
mod flows;
mod guide;
mod lists;
mod metal_operator;
mod others;
mod outages;
mod ready;
mod served;
mod unasked;

use std::path::Path;

use crate::{
    servers::{
        cluster_api::{
            MAINTENANCE,
            objects::api,
            world::{Options, World},
        },
        kubernetes::Kubernetes,
    },
    support::{
        simulator::{Fleet, SOON},
        wait::eventually,
        workspace::Workspace,
    },
};

/// Address of [`crate::support::simulator::maintenance`] in a state.
pub const HELD: &str = "metal_server_maintenance.held";

/// Returns this program's annotations and hooks on a Machine.
pub async fn traces(world: &World, machine: &str) -> Vec<String> {
    let metadata = world.machine(machine).await["metadata"].clone();
    let annotations = metadata["annotations"].as_object().cloned().unwrap_or_default();
    let ours = |key: &&String| {
        key.starts_with("terraform-provider-metal/")
            || key.ends_with("/terraform-provider-metal")
            || key.ends_with("/skip-remediation")
    };
    let label = metadata["labels"][MAINTENANCE].as_str().map(|value| format!("{MAINTENANCE}={value}"));
    annotations.keys().filter(ours).cloned().chain(label).collect()
}

/// Waits until the roles' permissions take effect, shortly after their creation.
pub async fn counts(world: &World, kubeconfig: &Path) {
    let client = Kubernetes::client(kubeconfig).await;
    let (machines, nodes) = (api(&client, "Machine", &world.namespace), api(&client, "Node", ""));
    eventually("the role takes effect", SOON, async || {
        machines.get("m1").await.ok()?;
        nodes.get(&world.node_name("m1")).await.ok().map(drop)
    })
    .await;
}

/// Returns arguments that map `node1` to this Machine, with only the matching roles' permissions.
pub async fn asks(world: &World, machine: &str) -> String {
    let cluster = Kubernetes::shared();
    for name in ["management", "workload"] {
        let path = format!("{}/roles/cluster-api-{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let roles = std::fs::read_to_string(path).unwrap();
        cluster.apply(&roles.replace("namespace: metal3", &format!("namespace: {}", world.namespace)));
    }
    let kubeconfig = cluster.user("ci", &["metal-runners"]);
    counts(world, &kubeconfig).await;
    format!(
        "cluster_api = {{ machines = {{ node1 = \"{}/{machine}\" }}, kubeconfig = \"{}\" }}",
        world.namespace,
        kubeconfig.display()
    )
}

/// Creates a Machine `m1` with its Node, and its server.
pub async fn place() -> (World, Fleet) {
    let world = World::start(Options::default()).await;
    world.add("m1").await;
    (world, Fleet::new(1).await)
}

/// Configures that server.
pub async fn configure(world: &World, fleet: &Fleet, workspace: &Workspace, body: &str) {
    fleet.configure_with(workspace, &asks(world, "m1").await, body);
}
