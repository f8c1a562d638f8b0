//! `metal_maintenance_approval` on a cluster: a key on the ServerClaim, in each version's form, or
//! on the Node.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::json;

use super::{HELD, cluster, configure, configure_as, maintenance};
use crate::{
    servers::{
        ironcore::{
            Options,
            api::{Key, Kind},
            family::Family,
            world::World,
        },
        kubernetes::Kubernetes,
    },
    support::{simulator::SOON, wait::eventually, workspace::Workspace},
};

const APPROVAL: &str = "metal_maintenance_approval.yes";

/// Read-only role.
const READER: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: reader}]
"#;

fn approval(more: &str) -> String {
    format!("resource \"metal_maintenance_approval\" \"yes\" {{\n  server = \"node1\"\n  {more}\n}}\n")
}

/// Starts a family's cluster with a claimed `node1`.
pub async fn claimed(family: Family) -> World {
    let world = cluster(family, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    world
}

pub async fn until_asked(ours: &Workspace) {
    eventually("the queue shows that the request needs approval", SOON, async || {
        let queue = ours.metal(&["queue"]).await.succeeded();
        queue.stdout.contains("approval on ServerClaim owners/claim1").then_some(())
    })
    .await;
}

for_one_host! {
    async fn a_request_is_approved_used_and_no_plan_flaps(host) {
        for (family, mark) in [
            (Family::V0_7, "label maintenance-approved=true"),
            (Family::MaintenanceGroup, "label maintenance-approved=true"),
            (Family::Parked, "label maintenance-approved=true"),
            (Family::V0_3, "annotation maintenance-approval=true"),
        ] {
            let world = claimed(family).await;
            let ours = Workspace::new(host);
            let theirs = ours.beside();
            configure(&world, &ours, &maintenance("OwnerApproval", ""));
            let apply = ours.start_apply();
            until_asked(&ours).await;

            configure(&world, &theirs, &approval("maintenance = \"ops/other\""));
            theirs.try_plan().await.failed().says("Maintenance is not pending").says("ops/other is not pending on node1");
            configure(&world, &theirs, &approval("maintenance = \"ops/bios\""));
            let plan = theirs.try_plan().await.succeeded();
            plan.says("Maintenance will be approved").says("applies to every request").says("BIOS 2.19");
            theirs.apply().await.succeeded();
            let given = theirs.resource(APPROVAL).await.unwrap();
            assert_eq!((&given["state"], &given["claim"]), (&json!("InForce"), &json!("owners/claim1")), "{given}");
            assert!(world.marks("owners", "claim1").await.contains(&mark.to_owned()), "{family:?}");
            apply.wait(SOON * 2).await.succeeded();
            assert_eq!(ours.resource(HELD).await.unwrap()["state"], "InMaintenance");
            theirs.plan().await.is_empty();

            ours.destroy().await.succeeded();
            world.until_state("node1", "Reserved").await;
            assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new(), "{family:?}");
            theirs.plan().await.is_empty();
            theirs.refresh().await.succeeded().is_silent_about("An approval was removed");
            assert_eq!(theirs.resource(APPROVAL).await.unwrap()["state"], "Used", "{family:?}");
            theirs.plan().await.is_empty();
            theirs.destroy().await.succeeded();
        }
    }
}

for_one_host! {
    async fn everything_is_approved_beforehand_and_taken_back_while_others_write(host) {
        let world = claimed(Family::V0_7).await;
        let key = Key::within("owners", "claim1");
        // Another client changes the claim continuously, so every read is outdated at the write.
        let (others, busy) = (world.cluster.clone(), key.clone());
        let noise = tokio::spawn(async move {
            for count in 0u64.. {
                let change = json!({"metadata": {"annotations": {"example.com/count": count.to_string()}}});
                let _ = others.merge(Kind::Claim, &busy, change).await;
            }
        });
        let theirs = Workspace::new(host);
        configure(&world, &theirs, &approval("all = true"));
        theirs.try_plan().await.succeeded().says("All maintenance of a claim will be approved");
        theirs.apply().await.succeeded();
        assert_eq!(world.marks("owners", "claim1").await, ["label maintenance-approved=true"]);
        theirs.destroy().await.succeeded();
        noise.abort();
        assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
        // Withdrawing deletes the key instead of setting it to false.
        let asker = theirs.beside();
        configure(&world, &asker, &maintenance("OwnerApproval", "timeouts = { create = \"1s\" }"));
        asker.apply().await.failed().says("approval on ServerClaim owners/claim1");
    }
}

for_one_host! {
    async fn what_somebody_else_approved_is_left_alone(host) {
        let world = claimed(Family::V0_7).await;
        let theirs = Workspace::new(host);
        world.approve("owners", "claim1").await;
        configure(&world, &theirs, &approval("all = true"));
        theirs.apply().await.succeeded().says("An approval already exists");
        theirs.destroy().await.succeeded();
        assert_eq!(world.marks("owners", "claim1").await, ["label maintenance-approved=true"]);
        // A key that another author wrote afterwards was removed.
        world.withdraw("owners", "claim1").await;
        theirs.apply().await.succeeded().is_silent_about("An approval already exists");
        world.withdraw("owners", "claim1").await;
        let asker = theirs.beside();
        configure(&world, &asker, &maintenance("OwnerApproval", "timeouts = { create = \"1s\" }"));
        let waiting = asker.start_apply();
        until_asked(&asker).await;
        theirs.refresh().await.succeeded().says("An approval was removed").says("ops/bios");
        assert_eq!(theirs.resource(APPROVAL).await.unwrap()["state"], "Used");
        waiting.wait(SOON).await.failed();
        world.approve("owners", "claim1").await;
        theirs.destroy().await.succeeded();
        assert!(world.marks("owners", "claim1").await.contains(&"label maintenance-approved=true".to_owned()));
    }
}

