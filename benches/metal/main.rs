//! `make bench`: the shipped binary against named references, as ratios of one run.
//!
//! This program plays four parts: the host that drives the provider, the machines behind it (the
//! simulator), and, started again with [`plain_client::ROLE`] set, the plain client that refreshes
//! are compared with, or, with [`stores_worker::ROLE`], one of the processes that wait in a
//! coordination store. Sections may be named: `make bench`, with `BENCH="start refresh"`. Only a
//! whole run writes `docs/performance.md`.
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
    let rows = runtime.block_on(sections(&named));
    println!("\n{}", table::markdown(&rows));
    if named.is_empty() {
        table::write(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/performance.md"), &rows);
    }
}

async fn sections(named: &[String]) -> Vec<Row> {
    let wanted = |name: &str| named.is_empty() || named.iter().any(|of| of == name);
    let mut rows = Vec::new();
    if wanted("start") {
        rows.extend(start::measure().await);
    }
    if wanted("refresh") {
        rows.extend(refresh::measure().await);
    }
    if wanted("plan") {
        rows.extend(plan::measure().await);
    }
    if wanted("rules") {
        rows.extend(rules::measure());
    }
    if wanted("cluster") {
        rows.extend(cluster::measure().await);
    }
    if wanted("cluster-api") {
        rows.extend(cluster_api::measure().await);
    }
    if wanted("metal3") {
        rows.extend(metal3::measure().await);
    }
    // Only where it is named: a whole run would take minutes longer.
    if named.iter().any(|of| of == "ironic") {
        rows.extend(ironic::measure().await);
    }
    if wanted("dead") {
        rows.extend(dead::measure().await);
    }
    if wanted("waiting") {
        rows.extend(waiting::measure().await);
    }
    if wanted("hand-over") {
        rows.extend(hand_over::measure().await);
    }
    if wanted("fleet") {
        rows.extend(fleet::measure().await);
    }
    if wanted("stores-hand-over") {
        rows.extend(stores_hand_over::measure().await);
    }
    if wanted("stores-operations") {
        rows.extend(stores_operations::measure().await);
    }
    if wanted("stores-waiting") {
        rows.extend(stores_waiting::measure().await);
    }
    if wanted("stores-history") {
        rows.extend(stores_history::measure().await);
    }
    rows
}
