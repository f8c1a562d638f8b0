//! Scenario steps for the stand-ins and the real controllers.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;

use crate::{
    stage::Stage,
    support::cluster_api::{
        APPROVE_DELETION, APPROVE_MAINTENANCE, CLUSTER_NAME, CLUSTER_NAMESPACE, ENABLED, KEEPS, MACHINE, MAINTENANCE,
        PROFILE, STATE,
    },
};

pub async fn play(on: &mut Stage) {
    arrives(on).await;
    withdrawn(on).await;
    drains(on).await;
    stale(on).await;
    by_hand(on).await;
    not_enabled(on).await;
    without_state(on).await;
    restarts(on).await;
    deleted(on).await;
    metal3(on).await;
    without_annotations(on).await;
    another_cluster(on).await;
}

async fn arrives(on: &mut Stage) {
    on.slow_step("the controllers start", async |on| {
        on.start_extension(false);
        on.start_maintenance();
    })
    .await;
    on.step("the Node joins", async |on| on.world.add_node("m1").await).await;
    on.step("no nodeRef: the Machine arrives", async |on| on.world.add_machine("m1", json!({ENABLED: "true"})).await)
        .await;
    on.step("no nodeRef: requested", async |on| on.label("m1", Some("requested")).await).await;
    on.step("the nodeRef is written (any order)", async |on| on.world.name_node("m1").await).await;
    on.step("approved: the label is removed", async |on| on.label("m1", None).await).await;
    on.step("requested", async |on| on.label("m1", Some("requested")).await).await;
    on.step("approved: the Node label is withdrawn", async |on| {
        on.world.label_node("m1", json!({APPROVE_MAINTENANCE: null})).await;
    })
    .await;
    on.step("approved, withdrawn: the label is removed", async |on| on.label("m1", None).await).await;
}

async fn withdrawn(on: &mut Stage) {
    on.step("withheld", async |on| on.world.withhold("m1").await).await;
    on.step("withheld: requested", async |on| on.label("m1", Some("requested")).await).await;
    on.step("withheld: the label is removed", async |on| on.label("m1", None).await).await;
    on.step("withheld: requested again", async |on| on.label("m1", Some("requested")).await).await;
    on.step("allowed", async |on| on.world.allow("m1").await).await;
    on.step("allowed: the label is removed", async |on| on.label("m1", None).await).await;
}

async fn drains(on: &mut Stage) {
    on.step("a Pod that stays: requested", async |on| {
        on.world.add_pod("m1", "stays").await;
        on.label("m1", Some("requested")).await;
    })
    .await;
    on.slow_step("a Pod that stays: the label is removed", async |on| on.label("m1", None).await).await;
    on.step("a Pod that stays: it ends", async |on| on.world.end_pod("stays").await).await;
}

async fn stale(on: &mut Stage) {
    on.step("stale: approve-maintenance is set", async |on| {
        on.world.withhold("m1").await;
        on.world.label_node("m1", json!({APPROVE_MAINTENANCE: "true"})).await;
    })
    .await;
    on.step("stale: requested (any order)", async |on| on.label("m1", Some("requested")).await).await;
    on.step("stale: the label is removed", async |on| on.label("m1", None).await).await;
    on.step("stale: approve-maintenance is removed by hand", async |on| {
        on.world.label_node("m1", json!({APPROVE_MAINTENANCE: null})).await;
        on.world.allow("m1").await;
    })
    .await;
    on.step("another profile keeps the approval", async |on| on.world.label_node("m1", json!({PROFILE: KEEPS})).await)
        .await;
    on.step("keeps: requested", async |on| on.label("m1", Some("requested")).await).await;
    on.step("keeps: the label is removed", async |on| on.label("m1", None).await).await;
    on.step("keeps: requested again (any order)", async |on| on.label("m1", Some("requested")).await).await;
    on.step("keeps: the label is removed again", async |on| on.label("m1", None).await).await;
    on.step("the first profile again", async |on| {
        on.world.label_node("m1", json!({PROFILE: null, APPROVE_MAINTENANCE: null})).await;
    })
    .await;
}

