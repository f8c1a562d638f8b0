//! Texts in a store cannot forge a line of any command's output.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

use super::*;
use crate::{
    clock::SystemClock,
    store::{Contents, SqliteOptions, SqliteStore, Store as _, StoreError},
};

/// Forges a CI command, moves the cursor, changes the color, and reverses the text direction.
const HOSTILE: &str = "\n::error title=x::y\r\u{1b}[31m\u{202e}\u{2028}::error";

/// A store export with every kind of record.
const EXPORT: &str = include_str!("../../tests/store/golden.json");

/// Adds the paths of all texts and names below `value`; positions in lists count as one path.
fn paths(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::String(_) => drop(found.insert(at.to_owned())),
        Value::Array(all) => all.iter().for_each(|one| paths(one, &format!("{at}[]"), found)),
        Value::Object(fields) => {
            for (name, value) in fields {
                found.insert(format!("{at}.{name}!"));
                paths(value, &format!("{at}.{name}"), found);
            }
        }
        _ => {}
    }
}

/// Returns `value` with the hostile text added to each text or name at the path `target`.
fn injected(value: Value, at: &str, target: &str) -> Value {
    match value {
        Value::String(text) if at == target => Value::String(text + HOSTILE),
        Value::Array(all) => {
            Value::Array(all.into_iter().map(|one| injected(one, &format!("{at}[]"), target)).collect())
        }
        Value::Object(fields) => {
            let field = |(name, value)| {
                let below = format!("{at}.{name}");
                let value = injected(value, &below, target);
                (if format!("{below}!") == target { name + HOSTILE } else { name }, value)
            };
            Value::Object(fields.into_iter().map(field).collect())
        }
        other => other,
    }
}

/// Returns every command with a value for each argument that it requires.
fn every_command(command: &clap::Command, path: &[String], given: &BTreeMap<&str, Vec<String>>) -> Vec<Vec<String>> {
    let below: Vec<_> = command.get_subcommands().collect();
    let deeper = below.iter().flat_map(|it| every_command(it, &[path, &[it.get_name().to_owned()]].concat(), given));
    if !below.is_empty() {
        return deeper.collect();
    }
    let mut all = vec![path.to_vec()];
    for argument in command.get_arguments().filter(|argument| argument.is_required_set()) {
        let name = argument.get_id().as_str();
        let values = given.get(name).unwrap_or_else(|| panic!("the test needs a value for {name} of {path:?}"));
        let flag = argument.get_long().map(|flag| format!("--{flag}"));
        let with = |call: &Vec<String>, value: &String| {
            call.iter().chain(flag.as_ref()).chain(std::iter::once(value)).cloned().collect::<Vec<_>>()
        };
        all = all.iter().flat_map(|call| values.iter().map(move |value| with(call, value))).collect();
    }
    all
}

/// Runs a command against a store and checks its output.
async fn printed(store: &Path, call: &[String]) -> String {
    let url = format!("sqlite://{}", store.display());
    let global = ["--coordination-url", &url].map(str::to_owned);
    let arguments = std::iter::once(NAME.to_owned()).chain(call.iter().cloned()).chain(global).map(OsString::from);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    // A stopped `watch` prints the queue once.
    let stop = CancellationToken::new();
    stop.cancel();
    let environment = Environment::default();
    let ran = run(arguments.collect(), &environment, stop, &mut out, &mut err);
    tokio::time::timeout(Duration::from_mins(2), ran).await.unwrap_or_else(|_| panic!("{call:?} does not end"));
    let text = String::from_utf8([out, err].concat()).unwrap().replace("\u{1b}[H\u{1b}[J", "");
    // CI systems ignore spaces before a command.
    let forged: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("::error")).collect();
    assert!(
        forged.is_empty() && !text.contains(['\r', '\u{1b}', '\u{202e}', '\u{2028}']),
        "{call:?} {forged:?}: {text:?}"
    );
    text
}

