//! Many hosts in one run: each kind is read with a single request, whatever the number of hosts.

use std::{collections::BTreeMap, time::Duration};

use super::configure_as;
use crate::{
    servers::{
        kubernetes_proxy::{Deal, Proxy, Seen, status},
        metal3::{operator::Options, world::World},
    },
    support::{
        host::Host,
        simulator::SOON,
        wait::eventually,
        workspace::{Workspace, maintenances},
    },
};

const MANY: usize = 50;

/// Describes a request without the object's name: method, kind, and list or watch.
fn kind(seen: &Seen) -> String {
    let path = seen.path.split('?').next().unwrap_or_default();
    let kinds = ["baremetalhosts", "secrets", "namespaces", "metal3machines", "machines", "nodes", "pods"];
    let parts: Vec<&str> = path.split('/').collect();
    let at = parts.iter().rposition(|part| kinds.contains(part));
    let what = match at {
        Some(at) if seen.is_watch() => format!("watch {}", parts[at]),
        Some(at) if at + 1 == parts.len() => format!("list {}", parts[at]),
        Some(at) => format!("one of {}", parts[at]),
        None => path.to_owned(),
    };
    format!("{} {what}", seen.method)
}

/// Counts the requests since the last call, by kind.
pub fn counted(proxy: &Proxy) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for seen in proxy.take_seen() {
        *all.entry(kind(&seen)).or_default() += 1;
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_hosts_are_refreshed_with_a_few_requests() {
    // With many hosts, the stand-in polls each less often to keep up.
    let options = Options { steady: Duration::from_secs(5), ..Options::default() };
    let world = World::start(MANY, options).await;
    let proxy = Proxy::to(world.kubernetes).await;
    let workspace = Workspace::new(Host::OpenTofu);
    let kubeconfig = world.kubernetes.kubeconfig_at(&proxy.url(), "admin");
    configure_as(&kubeconfig, &world, &workspace, "", &maintenances(MANY));
    let parallel = |command: &'static str| {
        [command, "-auto-approve", "-input=false", "-no-color", "-parallelism=50"].map(str::to_owned)
    };
    let words = parallel("apply");
    workspace.run(&words.each_ref().map(String::as_str)).await.succeeded();

    proxy.take_seen();
    workspace.plan().await.is_empty();
    let asked = counted(&proxy);
    let all: usize = asked.values().sum();
    assert!(all < MANY / 2, "{all} requests to read {MANY} hosts: {asked:#?}");
    assert_eq!(asked["GET list baremetalhosts"], 1, "{asked:#?}");

    // A role that cannot list Secrets is enough; then each Secret is one request.
    proxy.rule(|seen| match kind(seen).as_str() {
        "GET list secrets" => Deal::Answer(403, "", status(403, "Forbidden")),
        _ => Deal::Pass,
    });
    workspace.plan().await.is_empty();
    let asked = counted(&proxy);
    assert_eq!((asked["GET one of secrets"], asked["GET list baremetalhosts"]), (MANY, 1), "{asked:#?}");
    proxy.rule(|_| Deal::Pass);
    let words = parallel("destroy");
    workspace.run(&words.each_ref().map(String::as_str)).await.succeeded();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_cost_one_watch() {
    let options = Options { steady: Duration::from_secs(5), ..Options::default() };
    let world = World::start(MANY, options).await;
    for number in 1..=MANY {
        let paused = serde_json::json!({"baremetalhost.metal3.io/paused": "by a person"});
        world.annotate(&format!("node{number}"), paused).await;
    }
    let proxy = Proxy::to(world.kubernetes).await;
    let workspace = Workspace::new(Host::OpenTofu);
    let kubeconfig = world.kubernetes.kubeconfig_at(&proxy.url(), "admin");
    configure_as(&kubeconfig, &world, &workspace, "", &maintenances(MANY));
    let apply = workspace.start(&["apply", "-auto-approve", "-input=false", "-no-color", "-parallelism=100"]);
    eventually("all wait", SOON * 4, async || {
        (apply.log().matches("which another author paused").count() >= MANY).then_some(())
    })
    .await;
    let asked = quietly(&proxy).await;
    assert!(asked.values().sum::<usize>() < 10, "{asked:#?}");
    apply.interrupt();
    apply.wait(SOON * 4).await;
}

/// Counts the requests during a time without events.
pub async fn quietly(proxy: &Proxy) -> BTreeMap<String, usize> {
    // Gives the last creates time to start waiting.
    let wait = async |seconds| {
        let began = std::time::Instant::now();
        let over = async || (began.elapsed() > Duration::from_secs(seconds)).then_some(());
        eventually("some time passes", SOON, over).await;
    };
    wait(4).await;
    proxy.take_seen();
    wait(8).await;
    counted(proxy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_does_nothing_is_waited_for_without_requests() {
    let options = Options { steady: Duration::from_secs(5), ..Options::default() };
    let awake = options.awake.clone();
    let world = World::start(MANY, options).await;
    let proxy = Proxy::to(world.kubernetes).await;
    let workspace = Workspace::new(Host::OpenTofu);
    let kubeconfig = world.kubernetes.kubeconfig_at(&proxy.url(), "admin");
    configure_as(&kubeconfig, &world, &workspace, "", &maintenances(MANY));
    for (command, waits) in [("apply", "to be detached by the operator"), ("destroy", "the operator is attaching")] {
        awake.close();
        let run = workspace.start(&[command, "-auto-approve", "-input=false", "-no-color", "-parallelism=100"]);
        eventually("all wait", SOON * 4, async || (run.log().matches(waits).count() >= MANY).then_some(())).await;
        let asked = quietly(&proxy).await;
        assert!(asked.values().sum::<usize>() < 10, "{command}: {asked:#?}");
        awake.open();
        run.wait(SOON * 4).await.succeeded();
    }
}
