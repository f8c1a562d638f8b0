//! The stand-ins for the IronCore operators do what the operators do, family by family.
//!
//! `tables/` says for each family what happens to server, claim and requests in the steps of
//! [`scenario`]. The stand-ins are held to it here. The same steps run against real operators:
//! [`record`].
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "a test's deadlines are real time")]

#[path = "../support/mod.rs"]
mod support;

mod compare;
mod record;
mod scenario;
mod stage;
mod world;
