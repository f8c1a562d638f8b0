//! Checks relative links, anchors and the page size limit of registries.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::pages::{below, write};

/// Pages outside `docs/`.
const FILES: [&str; 5] = ["README.md", "CONTRIBUTING.md", "DESIGN.md", "SECURITY.md", "CHANGELOG.md"];

/// Registries refuse pages of more than 500 KB.
const LARGEST: usize = 500_000;

/// Returns all errors, as sentences that name the file, and the number of links.
pub fn check(root: &Path) -> (Vec<String>, usize) {
    let texts = FILES.iter().filter_map(|name| Some(((*name).to_owned(), fs::read_to_string(root.join(name)).ok()?)));
    let (mut found, mut count) = (Vec::new(), 0);
    for (page, text) in texts.chain(below(root, "docs", "md")) {
        for link in links(&text) {
            count += 1;
            found.extend(broken(root, &page, &link));
        }
        if page.starts_with("docs/") && text.len() > LARGEST {
            found.push(format!("{page} has {} bytes; registries accept at most {LARGEST}", text.len()));
        }
    }
    (found, count)
}

/// Returns pages without a link on the provider's page. Registries show only their names.
pub fn unlinked(root: &Path) -> Vec<String> {
    let index = fs::read_to_string(root.join("docs/index.md")).unwrap_or_default();
    let linked = links(&index);
    let folders = ["docs/guides", "docs/functions", "docs/ephemeral-resources", "docs/list-resources", "docs/actions"];
    let pages = folders.iter().flat_map(|folder| below(root, folder, "md")).map(|(page, _)| page);
    pages
        .filter(|page| !linked.iter().any(|link| Some(link.as_str()) == page.strip_prefix("docs/")))
        .map(|page| format!("docs/index.md does not link to {page}"))
        .collect()
}

/// Returns the lines outside fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// Returns the link targets without a host.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        let without_code: String = line.split('`').step_by(2).collect();
        let targets = without_code.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(targets.filter(|target| !target.contains("://")).map(str::to_owned));
    }
    found
}

fn broken(root: &Path, page: &str, link: &str) -> Option<String> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let page_file = root.join(page);
    let target = if path.is_empty() { page_file } else { page_file.parent()?.join(path) };
    if !target.exists() {
        return Some(format!("{page} links to {link}, which is not there"));
    }
    let has_anchor = || anchors(&fs::read_to_string(&target).unwrap_or_default()).contains(anchor);
    (!anchor.is_empty() && !has_anchor()).then(|| format!("{page} links to {link}: the heading does not exist"))
}

/// Returns headings as anchors: lower case, no punctuation, `-` for spaces, a number for
/// duplicates.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for line in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase();
        let times = seen.entry(anchor.clone()).or_default();
        anchors.insert(if *times == 0 { anchor } else { format!("{anchor}-{times}") });
        *times += 1;
    }
    anchors
}

#[test]
fn what_leads_nowhere_is_found() {
    let root = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| write(root.path(), file, text);
    write("README.md", "[a](docs/a.md#two-words-1), [b](docs/b.md) and [c](https://example.com/x)\n");
    write(
        "docs/a.md",
        "# A `b`, c\n## Two words\n## Two words\n#!no heading\n[x](#a-b-c) [`y`](../README.md) [z](a.md#none) [w](../src)\n\
         ```\n[in](a-block)\n# In a block\n```\n`[in](code)` [v](#in-a-block)\n",
    );
    write("docs/large.md", &"x".repeat(LARGEST + 1));
    let (found, count) = check(root.path());
    assert_eq!(
        found,
        [
            "README.md links to docs/b.md, which is not there",
            "docs/a.md links to a.md#none: the heading does not exist",
            "docs/a.md links to ../src, which is not there",
            "docs/a.md links to #in-a-block: the heading does not exist",
            "docs/large.md has 500001 bytes; registries accept at most 500000",
        ]
    );
    assert_eq!(count, 7);
    write("docs/guides/one.md", "");
    write("docs/actions/two.md", "");
    write("docs/index.md", "[one](guides/one.md)\n");
    assert_eq!(unlinked(root.path()), ["docs/index.md does not link to docs/actions/two.md"]);
}
