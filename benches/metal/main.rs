//! `make bench`: the shipped binary against named references, as ratios of one run.
//!
//! This program plays four parts: the host that drives the provider, the machines behind it (the
//! simulator), and, started again with [`plain_client::ROLE`] set, the plain client that refreshes
//! are compared with, or, with [`stores_worker::ROLE`], one of the processes that wait in a
//! coordination store. Sections may be named: `make bench`, with `BENCH="start refresh"`. Each
//! section writes its own table into `docs/performance.md` when it ends.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::doc_markdown,
    missing_docs,
    reason = "measures real time and reports by ending"
)]

mod api_server;
mod cluster;
mod cluster_api;
mod dead;
mod fleet;
mod hand_over;
#[path = "../../crates/tf-plugin-server/tests/wire/host.rs"]
#[allow(dead_code, reason = "the tests of the wire use more of it")]
mod host;
mod ironic;
mod manifest;
mod measure;
mod metal3;
mod plain_client;
mod plan;
#[path = "../../tests/support/provider.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod provider;
mod refresh;
mod rules;
mod start;
mod stores;
mod stores_hand_over;
mod stores_history;
mod stores_lock;
mod stores_operations;
mod stores_plain;
mod stores_waiting;
mod stores_worker;
#[path = "../../tests/support/mod.rs"]
#[allow(clippy::duration_suboptimal_units, reason = "as the tests that share it")]
mod support;
mod table;
mod waiting;

use std::path::Path;

use table::Row;

fn main() {
    rustls::crypto::aws_lc_rs::default_provider().install_default().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Ok(task) = std::env::var(plain_client::ROLE) {
        return runtime.block_on(plain_client::run(&task));
    }
    if let Ok(task) = std::env::var(stores_worker::ROLE) {
        return runtime.block_on(stores_worker::run(&task));
    }
    let named: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    runtime.block_on(run(&named));
}

/// Every section, in the order in which they run.
const SECTIONS: [&str; 16] = [
    "start",
    "refresh",
    "plan",
    "rules",
    "cluster",
    "cluster-api",
    "metal3",
    "ironic",
    "dead",
    "waiting",
    "hand-over",
    "fleet",
    "stores-hand-over",
    "stores-operations",
    "stores-waiting",
    "stores-history",
];

/// Those that run only where they are named: a whole run would take minutes longer.
const ONLY_NAMED: [&str; 1] = ["ironic"];

async fn run(named: &[String]) {
    if let Some(unknown) = named.iter().find(|name| !SECTIONS.contains(&name.as_str())) {
        panic!("no section {unknown}: there are {}", SECTIONS.join(", "));
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/performance.md");
    let wanted = |name: &str| named.iter().any(|of| of == name) || (named.is_empty() && !ONLY_NAMED.contains(&name));
    for name in SECTIONS.into_iter().filter(|name| wanted(name)) {
        let rows = section(name).await;
        println!("\n{}", table::markdown(&rows));
        // A build without optimisation says nothing about the times.
        if !cfg!(debug_assertions) {
            table::write(&page, name, &rows);
        }
    }
}

async fn section(name: &str) -> Vec<Row> {
    match name {
        "start" => start::measure().await,
        "refresh" => refresh::measure().await,
        "plan" => plan::measure().await,
        "rules" => rules::measure(),
        "cluster" => cluster::measure().await,
        "cluster-api" => cluster_api::measure().await,
        "metal3" => metal3::measure().await,
        "ironic" => ironic::measure().await,
        "dead" => dead::measure().await,
        "waiting" => waiting::measure().await,
        "hand-over" => hand_over::measure().await,
        "fleet" => fleet::measure().await,
        "stores-hand-over" => stores_hand_over::measure().await,
        "stores-operations" => stores_operations::measure().await,
        "stores-waiting" => stores_waiting::measure().await,
        "stores-history" => stores_history::measure().await,
        other => unreachable!("{other} is not among the sections"),
    }
}
