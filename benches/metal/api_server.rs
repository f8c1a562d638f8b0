//! API server load of waits and refreshes: the parts shared by all cluster backends.
use std::{
    path::Path,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use kube::core::ApiResource;
use serde_json::{Value, json};

use crate::{
    manifest,
    measure::{ms, peak_memory, processor_time},
    provider::{Held, Provider},
    support::{
        kubernetes::Kubernetes,
        kubernetes_proxy::{Proxy, Seen},
    },
    table::Row,
};

const LOOK: Duration = Duration::from_secs(20);

/// Counts list requests, watch requests and all requests for these paths.
pub fn told(seen: &[Seen], kinds: &[&str]) -> (usize, usize, usize) {
    let of_all = |one: &Seen| {
        let path = one.path.split('?').next().unwrap_or_default();
        one.method == "GET" && kinds.iter().any(|end| path.ends_with(end))
    };
    let watches = seen.iter().filter(|one| one.is_watch()).count();
    let lists = seen.iter().filter(|one| of_all(one) && !one.is_watch()).count();
    (lists, watches, seen.len())
}

/// Starts creates that wait in one process for the system's approval, then grants them all.
/// `entered` returns the number of queued requests, and `watches` describes the watches so far.
/// The last counter covers all requests, at least since the `watches` call.
pub async fn waiting(
    system: &str,
    config: &Value,
    servers: &[String],
    entered: impl AsyncFn() -> usize,
    watches: impl Fn() -> String,
    asked: impl Fn() -> usize,
    grant: impl AsyncFn(),
) -> (Row, Vec<Held>) {
    let provider = Provider::configured(config).await;
    let more = json!({ "timeouts": { "create": "20m", "update": null, "delete": null } });
    let all = servers.iter().map(async |server| provider.create(server, &format!("held-{server}"), &more).await);
    let look = async {
        while entered().await < servers.len() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        // Gives the last creates time to start waiting.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let watches = watches();
        let (before, used, begin) = (asked(), processor_time(provider.pid()), Instant::now());
        tokio::time::sleep(LOOK).await;
        let (asked, took) = (asked() - before, begin.elapsed().as_secs_f64());
        let share = processor_time(provider.pid()).saturating_sub(used).as_secs_f64() / took * 100.0;
        let peak = peak_memory(provider.pid());
        grant().await;
        (asked, took, share, peak, watches)
    };
    let (held, (asked, took, share, peak, watches)) = tokio::join!(join_all(all), look);
    provider.end().await;
    #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
    let rate = asked as f64 / took;
    let row = Row::new(
        format!("{system}: {} maintenances waiting in one process, over {} s", servers.len(), LOOK.as_secs()),
        format!(
            "{rate:.2} requests per second to the API server, watches since the start: {watches}; {share:.1} % of a core, {peak:.0} MiB"
        ),
    );
    (row, held)
}

/// Refreshes all resources in a new process through a counting proxy, and again without the proxy.
/// Returns the second duration and its row.
pub async fn refresh(
    proxy: &Proxy,
    kinds: &[&str],
    (counted, direct): (&Value, &Value),
    held: &[Held],
) -> (Duration, String) {
    let provider = Provider::configured(counted).await;
    proxy.take_seen();
    provider.refresh_all(held).await;
    let (lists, _, all) = told(&proxy.take_seen(), kinds);
    provider.end().await;

    let provider = Provider::configured(direct).await;
    let begin = Instant::now();
    provider.refresh_all(held).await;
    let time = begin.elapsed();
    provider.end().await;
    (time, format!("{}, {lists} lists of {all} requests to the API server", ms(time)))
}

/// Times the same refresh by `kubernetes_manifest`; empty without its program. That provider sends
/// no token without TLS, so it bypasses the proxy, and no other client can run at the same time.
pub async fn by_manifest(
    kubernetes: &Kubernetes,
    kubeconfig: &Path,
    kind: &ApiResource,
    what: &str,
    objects: &[Value],
) -> String {
    let manifests = objects.iter().map(|object| {
        let metadata = &object["metadata"];
        json!({
            "apiVersion": kind.api_version, "kind": kind.kind, "spec": object["spec"],
            "metadata": { "name": metadata["name"], "namespace": metadata["namespace"] },
        })
    });
    let before = kubernetes.requests_about(&[&kind.plural]).await;
    let took = manifest::of(kubeconfig, manifests.collect()).await;
    let asked = kubernetes.requests_about(&[&kind.plural]).await - before;
    let told = |took| {
        format!("; `kubernetes_manifest`, the {what} alone: {asked} requests about them, {} with its host", ms(took))
    };
    took.map(told).unwrap_or_default()
}
