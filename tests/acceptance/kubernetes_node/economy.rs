//! Many drained servers in one run: a single request lists their Nodes, and waiting drains use
//! watches.

use std::sync::atomic::Ordering;

use bmc_simulator::PowerState;
use kube::{Api, api::ListParams};
use serde_json::json;

use super::Place;
use crate::{
    metal3::economy::{counted, quietly},
    servers::{
        kubernetes::Kubernetes,
        kubernetes_proxy::{Deal, Proxy, status},
    },
    support::{
        host::Host,
        simulator::{Fleet, SOON, maintenance},
        workspace::{Workspace, maintenances},
    },
};

const MANY: usize = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_many_servers_are_refreshed_with_a_few_requests() {
    let cluster = Kubernetes::shared();
    let namespace = cluster.namespace();
    let node = |number: usize| format!("many-{namespace}-{number}");
    for number in 1..=MANY {
        // Without a kubelet the Node was never Ready, so the release does not wait for it.
        cluster.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node(number) } }).to_string());
    }
    let (fleet, workspace) = (Fleet::new(MANY).await, Workspace::new(Host::OpenTofu));
    let proxy = Proxy::to(cluster).await;
    let nodes: serde_json::Map<_, _> =
        (1..=MANY).map(|number| (format!("node{number}"), json!(node(number)))).collect();
    let drained = format!(
        "kubernetes_node = {{ kubeconfig = \"{}\", nodes = jsondecode({:?}) }}",
        cluster.kubeconfig_at(&proxy.url(), "admin").display(),
        json!(nodes).to_string()
    );
    let off = maintenances(MANY).replace("\"Enforced\"", "\"Enforced\"\n  server_power = \"Off\"");
    fleet.configure_with(&workspace, &drained, &off);
    let parallel = async |command: &str| {
        let words = [command, "-auto-approve", "-input=false", "-no-color", "-parallelism=30"];
        workspace.run(&words).await.succeeded();
    };
    parallel("apply").await;
    let cordoned = async || {
        let all: Api<k8s_openapi::api::core::v1::Node> = Api::all(Kubernetes::client(&cluster.kubeconfig()).await);
        let all = all.list(&ListParams::default()).await.unwrap().items;
        let ours =
            all.iter().filter(|one| one.metadata.name.as_ref().unwrap().starts_with(&format!("many-{namespace}-")));
        ours.filter(|one| one.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)).count()
    };
    assert_eq!((cordoned().await, fleet.system("node1").power), (MANY, PowerState::Off));

    proxy.take_seen();
    workspace.plan().await.is_empty();
    let asked = counted(&proxy);
    let singly = asked.get("GET one of nodes").copied().unwrap_or_default();
    // A refresh slower than the list's cache time needs another list.
    let lists = asked.get("GET list nodes").copied().unwrap_or_default();
    assert!((1..=3).contains(&lists), "{asked:#?}");
    assert!(singly < MANY / 2 && asked.values().sum::<usize>() < MANY / 2, "{asked:#?}");

    // An uncordoned Node is reported, whichever Nodes come from the list.
    let last: Api<k8s_openapi::api::core::v1::Node> = Api::all(Kubernetes::client(&cluster.kubeconfig()).await);
    let change = json!({ "spec": { "unschedulable": null } });
    let (by, change) = (kube::api::PatchParams::default(), kube::api::Patch::Merge(change));
    last.patch(&node(MANY), &by, &change).await.unwrap();
    workspace.try_plan().await.succeeded().says(&node(MANY)).says("was uncordoned");

    // A role that cannot list Nodes is enough; then each Node is one request.
    proxy.rule(|seen| {
        let is_list = seen.path.split('?').next() == Some("/api/v1/nodes");
        if is_list { Deal::Answer(403, "", status(403, "Forbidden")) } else { Deal::Pass }
    });
    proxy.take_seen();
    workspace.try_plan().await.succeeded().says("was uncordoned");
    let asked = counted(&proxy);
    assert!(asked["GET one of nodes"] >= MANY && asked["GET list nodes"] == 1, "{asked:#?}");

    // Expired credentials are reported once, not for each server.
    proxy.rule(|_| Deal::Answer(401, "", status(401, "Unauthorized")));
    let told = workspace.plan().await.is_empty().run.words();
    assert_eq!(told.matches("A Node was not checked").count(), 1, "{told}");
    assert!(!told.contains("similar warning"), "{told}");
    proxy.rule(|_| Deal::Pass);
    parallel("destroy").await;
    assert_eq!(cordoned().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_waited_for_by_watches_and_by_reading_it_where_a_role_has_none() {
    for may_watch in [true, false] {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(Host::OpenTofu));
        place.pod("web", Some("ReplicaSet"), json!({})).await;
        let proxy = Proxy::to(place.cluster).await;
        proxy.rule(move |seen| {
            if seen.is_watch() && !may_watch { Deal::Answer(403, "", status(403, "Forbidden")) } else { Deal::Pass }
        });
        let kubeconfig = place.cluster.kubeconfig_at(&proxy.url(), "admin");
        let on = maintenance("node1", "m", "server_power = \"On\"");
        fleet.configure_with(&workspace, &place.drained_as(&kubeconfig), &on);
        let asks_as_it_should = async |what: &str| {
            let asked = quietly(&proxy).await;
            // A watch is renewed once a minute; a forbidden watch is not retried.
            let (watches, reads): (Vec<_>, Vec<_>) = asked.keys().partition(|kind| kind.starts_with("GET watch"));
            if may_watch {
                assert!(reads.is_empty() && asked.values().sum::<usize>() <= 2, "{what}: {asked:#?}");
            } else {
                assert!(watches.is_empty() && asked[what] >= 1, "{what}: {asked:#?}");
            }
        };

        // The kubelet does not remove its Pod.
        place.kubelet.up.store(false, Ordering::SeqCst);
        let apply = workspace.start_apply();
        apply.until_it_logs("web (ending)", SOON).await;
        asks_as_it_should("GET list pods").await;
        place.kubelet.up.store(true, Ordering::SeqCst);
        apply.wait(SOON * 2).await.succeeded();
        assert_eq!((place.names().await, place.cordoned().await), (vec![], true));

        place.went_down().await;
        let destroy = workspace.start(&["destroy", "-auto-approve", "-input=false", "-no-color"]);
        destroy.until_it_logs("once it is Ready again", SOON).await;
        asks_as_it_should("GET one of nodes").await;
        place.kubelet.up.store(true, Ordering::SeqCst);
        destroy.wait(SOON * 2).await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
    }
}
