//! Tests that every store passes, and tests of the embedded store's file.
#![allow(
    clippy::disallowed_methods,
    clippy::unchecked_time_subtraction,
    clippy::duration_suboptimal_units,
    reason = "tests measure real time"
)]
#![allow(clippy::unused_async, reason = "each kind of bench is opened in the same way")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bench;
#[cfg(unix)]
mod bucket;
mod conformance;
#[cfg(unix)]
mod export;
#[cfg(unix)]
mod file;
mod golden;
#[cfg(unix)]
mod kubernetes_attacks;
#[cfg(unix)]
mod kubernetes_contents;
#[cfg(unix)]
#[path = "kubernetes.rs"]
mod kubernetes_only;
#[cfg(unix)]
mod kubernetes_roles;
#[cfg(unix)]
mod kubernetes_way;
#[cfg(unix)]
mod leases;
#[cfg(target_os = "linux")]
mod one_way;
#[cfg(target_os = "linux")]
mod paths;
#[cfg(unix)]
mod postgres;
#[cfg(unix)]
mod postgres_attacks;
#[cfg(unix)]
mod postgres_limits;
#[cfg(unix)]
mod postgres_owners;
#[cfg(unix)]
mod processes;
#[path = "../../crates/maintenance-protocol/tests/records/mod.rs"]
mod records;
#[cfg(unix)]
mod roles;
#[cfg(unix)]
#[path = "../support/mod.rs"]
mod support;
mod talk;
#[cfg(unix)]
mod watching;

conforms!(memory, crate::bench::Bench::memory());
conforms!(sqlite, crate::bench::Bench::sqlite());
conforms!(postgresql, crate::bench::Bench::postgres(""));
conforms!(postgresql_behind_a_pooler, crate::bench::Bench::pooled());
conforms!(kubernetes, crate::bench::Bench::kubernetes());
conforms!(s3, crate::bench::Bench::bucket());

conforms!(sqlite_restored, crate::bench::Bench::sqlite(), lost_commits);
conforms!(postgresql_restored, crate::bench::Bench::postgres(""), lost_commits);
conforms!(postgresql_behind_a_pooler_restored, crate::bench::Bench::pooled(), lost_commits);
conforms!(s3_restored, crate::bench::Bench::bucket(), lost_commits);
conforms!(kubernetes_restored, crate::bench::Bench::kubernetes(), lost_commits);
