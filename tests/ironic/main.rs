//! The Ironic backend with a real Ironic 39.0.0: no authentication, HTTP basic and a real
//! Keystone; fake hardware and simulated BMCs.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "Ironic works in real time")]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod bench;
mod boot;
mod economy;
mod faults;
mod flag;
mod keystone;
mod power;
mod proxy;
