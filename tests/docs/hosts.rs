//! Checks that all host versions stated for a feature agree with the table in
//! `docs/guides/hosts.md`.
//!
//! `Terraform 1.8` is the first version with a feature; `Terraform 1.15.5`, with three numbers, is
//! a tested version.

use std::{collections::BTreeSet, fs, path::Path};

use regex::Regex;
use tempfile::TempDir;

use crate::pages::{below, write};

const TABLE: &str = "docs/guides/hosts.md";

const HOSTS: [&str; 2] = ["Terraform", "OpenTofu"];

/// Start of each table row, and the words that mark a text or its path as related.
const WORDS: [(&str, &[&str]); 10] = [
    ("resources,", &["protocol 6"]),
    ("functions", &["function"]),
    ("resource identity", &["identity", "identities"]),
    ("list resources", &["terraform query", "list-resources/"]),
    ("write-only", &["write-only", "ignition_wo"]),
    ("`moved`", &["moved"]),
    ("`ephemeral", &["server_lock"]),
    ("ephemeral variables", &["ephemeral"]),
    ("`action", &["action"]),
    ("deferral", &["deferral"]),
];

/// A table row: its first cell, and one cell for each of `HOSTS`.
struct Feature {
    name: String,
    since: [String; 2],
}

/// A host version stated in a text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Statement {
    host: usize,
    version: String,
}

/// The table and the statement pattern.
struct Truth {
    text: String,
    features: Vec<Feature>,
    statement: Regex,
}

/// Returns all contradictions to the table, as sentences that name the file.
pub fn check(root: &Path) -> Vec<String> {
    let text = fs::read_to_string(root.join(TABLE)).unwrap_or_default();
    let statement = r"\b(Terraform|OpenTofu)(?: (?:and|or) (Terraform|OpenTofu))? (\d+\.\d+)(\.\d+)?";
    let truth = Truth { features: rows(&text), text, statement: Regex::new(statement).unwrap() };
    let mut found = truth.words_and_rows();
    for name in ["README.md", "CHANGELOG.md"] {
        let text = fs::read_to_string(root.join(name)).unwrap_or_default();
        truth.statements(name, &text, &mut found);
        if name == "README.md" {
            found.extend(truth.missing_rows(&text));
        }
    }
    for (folder, ending) in [("docs", "md"), ("examples", "tf"), ("src", "rs")] {
        for (name, text) in below(root, folder, ending) {
            let said = truth.statements(&name, &text, &mut found);
            found.extend(truth.unsaid(&name, &text, &said));
        }
    }
    found.extend(truth.pins(root));
    found
}

fn rows(table: &str) -> Vec<Feature> {
    let lines = table.lines().skip_while(|line| !line.starts_with("| feature |")).skip(2);
    let cells = lines.take_while(|line| line.starts_with('|')).map(|line| line.split('|').map(str::trim));
    cells
        .filter_map(|mut cells| {
            let (name, terraform, opentofu) = (cells.nth(1)?, cells.next()?, cells.next()?);
            Some(Feature { name: name.to_owned(), since: [terraform.to_owned(), opentofu.to_owned()] })
        })
        .collect()
}

impl Truth {
    fn row(&self, start: &str) -> Option<&Feature> {
        self.features.iter().find(|feature| feature.name.starts_with(start))
    }

    fn words_and_rows(&self) -> Vec<String> {
        let without_words = self.features.iter().filter(|feature| feature.words().is_empty());
        let without_words = without_words.map(|it| format!("tests/docs/hosts.rs lacks words for the row {}", it.name));
        let without_row = WORDS.iter().filter(|(start, _)| self.row(start).is_none());
        let without_row = without_row.map(|(start, _)| format!("{TABLE} lacks a row that begins with {start}"));
        without_words.chain(without_row).collect()
    }

