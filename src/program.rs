//! The program: it serves the provider to a host, and the command line to a person.

use std::{
    env,
    error::Error,
    fmt,
    io::{self, IsTerminal as _, Write, stderr, stdout},
    process::ExitCode,
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    cli::{self, Exit},
    plugin::{self, ServeOptions},
    provider::MetalProvider,
    settings::Environment,
};

/// The provider's address in configurations; shown by `--debug` only.
const ADDRESS: &str = "localhost/metal-maintenance/metal";

/// Standard error whose writes always succeed: a failed log message must not stop a process with a
/// locked server.
#[derive(Clone, Copy, Debug)]
struct Notes;

impl Write for Notes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = stderr().flush();
        Ok(())
    }
}

/// Writes a line to standard error, ignoring errors.
fn note(line: fmt::Arguments<'_>) {
    let _ = writeln!(Notes, "{line}");
}

/// Runs the provider or a command, depending on how the process was started.
#[must_use]
pub fn run() -> ExitCode {
    // Several libraries use rustls; without a common default provider, their first connection
    // panics. aws-lc-rs, because hosts present P-521 certificates.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let debug = env::args_os().nth(1).is_some_and(|argument| argument == "--debug");
    if !debug {
        keep_memory();
    }
    if debug || plugin::is_plugin_start() {
        plugin::install_logging(&["terraform_provider_metal", "tf_plugin_server"]);
        return report(serve(debug));
    }
    log_for_people();
    report(by_hand())
}

/// Logs to standard error: in color only on a terminal without `NO_COLOR` (no-color.org).
fn log_for_people() {
    let plain = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_writer(|| Notes)
        // Otherwise the subscriber prints its own errors with a macro that panics.
        .log_internal_errors(false)
        .with_ansi(stderr().is_terminal() && !plain)
        .with_target(false)
        .without_time()
        .with_max_level(tracing::Level::INFO)
        .init();
}

/// Keeps passwords out of core dumps, and process memory from the same user's other processes. A
/// debugger needs both.
fn keep_memory() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable) {
        note(format_args!("core dumps of this process cannot be switched off: {error}"));
    }
}

fn report(result: Result<ExitCode, Box<dyn Error>>) -> ExitCode {
    result.unwrap_or_else(|error| {
        // The host shows standard error if the handshake is missing.
        note(format_args!("{error}"));
        let mut source = error.source();
        while let Some(cause) = source {
            note(format_args!("  because: {cause}"));
            source = cause.source();
        }
        ExitCode::FAILURE
    })
}

/// Serves a host.
fn serve(debug: bool) -> Result<ExitCode, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut options = ServeOptions::new(ADDRESS);
    options.debug = debug;
    let stop = CancellationToken::new();
    let provider = MetalProvider::new(stop.clone(), Environment::of_process());
    let closer = provider.closer();
    let served = runtime.block_on(async move {
        let served = plugin::serve(provider, stop, options).await;
        closer.close().await;
        served
    });
    // Requests that did not finish in time end with the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    served?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a command for a person.
fn by_hand() -> Result<ExitCode, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let exit = runtime.block_on(async {
        let stop = CancellationToken::new();
        let interrupted = stop.clone();
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                interrupted.cancel();
            }
        });
        cli::run(env::args_os().collect(), &Environment::of_process(), stop, &mut stdout(), &mut Notes).await
    });
    runtime.shutdown_timeout(Duration::from_millis(100));
    Ok(match exit {
        Exit::Success => ExitCode::SUCCESS,
        Exit::Failure => ExitCode::FAILURE,
        Exit::Usage => ExitCode::from(2),
        Exit::Problems => ExitCode::from(3),
    })
}
