//! Checks that the roles in `roles/` contain exactly the permissions that the provider needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use regex::Regex;

use super::{Cell, faults::Fault, is_partial};

/// Returns a file's permissions, as verb and resource.
fn of_role(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("roles").join(file)).unwrap();
    let rule = Regex::new(r"resources: \[([^\]]+)\].*verbs: \[([^\]]+)\]").unwrap();
    let words = |text: &str| text.split(',').map(|word| word.trim().to_owned()).collect::<Vec<_>>();
    let mut rights = BTreeSet::new();
    for found in rule.captures_iter(&text) {
        for kind in words(&found[1]) {
            rights.extend(words(&found[2]).into_iter().map(|verb| format!("{verb} {kind}")));
        }
    }
    assert!(!rights.is_empty(), "{file} does not contain rules");
    rights
}

/// Compares the files with the permissions used by a system's cells. `elsewhere` lists permissions
/// for features outside a plain hold, each with its feature.
pub fn are_what_is_asked(files: &[&str], cells: &BTreeMap<Cell, &'static str>, elsewhere: &[(&str, &str)]) {
    if is_partial() {
        return;
    }
    let role: BTreeSet<String> = files.iter().flat_map(|file| of_role(file)).collect();
    let forbidden = cells.keys().filter(|cell| cell.fault == Fault::Forbidden);
    let asked: BTreeSet<String> = forbidden.filter_map(|cell| cell.right.clone()).collect();
    for (right, part) in elsewhere {
        assert!(!asked.contains(*right), "{right} is listed for {part} only, but a plain maintenance needs it too");
    }
    let elsewhere: BTreeSet<String> = elsewhere.iter().map(|(right, _)| (*right).to_owned()).collect();
    let unused: Vec<_> = role.iter().filter(|right| !asked.contains(*right) && !elsewhere.contains(*right)).collect();
    assert_eq!(unused, [""; 0], "{files:?} grant permissions that no request needs");
    let missing: Vec<_> = asked.iter().filter(|right| !role.contains(*right)).collect();
    assert_eq!(missing, [""; 0], "{files:?} lack permissions that requests need");
}