    /// Returns a text's statements. Contradictions are added to `found`.
    fn statements(&self, name: &str, text: &str, found: &mut Vec<String>) -> BTreeSet<Statement> {
        let mut said = BTreeSet::new();
        for block in blocks(text) {
            for of in self.statement.captures_iter(&block) {
                let version = &of[3];
                let named = [of.get(1), of.get(2)].into_iter().flatten();
                for host in named.filter_map(|word| HOSTS.iter().position(|host| *host == word.as_str())) {
                    if let Some(patch) = of.get(4) {
                        let tried = format!("{} {version}{}", HOSTS[host], patch.as_str());
                        if !self.text.contains(&tried) {
                            found.push(format!("{name} names {tried}, which was not tested ({TABLE})"));
                        }
                    } else {
                        found.extend(self.contradiction(name, &block, host, version));
                        said.insert(Statement { host, version: version.to_owned() });
                    }
                }
            }
        }
        said
    }

    fn contradiction(&self, name: &str, block: &str, host: usize, version: &str) -> Option<String> {
        let about = format!("{name} {block}").to_lowercase();
        let is_meant = |feature: &&Feature| feature.words().iter().any(|word| about.contains(word));
        let meant: Vec<&Feature> = self.features.iter().filter(is_meant).collect();
        if meant.iter().any(|feature| feature.since[host] == version) {
            return None;
        }
        let rows: Vec<String> = meant.iter().map(|it| format!("{}: {}", it.name, it.since[host])).collect();
        Some(format!("{name} states {} {version}, but {TABLE} {rows:?}: {block}", HOSTS[host]))
    }

    /// Returns the versions that a page must state but lacks.
    fn unsaid(&self, name: &str, text: &str, said: &BTreeSet<Statement>) -> Vec<String> {
        if !name.starts_with("docs/") {
            return Vec::new();
        }
        let needed = [
            (name.starts_with("docs/functions/"), "functions"),
            (name.starts_with("docs/list-resources/"), "list resources"),
            (name.starts_with("docs/ephemeral-resources/"), "`ephemeral"),
            (name.starts_with("docs/actions/"), "`action"),
            (name == "docs/index.md" && text.contains("ephemeral = true"), "ephemeral variables"),
            (text.contains("  identity = {"), "resource identity"),
            (text.contains("sensitive, write-only)"), "write-only"),
            (text.contains("\nmoved {"), "`moved`"),
        ];
        let mut found = Vec::new();
        for feature in needed.iter().filter(|(needs, _)| *needs).filter_map(|(_, start)| self.row(start)) {
            for (host, version) in feature.since.iter().enumerate() {
                let is_version = version.starts_with(|c: char| c.is_ascii_digit());
                if is_version && !said.contains(&Statement { host, version: version.clone() }) {
                    found.push(format!("{name} does not mention {} {version} ({})", HOSTS[host], feature.name));
                }
            }
        }
        found
    }

    /// Returns rows whose first three cells are missing in README.
    fn missing_rows(&self, readme: &str) -> Vec<String> {
        let rows = self.features.iter().map(|it| format!("| {} | {} |", it.name, it.since.join(" | ")));
        rows.filter(|row| !readme.contains(row)).map(|row| format!("README.md lacks the row {row}")).collect()
    }

    /// Returns hosts of the test suite that the guide lacks.
    fn pins(&self, root: &Path) -> Vec<String> {
        let file = "tests/acceptance/hosts.rs";
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        let mut found = Vec::new();
        for host in HOSTS {
            let pin = text.split_once(&format!("Host::{host} => \"")).and_then(|(_, rest)| rest.split('"').next());
            match pin {
                None => found.push(format!("{file} does not define the {host} version of the test suite")),
                Some(version) if !self.text.contains(&format!("| {host} {version} |")) => {
                    found.push(format!("{TABLE} does not list the tests with {host} {version}"));
                }
                Some(_) => {}
            }
        }
        found
    }
}

impl Feature {
    fn words(&self) -> &'static [&'static str] {
        WORDS.iter().find(|(start, _)| self.name.starts_with(start)).map_or(&[], |(_, words)| *words)
    }
}

