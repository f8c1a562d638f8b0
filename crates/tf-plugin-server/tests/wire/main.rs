//! Tests of the wire with a host that uses only the protocol.
//!
//! This program is both sides. With cargo it runs the tests. With the host's magic cookie (or
//! `--debug`) it is a fixture provider with every schema shape and every fault. So the fixture is
//! always current and never ships.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::doc_markdown, missing_docs, reason = "tests")]

mod deferral;
mod ending;
mod fixture;
mod handshake;
mod honesty;
mod host;
mod identities;
mod lists;
mod moves;
mod schemas;
mod values;
mod walks;

use std::{process::ExitCode, time::Duration};

use libtest_mimic::{Arguments, Failed, Trial};

/// Far longer than any test; a hanging test must fail instead of blocking the build.
const DEADLINE: Duration = Duration::from_mins(1);

fn main() -> ExitCode {
    rustls::crypto::aws_lc_rs::default_provider().install_default().unwrap();
    if tf_plugin_server::is_plugin_start() || std::env::args().any(|argument| argument == "--debug") {
        return fixture::main();
    }
    let trials = [
        handshake::trials(),
        schemas::trials(),
        values::trials(),
        honesty::trials(),
        ending::trials(),
        identities::trials(),
        lists::trials(),
        moves::trials(),
        walks::trials(),
        deferral::trials(),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials.into_iter().flatten().collect()).exit_code()
}

/// Wraps an async test with the deadline.
fn trial<F>(name: &str, test: fn() -> F) -> Trial
where
    F: Future<Output = ()> + 'static,
{
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let done = runtime.block_on(async { tokio::time::timeout(DEADLINE, test()).await });
        done.map_err(|_| Failed::from("took too long"))
    })
}

/// Builds a module's list of tests from their names.
macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        pub fn trials() -> Vec<libtest_mimic::Trial> {
            vec![$(crate::trial(concat!(module_path!(), "::", stringify!($name)), $name)),*]
        }
    };
}
pub(crate) use trials;
