//! Cluster API: the stand-ins for SAP's controllers do what the controllers do.
//!
//! `table.txt` says what the real ones did in the steps of [`scenario`]. The stand-ins are held to
//! it here.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "a test's deadlines are real time")]

#[path = "../support/mod.rs"]
mod support;

mod compare;
mod record;
mod rights;
mod scenario;
mod stage;
mod worlds;