/// Splits a text into paragraphs, list items, table rows and headings, each on one line.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for line in text.lines().map(str::trim) {
        if line.is_empty() || ["- ", "* ", "|", "#", "```"].iter().any(|start| line.starts_with(start)) {
            blocks.push(String::new());
        }
        if let Some(last) = blocks.last_mut() {
            last.push_str(line);
            last.push(' ');
        }
    }
    blocks
}

/// Returns a consistent checkout.
fn checkout() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let rows: String = WORDS
        .iter()
        .map(|(start, _)| match *start {
            "`moved`" => "| `moved` from others | 1.8 | 1.10 | use `state rm` |\n".to_owned(),
            "`action" => "| `action` | 1.14 | no | |\n".to_owned(),
            start => format!("| {start} | 1.2 | 1.3 | |\n"),
        })
        .collect();
    let tried = "| host | tried |\n|---|---|\n| Terraform 1.15.5 | all |\n| OpenTofu 1.6.2 | all |\n";
    let moved = "A `moved` block (Terraform 1.8 or\nOpenTofu 1.10, tried with OpenTofu 1.6.2):\n\nmoved {\n}\n";
    let pins = "Host::OpenTofu => \"1.6.2\",\nHost::Terraform => \"1.15.5\",\n";
    for (file, text) in [
        (TABLE, format!("| feature | Terraform | OpenTofu | without |\n|---|---|---|---|\n{rows}\n{tried}")),
        ("README.md", rows),
        ("docs/guides/from.md", moved.to_owned()),
        ("docs/actions/a.md", "Needs Terraform 1.14 or newer.\n".to_owned()),
        ("docs/resources/a.md", "Identity: Terraform 1.2.\n".to_owned()),
        ("tests/acceptance/hosts.rs", pins.to_owned()),
    ] {
        write(root.path(), file, &text);
    }
    root
}

#[track_caller]
fn finds(file: &str, from: &str, to: &str, expected: &[&str]) {
    let root = checkout();
    let path = root.path().join(file);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replace(from, to)).unwrap();
    let found = check(root.path());
    let fits = found.len() == expected.len() && found.iter().zip(expected).all(|(one, start)| one.starts_with(start));
    assert!(fits, "{found:#?}");
}

#[test]
fn versions_that_agree_are_no_problem() {
    finds("README.md", "1.8", "1.8", &[]);
}

#[test]
fn each_contradiction_is_found() {
    let page = "docs/guides/from.md";
    let other = "docs/guides/from.md states Terraform 1.9, but docs/guides/hosts.md [\"`moved` from others: 1.8\"]";
    finds(page, "Terraform 1.8", "Terraform 1.9", &[other, "docs/guides/from.md does not mention Terraform 1.8"]);
    finds(page, "OpenTofu 1.10, ", "", &["docs/guides/from.md does not mention OpenTofu 1.10"]);
    finds(page, "1.6.2", "1.6.3", &["docs/guides/from.md names OpenTofu 1.6.3, which was not tested"]);
    finds("docs/actions/a.md", "newer", "OpenTofu 1.14", &["docs/actions/a.md states OpenTofu 1.14"]);
    finds("docs/resources/a.md", "Identity", "Thing", &["docs/resources/a.md states Terraform 1.2"]);
    finds("docs/resources/a.md", "Terraform", "Terraform and OpenTofu", &["docs/resources/a.md states OpenTofu 1.2"]);
    finds("README.md", "1.10", "1.11", &["README.md lacks the row | `moved` from others | 1.8 | 1.10 |"]);
    finds("tests/acceptance/hosts.rs", "1.15.5", "1.15.9", &["docs/guides/hosts.md does not list the tests"]);
    finds(
        TABLE,
        "| functions |",
        "| calls |",
        &[
            "tests/docs/hosts.rs lacks words for the row calls",
            "docs/guides/hosts.md lacks a row that begins with functions",
            "README.md lacks the row | calls |",
        ],
    );
}
