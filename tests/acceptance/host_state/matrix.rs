//! Runs each resource kind through each situation while a request fails, loses its reply, is
//! interrupted, or kills the provider. Afterwards a destroy succeeds and restores the server.
//!
//! The kinds come from the provider's schema and the requests from a fault-free run, so new ones
//! are tested automatically or fail the test. `HOST_STATE=long`, which the soak test sets, runs
//! every cell; any other value selects the cells whose names contain it; the default is a sample.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Mutex, PoisonError},
};

use bmc_simulator::{PowerState, SimulatorConfig};
use futures_util::{StreamExt as _, stream};

use super::proxy::{Fault, Proxied};
use crate::support::{
    host::Host,
    run::Run,
    simulator::{Fleet, maintenance},
    workspace::{RUN_LIMIT, Workspace},
};

/// Number of cells in parallel.
const AT_ONCE: usize = 4;
/// The short form runs one in this many cells of read-only requests.
const OTHERS: usize = 41;

/// A resource kind with two configurations: on `node1`, and on `node2` under another name.
struct Kind {
    type_name: &'static str,
    body: fn(node: usize, word: &str, more: &str) -> String,
    /// The import id on `node1`; `None`: a create continues the existing record.
    import: Option<&'static str>,
}

const KINDS: [Kind; 5] = [
    Kind {
        type_name: "metal_server_maintenance",
        body: |node, word, more| {
            let more = format!("server_power = \"Off\"\n  reason = \"{word}\"\n  {more}");
            maintenance(&format!("node{node}"), &format!("m{node}"), &more)
        },
        import: Some("tests/m1"),
    },
    Kind {
        type_name: "metal_server_boot_configuration",
        body: |node, word, more| {
            format!(
                "resource \"metal_server_boot_configuration\" \"held\" {{\n  server = \"node{node}\"\n  method = \"pxe\"\n  once = false\n  reason = \"{word}\"\n  {more}\n}}\n"
            )
        },
        import: Some("boot-configuration/default.node1"),
    },
    Kind {
        type_name: "metal_server_operation",
        body: |node, word, more| {
            format!(
                "resource \"metal_server_operation\" \"held\" {{\n  server = \"node{node}\"\n  namespace = \"tests\"\n  name = \"m{node}\"\n  operation = \"PowerCycle\"\n  policy = \"Enforced\"\n  reason = \"{word}\"\n  {more}\n}}\n"
            )
        },
        import: None,
    },
    Kind {
        type_name: "metal_server_claim",
        body: |node, word, more| {
            format!(
                "resource \"metal_server_claim\" \"held\" {{\n  server = \"node{node}\"\n  namespace = \"tests\"\n  name = \"m{node}\"\n  contact = \"{word}\"\n  {more}\n}}\n"
            )
        },
        import: Some("tests/m1"),
    },
    Kind {
        type_name: "metal_maintenance_approval",
        body: |node, _, more| {
            format!(
                "resource \"metal_server_claim\" \"of\" {{\n  count = 2\n  server = \"node${{count.index + 1}}\"\n  namespace = \"tests\"\n  name = \"c${{count.index + 1}}\"\n}}\n\
                 resource \"metal_maintenance_approval\" \"held\" {{\n  server = metal_server_claim.of[{}].server\n  all = true\n  {more}\n}}\n",
                node - 1
            )
        },
        // Its id is random. Another approval of everything is allowed.
        import: None,
    },
];

/// State before the disturbed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Situation {
    Created,
    Changed,
    Destroyed,
    Tainted,
    TaintedDestroyed,
    Deposed,
    Replaced,
    Imported,
    Moved,
}

impl Situation {
    const ALL: [Self; 9] = [
        Self::Created,
        Self::Changed,
        Self::Destroyed,
        Self::Tainted,
        Self::TaintedDestroyed,
        Self::Deposed,
        Self::Replaced,
        Self::Imported,
        Self::Moved,
    ];
}

struct Cell {
    host: Host,
    kind: &'static Kind,
    situation: Situation,
    rpc: String,
    fault: Fault,
    refresh: bool,
    same_process: bool,
}

