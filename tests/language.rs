//! Plain words: patterns that a reader whose first language is not English stumbles over, and how
//! many lines have them. The numbers may only fall; CONTRIBUTING.md says what to write instead.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::{fs, path::Path};

use regex::Regex;

/// A pattern, and how many lines of `src` and `docs` match it at most.
const PATTERNS: [(&str, usize); 10] = [
    (r"\b[Ww]hoever\b|\b[Ww]ho (only|finds|comes|looks|leaves|died|first)\b", 60),
    (r"\b([Ss]ome|[Nn]o|[Aa]ny|[Ee]very)body\b", 269),
    (r"\b(giv(e|es|en|ing)|gave|puts?|putting|tak(e|es|en|ing)|took)( [a-z']+){0,4} back\b", 79),
    (r"\b[Ww]hat (is|was) (asked|seen|there|held|known|said|told|wanted|over|left|so)\b", 77),
    (r"[^e] is no ([a-kn-z]|l[^o]|m[^o]|mom)", 3),
    (r"\b(by the way|all the same|on every way|hangs? on|time is over|anew|afresh|mend(s|ed)?|for ever)\b", 37),
    (r"\b(owner's|somebody's|whose|owner) (word|words|yes)\b|\b(a|the|one) yes\b", 15),
    (r"own (maintenance )?systems?\b", 45),
    (r"//[/!] The same\b", 11),
    (
        r"(struct|enum|trait|type) (About|Asked|Found|Held|Known|Link|Own|Place|Said|Seen|Standing|Talk|Words|Written)\b",
        1,
    ),
];

fn lines_below(folder: &Path, lines: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            lines_below(&path, lines);
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "md") {
            let text = fs::read_to_string(&path).unwrap();
            lines.extend(text.lines().map(|line| format!("{}: {line}", path.display())));
        }
    }
}

#[test]
fn words_that_readers_stumble_over_become_fewer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut lines = Vec::new();
    for folder in ["src", "crates/maintenance-protocol/src", "docs"] {
        lines_below(&root.join(folder), &mut lines);
    }
    let mut more = Vec::new();
    for (pattern, most) in PATTERNS {
        let wanted = Regex::new(pattern).unwrap();
        let found: Vec<&String> = lines.iter().filter(|line| wanted.is_match(line)).collect();
        if found.len() > most {
            more.push(format!("{} of at most {most} lines match {pattern}", found.len()));
        }
    }
    assert!(more.is_empty(), "write it another way (CONTRIBUTING.md, Words):\n{}", more.join("\n"));
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
