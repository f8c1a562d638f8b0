//! Kills the provider at each change that it sends to an API server, before and after the server
//! applies it. The next process continues, and the final state equals the initial state.
//!
//! A run without kills counts the changes, so new changes are covered automatically.

use std::{fmt, sync::Arc};

use futures_util::{StreamExt as _, stream};
use serde_json::json;
use tokio::sync::Notify;

use super::{
    APART_AT_ONCE, AT_ONCE, Bench, Phase, apply, learned, nothing_is_wrong,
    places::{self, Place},
    provider::Held,
};
use crate::servers::kubernetes_proxy::{Deal, Seen};

#[derive(Clone, Copy, Debug)]
struct Kill {
    phase: Phase,
    /// Number of the change within the phase, from 0.
    change: usize,
    carried_out: bool,
}

impl fmt::Display for Kill {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.carried_out { "after" } else { "before" };
        write!(formatter, "{} killed {when} its change {}", self.phase, self.change)
    }
}

/// Returns true if a request changes an object. Permission checks use `POST` too.
fn is_change(seen: &Seen) -> bool {
    seen.method != "GET" && !seen.path.contains("authorization.k8s.io")
}

impl<P: Place> Bench<P> {
    /// Returns a signal for the kill time.
    fn waits_for(&self, kill: Kill) -> Arc<Notify> {
        let reached = Arc::new(Notify::new());
        let (told, mut changes) = (Arc::clone(&reached), 0);
        self.proxy.rule(move |seen| {
            if !is_change(seen) {
                return Deal::Pass;
            }
            changes += 1;
            if changes != kill.change + 1 {
                return Deal::Pass;
            }
            if kill.carried_out {
                return Deal::KeepReply(Arc::clone(&told));
            }
            told.notify_one();
            // This request never continues.
            Deal::Wait(Arc::new(Notify::new()))
        });
        reached
    }

    /// Runs the phase until the kill. Returns false if it ended with fewer changes.
    async fn dies(&self, kill: Kill, held: Option<&Held>) -> bool {
        let mut provider = self.provider().await;
        let reached = self.waits_for(kill);
        let died = tokio::select! {
            () = reached.notified() => true,
            () = async {
                match held {
                    None => drop(apply(&provider).await),
                    Some(held) => drop(provider.try_destroy(held.clone()).await),
                }
            } => false,
        };
        if died {
            provider.host.child.kill().await.unwrap();
        } else {
            provider.end().await;
        }
        self.all_is_well();
        died
    }

    /// Counts the changes since the last call.
    fn changes(&self) -> usize {
        self.proxy.take_seen().iter().filter(|seen| is_change(seen)).count()
    }
}

/// Returns the problems after a kill, or `None` if the phase had fewer changes.
async fn play<P: Place>(bench: &Bench<P>, kill: Kill) -> Option<Vec<String>> {
    let mut held = None;
    if kill.phase == Phase::Destroy {
        let (applied, errors) = bench.apply().await;
        if !errors.is_empty() {
            return Some(vec![format!("the apply failed, before anything was killed: {errors:?}")]);
        }
        held = Some(applied);
    }
    if !bench.dies(kill, held.as_ref()).await {
        return None;
    }
    let mut wrong = Vec::new();
    if held.is_none() {
        let (again, errors) = bench.apply().await;
        wrong.extend(errors.into_iter().map(|error| format!("applied again: {error}")));
        held = Some(again);
    }
    for held in held.iter().filter(|held| held.exists()) {
        let (left, errors) = bench.destroy(held).await;
        wrong.extend(errors.into_iter().map(|error| format!("destroyed: {error}")));
        wrong.extend(left.exists().then(|| "destroyed, and still in the state".to_owned()));
    }
    wrong.extend(bench.left().await.into_iter().map(|left| format!("left: {left}")));
    Some(wrong)
}

/// Kills at each change of apply and destroy. `least` is the minimum number of changes of each.
async fn at_each_change<P: Place>(at_once: usize, least: [usize; 2], make: impl AsyncFn() -> P) {
    let [of_apply, of_destroy] = learned(&make, Bench::changes).await;
    assert!(of_apply >= least[0] && of_destroy >= least[1], "{of_apply} and {of_destroy} changes");

    let of = |phase, changes: usize| {
        (0..changes).flat_map(move |change| [false, true].map(|carried_out| Kill { phase, change, carried_out }))
    };
    let kills = of(Phase::Apply, of_apply).chain(of(Phase::Destroy, of_destroy));
    let played = stream::iter(kills).map(async |kill| {
        let bench = Bench::new(make().await).await;
        let wrong = play(&bench, kill).await;
        println!("{kill}: {}", if wrong.is_some() { "goes on" } else { "not reached" });
        (kill, wrong)
    });
    let played: Vec<_> = played.buffer_unordered(at_once).collect().await;
    nothing_is_wrong(played.iter().filter_map(|(kill, wrong)| Some((kill, wrong.as_ref()?))));
    // The number of eviction attempts depends on timing.
    let killed = played.iter().filter(|(_, wrong)| wrong.is_some()).count();
    assert!(killed >= 2 * (least[0] + least[1]), "only {killed} were killed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_host_of_metal3() {
    at_each_change(AT_ONCE, [1, 1], async || places::Metal3::new(json!({})).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "part of make soak: most requests are the same as for a detached host"]
async fn a_host_of_metal3_that_is_kept_off() {
    at_each_change(AT_ONCE, [1, 1], async || places::Metal3::new(json!({"hold": "power_off"})).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_of_metal3_under_a_machine_of_cluster_api() {
    at_each_change(AT_ONCE, [2, 3], async || places::Chain::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_node_is_drained() {
    at_each_change(AT_ONCE, [2, 1], async || places::Node::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "part of make soak: each kill needs a separate API server"]
async fn a_server_of_metal_operator() {
    at_each_change(APART_AT_ONCE, [1, 1], async || places::MetalOperator::new().await).await;
}