impl fmt::Display for Cell {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, situation, rpc, fault, .. } = self;
        let (refresh, process) =
            (if self.refresh { "refresh" } else { "no refresh" }, if self.same_process { "same" } else { "new" });
        write!(
            formatter,
            "{host:?}, {}, {situation:?}, {rpc} {fault:?}, {refresh}, {process} process",
            self.kind.type_name
        )
    }
}

/// One server's user, with the current provider process.
struct Bench {
    fleet: Fleet,
    workspace: Workspace,
    proxied: Option<Proxied>,
    before: Vec<String>,
}

impl Bench {
    async fn new(host: Host) -> Self {
        let (fleet, workspace) = (Fleet::with(SimulatorConfig::with_systems(2)).await, Workspace::new(host));
        let before = seen(&fleet);
        Self { fleet, workspace, proxied: None, before }
    }

    fn configure(&self, body: &str) {
        self.fleet.configure(&self.workspace, body);
    }

    /// Runs a host command, with the fault if it is disturbed.
    async fn run(&mut self, arguments: &[&str], cell: &Cell, disturbed: bool) -> Run {
        if !cell.same_process {
            self.proxied = None;
        }
        let folder = self.workspace.root().join("tmp");
        let proxied = match self.proxied.take() {
            Some(proxied) => proxied,
            None => Proxied::start(&self.workspace, &folder).await,
        };
        self.workspace.set("TF_REATTACH_PROVIDERS", proxied.reattach.clone());
        let mut all = vec![arguments[0], "-input=false", "-no-color"];
        all.extend(["apply", "destroy"].contains(&arguments[0]).then_some("-auto-approve"));
        let blind = !cell.refresh && (disturbed || arguments[0] == "destroy");
        all.extend(blind.then_some("-refresh=false"));
        all.extend(&arguments[1..]);
        let run = self.workspace.start(&all);
        if disturbed {
            proxied.disturb(&cell.rpc, cell.fault, run.pid());
        }
        let run = run.wait(RUN_LIMIT).await;
        if disturbed && proxied.is_undisturbed() {
            println!("{cell}: the run ended before the faulty request");
        }
        // A stopped or killed process serves no more requests.
        self.proxied = Some(proxied).filter(|_| !disturbed || cell.fault.keeps_process());
        run
    }

    async fn is_empty(&self) -> bool {
        let state = self.workspace.state().await;
        state["values"]["root_module"]["resources"].as_array().is_none_or(Vec::is_empty)
    }
}

/// The state that destroys restore.
fn seen(fleet: &Fleet) -> Vec<String> {
    let systems = ["node1", "node2"].map(|node| fleet.system(node));
    systems.iter().map(|system| format!("{:?} {:?}", system.boot, system.media)).collect()
}

/// Creates the situation and runs the disturbed command. Returns its requests.
async fn disturb(bench: &mut Bench, cell: &Cell) -> Vec<String> {
    let address = format!("{}.held", cell.kind.type_name);
    let body = cell.kind.body;
    bench.configure(&body(1, "one", ""));
    let first =
        if cell.situation == Situation::Deposed { "lifecycle {\n    create_before_destroy = true\n  }" } else { "" };
    if cell.situation != Situation::Created {
        bench.configure(&body(1, "one", first));
        bench.run(&["apply"], cell, false).await.succeeded();
    }
    let taint = ["taint", address.as_str()];
    let replace = format!("-replace={address}");
    let command: Vec<&str> = match cell.situation {
        Situation::Created => vec!["apply"],
        Situation::Changed => {
            bench.configure(&body(1, "two", ""));
            vec!["apply"]
        }
        Situation::Destroyed => vec!["destroy"],
        Situation::Tainted => {
            bench.workspace.run(&taint).await.succeeded();
            vec!["apply"]
        }
        Situation::TaintedDestroyed => {
            bench.workspace.run(&taint).await.succeeded();
            vec!["destroy"]
        }
        Situation::Deposed => {
            bench.configure(&body(2, "two", first));
            vec!["apply"]
        }
        Situation::Replaced => vec!["apply", replace.as_str()],
        Situation::Imported => {
            bench.workspace.run(&["state", "rm", &address]).await.succeeded();
            import(bench, cell.kind, 1);
            vec!["apply"]
        }
        Situation::Moved => {
            let renamed = body(1, "one", "").replace("\"held\"", "\"renamed\"");
            let moved = format!("moved {{\n  from = {address}\n  to = {}.renamed\n}}\n", cell.kind.type_name);
            bench.configure(&(renamed + &moved));
            vec!["apply"]
        }
    };
    bench.run(&command, cell, true).await;
    bench.proxied.as_ref().map(Proxied::seen).unwrap_or_default()
}