async fn by_hand(on: &mut Stage) {
    on.step("by hand: another value", async |on| on.label("m1", Some("wanted")).await).await;
    on.step("by hand: approved", async |on| on.label("m1", Some("approved")).await).await;
    on.step("by hand: requested over it", async |on| on.label("m1", Some("requested")).await).await;
    on.step("by hand: the label is removed", async |on| on.label("m1", None).await).await;
}

async fn not_enabled(on: &mut Stage) {
    on.step("not enabled any more", async |on| on.world.label_machine("m1", json!({ENABLED: null})).await).await;
    on.slow_step("not enabled: requested", async |on| on.label("m1", Some("requested")).await).await;
    on.step("enabled, requested before (any order)", async |on| {
        on.world.label_machine("m1", json!({ENABLED: "true"})).await;
    })
    .await;
    on.slow_step("approved: the only Machine is not enabled any more", async |on| {
        // A real periodic reconcile is unlikely in these milliseconds.
        on.world.settled().await;
        on.world.options.extension.resyncs.close();
        on.world.label_machine("m1", json!({ENABLED: null})).await;
    })
    .await;
    on.slow_step("approved, not enabled: the label is removed", async |on| on.label("m1", None).await).await;
    on.world.options.extension.resyncs.open();
    on.step("enabled again (any order)", async |on| on.world.label_machine("m1", json!({ENABLED: "true"})).await).await;
    on.step("another Machine", async |on| {
        on.world.add_machine("m2", json!({ENABLED: "true"})).await;
    })
    .await;
    on.step("requested, two Machines", async |on| on.label("m1", Some("requested")).await).await;
    on.slow_step("approved: one of two Machines is not enabled any more (any order)", async |on| {
        on.world.label_machine("m1", json!({ENABLED: null})).await;
    })
    .await;
    on.step("approved: enabled again (any order)", async |on| {
        on.world.label_machine("m1", json!({ENABLED: "true"})).await;
    })
    .await;
}

async fn without_state(on: &mut Stage) {
    on.step("approved: no maintenance-controller, and its state label goes (any order)", async |on| {
        on.stop_maintenance();
        on.world.label_node("m1", json!({STATE: null})).await;
    })
    .await;
    on.slow_step("approved: the maintenance-controller runs again (any order)", async |on| on.start_maintenance())
        .await;
    on.step("ends", async |on| on.label("m1", None).await).await;
    on.step("no state: a Node joins", async |on| {
        on.stop_maintenance();
        on.world.add_node("m2").await;
        on.world.name_node("m2").await;
    })
    .await;
    on.slow_step("no state: requested", async |on| on.label("m2", Some("requested")).await).await;
    on.slow_step("no state: the maintenance-controller starts (any order)", async |on| on.start_maintenance()).await;
    on.step("no state: the label is removed while it is stopped", async |on| {
        on.stop_maintenance();
        on.label("m2", None).await;
    })
    .await;
    on.slow_step("no state: the maintenance-controller runs again", async |on| on.start_maintenance()).await;
}

async fn restarts(on: &mut Stage) {
    on.slow_step("no extension: requested", async |on| {
        on.stop_extension();
        on.label("m1", Some("requested")).await;
    })
    .await;
    on.slow_step("the extension starts", async |on| on.start_extension(false)).await;
    on.slow_step("approved: the label is removed without an extension", async |on| {
        on.stop_extension();
        on.label("m1", None).await;
    })
    .await;
    on.slow_step("the extension starts again", async |on| on.start_extension(false)).await;
    on.step("requested and withheld", async |on| {
        on.world.withhold("m1").await;
        on.label("m1", Some("requested")).await;
    })
    .await;
    on.slow_step("approved by the Node without an extension", async |on| {
        on.stop_extension();
        on.world.allow("m1").await;
    })
    .await;
    on.slow_step("the extension finds the approval", async |on| on.start_extension(false)).await;
}

