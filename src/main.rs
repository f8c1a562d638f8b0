//! The provider binary: a host that starts it gets the provider, a person gets a word of advice.
use std::{env, error::Error, process::ExitCode, time::Duration};

use terraform_provider_metal::plugin::{self, AnyResource, ServeOptions, ServedProvider};
use tf_provider::{Diagnostics, Provider, schema::Schema, value::ValueEmpty};
use tokio_util::sync::CancellationToken;

/// Under which address configurations name this provider.
const ADDRESS: &str = "example.com/metal/metal";

/// Stands here until the provider room is there.
struct Nothing;

impl Provider for Nothing {
    type Config<'a> = ValueEmpty;
    type MetaState<'a> = ValueEmpty;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(Schema { version: 0, block: tf_provider::schema::Block::default() })
    }
}

impl ServedProvider for Nothing {
    fn resources(&self) -> Vec<(&'static str, Box<dyn AnyResource>)> {
        Vec::new()
    }
}

fn main() -> ExitCode {
    // Several libraries here bring rustls; without one default for all of them the first
    // connection of one panics. aws-lc-rs, because hosts present P-521 certificates.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();

    let debug = env::args().nth(1).is_some_and(|argument| argument == "--debug");
    if !debug && !plugin::is_plugin_start() {
        eprintln!("This program is a Terraform and OpenTofu provider; they start it themselves.");
        return ExitCode::FAILURE;
    }
    plugin::install_logging(&["terraform_provider_metal"]);
    match run(debug) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The host shows standard error when the handshake does not come.
            eprintln!("{error}");
            let mut source = error.source();
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn run(debug: bool) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut options = ServeOptions::new(ADDRESS);
    options.debug = debug;
    let served = runtime.block_on(plugin::serve(Nothing, CancellationToken::new(), options));
    // Requests that did not end in time end with the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    Ok(served?)
}
