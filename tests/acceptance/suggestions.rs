//! Every command suggested by a message works as shown. The suggestions are read from the sources,
//! so a new one without a case fails.

use std::{collections::BTreeSet, fs, path::Path};

use bmc_simulator::{Fault, Phase};
use proc_macro2::{TokenStream, TokenTree};
use regex::Regex;
use terraform_provider_metal::cli;

use crate::support::{
    host::Host,
    run::Run,
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

const PROGRAM: &str = "terraform-provider-metal ";

/// Collects the commands in these sources' messages, with their placeholders.
fn suggested(folder: &Path, found: &mut BTreeSet<String>) {
    let tests = Regex::new(r"#\[cfg\(test\)\]\n(pub\S* )?mod tests").unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            suggested(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            literals(tests.split(&text).next().unwrap().parse().unwrap(), found);
        }
    }
}

/// Reads string literals, without comments.
fn literals(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let is_comment = group.stream().into_iter().next().is_some_and(|first| first.to_string() == "doc");
                if !is_comment {
                    literals(group.stream(), found);
                }
            }
            TokenTree::Literal(literal) => commands(&unquoted(&literal.to_string()), found),
            _ => {}
        }
    }
}

/// Returns a string literal's value.
fn unquoted(literal: &str) -> String {
    let joined = Regex::new(r"\\\n\s*").unwrap().replace_all(literal.trim_matches('"'), "").into_owned();
    joined.replace("\\n", "\n").replace("\\\"", "\"")
}

/// A command ends with its line, or at the backtick that matches its opening one.
fn commands(text: &str, found: &mut BTreeSet<String>) {
    let text = text.replace("{NAME} ", PROGRAM);
    for (at, _) in text.match_indices(PROGRAM) {
        let end = if text[..at].ends_with('`') { '`' } else { '\n' };
        let command = text[at + PROGRAM.len()..].split(end).next().unwrap_or_default().trim();
        // The rest belongs to the next text.
        if !command.is_empty() {
            found.insert(command.to_owned());
        }
    }
}

/// How a suggestion is proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// [`each_suggestion_works_where_a_message_shows_it`] takes it from the message and runs it.
    Message,
    /// It runs in any store.
    Anywhere,
    /// The parser accepts it: its situation needs another system or a damaged store.
    Parser,
}

/// A suggestion, a command line of its form, and its proof.
const CASES: &[(&str, &str, Proof)] = &[
    // The help.
    ("check", "check", Proof::Anywhere),
    ("queue", "queue", Proof::Anywhere),
    ("watch", "watch", Proof::Parser),
    ("history", "history", Proof::Anywhere),
    ("show NAMESPACE/NAME", "show tests/m", Proof::Anywhere),
    ("why SERVER", "why node1", Proof::Parser),
    ("claims", "claims", Proof::Anywhere),
    ("approve NAMESPACE/NAME --owner OWNER", "approve tests/m --owner team-db", Proof::Message),
    ("withdraw NAMESPACE/NAME --owner OWNER", "withdraw tests/m --owner team-db", Proof::Parser),
    ("drive NAMESPACE/NAME", "drive tests/m", Proof::Anywhere),
    ("release NAMESPACE/NAME", "release tests/m", Proof::Parser),
    (
        "release NAMESPACE/NAME --force --generation N --reason TEXT",
        "release tests/m --force --generation 3 --reason night",
        Proof::Parser,
    ),
    ("release --allow NAMESPACE/NAME", "release --allow tests/m", Proof::Parser),
    ("store check", "store check", Proof::Anywhere),
    ("store roles postgres", "store roles postgres", Proof::Anywhere),
    ("audit export", "audit export", Proof::Anywhere),
    ("completion bash", "completion bash", Proof::Anywhere),
    ("--help", "--help", Proof::Anywhere),
    // Messages.
    ("approve {} --owner {owner}", "approve tests/m --owner team-db", Proof::Message),
    ("approve {id}{flags}", "approve tests/m --owner team-db", Proof::Message),
    ("release --allow {}", "release --allow tests/m", Proof::Message),
    ("release {id} --as-owner {} --reason TEXT", "release tests/m --as-owner team-a --reason TEXT", Proof::Message),
    ("show {}{flags}", "show tests/m --coordination-url sqlite:///x", Proof::Message),
    ("release {} --owner {owner}{}{backend}", "release tests/m --owner default --backend metal3", Proof::Message),
    (
        "release {id} --force --generation {generation} --reason TEXT",
        "release tests/m --force --generation 3 --reason TEXT",
        Proof::Message,
    ),
    ("store inspected NAMESPACE/NAME --reason TEXT", "store inspected tests/m --reason TEXT", Proof::Message),
    ("store inspected {id} --reason TEXT", "store inspected tests/m --reason TEXT", Proof::Message),
    ("store restored --reason TEXT", "store restored --reason TEXT", Proof::Message),
    // An ephemeral lock whose release fails.
    ("release {} --owner {}", "release tests/m --owner 'team a'", Proof::Parser),
    ("release {id} --owner {owner}", "release tests/m --owner default", Proof::Parser),
    // A replaced mainboard.
    (
        "server rebind {} --key {} --reason WHY",
        "server rebind 'serial:dell inc./42' --key k --reason WHY",
        Proof::Parser,
    ),
    ("server rebind {} --shared --reason WHY", "server rebind serial:dell/42 --shared --reason WHY", Proof::Parser),
    // External systems.
    ("prune{way}", "prune --backend metal_operator", Proof::Parser),
    ("prune --nodes", "prune --nodes", Proof::Parser),
    ("show {}", "show tests/m", Proof::Anywhere),
    ("claims --json", "claims --json", Proof::Anywhere),
    // `why`.
    ("queue --server {server}{flags}", "queue --server node1", Proof::Parser),
    ("release --allow {} --owner {owner}{flags}", "release --allow tests/m --owner ops", Proof::Parser),
];

