//! Checks that the tests and files named in DESIGN.md exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Returns the errors in the table, and the number of tests it names.
pub fn check(root: &Path) -> (Vec<String>, usize) {
    let design = fs::read_to_string(root.join("DESIGN.md")).expect("DESIGN.md is readable");
    let section = design.split("## Promises").nth(1).and_then(|rest| rest.split("\n## ").next());
    let mut sources = Vec::new();
    for folder in ["src", "crates", "tests"] {
        collect(&root.join(folder), &mut sources);
    }
    let functions: BTreeSet<&str> = sources.iter().flat_map(|text| functions(text)).collect();
    let (mut problems, mut named) = (Vec::new(), 0);
    let rows = section.unwrap_or_default().lines().filter(|line| line.starts_with("| ")).skip(1);
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let tests: Vec<&str> = cells.last().unwrap_or(&"").split('`').skip(1).step_by(2).collect();
        if cells.len() != 3 || tests.is_empty() {
            problems.push(format!("no test is named: {row}"));
        }
        named += tests.len();
        let missing = tests.iter().filter(|test| !functions.contains(*test));
        problems.extend(missing.map(|test| format!("test {test} does not exist: {row}")));
    }
    (problems, named)
}

/// Checks the folder sizes in DESIGN.md's table of addition costs. Returns the rows that are off
/// by more than a tenth, and the number of rows with a folder.
pub fn outdated_costs(root: &Path) -> (Vec<String>, usize) {
    let design = fs::read_to_string(root.join("DESIGN.md")).expect("DESIGN.md is readable");
    let section = design.split("## What an addition costs").nth(1).and_then(|rest| rest.split("\n## ").next());
    let (mut outdated, mut named) = (Vec::new(), 0);
    for row in section.unwrap_or_default().lines() {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let folder = cells[0].split('`').skip(1).step_by(2).map(|name| root.join(name)).find(|path| path.is_dir());
        let (Some(folder), Some(said)) = (folder, cells.get(1)) else { continue };
        named += 1;
        let mut sources = Vec::new();
        collect(&folder, &mut sources);
        let now = [sources.len(), sources.iter().map(|text| text.lines().count()).sum()];
        let said = said.split(", ").map(|number| number.trim().replace(',', "").parse::<usize>().unwrap_or_default());
        let close = |(said, now): (usize, usize)| said.abs_diff(now) * 10 <= now;
        if !said.zip(now).all(close) {
            outdated.push(format!("{} files, {} lines: {row}", now[0], now[1]));
        }
    }
    (outdated, named)
}

/// Sources of the module `maintenance`, which is a separate crate.
const RULES: &str = "crates/maintenance-protocol/src";

/// Returns the named files (`folder/file.rs`) that exist neither in a module nor at the root, and
/// the number of named files.
pub fn missing_files(root: &Path) -> (Vec<String>, usize) {
    let design = fs::read_to_string(root.join("DESIGN.md")).expect("DESIGN.md is readable");
    let named: BTreeSet<&str> = design.split('`').skip(1).step_by(2).filter(|it| is_file(it)).collect();
    let is_there = |name: &str| match name.strip_prefix("maintenance/") {
        Some(rule) => root.join(RULES).join(rule).exists(),
        None => root.join("src").join(name).exists() || root.join(name).exists(),
    };
    let missing = named.iter().filter(|name| !is_there(name)).map(|name| (*name).to_owned()).collect();
    (missing, named.len())
}

fn is_file(word: &str) -> bool {
    let is_source = Path::new(word).extension().is_some_and(|extension| extension == "rs");
    is_source && word.contains('/') && !word.contains(char::is_whitespace)
}

fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.split("fn ").skip(1).filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
}

fn collect(folder: &PathBuf, sources: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("the folder is readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(fs::read_to_string(&path).expect("readable"));
        }
    }
}
