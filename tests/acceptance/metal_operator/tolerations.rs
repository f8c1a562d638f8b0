//! Servers with taints, and claims that tolerate them.

use serde_json::{Value, json};

use super::{cluster, configure};
use crate::{
    servers::ironcore::{
        Options,
        api::{Key, Kind},
        family::Family,
        world::World,
    },
    support::{simulator::Fleet, workspace::Workspace},
};

const CLAIM: &str = "metal_server_claim.db";

fn claim(tolerations: &str) -> String {
    let tolerations = if tolerations.is_empty() { String::new() } else { format!("  tolerations = [{tolerations}]\n") };
    format!(
        "resource \"metal_server_claim\" \"db\" {{\n  server = \"node1\"\n  namespace = \"default\"\n  name = \"a\"\n  \
         image = \"registry.example/os:1\"\n  server_power = \"On\"\n{tolerations}}}\n"
    )
}

async fn written(world: &World) -> Value {
    world.object(Kind::Claim, &Key::within("default", "a")).await.data["spec"]["tolerations"].clone()
}

for_one_host! {
    async fn a_tainted_server_is_claimed_in_spite_of_its_taint(host) {
        let world = cluster(Family::V0_6, 1, Options::default()).await;
        let taints = json!({"spec": {"taints": [{"key": "rack", "value": "7", "effect": "NoBind"}]}});
        world.cluster.merge(Kind::Server, &Key::cluster("node1"), taints).await.unwrap();
        let workspace = Workspace::new(host);
        for other in ["", "{ key = \"rack\", value = \"8\" }", "{ key = \"rack\", operator = \"Exists\", effect = \"Evict\" }"] {
            configure(&world, &workspace, &claim(other));
            workspace.try_plan().await.succeeded().says("A server cannot be claimed now").says("its taint \"rack\" (NoBind)");
        }
        workspace.apply().await.failed().says("its taint \"rack\" (NoBind)");

        configure(&world, &workspace, &claim("{ key = \"rack\", value = \"7\" }"));
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(CLAIM).await.unwrap()["phase"], "Bound");
        assert_eq!(written(&world).await, json!([{"key": "rack", "value": "7"}]));
        workspace.plan().await.is_empty();

        let changed = "{ key = \"rack\", operator = \"Exists\", effect = \"NoBind\" }, { key = \"fan\", operator = \"Exists\" }";
        let meant = json!([{"key": "rack", "operator": "Exists", "effect": "NoBind"}, {"key": "fan", "operator": "Exists"}]);
        configure(&world, &workspace, &claim(changed));
        assert_eq!(workspace.plan().await.change(CLAIM)["actions"], json!(["update"]));
        workspace.apply().await.succeeded();
        assert_eq!(written(&world).await, meant);
        workspace.plan().await.is_empty();

        // Changes by others are detected, but not defaults that an API server filled in.
        let theirs = json!({"spec": {"tolerations": [{"key": "rack", "operator": "Exists"}]}});
        world.cluster.merge(Kind::Claim, &Key::within("default", "a"), theirs).await.unwrap();
        assert_eq!(workspace.plan().await.change(CLAIM)["actions"], json!(["update"]));
        workspace.apply().await.succeeded();
        assert_eq!(written(&world).await, meant);

        let other = workspace.beside();
        configure(&world, &other, &claim(changed));
        other.import(CLAIM, "default/a").await.succeeded();
        other.plan().await.is_empty();

        configure(&world, &workspace, &claim(""));
        workspace.apply().await.succeeded();
        assert_eq!(written(&world).await, Value::Null);
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn where_they_cannot_be_said_they_are_refused_with_path_and_reason(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &claim("{ key = \"rack\" }"));
        workspace.try_plan().await.failed().says("Not for a claim in the coordination store").says("tolerations =");

        let world = cluster(Family::V0_5, 1, Options::default()).await;
        for (wrong, problem) in [
            ("{ key = \"\" }", "tolerations[0].key: set a taint's key"),
            ("{ key = \"rack\", operator = \"In\" }", "\"In\" is not one of \"Equal\", \"Exists\""),
            ("{ key = \"rack\", effect = \"NoSchedule\" }", "is not one of \"NoBind\", \"Evict\""),
            ("{ key = \"rack\", operator = \"Exists\", value = \"7\" }", "value is ignored with Exists"),
        ] {
            configure(&world, &workspace, &claim(wrong));
            workspace.try_plan().await.failed().says(problem);
        }
        configure(&world, &workspace, &claim("{ key = \"rack\" }"));
        let refused = workspace.try_plan().await.failed();
        refused.says("Not in this cluster").says("tolerations =").says("node1: the ServerClaims of https://").says("v0.6");
        // Claims without tolerations are unaffected, and existing claims cannot get any.
        configure(&world, &workspace, &claim(""));
        workspace.apply().await.succeeded();
        workspace.plan().await.is_empty();
        configure(&world, &workspace, &claim("{ key = \"rack\" }"));
        workspace.try_plan().await.failed().says("Not in this cluster").says("tolerations =");
        configure(&world, &workspace, &claim(""));
        workspace.destroy().await.succeeded();
    }
}