#[test]
fn every_suggestion_has_a_case_that_the_command_line_accepts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = BTreeSet::new();
    for folder in ["src", "crates/maintenance-protocol/src", "crates/tf-plugin-server/src", "crates/shown-text/src"] {
        suggested(&root.join(folder), &mut found);
    }
    let known: BTreeSet<String> = CASES.iter().map(|(suggestion, ..)| (*suggestion).to_owned()).collect();
    let without_case: Vec<&String> = found.difference(&known).collect();
    let idle: Vec<&String> = known.difference(&found).collect();
    assert!(without_case.is_empty(), "no case, or text after the command: {without_case:#?}");
    assert!(idle.is_empty(), "nothing suggests these any more: {idle:#?}");
    for (suggestion, line, _) in CASES {
        assert!(pattern(suggestion).is_match(line), "{line} is not of the form {suggestion}");
        let words = std::iter::once("terraform-provider-metal".to_owned()).chain(words(line));
        if let Err(error) = cli::command().try_get_matches_from(words) {
            assert_eq!(error.kind(), clap::error::ErrorKind::DisplayHelp, "{line}: {error}");
        }
    }
}

/// Converts a suggestion to a pattern with wildcards for its placeholders.
fn pattern(suggestion: &str) -> Regex {
    let placeholder = Regex::new(r"\\\{[a-z]*\\\}|\bNAMESPACE/NAME\b|\bOWNER\b|\bSERVER\b|\bN\b|\bTEXT\b").unwrap();
    let escaped = regex::escape(suggestion);
    Regex::new(&format!("^{}$", placeholder.replace_all(&escaped, ".*"))).unwrap()
}

/// Splits a command line as a shell does.
fn words(line: &str) -> Vec<String> {
    let word = Regex::new(r"'([^']*)'|(\S+)").unwrap();
    word.captures_iter(line).map(|found| found.get(1).or(found.get(2)).unwrap().as_str().to_owned()).collect()
}