fn import(bench: &Bench, kind: &Kind, number: usize) {
    let id = kind.import.map(|id| id.replace('1', &number.to_string()));
    let block = id.map(|id| format!("import {{\n  to = {}.held\n  id = \"{id}\"\n}}\n", kind.type_name));
    bench.configure(&((kind.body)(number, "one", "") + &block.unwrap_or_default()));
}

/// Destroys after the disturbed command; returns the differences from the original state.
async fn wrong_after(bench: &mut Bench, cell: &Cell) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut destroyed = bench.run(&["destroy"], cell, false).await;
    if destroyed.words().contains("was imported and not taken over") {
        bench.run(&["apply"], cell, false).await.succeeded();
        destroyed = bench.run(&["destroy"], cell, false).await;
    }
    if !destroyed.status.success() {
        wrong.push(format!("destroy: {}", destroyed.words()));
    }
    if let Some(held) = held(bench).await {
        // The host did not save a finished create, or imported nothing. A person takes the record
        // over.
        let lost = cell.rpc == "ApplyResourceChange" && cell.fault == Fault::ReplyLost;
        let lost = lost || cell.situation == Situation::Imported;
        if !lost {
            wrong.push(format!("held: {held}"));
        }
        import(bench, cell.kind, if cell.situation == Situation::Deposed { 2 } else { 1 });
        let taken = bench.run(&["apply"], cell, false).await;
        let destroyed = bench.run(&["destroy"], cell, false).await;
        if !taken.status.success() || !destroyed.status.success() {
            wrong.push(format!("taken over: {} {}", taken.words(), destroyed.words()));
        }
        wrong.extend(self::held(bench).await.map(|held| format!("still held: {held}")));
    }
    if !bench.is_empty().await {
        wrong.push("the state is not empty".to_owned());
    }
    for node in ["node1", "node2"] {
        if bench.fleet.simulator.wait_power(node, PowerState::On, crate::support::simulator::SOON).await.is_err() {
            wrong.push(format!("{node} is {}", bench.fleet.system(node).power));
        }
    }
    let after = seen(&bench.fleet);
    if after != bench.before {
        wrong.push(format!("{after:?}, before {:?}", bench.before));
    }
    wrong
}

/// Returns the servers and claims in the store, or `None` if it is empty.
async fn held(bench: &Bench) -> Option<String> {
    let mut held = Vec::new();
    for (command, nothing) in [("queue", "No server is held"), ("claims", "No claims")] {
        let words = bench.workspace.metal(&[command]).await.words();
        // A request that never reached the provider leaves no store.
        held.extend(
            Some(words)
                .filter(|words| ![nothing, "no coordination store exists yet"].iter().any(|none| words.contains(none))),
        );
    }
    (!held.is_empty()).then(|| held.join(" "))
}

/// The disturbed command's requests, from a run without a fault.
async fn learned(host: Host, kind: &'static Kind, situation: Situation) -> Vec<String> {
    let cell =
        Cell { host, kind, situation, rpc: "none".to_owned(), fault: Fault::Fails, refresh: true, same_process: false };
    let mut bench = Bench::new(host).await;
    let seen = disturb(&mut bench, &cell).await;
    let wrong = wrong_after(&mut bench, &cell).await;
    assert!(wrong.is_empty(), "{cell}: {}", wrong.join("\n"));
    seen
}

