//! Scenario steps, adapted to each family's features.

use serde_json::json;

use crate::{
    stage::Stage,
    support::ironcore::{
        api::{Key, Kind},
        family::Family,
    },
};

/// Plays all steps, starting without a server.
pub async fn play(stage: &mut Stage, arrive: impl AsyncFnOnce(&Stage)) {
    stage.step("the server arrives", arrive).await;
    if stage.family.group().is_some() {
        unclaimed(stage).await;
    }
    if stage.family.can_park() {
        park(stage, "a free server").await;
    }
    stage.step("a claim", async |on: &Stage| on.claim().await).await;
    if stage.family.group().is_some() {
        by_approval(stage).await;
        one_approval_for_two(stage).await;
        by_force(stage).await;
        force_on_top(stage).await;
        a_waiting_one_goes(stage).await;
        if stage.family.group() == Some(crate::support::ironcore::family::METAL) {
            boot_error(stage).await;
        }
        a_reference_to_nothing(stage).await;
        never_started(stage).await;
        no_server(stage).await;
    }
    operations(stage).await;
    if stage.family.can_park() {
        park(stage, "a claimed server").await;
    }
    let claim = Key::within("default", "claim");
    stage.step("the claim goes", async |on: &Stage| on.cluster.delete(Kind::Claim, &claim).await.unwrap()).await;
    if stage.family.has_unclaimable() {
        stage
            .step("not to be claimed", async |on: &Stage| {
                on.merge_server(json!({"spec": {"unclaimable": true}})).await;
            })
            .await;
        stage.step("not to be claimed: a claim", async |on: &Stage| on.claim().await).await;
        stage
            .step("to be claimed again", async |on: &Stage| {
                on.merge_server(json!({"spec": {"unclaimable": false}})).await;
            })
            .await;
    }
}

async fn unclaimed(stage: &mut Stage) {
    stage
        .step("unclaimed server: a request", async |on: &Stage| {
            let more = if on.family == Family::MaintenanceGroup { json!({}) } else { json!({"serverPower": "On"}) };
            on.request("free", "OwnerApproval", more).await;
        })
        .await;
    stage.step("unclaimed server: it ends", async |on: &Stage| on.delete("free").await).await;
}

async fn by_approval(stage: &mut Stage) {
    stage
        .step("by approval: a request", async |on: &Stage| {
            let more = if on.family == Family::MaintenanceGroup { json!({}) } else { json!({"serverPower": "Off"}) };
            on.request("asked", "OwnerApproval", more).await;
        })
        .await;
    stage.step("by approval: approved", async |on: &Stage| on.approve().await).await;
    stage.step("by approval: it ends", async |on: &Stage| on.delete("asked").await).await;
}

async fn one_approval_for_two(stage: &mut Stage) {
    // Without priorities the first reconcile wins, so the second request follows after the first
    // runs.
    let ordered = stage.family.has_priority();
    stage
        .step("two by approval: the first", async |on: &Stage| on.request("first", "OwnerApproval", json!({})).await)
        .await;
    if ordered {
        second_by_approval(stage).await;
    }
    stage.step("two by approval: approved", async |on: &Stage| on.approve().await).await;
    if !ordered {
        second_by_approval(stage).await;
    }
    stage.step("two by approval: the first ends", async |on: &Stage| on.delete("first").await).await;
    if stage.last("second") == "Pending" {
        stage.step("two by approval: approved once more", async |on: &Stage| on.approve().await).await;
    }
    stage.step("two by approval: the second ends", async |on: &Stage| on.delete("second").await).await;
}

async fn second_by_approval(stage: &mut Stage) {
    // Creation times are rounded to seconds; the names give the same order on a tie.
    stage
        .step("two by approval: the second", async |on: &Stage| on.request("second", "OwnerApproval", json!({})).await)
        .await;
}

async fn by_force(stage: &mut Stage) {
    stage.step("by force: one", async |on: &Stage| on.request("low", "Enforced", json!({})).await).await;
    stage
        .step("by force: a higher one", async |on: &Stage| {
            on.request("high", "Enforced", json!({"priority": 10})).await;
        })
        .await;
    stage.step("by force: the first ends", async |on: &Stage| on.delete("low").await).await;
    stage.step("by force: the higher one ends", async |on: &Stage| on.delete("high").await).await;
}

