//! A real host runs every operation against every recorded BMC type, in one run.
//!
//! Cells come from the personalities (`crates/bmc-simulator/personalities`), one server each. The
//! plan must reject operations missing from a BMC's lists, before any change. All others are
//! applied in parallel, planned again and destroyed. The test judges the machines' changes and the
//! requests to their BMCs. The table next to this file lists the results; `UPDATE_BMC_MATRIX=1`
//! rewrites it.

mod cells;
mod judge;
#[path = "../../support/simulated.rs"]
mod simulated;
mod sushy;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
    time::Instant,
};

use bmc_simulator::{JournalQuery, Personality, SimulatorConfig};
use secrecy::ExposeSecret as _;
use serde_json::Value;

use crate::support::{host::Host, images::Images, run::Run, simulator::Fleet, workspace::Workspace};

use cells::{Ask, Cell};

/// Returns the provider block, with timeouts that even a busy computer never reaches.
fn configuration(fleet: &Fleet, images: &Images, cells: &[&Cell]) -> String {
    let account = fleet.simulator.credentials();
    let mut text = format!(
        r#"
provider "metal" {{
  graceful_shutdown_timeout = "30s"
  power_timeout             = "45s"
  redfish = {{
    inventory_file  = "${{path.module}}/servers.yaml"
    username        = "{}"
    password        = "{}"
    request_timeout = "15s"
    read_timeout    = "60s"
  }}
}}
"#,
        account.username,
        account.password.expose_secret()
    );
    for cell in cells {
        text.push_str(&cell.resource(images));
    }
    text
}

/// Returns each resource's diagnostics: severity, summary and detail.
fn said(run: &Run) -> BTreeMap<String, Vec<(String, String)>> {
    let mut said: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for line in run.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let diagnostic = &line["diagnostic"];
        let Some(summary) = diagnostic["summary"].as_str() else { continue };
        let at = diagnostic["address"].as_str().unwrap_or_default().to_owned();
        let severity = diagnostic["severity"].as_str().unwrap_or_default().to_owned();
        let detail = diagnostic["detail"].as_str().unwrap_or_default();
        said.entry(at).or_default().push((severity, format!("{summary}: {detail}")));
    }
    said
}

fn errors(said: &BTreeMap<String, Vec<(String, String)>>) -> BTreeMap<String, String> {
    let of = |list: &[(String, String)]| {
        let errors: Vec<&str> =
            list.iter().filter(|(severity, _)| severity == "error").map(|(_, text)| text.as_str()).collect();
        (!errors.is_empty()).then(|| errors.join("\n"))
    };
    said.iter().filter_map(|(at, list)| Some((at.clone(), of(list)?))).collect()
}

const APPLY: [&str; 5] = ["apply", "-auto-approve", "-input=false", "-json", "-parallelism=48"];
const DESTROY: [&str; 5] = ["destroy", "-auto-approve", "-input=false", "-json", "-parallelism=48"];

/// Returns a cell's outcome in one word.
fn word(cell: &Cell, values: &Value, warnings: &[(String, String)]) -> String {
    match cell.ask {
        Ask::Operation(_) => values["outcome"].as_str().unwrap_or("-").to_lowercase(),
        Ask::Boot("virtual_media") if warnings.iter().any(|(_, text)| text.contains("is not proven")) => {
            "not proven".to_owned()
        }
        Ask::Boot("virtual_media") => "proven".to_owned(),
        _ => "yes".to_owned(),
    }
}

/// Returns the result table, one line for each BMC type and start state.
fn table(cells: &[Cell], words: &BTreeMap<String, String>) -> String {
    let mut table: Vec<String> = Vec::new();
    for cell in cells {
        let (line, text) = (cell.line(), format!("{}: {}", cell.column(), words[&cell.name()]));
        match table.last_mut().filter(|last| last.starts_with(&format!("{line}:"))) {
            Some(last) => last.push_str(&format!(", {text}")),
            None => table.push(format!("{line}: {text}")),
        }
    }
    table.join("\n") + "\n"
}

/// Returns every resource's attributes by address.
async fn resources(workspace: &Workspace) -> BTreeMap<String, Value> {
    let state = workspace.state().await;
    let found = state["values"]["root_module"]["resources"].as_array();
    let found = found.into_iter().flatten();
    found.map(|resource| (resource["address"].as_str().unwrap().to_owned(), resource["values"].clone())).collect()
}

