//! Metal3: the stand-in for baremetal-operator does what the operator does, and the backend enters
//! and leaves its hosts.
//!
//! `table.txt` says what baremetal-operator did to a host in the steps of [`compare`]. The stand-in
//! is held to it here.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "a test's deadlines are real time")]

#[path = "../support/mod.rs"]
mod support;

mod accounts;
mod compare;
mod holds;
mod older;
mod returns;
mod versions;
