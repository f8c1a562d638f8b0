//! Output never changes a command's effect: each command runs with unwritable outputs, and has the
//! same effect and status as with working outputs.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    os::unix::{ffi::OsStringExt as _, process::ExitStatusExt as _},
    process::Stdio,
};

use bmc_simulator::{PowerState, SimulatorConfig};
use serde_json::Value;
use terraform_provider_metal::cli;

use crate::support::{
    host::Host,
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

/// State of a command's stdout and stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Output {
    /// Writable.
    Good,
    /// A pipe whose reader has ended, as in `2>&1 | head -1`.
    NoReader,
    /// A full disk.
    Full,
    /// Closed file descriptors, as in `>&- 2>&-`.
    Closed,
}

const OUTPUTS: [Output; 4] = [Output::Good, Output::NoReader, Output::Full, Output::Closed];

impl Output {
    fn stdio(self) -> Stdio {
        match self {
            Self::Good | Self::Closed => Stdio::null(),
            Self::NoReader => {
                let (reader, writer) = std::io::pipe().unwrap();
                drop(reader);
                writer.into()
            }
            Self::Full => File::options().write(true).open("/dev/full").unwrap().into(),
        }
    }
}

/// Collects all leaf commands, for example `store check`.
fn commands(of: &clap::Command, before: &str, found: &mut Vec<String>) {
    for command in of.get_subcommands() {
        let path = format!("{before}{}", command.get_name());
        if command.has_subcommands() {
            commands(command, &format!("{path} "), found);
        } else {
            found.push(path);
        }
    }
}

/// Precondition of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Needs {
    /// Independent of other commands.
    Nothing,
    /// A separate maintenance with a held server.
    Held,
    /// A separate maintenance in the queue.
    Enqueued,
    /// A separate maintenance that waits for approval.
    Unapproved,
}

/// Returns a command line, its precondition and its status. `ID` and `GENERATION` are replaced. A
/// command without an entry fails the test.
fn case(path: &str) -> (&'static str, Needs, i32) {
    match path {
        "check" => ("check node1", Needs::Nothing, 0),
        "queue" => ("queue", Needs::Nothing, 0),
        "why" => ("why node1", Needs::Nothing, 0),
        "show" => ("show tests/held0", Needs::Nothing, 0),
        "history" => ("history", Needs::Nothing, 0),
        "watch" => ("watch", Needs::Nothing, 0),
        "claims" => ("claims", Needs::Nothing, 0),
        "version" => ("version", Needs::Nothing, 0),
        "completion" => ("completion bash", Needs::Nothing, 0),
        "drive" => ("drive ID", Needs::Enqueued, 0),
        "approve" => ("approve ID --owner team-db", Needs::Unapproved, 0),
        "withdraw" => ("withdraw ID --owner team-db", Needs::Unapproved, 0),
        "release" => ("release ID --force --generation GENERATION --reason night", Needs::Held, 0),
        "prune" => ("prune", Needs::Nothing, 1),
        "server rebind" => ("server rebind serial:no/such --shared --reason x", Needs::Nothing, 1),
        "server history" => ("server history no-such-key", Needs::Nothing, 0),
        "audit export" => ("audit export", Needs::Nothing, 0),
        "store roles" => ("store roles postgres", Needs::Nothing, 0),
        "store check" => ("store check", Needs::Nothing, 0),
        "store export" => ("store export", Needs::Nothing, 1),
        "store import" => ("store import no-such-file", Needs::Nothing, 1),
        "store inspected" => ("store inspected tests/held0 --reason x", Needs::Nothing, 0),
        // Runs last, because it fences every process.
        "store restored" => ("store restored --reason x", Needs::Nothing, 0),
        path => panic!("add a case for {path}"),
    }
}

/// Returns true for commands whose only purpose is output. They fail on a full disk.
fn only_answers(path: &str) -> bool {
    let answers =
        ["check", "queue", "why", "show", "history", "watch", "claims", "completion", "version", "server history"];
    answers.contains(&path) || path.starts_with("audit ") || ["store roles", "store check"].contains(&path)
}

