//! The simulator as a separate process.
//!
//! It prints one line of JSON when every BMC answers. It stops on SIGTERM, on SIGINT, or, with
//! `--stop-with-stdin`, when its standard input ends.
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "these macros panic when the output cannot be written")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bmc_simulator::{
    Behaviour, Credentials, JournalMode, Layout, Personality, Simulator, SimulatorConfig, SystemConfig, TlsMode,
};
use clap::{Parser, ValueEnum};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

/// A Redfish service that behaves like a fleet of BMCs.
#[derive(Debug, Parser)]
#[command(name = "bmc-simulator", version)]
struct Arguments {
    /// Number of machines, named node1 and onwards.
    #[arg(long, default_value_t = 1)]
    systems: usize,
    /// A JSON file with the machines instead: a list of objects with at least a name.
    #[arg(long, value_name = "FILE", conflicts_with = "systems")]
    systems_file: Option<PathBuf>,
    /// A BMC for each machine, or one BMC for all machines.
    #[arg(long, value_enum, default_value_t = LayoutArgument::BmcPerSystem)]
    layout: LayoutArgument,
    /// The address on which the BMCs listen.
    #[arg(long, default_value = "127.0.0.1")]
    bind: IpAddr,
    /// The first BMC's port; the others follow. With 0, the system chooses each port.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// TLS with a certificate generated at start, or plain HTTP.
    #[arg(long, value_enum, default_value_t = TlsArgument::Generated)]
    tls: TlsArgument,
    /// Writes the authority's certificate to this file.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The control interface's port on 127.0.0.1; with 0, the system chooses.
    #[arg(long, value_name = "PORT")]
    control_port: Option<u16>,
    /// Additional latency of every request.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    latency_ms: u64,
    /// Writes the list of servers (name, endpoint, system id) to this file, as YAML.
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// The administrator's name on every BMC.
    #[arg(long, default_value = "admin")]
    username: String,
    /// The administrator's password on every BMC.
    #[arg(long, default_value = "simulated-password")]
    password: String,
    /// Allows every account name with that password, so that the journal distinguishes many
    /// clients.
    #[arg(long)]
    any_account: bool,
    /// Vendor-specific BMC behaviour: JSON, or the name of a JSON file.
    #[arg(long, value_name = "JSON|FILE")]
    personality: Option<String>,
    /// Machine behaviour such as `{"power_on_ms": 3000}`: JSON, or the name of a JSON file.
    #[arg(long, value_name = "JSON|FILE")]
    behaviour: Option<String>,
    /// Requests kept in the journal; 0 only counts.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    journal: usize,
    /// Number of threads; by default one per processor.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Stops when the standard input ends.
    #[arg(long)]
    stop_with_stdin: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LayoutArgument {
    BmcPerSystem,
    SharedBmc,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TlsArgument {
    Generated,
    Off,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed too, the message is lost.
            let _ = writeln!(std::io::stderr(), "bmc-simulator: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let config = configuration(arguments)?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = arguments.threads {
        runtime.worker_threads(threads.max(1));
    }
    let runtime = runtime.enable_all().build()?;
    let outcome = runtime.block_on(serve(arguments, config));
    // A thread can be blocked in a read of standard input.
    runtime.shutdown_background();
    outcome
}

fn configuration(arguments: &Arguments) -> Result<SimulatorConfig, Failure> {
    let systems: Vec<SystemConfig> = match &arguments.systems_file {
        Some(file) => serde_json::from_slice(&read(file)?)?,
        None => SimulatorConfig::with_systems(arguments.systems).systems,
    };
    Ok(SimulatorConfig {
        systems,
        layout: match arguments.layout {
            LayoutArgument::BmcPerSystem => Layout::BmcPerSystem,
            LayoutArgument::SharedBmc => Layout::SharedBmc,
        },
        tls: match arguments.tls {
            TlsArgument::Generated => TlsMode::Generated,
            TlsArgument::Off => TlsMode::Off,
        },
        credentials: Credentials { username: arguments.username.clone(), password: arguments.password.clone().into() },
        any_account: arguments.any_account,
        bind: arguments.bind,
        port: arguments.port,
        control_port: arguments.control_port,
        latency: Duration::from_millis(arguments.latency_ms),
        journal: match arguments.journal {
            0 => JournalMode::CountOnly,
            kept => JournalMode::Keep(kept),
        },
        personality: parsed::<Personality>(arguments.personality.as_deref())?,
        behaviour: parsed::<Behaviour>(arguments.behaviour.as_deref())?,
    })
}

/// Parses JSON in the argument itself or in the named file.
fn parsed<T: DeserializeOwned + Default>(argument: Option<&str>) -> Result<T, Failure> {
    match argument {
        None => Ok(T::default()),
        Some(json) if json.trim_start().starts_with('{') => Ok(serde_json::from_str(json)?),
        Some(file) => Ok(serde_json::from_slice(&read(Path::new(file))?)?),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()).into())
}

async fn serve(arguments: &Arguments, config: SimulatorConfig) -> Result<(), Failure> {
    // Register before printing the line: its reader can stop the process immediately.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let simulator = Simulator::start(config).await?;
    if let Some(file) = &arguments.inventory {
        std::fs::write(file, simulator.inventory())?;
    }
    if let (Some(file), Some(trust)) = (&arguments.ca_file, simulator.trust()) {
        std::fs::write(file, &trust.ca_pem)?;
    }
    announce(arguments, &simulator)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = end_of_stdin(), if arguments.stop_with_stdin => {}
    }
    simulator.stop().await;
    Ok(())
}

fn announce(arguments: &Arguments, simulator: &Simulator) -> Result<(), Failure> {
    let mut systems = BTreeMap::new();
    for name in simulator.systems() {
        let status = simulator.system(&name)?;
        let entry = json!({
            "endpoint": simulator.url(&name)?,
            "system_id": status.system_id,
            "uuid": status.identity.uuid,
        });
        systems.insert(name, entry);
    }
    let trust = simulator.trust();
    let line = json!({
        "pid": std::process::id(),
        "systems": systems,
        "username": arguments.username,
        "password": arguments.password,
        "control_url": simulator.control_url(),
        "ca_file": arguments.ca_file.as_ref().filter(|_| trust.is_some()),
        "ca_pem": trust.map(|trust| trust.ca_pem.as_str()),
        "certificate_sha256": trust.map(|trust| trust.certificate_sha256.as_str()),
        "inventory": arguments.inventory,
    });
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()?;
    Ok(())
}

async fn end_of_stdin() {
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0; 256];
    // An error also means that the other side has closed it.
    while matches!(stdin.read(&mut buffer).await, Ok(1..)) {}
}