for_one_host! {
    async fn what_it_cannot_say_is_refused_with_its_path(host) {
        let world = claimed(Family::V0_7).await;
        let theirs = Workspace::new(host);
        for (more, path) in [
            ("digest = \"0123\"", "digest"),
            ("expires = \"2099-01-01T00:00:00Z\"", "expires"),
            ("not_before = \"2030-01-01T00:00:00Z\"", "not_before"),
        ] {
            configure(&world, &theirs, &approval(&format!("maintenance = \"ops/bios\"\n  {more}")));
            theirs.try_plan().await.failed().says("Not supported for cluster approvals").says(&format!("{path} ="));
        }
        configure(&world, &theirs, &approval("all = true").replace("node1", "node9"));
        theirs.try_plan().await.failed().says("the cluster does not contain Server");
    }
}

for_one_host! {
    async fn a_role_that_does_not_suffice_is_told_verb_and_resource(host) {
        let world = claimed(Family::V0_7).await;
        let theirs = Workspace::new(host);
        world.kubernetes.apply(READER);
        configure_as(&world.kubernetes.user("reader", &[]), &theirs, "", &approval("all = true"));
        theirs.try_plan().await.succeeded();
        let refused = theirs.apply().await.failed();
        refused.says("\"patch\"").says("serverclaims.metal.ironcore.dev").says("owners");
        assert!(theirs.resource(APPROVAL).await.is_none());
    }
}

for_one_host! {
    async fn the_node_is_labelled_for_a_controller_that_copies(host) {
        let world = claimed(Family::V0_7).await;
        let theirs = Workspace::new(host);
        world.kubernetes.apply("apiVersion: v1\nkind: Node\nmetadata: {name: worker-7}\n");
        let nodes: Api<Node> = Api::all(world.cluster.client.clone());
        let labels = async || {
            let node = nodes.get("worker-7").await.unwrap();
            let labels = node.metadata.labels.unwrap_or_default();
            labels.into_keys().filter(|key| key.contains("maintenance")).collect::<Vec<_>>()
        };
        configure(&world, &theirs, &approval("all = true\n  node = \"worker-9\""));
        theirs.apply().await.failed().says("Node \"worker-9\" does not exist");
        configure(&world, &theirs, &approval("all = true\n  node = \"worker-7\""));
        theirs.try_plan().await.succeeded().says("Node worker-7 is labelled");
        theirs.apply().await.succeeded();
        assert_eq!(labels().await, ["metal.ironcore.dev/maintenance-approval", "metal.ironcore.dev/maintenance-approved"]);
        assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new(), "the controller writes on the claim");
        theirs.plan().await.is_empty();
        theirs.destroy().await.succeeded();
        assert_eq!(labels().await, Vec::<String>::new());
    }
}

/// Returns a Node's labels about maintenance.
async fn node_labels(kubernetes: &Kubernetes) -> Vec<String> {
    let nodes: Api<Node> = Api::all(Kubernetes::client(&kubernetes.kubeconfig()).await);
    let labels = nodes.get("worker-7").await.unwrap().metadata.labels.unwrap_or_default();
    labels.into_keys().filter(|key| key.contains("maintenance")).collect()
}

for_one_host! {
    async fn the_node_may_be_in_a_cluster_of_its_own(host) {
        let world = claimed(Family::V0_7).await;
        let mut workers = Kubernetes::start();
        for kubernetes in [&*world.kubernetes, &workers] {
            kubernetes.apply("apiVersion: v1\nkind: Node\nmetadata: {name: worker-7}\n");
        }
        let theirs = Workspace::new(host);
        let configured = |node: &str| {
            theirs.configure(&format!(
                "provider \"metal\" {{\n  metal_operator = {{\n    kubeconfig = \"{}\"\n    node_kubeconfig = \"{}\"\n    \
                 bmc_insecure = true\n    request_timeout = \"3s\"\n  }}\n}}\n{}",
                world.kubernetes.kubeconfig().display(),
                workers.kubeconfig().display(),
                approval(&format!("all = true\n  node = \"{node}\"")),
            ));
        };
        configured("worker-8");
        let missing = theirs.apply().await.failed();
        missing.says("Node \"worker-8\" does not exist").says(&workers.url());
        configured("worker-7");
        theirs.apply().await.succeeded();
        assert_eq!(node_labels(&workers).await, ["metal.ironcore.dev/maintenance-approval", "metal.ironcore.dev/maintenance-approved"]);
        assert_eq!(node_labels(&world.kubernetes).await, Vec::<String>::new(), "the other cluster's Node of that name");
        assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
        theirs.plan().await.is_empty();
        // During an outage nothing counts as deleted or withdrawn.
        workers.kill();
        theirs.refresh().await.succeeded().says("The cluster did not answer").says("last known values");
        assert_eq!(theirs.resource(APPROVAL).await.unwrap()["state"], "InForce");
        theirs.destroy().await.failed().says("node1");
        assert!(theirs.resource(APPROVAL).await.is_some());
        workers.start_again();
        theirs.destroy().await.succeeded();
        assert_eq!(node_labels(&workers).await, Vec::<String>::new());
    }
}