async fn play(host: Host, personalities: &[Personality]) -> String {
    let began = Instant::now();
    let cells: Vec<Cell> = personalities.iter().flat_map(cells::of).collect();
    let mut config = SimulatorConfig::default().without_tls();
    config.systems = cells.iter().map(Cell::system).collect();
    let (fleet, images, mut workspace) = (Fleet::with(config).await, Images::start().await, Workspace::new(host));
    workspace.set("TF_LOG", "ERROR");
    for cell in &cells {
        if let Some(change) = cell.left_there() {
            fleet.simulator.change_system(&cell.name(), change).unwrap();
        }
    }
    let before: BTreeMap<String, _> = cells.iter().map(|cell| (cell.name(), fleet.system(&cell.name()))).collect();
    workspace.write("servers.yaml", &fleet.simulator.inventory());
    let mut problems: BTreeMap<String, Vec<String>> = BTreeMap::new();

    // The plan rejects operations missing from a BMC's lists, and changes nothing.
    workspace.configure(&configuration(&fleet, &images, &cells.iter().collect::<Vec<_>>()));
    let refused = errors(&said(&workspace.run(&APPLY).await));
    for cell in &cells {
        let journal = fleet.simulator.journal(&JournalQuery::system(&cell.name()));
        let changes = journal.iter().filter(|entry| entry.method != "GET" && !entry.path.contains("/Sessions"));
        let changes: Vec<String> = changes.map(|entry| format!("changed by a plan: {}", entry.path)).collect();
        problems.entry(cell.name()).or_default().extend(changes);
    }
    let known: BTreeSet<String> = cells.iter().map(Cell::address).collect();
    let about_none = refused.iter().find(|(address, _)| !known.contains(*address));
    assert_eq!(about_none, None, "an error does not belong to a server");
    println!("{host:?}: {} cells, {} refused by the plan after {:.1?}", cells.len(), refused.len(), began.elapsed());

    let kept: Vec<&Cell> = cells.iter().filter(|cell| !refused.contains_key(&cell.address())).collect();
    workspace.configure(&configuration(&fleet, &images, &kept));
    let applied = workspace.run(&APPLY).await;
    println!("{host:?}: applied after {:.1?}", began.elapsed());
    let told = said(&applied);
    let failed = errors(&told);
    let resources = resources(&workspace).await;
    let mut held = BTreeMap::new();
    let mut words: BTreeMap<String, String> = BTreeMap::new();
    for cell in &cells {
        let (name, address) = (cell.name(), cell.address());
        if let Some(reason) = refused.get(&address) {
            // The reason lists the supported values or the missing feature.
            if !reason.contains("machine") && !reason.contains("lists") {
                problems.entry(name.clone()).or_default().push(format!("rejected without a reason: {reason}"));
            }
            words.insert(name, "refused".to_owned());
            continue;
        }
        let values = resources.get(&address).cloned().unwrap_or_default();
        let warnings = told.get(&address).cloned().unwrap_or_default();
        let (word, problem) = if let Some(error) = failed.get(&address) {
            // This depends on the server's state, which can change after a plan, not on the BMC's
            // lists.
            ("stopped".to_owned(), judge::stopped(&fleet, cell, error))
        } else {
            let word = word(cell, &values, &warnings);
            let problem = judge::held(&fleet, &images, cell, &word);
            (word, problem)
        };
        problems.entry(name.clone()).or_default().extend(problem);
        held.insert(name.clone(), fleet.system(&name));
        words.insert(name, word);
    }
    if !failed.is_empty() {
        let there: Vec<&Cell> = kept.iter().copied().filter(|cell| !failed.contains_key(&cell.address())).collect();
        workspace.configure(&configuration(&fleet, &images, &there));
    }
    let plan = workspace.run(&["plan", "-input=false", "-json", "-parallelism=48", "-detailed-exitcode"]).await;
    assert_eq!(plan.status.code(), Some(0), "the plan after the apply is not empty: {}", plan.stdout);
    let destroyed = workspace.run(&DESTROY).await;
    println!("{host:?}: destroyed after {:.1?}", began.elapsed());
    for (address, error) in errors(&said(&destroyed)) {
        problems
            .entry(address.split_once('.').map_or(address.clone(), |(_, name)| name.to_owned()))
            .or_default()
            .push(error);
    }
    for cell in &kept {
        let name = cell.name();
        problems.entry(name.clone()).or_default().extend(judge::over(&fleet, cell, &before[&name], &held[&name]));
    }

    let mut wrong = String::new();
    for cell in &cells {
        let found = problems.remove(&cell.name()).unwrap_or_default();
        if !found.is_empty() {
            let _ = writeln!(wrong, "{}:\n  {}\n{}", cell.address(), found.join("\n  "), judge::story(&fleet, cell));
        }
    }
    for (name, rest) in problems.into_iter().filter(|(_, rest)| !rest.is_empty()) {
        let _ = writeln!(wrong, "{name}: {}", rest.join("\n  "));
    }
    let table = table(&cells, &words);
    assert!(wrong.is_empty(), "{wrong}\n{table}");
    table
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recorded_bmc_does_what_it_lists_or_the_plan_refuses_it() {
    let only = std::env::var("PERSONALITY").ok();
    let mut all = simulated::personalities();
    all.retain(|personality| only.as_ref().is_none_or(|only| personality.name.contains(only.as_str())));
    let table = play(Host::OpenTofu, &all).await;
    if only.is_some() {
        println!("{table}");
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acceptance/bmc_matrix/table.txt");
    if std::env::var("UPDATE_BMC_MATRIX").is_ok() {
        fs::write(&path, &table).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), table, "UPDATE_BMC_MATRIX=1 writes it");

    // The other host runs a sample, because the provider's responses do not depend on the host.
    let part: Vec<Personality> = all.into_iter().step_by(6).collect();
    let shown = play(Host::Terraform, &part).await;
    for line in shown.lines() {
        assert!(table.contains(line), "{line}\n{table}");
    }
}
