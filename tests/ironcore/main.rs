//! The stand-ins for the IronCore operators do what the operators do, family by family.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "a test's deadlines are real time")]

#[path = "../support/mod.rs"]
mod support;

mod smoke;
