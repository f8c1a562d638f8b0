//! Converts the simulator's journal into the checker's input.

use std::collections::BTreeMap;

use bmc_simulator::{JournalEntry, JournalQuery, PowerState, Simulator};
use serde_json::Value;

use crate::checker::{Change, Line, State};

/// Marks a machine in a power transition.
pub const UNDER_WAY: &str = "under way";

/// Returns every mutation that reached a machine.
pub fn lines(simulator: &Simulator) -> Vec<Line> {
    simulator.journal(&JournalQuery::default()).into_iter().filter_map(line).collect()
}

fn line(entry: JournalEntry) -> Option<Line> {
    let reads = ["GET", "HEAD"].contains(&entry.method.as_str());
    // The sender died before the machine authenticated the request, so it was not executed.
    let unheard = entry.account.is_none() && entry.status.is_none() && !entry.applied;
    if reads || unheard || entry.path.contains("/SessionService/") {
        return None;
    }
    let body = entry.body.unwrap_or_default();
    let change = if entry.path.ends_with("/Actions/ComputerSystem.Reset") {
        body["ResetType"].as_str().map(|kind| Change::Reset(kind.to_owned()))
    } else {
        body["Boot"].as_object().filter(|_| entry.method == "PATCH").map(|boot| Change::Boot(properties(boot)))
    };
    Some(Line {
        at: entry.sequence,
        system: entry.system.unwrap_or(entry.bmc),
        account: entry.account.unwrap_or_default(),
        change: change.unwrap_or_else(|| Change::Other(format!("{} {} {body}", entry.method, entry.path))),
        accepted: entry.applied,
    })
}

/// Returns the properties as text, without annotations.
fn properties(boot: &serde_json::Map<String, Value>) -> BTreeMap<String, String> {
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    boot.iter().filter(|(name, _)| !name.contains('@')).map(|(name, value)| (name.clone(), shown(value))).collect()
}

/// Returns every machine's current state. A machine in transition equals no state at rest.
pub fn states(simulator: &Simulator) -> BTreeMap<String, State> {
    let state = |name: String| {
        let seen = simulator.system(&name).unwrap();
        let boot = [
            (crate::checker::ENABLED, seen.boot.enabled.to_string()),
            (crate::checker::TARGET, seen.boot.target.to_string()),
            ("BootSourceOverrideMode", seen.boot.mode.to_string()),
        ];
        let mut boot: BTreeMap<_, _> = boot.map(|(property, value)| (property.to_owned(), value)).into();
        boot.extend(seen.boot.http_boot_uri.map(|uri| ("HttpBootUri".to_owned(), uri)));
        if !matches!(seen.power, PowerState::On | PowerState::Off) || seen.pending_boot.is_some() {
            boot.insert(UNDER_WAY.to_owned(), format!("{} {:?}", seen.power, seen.pending_boot));
        }
        (name, State { on: seen.power == PowerState::On, boot })
    };
    simulator.systems().into_iter().map(state).collect()
}
