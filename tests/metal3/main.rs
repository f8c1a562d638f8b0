//! Metal3: the stand-in for baremetal-operator does what the operator does, and the backend enters
//! and leaves its hosts.
//!
//! `table.txt` says what baremetal-operator did to a host in the steps of [`compare`],
//! `versions.txt` what its versions do otherwise, `ironic.txt` and `iso.txt` what it did with a
//! real Ironic, and `claims.txt` what cluster-api-provider-metal3 did to hosts that we detach. The
//! stand-ins are held to them here.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "a test's deadlines are real time")]

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
