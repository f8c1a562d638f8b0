//! Benchmarks: compare the shipped binary with named references, as ratios within one run.
//!
//! This program contains the host that drives the provider and the simulated machines. As a child
//! process it is the plain client for refreshes ([`plain_client::ROLE`]) or a waiter in a
//! coordination store ([`stores_worker::ROLE`]). `BENCH="start refresh"` selects sections. Each
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
mod kubernetes_node;
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

use futures_util::{FutureExt as _, future::LocalBoxFuture};

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

/// Measures one section.
type Measure = fn() -> LocalBoxFuture<'static, Vec<Row>>;

/// All sections in order.
const SECTIONS: [(&str, Measure); 17] = [
    ("start", || start::measure().boxed_local()),
    ("refresh", || refresh::measure().boxed_local()),
    ("plan", || plan::measure().boxed_local()),
    ("rules", || async { rules::measure() }.boxed_local()),
    ("cluster", || cluster::measure().boxed_local()),
    ("cluster-api", || cluster_api::measure().boxed_local()),
    ("kubernetes-node", || kubernetes_node::measure().boxed_local()),
    ("metal3", || metal3::measure().boxed_local()),
    ("ironic", || ironic::measure().boxed_local()),
    ("dead", || dead::measure().boxed_local()),
    ("waiting", || waiting::measure().boxed_local()),
    ("hand-over", || hand_over::measure().boxed_local()),
    ("fleet", || fleet::measure().boxed_local()),
    ("stores-hand-over", || stores_hand_over::measure().boxed_local()),
    ("stores-operations", || stores_operations::measure().boxed_local()),
    ("stores-waiting", || stores_waiting::measure().boxed_local()),
    ("stores-history", || stores_history::measure().boxed_local()),
];

/// Sections that run only if selected, because they take minutes.
const ONLY_NAMED: [&str; 1] = ["ironic"];

async fn run(named: &[String]) {
    let known = SECTIONS.map(|(name, _)| name);
    if let Some(unknown) = named.iter().find(|name| !known.contains(&name.as_str())) {
        panic!("no section {unknown}: there are {}", known.join(", "));
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/performance.md");
    let wanted = |name: &str| named.iter().any(|of| of == name) || (named.is_empty() && !ONLY_NAMED.contains(&name));
    for (name, measure) in SECTIONS.into_iter().filter(|(name, _)| wanted(name)) {
        let rows = measure().await;
        println!("\n{}", table::markdown(&rows));
        // Times of an unoptimised build are meaningless.
        if !cfg!(debug_assertions) {
            table::write(&page, name, &rows);
        }
    }
}
