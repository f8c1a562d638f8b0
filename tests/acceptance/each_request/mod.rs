//! Injects a fault into every kind of API request during an apply or a destroy. The apply must
//! succeed or report its precondition. Afterwards a destroy must leave no traces.
//!
//! A fault-free run records the requests, so new kinds are covered automatically. The tests drive
//! the provider over the wire without a host, because they check its responses.
//!
//! A denied permission is tested for each kind of request. By default, one run applies a transient
//! fault to the first request of every kind. `EACH_REQUEST=long` (soak test) tests each kind
//! separately; any other value selects the cells whose names contain it.
//!
//! `killed` ends the process at each change.

mod faults;
#[path = "../../../crates/tf-plugin-server/tests/wire/host.rs"]
#[allow(dead_code, reason = "the wire tests use the rest")]
pub(crate) mod host;
mod killed;
pub(crate) mod places;
#[path = "../../support/provider.rs"]
#[allow(dead_code, reason = "the benchmarks use the rest")]
pub(crate) mod provider;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::Path,
};

use futures_util::{StreamExt as _, stream};
use serde_json::json;

use crate::{
    servers::{
        kubernetes_proxy::{Deal, Proxy},
        roles::Roles,
    },
    support::simulator::Fleet,
};

use faults::{Fault, right};
use places::Place;
use provider::{Held, Provider};

/// Cells in parallel. They spend most of their time waiting.
const AT_ONCE: usize = 6;

/// Cells in parallel with a separate API server each, which costs CPU seconds to start.
const APART_AT_ONCE: usize = 2;

/// Timeout that no correct cell reaches.
const PATIENCE: &str = "40s";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Apply,
    Destroy,
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if *self == Self::Apply { "apply" } else { "destroy" })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    phase: Phase,
    /// `None`: all kinds.
    right: Option<String>,
    fault: Fault,
}

impl fmt::Display for Cell {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let right = self.right.as_deref().unwrap_or("every request");
        write!(formatter, "{}, {right}, {:?}", self.phase, self.fault)
    }
}

/// One server with its own environment.
struct Bench<P> {
    place: P,
    proxy: Proxy,
    folder: tempfile::TempDir,
}

/// Applies the hold that all cells test.
async fn apply(provider: &Provider) -> (Held, Vec<String>) {
    let more = json!({"server_power": "Off", "timeouts": {"create": PATIENCE, "delete": PATIENCE}});
    provider.apply("node1", "bios", &more).await
}

impl<P: Place> Bench<P> {
    async fn new(place: P) -> Self {
        let proxy = Proxy::to(place.kubernetes()).await;
        Self { place, proxy, folder: tempfile::tempdir().unwrap() }
    }

    /// Starts a new provider process, as a host does for each command.
    async fn provider(&self) -> Provider {
        let kubeconfig = self.place.kubernetes().kubeconfig_at(&self.proxy.url(), "admin");
        let mut config = self.place.config(&kubeconfig, self.folder.path());
        config["coordination_url"] = json!(format!("sqlite://{}", self.folder.path().join("metal.db").display()));
        config["owner"] = json!("each-request");
        config["graceful_shutdown_timeout"] = json!("4s");
        config["power_timeout"] = json!("4s");
        Provider::configured(&config).await
    }

    async fn apply(&self) -> (Held, Vec<String>) {
        let provider = self.provider().await;
        let done = apply(&provider).await;
        provider.end().await;
        done
    }

    /// Refreshes first, like a host.
    async fn destroy(&self, held: &Held) -> (Held, Vec<String>) {
        let provider = self.provider().await;
        let (held, _) = provider.read(held).await;
        let done = if held.exists() { provider.try_destroy(held).await } else { (held, Vec::new()) };
        provider.end().await;
        done
    }

    /// Returns the permissions used since the last call.
    fn rights(&self) -> BTreeSet<String> {
        self.proxy.take_seen().iter().filter_map(right).collect()
    }

    fn goes_wrong(&self, cell: &Cell) {
        let (cell, mut happened) = (cell.clone(), BTreeSet::new());
        self.proxy.rule(move |seen| {
            let Some(right) = right(seen) else { return Deal::Pass };
            let meant = cell.right.as_ref().is_none_or(|of| *of == right) && cell.fault.happens_to(&right);
            if !meant || (!happened.insert(right) && cell.fault.happens_once()) {
                return Deal::Pass;
            }
            cell.fault.deal()
        });
    }