/// Runs the first matching command that a message suggests.
async fn run(workspace: &Workspace, message: &Run, command: &str) -> Run {
    let text = message.words();
    let found = Regex::new(&format!("{PROGRAM}({command})")).unwrap().captures(&text);
    let found = found.unwrap_or_else(|| panic!("{command} is not suggested:\n{}", message.output));
    let words = words(&found[1]);
    workspace.metal(&words.iter().map(String::as_str).collect::<Vec<_>>()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_suggestion_works_where_a_message_shows_it() {
    let (fleet, mut workspace) = (Fleet::new(3).await, Workspace::new(Host::OpenTofu));
    fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
    workspace.apply().await.succeeded();
    fleet.command_line(&mut workspace);
    for (_, line, _) in CASES.iter().filter(|(.., proof)| *proof == Proof::Anywhere) {
        let words = words(line);
        workspace.metal(&words.iter().map(String::as_str).collect::<Vec<_>>()).await.succeeded();
    }

    // Another owner wants the same name.
    let other = workspace.beside();
    fleet.configure_with(&other, "owner = \"team a\"", &maintenance("node2", "m2", ""));
    other.apply().await.succeeded();
    let third = workspace.beside();
    fleet.configure(&third, &maintenance("node2", "m2", ""));
    let refused = third.apply().await.failed();
    run(&workspace, &refused, "release \\S+ --as-owner '[^']*' --reason TEXT").await.succeeded();

    // A server that waits for its owner. Its name needs quotes.
    let owner = workspace.beside();
    let claim = "resource \"metal_server_claim\" \"db\" {\n  server = \"node3\"\n  namespace = \"db\"\n  name = \"db\"\n  contact = \
                 \"#db\"\n}\n";
    fleet.configure_with(&owner, "owner = \"team db\"", claim);
    owner.apply().await.succeeded();
    let asker = workspace.beside();
    let asks = |name: &str| {
        maintenance("node3", name, "wait_for = \"Enqueued\"\n  expires_after = \"1h\"")
            .replace("\"Enforced\"", "\"OwnerApproval\"")
            .replace("\"held\"", &format!("\"{name}\""))
    };
    fleet.configure(&asker, &format!("{}{}", asks("one"), asks("two")));
    asker.apply().await.succeeded();
    let approve = |id: &str| format!("approve {id} --owner '[^']*'");
    let shown = workspace.metal(&["show", "tests/one"]).await.succeeded();
    run(&workspace, &shown, &approve("tests/one")).await.succeeded();
    let warned = owner.try_plan().await.succeeded();
    run(&workspace, &warned, &approve("tests/two")).await.succeeded();

    // A process releases it, and is killed before the last power change.
    let refused = killed_release(&fleet, &workspace).await;
    let queue = workspace.metal(&["queue"]).await.succeeded();
    run(&workspace, &queue, "show tests/m\\b").await.succeeded();
    run(&workspace, &refused, r"release \S+ --force --generation \d+ --reason TEXT").await.succeeded();

    // Released by force, and wanted again.
    let refused = workspace.apply().await.failed();
    run(&workspace, &refused, r"release --allow \S+").await.succeeded();
    workspace.apply().await.succeeded();

    // Nothing continues a killed release.
    killed_release(&fleet, &workspace).await;
    let shown = workspace.metal(&["show", "tests/m"]).await.succeeded();
    run(&workspace, &shown, r"release \S+ --owner \S+").await.succeeded();
    workspace.apply().await.succeeded();

    // A store that was restored.
    let restored = workspace.metal(&["store", "restored", "--reason", "TEXT"]).await.succeeded();
    let refused = workspace.destroy().await.failed();
    run(&workspace, &refused, "store inspected \\S+ --reason TEXT").await.succeeded();
    restored.says("terraform-provider-metal store inspected NAMESPACE/NAME --reason TEXT");
    workspace.destroy().await.succeeded();
}

/// Kills a release of `tests/m` at its last power change. Returns the output of a second release
/// that ran into it.
async fn killed_release(fleet: &Fleet, workspace: &Workspace) -> Run {
    let held = Fault::hold(Phase::Before).on_request("POST", "*Reset").on_system("node1").times(1);
    let fault = fleet.simulator.inject(held);
    let working = workspace.start_metal(&["release", "tests/m"]);
    working.until_it_says("node1: On", SOON).await;
    let refused = workspace.metal(&["release", "tests/m"]).await.failed();
    working.kill_everything();
    fleet.simulator.remove_fault(fault).unwrap();
    refused
}
