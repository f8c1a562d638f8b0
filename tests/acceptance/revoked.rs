//! Another author ends a maintenance in the system that manages the server. Every plan then shows
//! a change, and a dependent runs only under a new lock.

use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::{
    ironic, metal_operator,
    metal_operator::strangers::{ours, tear_out, withdraw},
    metal3,
    servers::{
        ironcore::{
            Options as OperatorOptions,
            api::{Key, Kind},
            family::Family,
        },
        ironic::{Ironic, Options as IronicOptions},
        metal3::{
            operator::Options as HostOptions,
            world::{DETACHED, World},
        },
    },
    support::workspace::Workspace,
};

/// Address of the maintenance in every case.
const HELD: &str = metal3::HELD;
/// A resource that works on the locked server.
const DEPENDENT: &str = r#"
resource "terraform_data" "work" {
  depends_on = [metal_server_maintenance.held]
  provisioner "local-exec" {
    command = "touch worked"
  }
}
"#;
/// Timeout for a server that another author keeps.
const BRIEF: &str = "timeouts = { create = \"8s\" }";
const KEEP: &str = "on_end = \"keep\"";

/// Expected lock state after the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Locked,
    Refused,
}

/// The default: the plan replaces the maintenance, and the dependent runs only if the replacement
/// has the lock.
async fn is_replaced(workspace: &Workspace, why: &str, add_dependent: impl FnOnce(), next: Next) {
    workspace.plan().await.only_replaces(HELD).run.says(why).says("The plan replaces the resource");
    add_dependent();
    let applied = workspace.apply().await;
    let worked = workspace.folder().join("worked").exists();
    if next == Next::Locked {
        applied.succeeded();
        assert!(worked, "the dependent did not run");
        let state = workspace.resource(HELD).await.expect("the replacement is in the state");
        assert_eq!(state["state"], "InMaintenance");
    } else {
        applied.failed();
        assert!(!worked, "the dependent ran on a server that is not locked");
        // The new request keeps its queue position, without a lock.
        workspace.destroy().await.succeeded();
        workspace.metal(&["queue"]).await.succeeded().is_silent_about("InMaintenance");
        return;
    }
    is_destroyed(workspace).await;
}

/// `on_end = "keep"`: the plan updates the maintenance, and apply ends it.
async fn is_kept(workspace: &Workspace, why: &str) {
    let plan = workspace.plan().await;
    assert_eq!(plan.changes(), [(HELD.to_owned(), vec!["update".to_owned()])], "{}", plan.run.output);
    plan.run.says(why).says("does not lock a server");
    workspace.apply().await.succeeded();
    let state = workspace.resource(HELD).await.expect("it stays in the state");
    assert_eq!(state["state"], "Completed");
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    workspace.plan().await.is_empty();
    is_destroyed(workspace).await;
}

async fn is_destroyed(workspace: &Workspace) {
    workspace.destroy().await.succeeded();
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}

/// Removes every annotation of a BareMetalHost.
async fn attach(world: &World) {
    let all = world.host("node1").await["metadata"]["annotations"].clone();
    let none: Map<String, Value> = all.as_object().unwrap().keys().map(|key| (key.clone(), Value::Null)).collect();
    world.annotate("node1", Value::Object(none)).await;
}

for_one_host! {
    async fn a_host_that_was_attached_again_is_locked_again(host) {
        let (world, workspace) = (World::start(1, HostOptions::default()).await, Workspace::new(host));
        let held = metal3::maintenance("bios", "");
        metal3::configure(&world, &workspace, &held);
        workspace.apply().await.succeeded();
        attach(&world).await;
        let dependent = || metal3::configure(&world, &workspace, &(held.clone() + DEPENDENT));
        is_replaced(&workspace, "our annotations were removed", dependent, Next::Locked).await;
    }
}

for_one_host! {
    async fn a_host_that_another_author_detached_runs_no_dependent(host) {
        let (world, workspace) = (World::start(1, HostOptions::default()).await, Workspace::new(host));
        let held = metal3::maintenance("bios", BRIEF);
        metal3::configure(&world, &workspace, &held);
        workspace.apply().await.succeeded();
        attach(&world).await;
        world.annotate("node1", json!({ DETACHED: "disk swap by carol" })).await;
        let dependent = || metal3::configure(&world, &workspace, &(held.clone() + DEPENDENT));
        is_replaced(&workspace, "revoked the server", dependent, Next::Refused).await;
        assert_eq!(world.host("node1").await["metadata"]["annotations"][DETACHED], "disk swap by carol");
    }
}

for_one_host! {
    async fn a_kept_maintenance_of_an_attached_host_ends(host) {
        let (world, workspace) = (World::start(1, HostOptions::default()).await, Workspace::new(host));
        metal3::configure(&world, &workspace, &metal3::maintenance("bios", KEEP));
        workspace.apply().await.succeeded();
        attach(&world).await;
        is_kept(&workspace, "our annotations were removed").await;
    }
}

for_one_host! {
    async fn a_node_whose_flag_was_cleared_is_locked_again(host) {
        let (ironic, workspace) = (Ironic::start(IronicOptions::default()).await, Workspace::new(host));
        ironic.active_node("n1").await;
        let held = ironic::maintenance("");
        ironic::configure(&ironic, &workspace, &held);
        workspace.apply().await.succeeded();
        ironic.maintenance("n1", None).await;
        let dependent = || ironic::configure(&ironic, &workspace, &(held.clone() + DEPENDENT));
        is_replaced(&workspace, "the external request does not exist any more", dependent, Next::Locked).await;
        assert_eq!(ironic.node("n1").await["maintenance"], json!(false));
    }
}