    fn all_is_well(&self) {
        self.proxy.rule(|_| Deal::Pass);
    }

    /// Returns differences from the initial state.
    async fn left(&self) -> Vec<String> {
        let mut left: Vec<String> = self.place.traces().await;
        left.extend((!self.place.is_back().await).then(|| "it is not back".to_owned()));
        let resets = Fleet { simulator: self.place.simulator().clone() }.resets("node1");
        left.extend(resets.windows(2).filter(|two| two[0] == two[1]).map(|two| format!("twice {}", two[0])));
        left
    }
}

/// Runs a cell. Returns its outcome and its problems.
async fn play<P: Place>(bench: &Bench<P>, cell: &Cell) -> (&'static str, Vec<String>) {
    let mut wrong = Vec::new();
    let mut said = Vec::new();
    if cell.phase == Phase::Apply {
        bench.goes_wrong(cell);
    }
    let (mut held, errors) = bench.apply().await;
    bench.all_is_well();
    said.extend(errors.clone());
    if !errors.is_empty() && cell.phase == Phase::Destroy {
        return ("-", vec![format!("the apply failed, before anything went wrong: {errors:?}")]);
    }
    if !errors.is_empty() && !held.exists() {
        let (again, errors) = bench.apply().await;
        wrong.extend(errors.into_iter().map(|error| format!("applied again: {error}")));
        held = again;
    }
    if cell.phase == Phase::Destroy {
        bench.goes_wrong(cell);
    }
    let (left, errors) = bench.destroy(&held).await;
    bench.all_is_well();
    if cell.phase == Phase::Apply {
        wrong.extend(errors.into_iter().map(|error| format!("destroyed: {error}")));
    } else {
        said.extend(errors.clone());
        match (errors.is_empty(), left.exists()) {
            (false, false) => wrong.push("destroy failed, but the state lost the maintenance".to_owned()),
            (true, true) => wrong.push("destroy succeeded, but the maintenance is still in the state".to_owned()),
            (true, false) => {}
            (false, true) => {
                let (left, errors) = bench.destroy(&left).await;
                wrong.extend(errors.into_iter().map(|error| format!("destroyed again: {error}")));
                if left.exists() {
                    wrong.push("still in the state after the second destroy".to_owned());
                }
            }
        }
    }
    wrong.extend(bench.left().await.into_iter().map(|left| format!("left: {left}")));
    match (cell.fault, cell.right.as_ref().and_then(|right| right.split_once(' '))) {
        (Fault::Forbidden, Some((verb, kind))) => {
            let names = |error: &String| error.contains(&format!("\"{verb}\"")) && error.contains(kind);
            let silent = said.iter().filter(|error| !names(error));
            wrong.extend(silent.map(|error| format!("does not name the verb and the kind: {error}")));
        }
        _ => wrong.extend(said.iter().map(|error| format!("failed: {error}"))),
    }
    (if said.is_empty() { "goes on" } else { "says so" }, wrong)
}

/// Records a fault-free apply and destroy.
async fn learned<P: Place, T>(make: &impl AsyncFn() -> P, seen: impl Fn(&Bench<P>) -> T) -> [T; 2] {
    let bench = Bench::new(make().await).await;
    let (held, errors) = bench.apply().await;
    assert_eq!(errors, [""; 0]);
    let of_apply = seen(&bench);
    let (_, errors) = bench.destroy(&held).await;
    assert_eq!(errors, [""; 0]);
    let of_destroy = seen(&bench);
    assert_eq!(bench.left().await, [""; 0]);
    [of_apply, of_destroy]
}