/// Returns all cells of a host, ordered so that neighbours differ in everything.
async fn cells(host: Host) -> Vec<Cell> {
    let pairs = KINDS.iter().flat_map(|kind| Situation::ALL.map(|situation| (kind, situation)));
    // An operation and an approval of everything are not imported.
    let pairs = pairs.filter(|(kind, situation)| kind.import.is_some() || *situation != Situation::Imported);
    let only = std::env::var("HOST_STATE").ok();
    let pairs: Vec<_> = match only.as_deref() {
        Some("long") => pairs.collect(),
        Some(only) => {
            pairs.filter(|(kind, situation)| format!("{}, {situation:?}", kind.type_name).contains(only)).collect()
        }
        // A quarter per host; the other host covers another quarter.
        None => {
            let shift = usize::from(host == Host::Terraform);
            pairs.enumerate().filter(|(n, _)| n % 4 == shift).map(|(_, pair)| pair).collect()
        }
    };
    let known =
        stream::iter(pairs).map(async |(kind, situation)| (kind, situation, learned(host, kind, situation).await));
    let known: Vec<_> = known.buffered(AT_ONCE).collect().await;
    let mut cells = Vec::new();
    for (kind, situation, rpcs) in known {
        for rpc in
            rpcs.into_iter().filter(|rpc| rpc != "StopProvider" && !rpc.starts_with("Stream") && rpc != "Shutdown")
        {
            for fault in Fault::ALL {
                let n = cells.len();
                let refresh = n % 2 == 0 || rpc == "ReadResource";
                let same_process = n % 4 < 2 && fault.keeps_process();
                cells.push(Cell { host, kind, situation, rpc: rpc.clone(), fault, refresh, same_process });
            }
        }
    }
    if only.is_none() {
        // All faults for changing requests, and a sample for the others.
        let mut n = 0;
        cells.retain(|cell| {
            n += 1;
            cell.rpc == "ApplyResourceChange" || n % OTHERS == 0
        });
    }
    cells
}

async fn play(host: Host) {
    let wrong = Mutex::new(Vec::new());
    let cells = cells(host).await;
    println!("{} cells", cells.len());
    let played = stream::iter(&cells).map(async |cell| {
        let mut bench = Bench::new(host).await;
        let began = std::time::Instant::now();
        disturb(&mut bench, cell).await;
        let problems = wrong_after(&mut bench, cell).await;
        println!("{cell}: {} after {:.1?}", if problems.is_empty() { "right" } else { "WRONG" }, began.elapsed());
        if !problems.is_empty() {
            let mut wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner);
            wrong.push(format!("{cell}:\n  {}", problems.join("\n  ")));
        }
    });
    played.buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_returns_its_server_whatever_fails_opentofu() {
    play(Host::OpenTofu).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_returns_its_server_whatever_fails_terraform() {
    play(Host::Terraform).await;
}

/// A kind or a resource request without a cell fails the test.
#[tokio::test]
async fn each_kind_and_each_request_about_resources_has_cells() {
    let schema = Workspace::new(Host::Terraform).configure("").schema().await;
    let kinds: BTreeSet<&str> = schema["resource_schemas"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(kinds, KINDS.iter().map(|kind| kind.type_name).collect());
    let proto = include_str!("../../../crates/tf-plugin-server/proto/tfplugin6.proto");
    let about = |name: &&str| {
        name.contains("Resource") && !["Data", "Ephemeral", "List", "Identity"].iter().any(|of| name.contains(of))
    };
    let requests: Vec<&str> =
        proto.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next()).filter(about).collect();
    // MoveResourceState is about other types: see `moved.rs`.
    let met = [
        "ValidateResourceConfig",
        "UpgradeResourceState",
        "ReadResource",
        "PlanResourceChange",
        "ApplyResourceChange",
        "ImportResourceState",
    ];
    assert_eq!(requests, [&met[..], &["MoveResourceState"]].concat());
}