for_one_host! {
    async fn a_deleted_node_runs_no_dependent_and_can_be_kept(host) {
        let (ironic, workspace) = (Ironic::start(IronicOptions::default()).await, Workspace::new(host));
        for kept in [false, true] {
            ironic.active_node("n1").await;
            let held = ironic::maintenance(if kept { KEEP } else { BRIEF });
            ironic::configure(&ironic, &workspace, &held);
            workspace.apply().await.succeeded();
            let (status, answer) = ironic.try_call(Method::DELETE, "/v1/nodes/n1", None).await;
            assert_eq!(status, 204, "{answer}");
            workspace.try_plan().await.succeeded().says("revoked the server").says("was deleted from Ironic");
            if kept {
                is_kept(&workspace, "revoked the server").await;
            } else {
                // The replacement needs a node that does not exist.
                ironic::configure(&ironic, &workspace, &(held.clone() + DEPENDENT));
                let (plan, apply) = (workspace.try_plan().await.succeeded(), workspace.apply().await.failed());
                for run in [plan, apply] {
                    run.says("revoked the server").says("n1 does not exist").is_silent_about("system_id");
                }
                assert!(!workspace.folder().join("worked").exists(), "the dependent ran");
                is_destroyed(&workspace).await;
            }
        }
    }
}

for_one_host! {
    async fn a_node_that_its_owner_undeploys_is_not_restored(host) {
        let (ironic, workspace) = (Ironic::start(IronicOptions::default()).await, Workspace::new(host));
        ironic.active_node("n1").await;
        ironic::configure(&ironic, &workspace, &ironic::maintenance(&format!("server_power = \"Off\"\n  {KEEP}")));
        workspace.apply().await.succeeded();
        let provision = |target| ironic.try_call(Method::PUT, "/v1/nodes/n1/states/provision", Some(json!({ "target": target })));
        // Ironic 39.0.0 rejects a rebuild in maintenance, and not an undeployment.
        assert_eq!(provision("rebuild").await.0, 400);
        assert_eq!(provision("deleted").await.0, 202);
        let settled = |node: &Value| matches!(node["provision_state"].as_str(), Some("available" | "clean wait"));
        let node = ironic.await_node("n1", "the undeployment ended", settled).await;
        is_kept(&workspace, "revoked the server").await;
        let after = ironic.node("n1").await;
        assert_eq!((&after["power_state"], &after["maintenance"]), (&node["power_state"], &json!(false)));
    }
}

for_one_host! {
    async fn a_protected_node_cannot_be_undeployed_until_it_is_released(host) {
        let (ironic, workspace) = (Ironic::start(IronicOptions::default()).await, Workspace::new(host));
        ironic.active_node("n1").await;
        let reach = format!("endpoint = \"{}\"\n    protect = true", ironic.url());
        ironic::configure_with(&reach, &workspace, &ironic::maintenance("server_power = \"Off\""));
        workspace.try_plan().await.succeeded().says("cannot undeploy, rebuild or delete the node");
        workspace.apply().await.succeeded();
        let undeploy = Some(json!({ "target": "deleted" }));
        assert_eq!(ironic.try_call(Method::PUT, "/v1/nodes/n1/states/provision", undeploy).await.0, 403);
        assert_eq!(ironic.try_call(Method::DELETE, "/v1/nodes/n1", None).await.0, 403);
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        let node = ironic.node("n1").await;
        assert_eq!((&node["protected"], &node["protected_reason"]), (&json!(false), &Value::Null));
        assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
    }
}

for_one_host! {
    async fn a_deleted_request_of_a_server_is_made_again(host) {
        let world = metal_operator::cluster(Family::V0_7, 1, OperatorOptions::default()).await;
        let workspace = Workspace::new(host);
        let held = metal_operator::maintenance("Enforced", "");
        metal_operator::configure(&world, &workspace, &held);
        workspace.apply().await.succeeded();
        withdraw(&world, &Key::of(&ours(&world, "node1").await.unwrap())).await;
        let dependent = || metal_operator::configure(&world, &workspace, &(held.clone() + DEPENDENT));
        is_replaced(&workspace, "revoked the server", dependent, Next::Locked).await;
    }
}

for_one_host! {
    async fn a_deleted_server_runs_no_dependent_and_can_be_kept(host) {
        for kept in [false, true] {
            let world = metal_operator::cluster(Family::V0_7, 1, OperatorOptions::default()).await;
            let workspace = Workspace::new(host);
            let held = metal_operator::maintenance("Enforced", if kept { KEEP } else { BRIEF });
            metal_operator::configure(&world, &workspace, &held);
            workspace.apply().await.succeeded();
            tear_out(&world, Kind::Server, &Key::cluster("node1")).await;
            if kept {
                is_kept(&workspace, "Server \"node1\" no longer exists").await;
            } else {
                let dependent = || metal_operator::configure(&world, &workspace, &(held.clone() + DEPENDENT));
                is_replaced(&workspace, "Server \"node1\" no longer exists", dependent, Next::Refused).await;
            }
        }
    }
}
