//! Metal3: compares the stand-in with baremetal-operator, and tests entering and leaving hosts.
//!
//! Recordings of baremetal-operator: `table.txt` contains its reaction to the steps of
//! [`compare`], and `versions.txt` the differences between versions. `ironic.txt` and `iso.txt`
//! contain its behaviour with a real Ironic. `claims.txt` records cluster-api-provider-metal3 on
//! detached hosts.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "test deadlines use real time")]

#[path = "../support/mod.rs"]
mod support;

mod accounts;
mod claims;
mod compare;
mod holds;
mod ironic;
mod iso;
mod never_off;
mod older;
mod returns;
mod versions;
