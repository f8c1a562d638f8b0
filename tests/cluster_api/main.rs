//! Cluster API: compares the stand-ins for SAP's controllers with the real controllers.
//!
//! `table.txt` contains the recorded behaviour for the steps of [`scenario`].
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "test deadlines use real time")]

#[path = "../support/mod.rs"]
mod support;

mod compare;
mod record;
mod rights;
mod scenario;
mod stage;
mod worlds;
