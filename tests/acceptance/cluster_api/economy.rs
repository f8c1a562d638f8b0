//! Many hosts used by Machines: each kind is read with a single request, whatever the number of
//! hosts.

use serde_json::json;

use super::chain::{configure_as, place_many};
use crate::{
    metal3::economy::{counted, quietly},
    servers::{
        cluster_api::MAINTENANCE,
        kubernetes_proxy::{Deal, Proxy, status},
    },
    support::{
        host::Host,
        simulator::SOON,
        wait::eventually,
        workspace::{Workspace, maintenances},
    },
};

const MANY: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_machines_of_many_hosts_are_found_with_a_few_requests() {
    let (hosts, machines) = place_many(MANY, false).await;
    // Another author's request comes first. Until it ends, each Machine is looked up through its
    // host.
    for number in 1..=MANY {
        machines.withhold(&format!("m{number}")).await;
        machines.label_machine(&format!("m{number}"), json!({ MAINTENANCE: "requested" })).await;
    }
    let proxy = Proxy::to(hosts.kubernetes).await;
    let workspace = Workspace::new(Host::OpenTofu);
    let kubeconfig = hosts.kubernetes.kubeconfig_at(&proxy.url(), "admin");
    configure_as(&kubeconfig, &hosts, &workspace, &maintenances(MANY));
    workspace.try_plan().await.succeeded().says("another author requested maintenance");
    let asked = counted(&proxy);
    assert_eq!(asked.get("GET list metal3machines"), Some(&1), "{asked:#?}");
    // Requests sent before the API version was known.
    let singly = asked.get("GET one of metal3machines").copied().unwrap_or_default();
    assert!(singly < MANY / 2, "{asked:#?}");

    let apply = workspace.start(&["apply", "-auto-approve", "-input=false", "-no-color", "-parallelism=100"]);
    eventually("all wait", SOON * 4, async || {
        (apply.log().matches("another author requested maintenance").count() >= MANY).then_some(())
    })
    .await;
    let asked = quietly(&proxy).await;
    assert!(asked.values().sum::<usize>() < 10, "{asked:#?}");
    apply.interrupt();
    apply.wait(SOON * 4).await;

    // A role that can read but not list Metal3Machines is enough; then each is one request.
    proxy.rule(|seen| {
        let is_list = seen.path.contains("/metal3machines?");
        if is_list { Deal::Answer(403, "", status(403, "Forbidden")) } else { Deal::Pass }
    });
    workspace.try_plan().await.succeeded().says("another author requested maintenance");
    let asked = counted(&proxy);
    let denied = asked.get("GET list metal3machines").copied().unwrap_or_default();
    assert!(denied < 4 && asked["GET one of metal3machines"] >= MANY, "{asked:#?}");
}
