//! Every store keeps the same promises; the file of the embedded one keeps more.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bench;
mod conformance;
#[cfg(unix)]
mod file;
#[cfg(unix)]
mod processes;
mod records;

conforms!(memory, crate::bench::Bench::memory());
conforms!(sqlite, crate::bench::Bench::sqlite());