async fn deleted(on: &mut Stage) {
    on.step("approved: the Machine is deleted", async |on| on.world.delete_machine("m1").await).await;
    on.step("deleted: the Node approves the deletion", async |on| {
        on.world.label_node("m1", json!({APPROVE_DELETION: "true"})).await;
    })
    .await;
    on.slow_step("deleted: its finalizers are removed", async |on| {
        assert!(on.world.finish_deletion("m1").await.is_empty());
    })
    .await;
    on.step("deleting before the request", async |on| on.world.delete_machine("m2").await).await;
    on.step("deleting: requested", async |on| on.label("m2", Some("requested")).await).await;
    on.step("deleting: the label is removed", async |on| on.label("m2", None).await).await;
}

async fn metal3(on: &mut Stage) {
    on.slow_step("metal3: a Machine on a host (any order)", async |on| {
        on.start_extension(true);
        on.world.add_host("h3").await;
        on.world.add_node("m3").await;
        on.world.add_machine("m3", json!({ENABLED: "true"})).await;
        on.world.on_host("m3", "h3").await;
        on.world.name_node("m3").await;
    })
    .await;
    on.step("metal3: requested", async |on| on.label("m3", Some("requested")).await).await;
    on.step("metal3: the label is removed (any order)", async |on| on.label("m3", None).await).await;
    on.step("metal3: not enabled", async |on| on.world.label_machine("m3", json!({ENABLED: null})).await).await;
    on.step("metal3: not enabled, approved by hand", async |on| on.label("m3", Some("approved")).await).await;
    on.slow_step("metal3: the Machine goes", async |on| {
        on.world.delete_machine("m3").await;
        assert!(on.world.finish_deletion("m3").await.is_empty());
    })
    .await;
    on.step("metal3: a Machine that has the label when it arrives (any order)", async |on| {
        on.world.add_host("h4").await;
        on.world.add_node("m4").await;
        on.world.add_machine("m4", json!({ENABLED: "true", MAINTENANCE: "requested"})).await;
        on.world.on_host("m4", "h4").await;
        on.world.name_node("m4").await;
    })
    .await;
}

async fn without_annotations(on: &mut Stage) {
    on.step("a Node without Cluster API's annotations (any order)", async |on| {
        on.world.add_node("m5").await;
        let annotations = json!({MACHINE: null, CLUSTER_NAMESPACE: null});
        on.world.merge("Node", &on.world.node_name("m5"), json!({"metadata": {"annotations": annotations}})).await;
        let has_state = |node: &serde_json::Value| node["metadata"]["labels"][STATE] == "operational";
        on.world.until_node("m5", "it has a state", has_state).await;
        on.world.add_machine("m5", json!({ENABLED: "true"})).await;
        on.world.name_node("m5").await;
    })
    .await;
    on.slow_step("without annotations: requested", async |on| on.label("m5", Some("requested")).await).await;
    on.step("without annotations: the Machine changes", async |on| {
        on.world.label_machine("m5", json!({"changed": "true"})).await;
    })
    .await;
    on.step("without annotations: the label is removed", async |on| on.label("m5", None).await).await;
}

async fn another_cluster(on: &mut Stage) {
    on.slow_step("a Machine of a cluster that does not answer", async |on| {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        let data = json!({"value": BASE64_STANDARD.encode(kubeconfig.to_string())});
        on.world.create("Secret", "silent-kubeconfig", json!({"data": data})).await;
        let labels = json!({CLUSTER_NAME: "silent", ENABLED: "true"});
        let machine = json!({"metadata": {"labels": labels}, "spec": {"clusterName": "silent"}});
        on.world.create("Machine", "m6", machine).await;
    })
    .await;
    on.slow_step("unreachable cluster: requested", async |on| on.label("m5", Some("requested")).await).await;
    on.slow_step("unreachable cluster: another Machine's label is removed (any order)", async |on| {
        on.label("m4", None).await;
    })
    .await;
}