/// Runs a command with these outputs. Returns its status, or `None` after a signal or a panic.
async fn status(workspace: &Workspace, arguments: &[&str], output: Output) -> Option<i32> {
    let status = workspace.metal_status(arguments, |command| {
        if output == Output::Closed {
            let metal = command.as_std().get_program().to_owned();
            let arguments: Vec<OsString> = command.as_std().get_args().map(OsStr::to_owned).collect();
            let environment: Vec<(OsString, OsString)> = command
                .as_std()
                .get_envs()
                .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
                .collect();
            let folder = command.as_std().get_current_dir().map(std::path::Path::to_owned).unwrap();
            *command = tokio::process::Command::new("sh");
            command.args(["-c", "exec \"$0\" \"$@\" >&- 2>&-"]).arg(metal).args(arguments);
            command.env_clear().envs(environment).current_dir(folder).stdin(Stdio::null()).kill_on_drop(true);
        }
        command.stdout(output.stdio()).stderr(output.stdio());
    });
    let status = status.await;
    assert_eq!(status.signal(), None, "{arguments:?} with {output:?}");
    status.code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_does_the_same_when_its_output_cannot_be_written() {
    let mut paths = Vec::new();
    commands(&cli::command(), "", &mut paths);
    paths.sort_by_key(|path| path == "store restored");
    // Each output needs a separate maintenance on a separate server.
    let mut cells = Vec::new();
    let mut used = BTreeMap::new();
    for path in &paths {
        let (line, needs, expected) = case(path);
        for output in OUTPUTS {
            // Only a signal ends it.
            if path == "watch" && [Output::Good, Output::Closed].contains(&output) {
                continue;
            }
            let fails = output == Output::Full && only_answers(path);
            let number = used.entry(needs).or_insert(0);
            cells.push((path, output, line, needs, if fails { 1 } else { expected }, *number));
            *number += usize::from(needs != Needs::Nothing);
        }
    }
    let count = |needs: Needs| used.get(&needs).copied().unwrap_or(0);
    let (held, enqueued, unapproved) = (count(Needs::Held), count(Needs::Enqueued), count(Needs::Unapproved));
    let fleet = Fleet::with(SimulatorConfig::with_systems(1 + held + enqueued + unapproved)).await;
    let mut workspace = Workspace::new(Host::OpenTofu);
    let several = |kind: &str, count: usize, before: usize, more: &str| {
        format!(
            "resource \"metal_server_maintenance\" \"{kind}\" {{\n  count = {count}\n  server = \"node${{count.index + {}}}\"\n  \
             namespace = \"tests\"\n  name = \"{kind}${{count.index}}\"\n  {more}\n}}\n",
            before + 1
        )
    };
    let enqueue = "wait_for = \"Enqueued\"\n  expires_after = \"2h\"";
    let body = [
        several("held", held + 1, 0, "policy = \"Enforced\"\n  server_power = \"Off\""),
        several(
            "enqueued",
            enqueued,
            held + 1,
            &format!("policy = \"Enforced\"\n  server_power = \"Off\"\n  {enqueue}"),
        ),
        several("unapproved", unapproved, held + 1 + enqueued, &format!("policy = \"OwnerApproval\"\n  {enqueue}")),
    ];
    let owner = workspace.beside();
    let claims = format!(
        "resource \"metal_server_claim\" \"db\" {{\n  count = {unapproved}\n  server = \"node${{count.index + {}}}\"\n  namespace \
         = \"db\"\n  name = \"db${{count.index}}\"\n  contact = \"#db\"\n}}\n",
        held + enqueued + 2
    );
    fleet.configure_with(&owner, "owner = \"team-db\"", &claims);
    owner.apply().await.succeeded();
    fleet.configure(&workspace, &body.concat());
    workspace.apply().await.succeeded();
    fleet.command_line(&mut workspace);

    let mut wrong = Vec::new();
    for (path, output, line, needs, expected, number) in cells {
        let id = match needs {
            Needs::Nothing => String::new(),
            // tests/held0 is reserved for `show`.
            Needs::Held => format!("tests/held{}", number + 1),
            Needs::Enqueued => format!("tests/enqueued{number}"),
            Needs::Unapproved => format!("tests/unapproved{number}"),
        };
        let generation = if needs == Needs::Held { workspace.generation(&id).await } else { String::new() };
        if path == "withdraw" {
            workspace.metal(&["approve", &id, "--owner", "team-db"]).await.succeeded();
        }
        let line = line.replace("ID", &id).replace("GENERATION", &generation);
        let status = status(&workspace, &line.split(' ').collect::<Vec<_>>(), output).await;
        if status != Some(expected) {
            wrong.push(format!("{line} with {output:?}: {status:?} in place of {expected}"));
        }
        if needs == Needs::Nothing {
            continue;
        }
        let shown = workspace.metal(&["show", &id, "--json"]).await;
        let shown: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
        let done = match path.as_str() {
            "release" => {
                let server = format!("node{}", number + 2);
                shown["maintenance"]["state"] == "Completed" && fleet.system(&server).power == PowerState::On
            }
            "drive" => shown["maintenance"]["state"] == "InMaintenance",
            "approve" => shown["queue"]["waiting_for"].as_str().is_some_and(|why| !why.contains("approval")),
            "withdraw" => shown["queue"]["waiting_for"].as_str().is_some_and(|why| why.contains("approval")),
            _ => true,
        };
        if !done {
            wrong.push(format!("{line} with {output:?} is half done: {shown:#}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// If ignored, such a value would select another store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arguments_and_variables_that_are_not_utf_8_are_errors() {
    let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, &maintenance("node1", "m", ""));
    let bytes = OsString::from_vec(b"sqlite:///tmp/\xff".to_vec());
    for name in ["METAL_COORDINATION_URL", "METAL_OWNER", "METAL_REDFISH_PASSWORD"] {
        for command in [&["queue"][..], &["release", "tests/m"], &["check"], &["store", "roles", "postgres"]] {
            let status = workspace.metal_status(command, |command| {
                command.env(name, &bytes).stdout(Stdio::null()).stderr(Stdio::null());
            });
            assert_eq!(status.await.code(), Some(1), "{name} {command:?}");
        }
        let plan = workspace.run_with(&["plan", "-input=false", "-no-color"], name, &bytes).await.failed();
        plan.says(&format!("the environment variable {name} is not valid UTF-8"));
    }
    let status = workspace.metal_status(&["queue"], |command| {
        command.arg(&bytes).stdout(Stdio::null()).stderr(Stdio::null());
    });
    assert_eq!(status.await.code(), Some(2));
    // No command used this user's store.
    workspace.metal(&["queue"]).await.succeeded().says("no coordination store exists yet");
    let plan = workspace.run_with(&["plan", "-input=false", "-no-color"], "CI_COMMIT_MESSAGE", &bytes).await;
    plan.succeeded();
}

/// A log in a file has plain lines without duplicates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_lines_are_plain_and_come_once_unless_a_terminal_shows_them() {
    let (fleet, mut workspace) = (Fleet::new(1).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
    workspace.apply().await.succeeded();
    fleet.command_line(&mut workspace);
    let refused = bmc_simulator::Fault::error(503, "busy").on_request("POST", "*Reset");
    let fault = fleet.simulator.inject(refused.on_system("node1"));
    let complete = ["release", "tests/m", "--timeout", "12s"];
    let run = workspace.metal(&complete).await.failed();
    let lines: Vec<&str> =
        run.stderr.lines().filter(|line| line.trim_start().starts_with(char::is_uppercase)).collect();
    let different: std::collections::BTreeSet<&&str> = lines.iter().collect();
    assert!(lines.len() > 3 && different.len() == lines.len(), "{}", run.stderr);
    assert!(!run.output.contains('\u{1b}'), "{:?}", run.output);

    let binary = crate::support::provider::binary();
    let in_terminal = async |workspace: &Workspace| {
        let line = format!("exec {} {}", binary.display(), complete.join(" "));
        workspace.start_program("script", &["-qefc", &line, "/dev/null"]).wait(SOON).await.output
    };
    assert!(in_terminal(&workspace).await.contains("\u{1b}["), "a terminal shows colors");
    workspace.set("NO_COLOR", "1");
    assert!(!in_terminal(&workspace).await.contains('\u{1b}'), "unless NO_COLOR is set");
    fleet.simulator.remove_fault(fault).unwrap();
    workspace.metal(&["release", "tests/m"]).await.succeeded();
}
