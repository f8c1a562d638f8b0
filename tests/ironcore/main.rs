//! Compares the stand-ins for the IronCore operators with the real operators, by family.
//!
//! `tables/` contains each family's states of server, claim and requests in the steps of
//! [`scenario`]. [`record`] runs the same steps with real operators. [`withheld`] attacks the BMC
//! credentials of a cluster.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "test deadlines use real time")]

#[path = "../support/mod.rs"]
mod support;

mod compare;
mod record;
mod scenario;
mod stage;
mod withheld;
mod world;
