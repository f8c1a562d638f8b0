//! Compares the security promises of the documentation with the table `promises.tsv`.
//!
//! The table's columns are a document, one of its sentences, and the tests that prove it. The mark
//! `-` instead of tests means that the sentence promises nothing. The table needs every sentence of
//! SECURITY.md, every denial in the roles, and the guides' denials about accounts and roles.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use regex::Regex;

const TABLE: &str = include_str!("promises.tsv");

/// Pages that list messages and their causes.
const DESCRIPTIONS: [&str; 2] = ["messages.md", "when-something-is-stuck.md"];

/// A document and one of its sentences.
type Promise = (String, String);

/// Selects the sentences that need a line in the table.
struct Selection {
    subject: Regex,
    denial: Regex,
}

impl Selection {
    fn new() -> Self {
        let subject = "password|credential|token|secret|certificate|account|audit|runner|approver|reviewer|role|\
                       exec plugin|redirect";
        let phrases = "authorit(y|ies)|plain text|never (shown|stored|logged|sent)|sends nothing|objects";
        let denial = "never|cannot|refuse[sd]?|reject(s|ed)?|only|not|no|none|nothing|neither";
        let words = |text: &str| Regex::new(&format!(r"(?i)\b({text})\b")).unwrap();
        Self { subject: words(&format!("({subject})s?|{phrases}")), denial: words(denial) }
    }

    fn needs_a_test(&self, document: &str, sentence: &str) -> bool {
        let is_about = document.starts_with("roles/") || self.subject.is_match(sentence);
        document == "SECURITY.md" || is_about && self.denial.is_match(sentence)
    }
}

/// Returns a role file's comments and its policy's messages as Markdown text.
fn comments(text: &str) -> String {
    let lines = text.lines().map(str::trim_start).map(|line| match line.strip_prefix("- message: ") {
        Some(message) => format!("\n{message}."),
        None if line == "---" => String::new(),
        None => line.strip_prefix('#').or(line.strip_prefix("--")).unwrap_or_default().to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns a Markdown text's sentences without code. A table's cells are separate sentences after
/// the row's first cell and the column's name.
fn sentences(text: &str) -> Vec<String> {
    let (mut found, mut paragraph, mut head) = (Vec::new(), String::new(), Vec::new());
    let mut is_code = false;
    let text = text.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---\n")).map_or(text, |(_, rest)| rest);
    // The last, empty line ends the last paragraph.
    for line in text.lines().map(str::trim).chain([""]) {
        is_code ^= line.starts_with("```");
        let (item, is_item) = list_item(line);
        let is_text = !is_code && !line.starts_with(['|', '#']) && !line.starts_with("```") && !line.is_empty();
        if is_item || !is_text {
            found.extend(split(&std::mem::take(&mut paragraph), &[". ", "? ", "! "]));
        }
        if is_text {
            paragraph.extend([if paragraph.is_empty() { "" } else { " " }, item]);
        }
        if !line.starts_with('|') || is_code {
            head.clear();
        } else if head.is_empty() {
            head = cells(line);
        } else if !line.starts_with("|-") {
            found.extend(row(&head, &cells(line)));
        }
    }
    found
}

/// Returns a line without its list marker, and true if it had one.
fn list_item(line: &str) -> (&str, bool) {
    let numbered = line.split_once(". ").filter(|(number, _)| number.parse::<u8>().is_ok());
    let item = line.strip_prefix("- ").or(numbered.map(|(_, rest)| rest));
    (item.unwrap_or(line), item.is_some())
}

/// Returns a table line's cells. `\|` is part of a cell.
fn cells(line: &str) -> Vec<String> {
    let line = line.replace("\\|", "\u{0}");
    line.trim_matches('|').split('|').map(|cell| cell.trim().replace('\u{0}', "\\|")).collect()
}

fn row(head: &[String], cells: &[String]) -> Vec<String> {
    let facts = head.iter().zip(cells).skip(1);
    let facts = facts.flat_map(|(column, cell)| split(cell, &["; ", ". "]).into_iter().map(move |it| (column, it)));
    let facts = facts.filter(|(_, fact)| !matches!(fact.as_str(), "-" | "–"));
    facts.map(|(column, fact)| format!("{} | {column} | {fact}", cells[0])).collect()
}

/// Splits a text at these ends. A semicolon is dropped, other ends stay.
fn split(text: &str, ends: &[&str]) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(end) = ends.iter().filter_map(|end| rest.find(end)).min() {
        let kept = if rest[end..].starts_with(';') { end } else { end + 1 };
        found.push(rest[..kept].to_owned());
        rest = &rest[end + 2..];
    }
    found.push(rest.to_owned());
    found.retain(|sentence| !sentence.is_empty());
    found
}

/// Returns the documents below a project's root, with their text.
fn documents(root: &Path) -> BTreeMap<String, String> {
    let mut names = vec!["SECURITY.md".to_owned(), "docs/index.md".to_owned()];
    for folder in ["docs/guides", "roles"] {
        let files =
            fs::read_dir(root.join(folder)).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        names
            .extend(files.filter(|name| !DESCRIPTIONS.contains(&name.as_str())).map(|name| format!("{folder}/{name}")));
    }
    let text = |name: &String| {
        let text = fs::read_to_string(root.join(name)).unwrap();
        if name.starts_with("roles/") { comments(&text) } else { text }
    };
    names.iter().map(|name| (name.clone(), text(name))).collect()
}

/// Returns why a listed test, `file::function`, does not run.
fn missing(root: &Path, test: &str) -> Option<String> {
    let (file, function) = test.split_once("::").unwrap_or((test, ""));
    let source = fs::read_to_string(root.join(file)).unwrap_or_default();
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| {
        let name = line.trim_start_matches("async ").strip_prefix("fn ");
        name.and_then(|name| name.strip_prefix(function)).is_some_and(|rest| rest.starts_with('('))
    });
    let Some(at) = at else { return Some(format!("{test} does not exist")) };
    let before = lines[..at].iter().rev();
    let attributes: Vec<_> = before.take_while(|line| line.starts_with("#[") || line.starts_with("for_")).collect();
    if attributes.iter().any(|line| line.starts_with("#[ignore")) {
        return Some(format!("{test} is ignored"));
    }
    let kinds = ["#[test]", "#[tokio::test", "for_each_host!", "for_one_host!"];
    let is_test = attributes.iter().any(|line| kinds.iter().any(|kind| line.starts_with(kind)));
    (!is_test).then(|| format!("{test} is not a test"))
}

/// Returns the differences between a table and the documents, and the missing tests.
fn problems(root: &Path, table: &str, documents: &BTreeMap<String, String>) -> Vec<String> {
    let (selection, mut needed) = (Selection::new(), BTreeSet::<Promise>::new());
    for (document, text) in documents {
        let all = sentences(text).into_iter().filter(|sentence| selection.needs_a_test(document, sentence));
        needed.extend(all.map(|sentence| (document.clone(), sentence)));
    }
    let (mut found, mut listed) = (Vec::new(), BTreeSet::new());
    for line in table.lines() {
        let [document, sentence, tests] = line.split('\t').collect::<Vec<_>>()[..] else {
            found.push(format!("not three columns: {line}"));
            continue;
        };
        let tests: Vec<&str> = tests.split(' ').filter(|test| *test != "-").collect();
        found.extend(tests.iter().filter_map(|test| missing(root, test)));
        if !listed.insert((document.to_owned(), sentence.to_owned())) {
            found.push(format!("listed twice: {line}"));
        }
    }
    let differences = |some: &BTreeSet<Promise>, others: &BTreeSet<Promise>, what: &str| {
        some.difference(others)
            .map(|(document, sentence)| format!("{what}\t{document}\t{sentence}"))
            .collect::<Vec<_>>()
    };
    found.extend(differences(&needed, &listed, "add a test to promises.tsv"));
    found.extend(differences(&listed, &needed, "remove from promises.tsv"));
    found
}

#[test]
fn every_promise_of_the_documentation_has_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = problems(root, TABLE, &documents(root));
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    let proven = TABLE.lines().filter(|line| !line.ends_with("\t-")).count();
    assert!(proven > 80, "{proven} promises have a test");
}

