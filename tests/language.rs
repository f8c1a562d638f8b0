//! Plain words: the patterns of `patterns.tsv` find sentences that a reader stumbles over. Their
//! number can only fall; CONTRIBUTING.md shows how to write instead.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::{fs, path::Path};

use regex::Regex;

/// How many hits the texts have at most. Lower it when you rewrite a text.
const MOST: usize = 1470;

/// Names of a pattern, its expression, and what to write instead.
const PATTERNS: &str = include_str!("patterns.tsv");

/// Folders that are not the project's own texts.
const SKIPPED: [&str; 3] = ["target", ".tools", ".git"];

/// A pattern, and the text that must not follow a hit.
struct Pattern {
    name: &'static str,
    hit: Regex,
    not_before: Option<Regex>,
}

impl Pattern {
    fn all() -> Vec<Self> {
        let lines = PATTERNS.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        lines.map(|line| Self::read(line.split('\t').collect::<Vec<_>>()[..2].try_into().unwrap())).collect()
    }

    /// The expressions are shared with other tools, which support a look ahead at their end.
    fn read([name, expression]: [&'static str; 2]) -> Self {
        let (hit, ahead) = expression
            .split_once("(?!")
            .map_or((expression, None), |(hit, ahead)| (hit, Some(Regex::new(&format!("^(?:{ahead}")).unwrap())));
        Self { name, hit: Regex::new(hit).unwrap(), not_before: ahead }
    }

    fn hits(&self, text: &str) -> usize {
        let follows = |end: usize| self.not_before.as_ref().is_some_and(|ahead| ahead.is_match(&text[end..]));
        self.hit.find_iter(text).filter(|found| !follows(found.end())).count()
    }
}

/// Returns a file's prose: Markdown outside code, comments, and texts of four words or more.
fn prose(path: &Path, text: &str, comment: &Regex, literal: &Regex) -> Vec<String> {
    let mut found = Vec::new();
    if path.extension().is_some_and(|kind| kind == "md") {
        let mut code = false;
        for line in text.lines() {
            if line.starts_with("```") {
                code = !code;
            } else if !code {
                found.push(line.to_owned());
            }
        }
        return found;
    }
    for line in text.lines() {
        if let Some(comment) = comment.captures(line) {
            found.push(comment[1].to_owned());
        } else {
            let texts = literal.captures_iter(line).map(|text| text[1].to_owned());
            found.extend(texts.filter(|text| text.split_whitespace().count() >= 4));
        }
    }
    found
}

#[test]
fn hits_of_the_patterns_become_fewer() {
    let (comment, literal) =
        (Regex::new(r"(?:^|\s)//[/!]? (.*)").unwrap(), Regex::new(r#""((?:[^"\\]|\\.)*)""#).unwrap());
    let mut texts = Vec::new();
    files(Path::new(env!("CARGO_MANIFEST_DIR")), &mut |path| {
        if let Ok(text) = fs::read_to_string(path)
            && path.extension().is_some_and(|kind| kind == "rs" || kind == "md")
        {
            texts.extend(prose(path, &text, &comment, &literal));
        }
    });
    assert!(texts.len() > 20_000, "the texts were read: {}", texts.len());
    let each =
        Pattern::all().iter().map(|one| (one.name, texts.iter().map(|text| one.hits(text)).sum())).collect::<Vec<_>>();
    let all: usize = each.iter().map(|(_, hits)| hits).sum();
    assert!(all <= MOST, "{all} of at most {MOST} hits in {} lines (CONTRIBUTING.md, Words): {each:?}", texts.len());
}

/// Calls `read` with each file of the project.
fn files(folder: &Path, read: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let skipped = path.file_name().is_some_and(|name| SKIPPED.iter().any(|skipped| name == *skipped));
        if path.is_dir() && !skipped {
            files(&path, read);
        } else if path.is_file() {
            read(&path);
        }
    }
}

/// Before the first release no other version of this program exists, so nothing can serve it.
/// Messages can reject a newer format.
#[test]
fn nothing_mentions_another_version_before_the_first_release() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let changelog = fs::read_to_string(root.join("CHANGELOG.md")).unwrap();
    if Regex::new(r"(?m)^## \S+ \(.*\d{4}.*\)$").unwrap().is_match(&changelog) {
        return;
    }
    // `v0.1.0` and `_0.1.0_` are versions of other programs and names of archives.
    let words = r#"(?i)\b(?:earlier|older|previous|former) (?:provider )?(?:version|release|format|program)s?\b|(?:^|[^v._0-9"`{-])0\.1\.0\b"#;
    let words = Regex::new(words).unwrap();
    let mut found = Vec::new();
    files(root, &mut |path| {
        let shown = path.strip_prefix(root).unwrap().display().to_string();
        let is_text =
            path.extension().is_some_and(|kind| ["rs", "md", "sql", "yaml", "sh"].iter().any(|it| kind == *it));
        if !is_text || shown == "tests/language.rs" {
            return;
        }
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().filter(|line| words.is_match(line) && *line != "## 0.1.0 (unreleased)");
        found.extend(lines.map(|line| format!("{shown}: {line}")));
    });
    assert!(found.is_empty(), "{found:#?}");
}

fn lines_below(folder: &Path, lines: &mut Vec<String>) {
    files(folder, &mut |path| {
        if path.extension().is_some_and(|kind| kind == "rs") {
            let text = fs::read_to_string(path).unwrap();
            lines.extend(text.lines().map(|line| format!("{}: {line}", path.display())));
        }
    });
}

/// Comments are read side by side with code and in reviews. Rows of a table cannot be broken.
#[test]
fn comments_are_at_most_100_columns_wide() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut lines = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "tools/protoc/src"] {
        lines_below(&root.join(folder), &mut lines);
    }
    let comment = Regex::new(r"\.rs: \s*//[/!]? *[^ |/!]").unwrap();
    let width = |line: &str| line.split_once(".rs: ").map_or(0, |(_, text)| text.chars().count());
    let wide: Vec<&String> = lines.iter().filter(|line| comment.is_match(line) && width(line) > 100).collect();
    assert!(lines.len() > 50_000, "the folders were read");
    assert!(wide.is_empty(), "{} comment lines are wider than 100 columns: {wide:#?}", wide.len());
}

/// A plan that accepts such a request states so in a warning with its own summary, or fails.
#[test]
fn no_line_of_a_plan_hides_a_rejection() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("src"), root.join("crates/maintenance-protocol/src")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let hidden = code.filter(|line| line.contains("would be refused") || line.contains("needs is missing"));
            found.extend(hidden.map(|line| format!("{}: {}", path.display(), line.trim())));
        }
    }
    assert!(found.is_empty(), "Use Outlook::rejection or an error:\n{}", found.join("\n"));
}
