//! Shared helpers for simulated BMCs: the recorded personalities, and rules for every client.

use std::{fs, path::Path};

use bmc_simulator::{Event, EventKind, JournalEntry, Personality, ResetType};

/// Returns all recorded BMC types by name (`crates/bmc-simulator/personalities`).
pub fn personalities() -> Vec<Personality> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/bmc-simulator/personalities");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: &std::path::PathBuf| {
        serde_json::from_str(&fs::read_to_string(path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    files.iter().map(read).collect()
}

/// Returns repeated changes, and media removed from a running installer.
pub fn doubled(events: &[Event]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut last: Option<ResetType> = None;
    let mut filled = std::collections::BTreeSet::new();
    for event in events {
        match &event.kind {
            EventKind::Power { .. } => last = last.filter(|reset| restarts(*reset)),
            EventKind::Reset { reset_type } => {
                if last == Some(*reset_type) {
                    problems.push(format!("{} twice", reset_type.as_str()));
                }
                last = Some(*reset_type);
            }
            EventKind::MediaInserted { device, .. } => {
                let was_empty = filled.insert(device.as_str());
                problems.extend((!was_empty).then(|| format!("inserted twice into {device}")));
            }
            EventKind::MediaEjected { device, ejected_while_running, .. } => {
                filled.remove(device.as_str());
                if *ejected_while_running {
                    problems.push("a running installer lost its medium".to_owned());
                }
            }
            _ => {}
        }
    }
    problems
}

/// Returns true if a repetition would hit a running server.
fn restarts(reset: ResetType) -> bool {
    matches!(reset, ResetType::ForceRestart | ResetType::GracefulRestart | ResetType::PowerCycle | ResetType::Nmi)
}

/// Returns changes that were sent again unchanged after a permanent refusal.
pub fn refused_twice(journal: &[JournalEntry]) -> Vec<String> {
    let refused: Vec<_> = journal
        .iter()
        .filter(|entry| entry.method != "GET" && matches!(entry.status, Some(400 | 405 | 412 | 415 | 428)))
        .map(|entry| (&entry.method, &entry.path, entry.body.as_ref().map(ToString::to_string), &entry.if_match))
        .collect();
    let again = refused.iter().enumerate().filter(|(n, one)| refused[..*n].contains(one));
    again.map(|(_, one)| format!("refused and sent again: {one:?}")).collect()
}

/// Returns forbidden requests: anything except reads, log-ins, resets, boot overrides and virtual
/// media.
pub fn forbidden(journal: &[JournalEntry]) -> Vec<String> {
    let allowed = |entry: &&JournalEntry| {
        let path = entry.path.trim_end_matches('/');
        let own = path.strip_prefix("/redfish/v1/Systems/").unwrap_or_default();
        match entry.method.as_str() {
            "GET" => true,
            "POST" | "DELETE" if path.starts_with("/redfish/v1/SessionService/Sessions") => true,
            "POST" => {
                own.ends_with("/Actions/ComputerSystem.Reset")
                    || path.ends_with("/Actions/VirtualMedia.InsertMedia")
                    || path.ends_with("/Actions/VirtualMedia.EjectMedia")
            }
            "PATCH" => {
                let settings = own.strip_suffix("/Settings").unwrap_or(own);
                (!settings.is_empty() && !settings.contains('/')) || path.contains("/VirtualMedia/")
            }
            _ => false,
        }
    };
    let others = journal.iter().filter(|entry| !allowed(entry));
    others.map(|entry| format!("forbidden: {} {}", entry.method, entry.path)).collect()
}