#[test]
fn sentences_are_found_in_paragraphs_lists_and_tables() {
    let text = "---\ntitle: x\n---\n# Head\n\nOne fact\nof two. Another.\n- An `a.b` item.\n1. First.\n```\ncode. No.\n```\n\
                | role | can |\n|---|---|\n| x | read; write \\| run |\n| y | - |\n";
    let wanted =
        ["One fact of two.", "Another.", "An `a.b` item.", "First.", "x | can | read", "x | can | write \\| run"];
    assert_eq!(sentences(text), wanted);
    let role = "# It cannot\n# write.\nkind: Role\n-- It reads.\n---\n  - message: it is\n  - message: it has\n";
    assert_eq!(sentences(&comments(role)), ["It cannot write.", "It reads.", "it is.", "it has."]);
}

#[test]
fn a_promise_without_a_test_is_found() {
    let root = tempfile::tempdir().unwrap();
    let tests = "#[test]\nfn holds() {}\n\nfn helper() {}\n\n#[test]\n#[ignore = \"slow\"]\nfn ignored() {}\n";
    fs::write(root.path().join("tests.rs"), tests).unwrap();
    let documents = |text: &str| -> BTreeMap<String, String> {
        let all = [("SECURITY.md", text), ("docs/index.md", "It is fast. It never sends a password.\n")];
        all.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
    };
    let table = |test: &str| {
        format!("SECURITY.md\tIt is safe.\t{test}\ndocs/index.md\tIt never sends a password.\ttests.rs::holds\n")
    };
    for (table, text, problem) in [
        (table("tests.rs::holds"), "It is safe.", ""),
        (table("-"), "It is safe.", ""),
        (table("tests.rs::hold"), "It is safe.", "tests.rs::hold does not exist"),
        (table("tests.rs::helper"), "It is safe.", "tests.rs::helper is not a test"),
        (table("tests.rs::ignored"), "It is safe.", "tests.rs::ignored is ignored"),
        (table("-"), "It is safe. It is new.", "add a test to promises.tsv\tSECURITY.md\tIt is new."),
        (table("-") + "SECURITY.md\tIt is safe.\t-\n", "It is safe.", "listed twice: SECURITY.md\tIt is safe.\t-"),
        (table("-") + "SECURITY.md\n", "It is safe.", "not three columns: SECURITY.md"),
        (
            "SECURITY.md\tIt is safe.\t-\n".to_owned(),
            "It is safe.",
            "add a test to promises.tsv\tdocs/index.md\tIt never sends a password.",
        ),
        (
            table("-") + "docs/index.md\tIt was safe.\t-\n",
            "It is safe.",
            "remove from promises.tsv\tdocs/index.md\tIt was safe.",
        ),
    ] {
        let wanted: Vec<&str> = Some(problem).filter(|problem| !problem.is_empty()).into_iter().collect();
        assert_eq!(problems(root.path(), &table, &documents(text)), wanted, "{table}");
    }
}