/// Panics with the problems of all cells.
fn nothing_is_wrong<'a, C: fmt::Display + 'a>(played: impl Iterator<Item = (&'a C, &'a Vec<String>)>) {
    let wrong = played.filter(|(_, wrong)| !wrong.is_empty());
    let wrong: Vec<String> = wrong.map(|(what, wrong)| format!("{what}:\n  {}", wrong.join("\n  "))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns true if only selected cells run.
fn is_partial() -> bool {
    std::env::var("EACH_REQUEST").is_ok_and(|only| only != "long")
}

/// Runs all cells of a system and returns their outcomes.
async fn all<P: Place>(at_once: usize, make: impl AsyncFn() -> P) -> BTreeMap<Cell, &'static str> {
    all_but(&[], at_once, make).await
}

/// Like `all`, but `sometimes` lists permissions that only a run with a wait uses.
async fn all_but<P: Place>(
    sometimes: &[&str],
    at_once: usize,
    make: impl AsyncFn() -> P,
) -> BTreeMap<Cell, &'static str> {
    let [mut of_apply, mut of_destroy] = learned(&make, Bench::rights).await;
    for rights in [&mut of_apply, &mut of_destroy] {
        rights.retain(|right| !sometimes.contains(&right.as_str()));
    }
    let mut cells = BTreeSet::new();
    let only = std::env::var("EACH_REQUEST").ok();
    let mut add = |phase, rights: BTreeSet<String>| {
        for fault in Fault::ALL {
            let meant = rights.iter().filter(|right| fault.happens_to(right));
            let apart = |right: &str| only.is_some() || fault.is_tried_apart(right);
            cells.extend(meant.filter(|right| apart(right)).map(|right| Cell {
                phase,
                right: Some(right.clone()),
                fault,
            }));
            cells.extend(fault.may_meet_all().then_some(Cell { phase, right: None, fault }));
        }
    };
    add(Phase::Apply, of_apply);
    add(Phase::Destroy, of_destroy);

    if let Some(only) = only.filter(|only| only != "long") {
        cells.retain(|cell| cell.to_string().contains(&only));
    }
    let played = stream::iter(cells).map(async |cell| {
        let bench = Bench::new(make().await).await;
        let began = std::time::Instant::now();
        let (word, wrong) = play(&bench, &cell).await;
        println!("{cell}: {word} after {:.1?}", began.elapsed());
        (cell, word, wrong)
    });
    let played: Vec<_> = played.buffer_unordered(at_once).collect().await;
    nothing_is_wrong(played.iter().map(|(cell, _, wrong)| (cell, wrong)));
    played.into_iter().map(|(cell, word, _)| (cell, word)).collect()
}

/// Compares the outcomes with the system's lines in the table next to this file.
fn told(system: &str, cells: &BTreeMap<Cell, &'static str>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/acceptance/each_request/{system}.txt"));
    let text: String = cells
        .iter()
        .filter(|(cell, _)| cell.fault == Fault::Forbidden)
        .map(|(cell, word)| format!("{cell}: {word}\n"))
        .collect();
    if is_partial() {
        return;
    }
    if std::env::var("UPDATE_EACH_REQUEST").is_ok() {
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), text, "UPDATE_EACH_REQUEST=1 writes it");
}

/// Panics if the files lack a permission that a run requests. `role_verbs` tests the opposite.
fn contain_each_request(files: &[&str], cells: &BTreeMap<Cell, &'static str>) {
    let given = Roles::of_files(files, None).verbs();
    let forbidden = cells.keys().filter(|cell| cell.fault == Fault::Forbidden);
    let requested: BTreeSet<String> = forbidden.filter_map(|cell| cell.right.clone()).collect();
    let missing: Vec<_> = requested.difference(&given).collect();
    assert_eq!(missing, [""; 0], "{files:?} lack permissions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_host_of_metal3() {
    let cells = all(AT_ONCE, async || places::Metal3::new(json!({})).await).await;
    told("metal3", &cells);
    contain_each_request(&["metal3.yaml"], &cells);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "part of make soak: most requests are the same as for a detached host"]
async fn a_host_of_metal3_that_is_kept_off() {
    told("metal3_off", &all(AT_ONCE, async || places::Metal3::new(json!({"hold": "power_off"})).await).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_of_metal3_under_a_machine_of_cluster_api() {
    let cells = all(AT_ONCE, async || places::Chain::new().await).await;
    told("cluster_api", &cells);
    contain_each_request(&["metal3.yaml", "cluster-api-management.yaml", "cluster-api-workload.yaml"], &cells);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_node_is_drained() {
    let followed = ["list nodes", "watch nodes", "watch pods"];
    let cells = all_but(&followed, AT_ONCE, async || places::Node::new().await).await;
    told("kubernetes_node", &cells);
    contain_each_request(&["kubernetes-node.yaml"], &cells);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_metal_operator() {
    told("metal_operator", &all(APART_AT_ONCE, async || places::MetalOperator::new().await).await);
}
