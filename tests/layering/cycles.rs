//! Finds files that depend on each other in a cycle.

use std::collections::{BTreeMap, BTreeSet};

use crate::{check::Source, paths};

/// Returns the cycles among the sources below a folder, each as a sorted list of files.
///
/// The `data` folder below it is exempt, because records refer to each other.
pub fn circles(sources: &[Source], folder: &str, data: &str) -> Vec<Vec<String>> {
    let rules = || sources.iter().filter(|source| source.file.starts_with(folder) && !source.file.starts_with(data));
    let modules: BTreeMap<Vec<String>, &str> = rules().map(|source| (source.module(), source.file.as_str())).collect();
    let mut knows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in rules() {
        let content = paths::read(&source.text, &source.module()).expect("sources are Rust");
        let named = content.named.iter().filter_map(|named| {
            let path = named.segments.strip_prefix(&["crate".to_owned()])?;
            // A path belongs to its longest module prefix's file; paths to the root are ignored.
            (2..=path.len()).rev().find_map(|length| modules.get(&path[..length]).copied())
        });
        knows.insert(&source.file, named.filter(|file| *file != source.file).collect());
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> = knows.keys().map(|file| (*file, reached(file, &knows))).collect();
    let circle = |file: &&str| -> BTreeSet<String> {
        reach[file].iter().filter(|other| reach[*other].contains(file)).map(|other| (*other).to_owned()).collect()
    };
    let circles: BTreeSet<BTreeSet<String>> = knows.keys().map(circle).filter(|circle| !circle.is_empty()).collect();
    circles.into_iter().map(|circle| circle.into_iter().collect()).collect()
}

/// Returns every file that this file depends on, directly or indirectly.
fn reached<'a>(file: &str, knows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = knows[file].iter().copied().collect();
    while let Some(other) = next.pop() {
        if found.insert(other) {
            next.extend(&knows[other]);
        }
    }
    found
}
