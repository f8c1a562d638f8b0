//! The command line.

mod approvals;
mod audit;
mod backend;
mod check;
mod cluster_approvals;
mod commands;
mod drive;
#[cfg(test)]
mod foreign_text;
mod output;
mod prune;
mod release;
mod restrictions;
mod servers;
mod shape;
mod show;
mod store_approvals;
mod stores;
mod table;
mod watch;
mod why;

use std::{
    ffi::OsString,
    io::{IsTerminal as _, Write, stdout},
};

use backend::BackendArgs;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use commands::Printed;
use output::{answered, print};
use release::ReleaseArgs;
use serde_json::json;
use table::QueueFormat;
use tokio_util::sync::CancellationToken;

use crate::{
    settings::{Environment, Input},
    shown,
};

/// How to install the provider; shown when the binary is run without arguments.
const HELP: &str = "\
This is a provider for OpenTofu and Terraform, which start it automatically.

To install it for both:   make install
Then add it to a configuration:

  terraform {
    required_providers {
      metal = { source = \"localhost/metal-maintenance/metal\" }
    }
  }

On the command line, it checks servers, shows and ends maintenances, and approves them for owners:

  terraform-provider-metal check
  terraform-provider-metal queue
  terraform-provider-metal why SERVER
  terraform-provider-metal watch
  terraform-provider-metal history
  terraform-provider-metal show NAMESPACE/NAME
  terraform-provider-metal claims
  terraform-provider-metal approve NAMESPACE/NAME --owner OWNER
  terraform-provider-metal withdraw NAMESPACE/NAME --owner OWNER
  terraform-provider-metal drive NAMESPACE/NAME
  terraform-provider-metal release NAMESPACE/NAME
  terraform-provider-metal release NAMESPACE/NAME --force --generation N --reason TEXT
  terraform-provider-metal release --allow NAMESPACE/NAME
  terraform-provider-metal store check
  terraform-provider-metal store roles postgres
  terraform-provider-metal audit export
  terraform-provider-metal completion bash
  terraform-provider-metal --help
";

/// The program's name.
const NAME: &str = "terraform-provider-metal";

#[derive(Debug, Parser)]
#[command(
    name = NAME,
    version,
    about = "Checks servers, shows and ends maintenances, and approves them for owners",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(flatten)]
    common: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args, Clone, Debug)]
