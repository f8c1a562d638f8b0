//! Roles of the guide for metal-operator: of a runner and of an owner.

use serde_json::{Value, json};

use super::{Resource, User, each_permission_counts, maintenance};
use crate::{
    metal_operator::{cluster_without_servers, guide::role},
    servers::{
        ironcore::{
            api::{Key, Kind},
            family::Family,
            world::World,
        },
        roles::{Permission, Roles},
    },
};

/// Tasks in parallel, on one API server per family.
const AT_ONCE: usize = 2;

const APPROVAL: &str = "metal_maintenance_approval";

const IGNITION: &str = "{\"ignition\":{\"version\":\"3.3.0\"}}";

fn block(user: &User) -> Value {
    json!({"metal_operator": {
        "kubeconfig": user.kubeconfig, "bmc_networks": ["127.0.0.0/8"], "bmc_insecure": true, "namespace": "default",
    }})
}

/// A maintenance that boots an image with an ignition file, and another boot in between. The
/// process that restores the first image does not get its file.
fn boots(user: &User, server: &str) -> Vec<Resource> {
    let file = user.write("bios.ign", IGNITION);
    let boot = json!({
        "server_power": "On",
        "boot_configuration": {"method": "boot_operator", "image": "registry.example/bios:2", "ignition": {"file": file}},
    });
    let rescue = json!({
        "server": server, "maintenance_id": format!("ops/bios-{server}"), "method": "boot_operator",
        "image": "registry.example/rescue:3", "server_power": "On",
    });
    vec![maintenance(server, boot), ("metal_server_boot_configuration", rescue)]
}

/// Adds a server and waits until it can be claimed. Adding all at once would exceed the wait's
/// limit.
async fn add(world: &World, server: &str) {
    world.add_server(server).await;
    world.until_state(server, "Available").await;
}

/// Removes a server with its BMC. The operators would otherwise reconcile the servers of all
/// earlier turns, which slows the next ones down.
async fn remove(world: &World, server: &str) {
    let bmc = world.simulator.bmc_of(server).unwrap();
    for (kind, name) in [(Kind::Bmc, bmc.as_str()), (Kind::Server, server)] {
        world.cluster.delete(kind, &Key::cluster(name)).await.unwrap();
    }
    world.until_gone(Kind::Server, &Key::cluster(server)).await;
}

/// The runner's tasks in a family's cluster.
fn tasks(user: &User, family: Family, server: &str) -> Vec<Resource> {
    match family {
        Family::V0_7 => boots(user, server),
        _ => vec![maintenance(server, json!({}))],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in the soak test: it claims a server for each permission in three clusters"]
async fn of_a_runner() {
    let roles = Roles::of(&role("metal-maintenance"), None);
    let servers = roles.permissions().len() + 1;
    let mut worlds = Vec::new();
    for family in [Family::V0_7, Family::MaintenanceGroup, Family::Parked] {
        worlds.push((family, cluster_without_servers(family, servers).await));
    }
    each_permission_counts(&roles, AT_ONCE, async |number, without: Option<&Permission>| {
        let server = format!("node{number}");
        for (family, world) in &worlds {
            add(world, &server).await;
            world.claim(&server, "owners", &format!("claim{number}")).await;
            let user = User::new(&world.kubernetes, &roles, without).await;
            let errors = user.plays(&block(&user), tasks(&user, *family, &server)).await;
            remove(world, &server).await;
            if !errors.is_empty() {
                return errors;
            }
        }
        Vec::new()
    })
    .await;
}

/// A server claimed with an ignition. Its owner approves every maintenance on the claim and on its
/// Node.
fn owned(user: &User, server: &str) -> Vec<Resource> {
    let file = user.write("os.ign", IGNITION);
    let claim = json!({
        "server": server, "namespace": "default", "name": format!("db-{server}"), "image": "registry.example/os:1",
        "server_power": "On", "ignition": {"file": file},
    });
    let on_claim = json!({"server": server, "all": true});
    let on_node = json!({"server": server, "all": true, "node": format!("worker-{server}")});
    vec![("metal_server_claim", claim), (APPROVAL, on_claim), (APPROVAL, on_node)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_owner() {
    let roles = Roles::of(&role("metal-owner"), None);
    let servers = roles.permissions().len() + 1;
    let mut worlds = Vec::new();
    for family in [Family::V0_7, Family::MaintenanceGroup] {
        worlds.push(cluster_without_servers(family, servers).await);
    }
    each_permission_counts(&roles, AT_ONCE, async |number, without: Option<&Permission>| {
        let server = format!("node{number}");
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("worker-{server}")}});
        for world in &worlds {
            add(world, &server).await;
            tokio::task::block_in_place(|| world.kubernetes.apply(&node.to_string()));
            let user = User::new(&world.kubernetes, &roles, without).await;
            let mut errors = user.plays(&block(&user), owned(&user, &server)).await;
            if errors.is_empty() {
                let cluster = [("METAL_KUBECONFIG", user.kubeconfig.display().to_string())];
                errors = user.command(&["--metal-operator", "claims"], &cluster).await;
            }
            remove(world, &server).await;
            if !errors.is_empty() {
                return errors;
            }
        }
        Vec::new()
    })
    .await;
}
