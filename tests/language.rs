//! Plain words: the patterns of `patterns.tsv` find sentences that a reader stumbles over.
//! CONTRIBUTING.md shows how to write instead.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::{collections::BTreeMap, fs, path::Path};

use regex::Regex;

/// The highest number of hits per 100 lines: well-written projects of this field have 3 to 6.
const MOST: usize = 6;
/// The same for messages, which people read at night.
const MOST_IN_MESSAGES: usize = 4;
/// A folder with fewer lines counts with its parent only.
const FEW: usize = 100;

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

/// A file's prose: Markdown outside code and comments, and messages of four words or more.
#[derive(Default)]
struct Prose {
    texts: Vec<String>,
    messages: Vec<String>,
}

fn prose(path: &Path, text: &str, [comment, literal]: &[Regex; 2]) -> Prose {
    let mut found = Prose::default();
    if path.extension().is_some_and(|kind| kind == "md") {
        let mut code = false;
        for line in text.lines() {
            if line.starts_with("```") {
                code = !code;
            } else if !code {
                found.texts.push(line.to_owned());
            }
        }
        return found;
    }
    let mut code = String::new();
    for line in text.lines() {
        let commented = comment.captures(line).filter(|found| {
            // Slashes within a literal, such as a URL's, start no comment.
            line[..found.get(0).unwrap().start()].matches('"').count() % 2 == 0
        });
        match commented {
            Some(commented) => {
                found.texts.push(commented[1].to_owned());
                code.push_str(&line[..commented.get(0).unwrap().start()]);
            }
            None => code.push_str(line),
        }
        code.push('\n');
    }
    for literal in literal.captures_iter(&code) {
        let text = literal.get(1).or_else(|| literal.get(2)).map_or("", |text| text.as_str());
        let lines = text.lines().map(|line| line.trim().trim_end_matches('\\').to_owned());
        found.messages.extend(lines.filter(|text| text.split_whitespace().count() >= 4));
    }
    found
}

/// The expressions of a comment and of a literal, which can continue on the next line.
fn expressions() -> [Regex; 2] {
    let literal = r##"(?s)r#"(.*?)"#|'\\?"'|"((?:[^"\\]|\\.)*)""##;
    [r"(?:^|\s)//[/!]? (.*)", literal].map(|expression| Regex::new(expression).unwrap())
}

/// Lines, and hits by pattern.
#[derive(Default)]
struct Count {
    lines: usize,
    hits: BTreeMap<&'static str, usize>,
}

impl Count {
    fn of(texts: &[String], patterns: &[Pattern]) -> Self {
        let hits = |pattern: &Pattern| texts.iter().map(|text| pattern.hits(text)).sum();
        Self { lines: texts.len(), hits: patterns.iter().map(|pattern| (pattern.name, hits(pattern))).collect() }
    }

    fn add(&mut self, other: &Self) {
        self.lines += other.lines;
        for (name, hits) in &other.hits {
            *self.hits.entry(name).or_default() += hits;
        }
    }

    /// Returns the problem if there are more than `most` hits per 100 lines.
    fn judge(&self, name: &str, most: usize) -> Option<String> {
        let all: usize = self.hits.values().sum();
        let found = self.hits.iter().filter(|(_, hits)| **hits > 0).collect::<Vec<_>>();
        (all * 100 > self.lines * most).then(|| format!("{name}: {all} hits in {} lines {found:?}", self.lines))
    }
}

#[test]
fn each_folder_and_all_messages_have_few_hits() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (patterns, expressions) = (Pattern::all(), expressions());
    let (mut folders, mut messages) = (BTreeMap::<String, Count>::new(), Count::default());
    files(root, &mut |path| {
        let is_prose = path.extension().is_some_and(|kind| kind == "rs" || kind == "md");
        let Some(text) = is_prose.then(|| fs::read_to_string(path).ok()).flatten() else { return };
        let found = prose(path, &text, &expressions);
        let (texts, said) = (Count::of(&found.texts, &patterns), Count::of(&found.messages, &patterns));
        for folder in path.strip_prefix(root).unwrap().ancestors().skip(1) {
            let count = folders.entry(folder.display().to_string()).or_default();
            count.add(&texts);
            count.add(&said);
        }
        messages.add(&said);
    });
    assert!(folders[""].lines > 20_000 && messages.lines > 5_000, "the texts were read");
    let judged = folders.iter().filter(|(_, count)| count.lines >= FEW);
    let mut problems: Vec<String> = judged.filter_map(|(name, count)| count.judge(name, MOST)).collect();
    problems.extend(messages.judge("messages", MOST_IN_MESSAGES));
    println!("all: {:?}; messages: {:?}", folders[""].judge("", 0), messages.judge("", 0));
    assert!(problems.is_empty(), "more hits than allowed (CONTRIBUTING.md, Words): {problems:#?}");
}

#[test]
fn prose_contains_literals_of_several_lines_and_no_code() {
    let text =
        "let url = \"http://a b c d\"; // It ends.\nlet text = \"one two three four \\\n   five six seven eight\";\n";
    let found = prose(Path::new("a.rs"), text, &expressions());
    assert_eq!(found.texts, ["It ends."]);
    assert_eq!(found.messages, ["http://a b c d", "one two three four ", "five six seven eight"]);
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