struct GlobalArgs {
    /// The coordination store, as in the provider block [default: METAL_COORDINATION_URL, else the
    /// user's own file]
    #[arg(long, global = true, value_name = "URL")]
    coordination_url: Option<String>,
    /// The maintenances' owner [default: METAL_OWNER, else "default"]
    #[arg(long, global = true)]
    owner: Option<String>,
    #[command(flatten)]
    backend: BackendArgs,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check the coordination store and servers before the first maintenance: certificate, login,
    /// permissions, identity, power, boot sources, drives, and missing features for each kind of
    /// maintenance. Read-only; never creates a store. Exits with status 3 if a check fails
    Check {
        /// The servers [default: all configured servers]
        servers: Vec<String>,
    },
    /// Lock holders and waiters
    Queue {
        /// Only this server
        #[arg(long)]
        server: Option<String>,
        /// The format; `wide` adds generation, lock key, host, PID and run URL
        #[arg(short, long, value_name = "FORMAT")]
        output: Option<QueueFormat>,
        /// Show it until Ctrl-C, as `watch`
        #[arg(short, long, conflicts_with = "output")]
        watch: bool,
    },
    /// Who holds a server, what blocks each waiter, and the next command, in at most ten lines
    Why {
        /// The server's name
        server: String,
    },
    /// One maintenance: its state, steps, the server's prior state, and its history
    Show {
        /// NAMESPACE/NAME
        id: String,
    },
    /// Ended maintenances, newest first
    History {
        /// NAMESPACE/NAME [default: all]
        id: Option<String>,
        /// Only this server
        #[arg(long)]
        server: Option<String>,
        /// The maximum number of entries
        #[arg(long, default_value_t = 20)]
        limit: usize,
    },
    /// Show the queue until Ctrl-C: live on a terminal, elsewhere once per change. With --json it
    /// prints one JSON line per change
    Watch {
        /// Only this server
        #[arg(long)]
        server: Option<String>,
    },
    /// Resume an enqueued maintenance (wait_for = "Enqueued") until its server is in maintenance.
    /// If interrupted, it keeps its queue position
    Drive {
        /// NAMESPACE/NAME
        id: String,
        /// Time limit
        #[arg(long, default_value = "6h")]
        timeout: String,
        /// A file with the complete addresses of signed images, one per line: the store keeps them
        /// without their signatures
        #[arg(long, value_name = "FILE")]
        image_addresses: Option<String>,
    },
    /// This program's version
    Version,
    /// Print a completion script: source <(terraform-provider-metal completion bash)
    Completion {
        /// The shell
        shell: CompletionShell,
    },
    /// Claimed servers, with pending maintenance and approvals
    Claims {
        /// Only this server
        #[arg(long)]
        server: Option<String>,
    },
    /// Approve a maintenance as its server's owner (--owner or METAL_OWNER), exactly as currently
    /// requested; with --metal-operator every request for that server
    Approve {
        /// NAMESPACE/NAME
        id: String,
        /// Start of validity (RFC 3339) [default: immediately]
        #[arg(long, value_name = "TIME")]
        not_before: Option<jiff::Timestamp>,
        /// End of validity (RFC 3339) [default: as long as the claim exists]
        #[arg(long, value_name = "TIME")]
        expires: Option<jiff::Timestamp>,
    },
    /// Withdraw a maintenance's approval; started maintenance continues. With --metal-operator only
    /// an approval that approve wrote
    Withdraw {
        /// NAMESPACE/NAME
        id: String,
    },
    /// End a maintenance in agreement with its holder: restore the prior state and release the
    /// server. With --force against its holder, who is notified: the name stays refused until its
    /// triggers change or `release --allow`. Also deletes the record of a finished operation
    Release(ReleaseArgs),
    /// Delete orphaned external requests of crashed runs: requests of this store whose maintenance
    /// has ended (--backend). Does not restore servers or wait for Nodes
    Prune {
        /// Only this server
        #[arg(long, conflicts_with = "nodes")]
        server: Option<String>,
        /// Instead uncordon Nodes that an ended maintenance left cordoned (METAL_NODE_KUBECONFIG,
        /// or the usual kubeconfig)
        #[arg(long)]
        nodes: bool,
    },
    /// Server name commands
    Server {
        #[command(subcommand)]
        command: ServerCommand,
    },
    /// Audit log commands
    Audit {
        #[command(subcommand)]
        command: audit::AuditCommand,
    },
    /// Coordination store commands
    Store {
        #[command(subcommand)]
        command: StoreCommand,
    },
}

/// A shell with completions.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum CompletionShell {
    Bash,
    Zsh,
    Fish,
}

impl From<CompletionShell> for Shell {
    fn from(shell: CompletionShell) -> Self {
        match shell {
            CompletionShell::Bash => Self::Bash,
            CompletionShell::Zsh => Self::Zsh,
            CompletionShell::Fish => Self::Fish,
        }
    }
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Print the roles that share a store, for its administrator to apply: SQL or manifests. Does
    /// not open a store; the manifests use the coordination store's namespace
    Roles {
        /// The kind of store
        kind: RolesOf,
    },
    /// Check the store's invariants and report violations; read-only
    Check,
    /// Print the whole store as JSON for an import; refused while a server is held
    Export,
    /// Fill an empty store from another store's export
    Import {
        /// The file with the export
        file: std::path::PathBuf,
    },
    /// After the store lost changes (a backup, a snapshot, a lagging standby): fence every process
    /// and mark every maintenance for inspection. Stop all runs first; follow the guide "After a
    /// restore"
    Restored {
        /// The reason; kept in the audit log and shown to each request for an affected server
        #[arg(long)]
        reason: String,
        /// The highest generation in a state or a log, if it is far above the store's
        #[arg(long, default_value_t = 0)]
        seen: u64,
    },
    /// After store restored: record that a maintenance's server was inspected, so that processes
    /// can act on it again
    Inspected {
        /// NAMESPACE/NAME, at least one
        #[arg(required = true)]
        ids: Vec<String>,
        /// The findings; kept in the audit log
        #[arg(long)]
        reason: String,
    },
}

/// A kind of store with roles.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RolesOf {
    Kubernetes,
    Postgres,
    S3,
}