async fn force_on_top(stage: &mut Stage) {
    stage
        .step("force on top: by approval", async |on: &Stage| on.request("mild", "OwnerApproval", json!({})).await)
        .await;
    stage.step("force on top: approved", async |on: &Stage| on.approve().await).await;
    stage.step("force on top: by force", async |on: &Stage| on.request("rude", "Enforced", json!({})).await).await;
    stage.step("force on top: force ends", async |on: &Stage| on.delete("rude").await).await;
    stage.step("force on top: approval ends", async |on: &Stage| on.delete("mild").await).await;
}

async fn a_waiting_one_goes(stage: &mut Stage) {
    stage
        .step("a waiting one goes: one runs", async |on: &Stage| on.request("runs", "Enforced", json!({})).await)
        .await;
    stage
        .step("a waiting one goes: one waits", async |on: &Stage| on.request("waits", "Enforced", json!({})).await)
        .await;
    stage.step("a waiting one goes: it goes", async |on: &Stage| on.delete("waits").await).await;
    stage.step("a waiting one goes: the other ends", async |on: &Stage| on.delete("runs").await).await;
}

async fn boot_error(stage: &mut Stage) {
    let request = async |on: &Stage, name: &str, image: &str| {
        let spec = json!({"serverRef": {"name": on.server}, "image": image});
        let template = json!({"name": "ignored", "spec": spec});
        let more = json!({"serverPower": "On", "serverBootConfigurationTemplate": template});
        on.request(name, "Enforced", more).await;
    };
    stage.step("boot: a good image", async |on: &Stage| request(on, "boots", "tool:1").await).await;
    stage.step("boot: it ends", async |on: &Stage| on.delete("boots").await).await;
    stage.step("boot: a bad image", async |on: &Stage| request(on, "fails", "bad:1").await).await;
    stage.step("boot: the failed one goes", async |on: &Stage| on.delete("fails").await).await;
}

async fn a_reference_to_nothing(stage: &mut Stage) {
    stage
        .step("a reference to nothing", async |on: &Stage| {
            let mut reference = json!({"name": "nothing", "namespace": "default"});
            if on.family.refers_by_uid() {
                reference["apiVersion"] = "metal.ironcore.dev/v1alpha1".into();
                reference["kind"] = "ServerMaintenance".into();
                reference["uid"] = "nothing".into();
            }
            on.merge_server(json!({"spec": {"serverMaintenanceRef": reference}})).await;
        })
        .await;
    if stage.last("server").contains("by nothing") {
        stage
            .step("a reference to nothing: mended by hand", async |on: &Stage| {
                on.merge_server(json!({"spec": {"serverMaintenanceRef": null}})).await;
            })
            .await;
    }
}

async fn never_started(stage: &mut Stage) {
    stage
        .step("never started: a request", async |on: &Stage| on.request("never", "OwnerApproval", json!({})).await)
        .await;
    stage.step("never started: it goes", async |on: &Stage| on.delete("never").await).await;
}

async fn no_server(stage: &mut Stage) {
    stage
        .step("no server: a request", async |on: &Stage| {
            let spec = json!({"policy": "Enforced", "serverRef": {"name": "nowhere"}});
            let object = json!({"metadata": {"name": "lost", "namespace": "default"}, "spec": spec});
            on.cluster.create(on.kind(), object).await.unwrap();
        })
        .await;
    stage.step("no server: it goes", async |on: &Stage| on.delete("lost").await).await;
}

async fn operations(stage: &mut Stage) {
    let known = if stage.family == Family::V0_1 { "ForceRestart" } else { "hard-restart-server" };
    stage
        .step("an operation", async |on: &Stage| {
            // If a BMC refuses to restart a powered-off machine, the operator retries forever, so
            // power it on.
            on.until_on().await;
            on.operate(known).await;
        })
        .await;
    if stage.family == Family::V0_1 {
        // v0.1 sends any value to the BMC, forever.
        return;
    }
    stage.step("no operation", async |on: &Stage| on.operate("reboot").await).await;
    if stage.last("server").contains("reboot") {
        stage
            .step("no operation: removed by hand", async |on: &Stage| {
                on.merge_server(json!({"metadata": {"annotations": null}})).await;
            })
            .await;
    }
}

async fn park(stage: &mut Stage, whose: &str) {
    stage.step(&format!("park {whose}"), async |on: &Stage| on.operate("park").await).await;
    stage.step(&format!("park {whose}: an operation"), async |on: &Stage| on.operate("force-on-server").await).await;
    stage.step(&format!("park {whose}: unpark"), async |on: &Stage| on.operate("unpark").await).await;
}
