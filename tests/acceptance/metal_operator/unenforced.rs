//! metal-operator after v0.7 with metal-maintenance-operator: its `ServerMaintenance` holds
//! nothing. The plan shows later claims and blockers of the server.

use serde_json::{Value, json};

use super::{cluster, configure, maintenance, strangers::OTHERS};
use crate::{
    servers::ironcore::{
        Options,
        api::{Key, Kind, text},
        family::Family,
        world::World,
    },
    support::{simulator::SOON, workspace::Workspace},
};

async fn world() -> World {
    cluster(Family::Parked, 1, Options { maintenance_operator: true, ..Options::default() }).await
}

/// A request that its operator has granted.
async fn granted(world: &World) -> Key {
    world.ensure(Kind::Namespace, json!({"metadata": {"name": OTHERS}})).await;
    let annotations = json!({"metal.ironcore.dev/maintenance-reason": "swap disk 3"});
    let metadata = json!({"name": "theirs", "namespace": OTHERS, "annotations": annotations});
    let object = json!({"metadata": metadata, "spec": {"policy": "Enforced", "serverRef": {"name": "node1"}}});
    world.cluster.create(Kind::Maintenance, object).await.unwrap();
    let key = Key::within(OTHERS, "theirs");
    let state = |object: &_| text(object, "/status/state") == "InMaintenance";
    world.until(Kind::Maintenance, &key, "InMaintenance", state).await;
    key
}

for_one_host! {
    async fn a_maintenance_that_holds_nothing_is_shown_and_waited_for(host) {
        let world = world().await;
        let theirs = granted(&world).await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("Enforced", "server_power = \"Off\""));
        let plan = workspace.try_plan().await.succeeded();
        plan.says("metal-maintenance-operator enforces nothing here").says("Other maintenance is ahead");
        plan.says("others/theirs (reason \"swap disk 3\")");
        let apply = workspace.start_apply();
        apply.until_it_logs("which is InMaintenance and has to be deleted", SOON).await;
        let annotations = world.server("node1").await["metadata"]["annotations"].to_string();
        assert!(!annotations.contains("terraform-provider-metal"), "{annotations}");
        world.cluster.delete(Kind::Maintenance, &theirs).await.unwrap();
        apply.wait(SOON * 2).await.succeeded();
        world.until_state("node1", "Parked").await;
        workspace.destroy().await.succeeded();
        world.until_state("node1", "Available").await;
    }
}

for_one_host! {
    async fn what_can_take_the_server_after_the_release_is_shown(host) {
        let world = world().await;
        let rule = json!({
            "apiVersion": "metal.ironcore.dev/v1alpha1", "kind": "ServerReadinessRule", "metadata": {"name": "disks"},
            "spec": {
                "conditions": [{"type": "DisksReady", "requiredStatus": "True"}], "serverSelector": {},
                "taint": {"key": "disks", "effect": "NoBind"},
            },
        });
        let wiring = json!({
            "apiVersion": "readiness.metal.ironcore.dev/v1alpha1", "kind": "ServerWiring",
            "metadata": {"name": "node1", "namespace": "default"}, "spec": {"serverRef": {"name": "node1"}},
            "status": {"mismatches": [{"message": "no neighbor"}]},
        });
        world.kubernetes.apply(&format!("{rule}\n---\n{wiring}"));
        let pending = json!([{
            "type": "maintenance.metal.ironcore.dev/sanitized", "status": "False", "reason": "SanitizationRequired",
            "message": "", "lastTransitionTime": "2026-11-01T00:00:00Z",
        }]);
        let status = json!({"conditions": pending});
        world.cluster.merge_status(Kind::Server, &Key::cluster("node1"), status).await.unwrap();
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("Enforced", ""));
        let plan = workspace.try_plan().await.succeeded();
        plan.says("Sanitization: pending.").says("taints the Server with disks (NoBind) while DisksReady is not True");
        plan.says("ServerWiring default/node1: checks the Server's network (mismatches: 1");
        assert_ne!(world.server("node1").await["status"]["state"], Value::from("Parked"), "a plan changes nothing");
    }
}