/// Returns true if a store can contain this.
async fn fits(export: &Value) -> bool {
    let Ok(contents) = serde_json::from_value::<Contents>(export.clone()) else { return false };
    let folder = tempfile::tempdir().unwrap();
    contents.violations().is_empty() && filled(&folder.path().join("trial.sqlite"), &contents).await.is_ok()
}

/// Creates a store with these contents.
async fn filled(path: &Path, contents: &Contents) -> Result<(), StoreError> {
    let store = SqliteStore::open(path, Arc::new(SystemClock::default()), SqliteOptions::default()).await?;
    let filled = store.fill(contents).await;
    store.close().await;
    filled
}

/// Runs every command, for people and as JSON.
async fn print_everything(store: &Path, ids: &BTreeSet<String>, export: &Path) -> String {
    let text = |value: &str| vec![value.to_owned()];
    let ids: Vec<String> = ids.iter().cloned().collect();
    let given = BTreeMap::from([
        ("id", ids.clone()),
        ("ids", ids),
        ("reason", text("a test")),
        ("file", vec![export.display().to_string()]),
        ("shell", text("bash")),
        ("kind", text("postgres")),
        ("identifiers", text("default/node-1")),
        ("key", text("node-1")),
        ("server", text("node1")),
    ]);
    let mut all = String::new();
    for call in every_command(&Cli::command(), &[], &given) {
        all.push_str(&printed(store, &call).await);
        let text = printed(store, &[call, vec!["--json".to_owned()]].concat()).await;
        for document in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
            assert!(!text.starts_with('{') || document.is_ok(), "{document:?}: {text}");
        }
    }
    all
}

#[tokio::test]
async fn no_text_of_a_store_forges_a_line_of_any_command() {
    let folder = tempfile::tempdir().unwrap();
    let export = folder.path().join("export.json");
    let golden: Value = serde_json::from_str(EXPORT).unwrap();
    let (mut targets, mut ids) = (BTreeSet::new(), BTreeSet::new());
    paths(&golden, "", &mut targets);
    let (mut hostile, mut accepted) = (golden, 0);
    for target in &targets {
        let more = injected(hostile.clone(), "", target);
        if fits(&more).await {
            (hostile, accepted) = (more, accepted + 1);
        } else {
            std::fs::write(&export, more.to_string()).unwrap();
            let call = ["store", "import", &export.display().to_string()].map(str::to_owned);
            printed(&folder.path().join("refused.sqlite"), &call).await;
        }
    }
    assert!(accepted > 60, "only {accepted} of {} texts can be hostile", targets.len());

    let contents: Contents = serde_json::from_value(hostile).unwrap();
    let active = contents.locks.iter().flat_map(|lock| lock.active.iter().map(|record| record.id.to_string()));
    ids.extend(active.chain(contents.history.iter().map(|record| record.id.to_string())));
    let path = folder.path().join("hostile.sqlite");
    filled(&path, &contents).await.unwrap();
    let all = print_everything(&path, &ids, &export).await;
    assert!(all.contains("\\n::error title=x::y\\r\\u{1b}[31m\\u{202e}\\u{2028}::error"), "{all}");
}

#[tokio::test]
async fn an_argument_adds_no_line_to_an_error() {
    let forged = "x\n::error ::forged\u{1b}[2J";
    let given = [
        vec![forged],
        vec!["check", "--x\n::error ::forged\u{1b}[2J"],
        vec!["store", forged],
        vec!["store", "roles", forged],
        vec!["release", "a/b", "--force", "--generation", forged],
        vec!["approve", "a/b", "--expires", forged],
    ];
    for arguments in given {
        let all = std::iter::once(NAME).chain(arguments.iter().copied()).map(OsString::from).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let exit = run(all, &Environment::default(), CancellationToken::new(), &mut out, &mut err).await;
        let said = String::from_utf8(err).unwrap();
        assert_eq!(exit, Exit::Usage, "{said}");
        assert!(said.contains("forged") && !said.contains('\u{1b}'), "{said:?}");
        assert!(!said.lines().any(|line| line.starts_with("::")), "{said}");
    }
}