#[derive(Debug, Subcommand)]
enum ServerCommand {
    /// Move a server's identifiers to another lock, for example after its mainboard was replaced;
    /// refused while either lock is in use
    Rebind {
        /// OWNER/SERVER, uuid:UUID, serial:MANUFACTURER/NUMBER or address:HOST/PATH, as shown in an
        /// error
        #[arg(required = true)]
        identifiers: Vec<String>,
        /// The lock that gets the identifiers
        #[arg(long, required_unless_present = "shared")]
        key: Option<String>,
        /// The identifiers do not identify a server, because several servers report them
        #[arg(long, conflicts_with = "key")]
        shared: bool,
        /// The reason; kept in the audit log of both locks
        #[arg(long)]
        reason: String,
    },
    /// Show a lock's own history: identifiers that were added or removed
    History {
        /// The lock key
        key: String,
    },
}

/// A command's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Success,
    /// The command failed; standard error shows the cause.
    Failure,
    /// The arguments were wrong.
    Usage,
    /// At least one check failed.
    Problems,
}

/// Returns the `clap` command line.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs a command. Its answer goes to `out`, everything else to `err`.
///
/// Output never changes a command's effect. A command with an effect runs to its end and reports
/// that end in its status, even if its answer cannot be written.
pub async fn run(
    arguments: Vec<OsString>,
    environment: &Environment,
    stop: CancellationToken,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> Exit {
    if arguments.len() < 2 {
        return answered(HELP, Exit::Success, true, out, err);
    }
    let escaped: Vec<OsString> =
        arguments.iter().map(|it| shown::line(&it.to_string_lossy()).into_owned().into()).collect();
    let mut cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(problem) => {
            // An error quotes arguments. With escaped ones it is the same, on its own lines.
            let problem = Cli::try_parse_from(escaped).err().unwrap_or(problem);
            let text = shown::lines(&problem.render().to_string()).into_owned();
            if !problem.use_stderr() {
                return answered(&text, Exit::Success, true, out, err);
            }
            print(err, &text);
            return Exit::Usage;
        }
    };
    cli.common.json |= matches!(cli.command, Command::Queue { output: Some(QueueFormat::Json), .. });
    let json = cli.common.json;
    if let Command::Completion { shell } = cli.command {
        let mut script = Vec::new();
        clap_complete::generate(Shell::from(shell), &mut Cli::command(), NAME, &mut script);
        return answered(&String::from_utf8_lossy(&script), Exit::Success, true, out, err);
    }
    if matches!(cli.command, Command::Version) {
        let version = env!("CARGO_PKG_VERSION");
        let text =
            if json { shape::document(json!({ "version": version })) } else { [NAME, " ", version, "\n"].concat() };
        return answered(&text, Exit::Success, true, out, err);
    }
    let only_answers = cli.command.only_answers();
    let result = match (environment.check(), cli.command) {
        (Err(problem), _) => Err(problem.into()),
        (Ok(()), Command::Watch { server } | Command::Queue { server, watch: true, .. }) => {
            commands::watch(&cli.common, server.as_deref(), environment, stdout().is_terminal(), &stop, out)
                .await
                .map(|()| Printed::from(String::new()))
        }
        (Ok(()), Command::Audit { command: audit::AuditCommand::Export { since, follow } }) => {
            commands::export_audit(&cli.common, since.as_deref(), follow, environment, &stop, out)
                .await
                .map(|()| Printed::from(String::new()))
        }
        (Ok(()), command) => Box::pin(commands::run(Cli { command, ..cli }, environment, stop)).await,
    };
    match result {
        Ok(Printed { text, found_problems }) => {
            let exit = if found_problems { Exit::Problems } else { Exit::Success };
            answered(&shown::lines(&text), exit, only_answers, out, err)
        }
        Err(problem) => {
            let text = if json { shape::document(problem.json()) } else { format!("Error: {problem}\n") };
            print(err, &shown::lines(&text));
            Exit::Failure
        }
    }
}

impl GlobalArgs {
    fn input(&self) -> Input {
        Input {
            coordination_url: self.coordination_url.clone(),
            owner: self.owner.clone(),
            backend: self.backend.input(),
            ..Input::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_status_is_on_the_page() {
        let page = include_str!("../../docs/guides/command-line.md");
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            assert!(page.contains(&format!("| `{name}")), "{name} is not described");
        }
        for status in 0..=3 {
            assert!(page.contains(&format!("| {status} |")), "status {status} is not described");
        }
    }
}
