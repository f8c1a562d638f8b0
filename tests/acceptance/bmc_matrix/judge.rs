//! Judges cells by the machines' changes and the requests to their BMCs, never by messages.

use bmc_simulator::{BootSource, EventKind, JournalQuery, PowerState, ResetType, SystemStatus};

use crate::support::{images::Images, simulator::Fleet};

use super::{
    cells::{Ask, Cell, Start},
    simulated::{doubled, forbidden, refused_twice},
};

/// Checks a server while its resource exists. `outcome` is the resource's attribute.
pub fn held(fleet: &Fleet, images: &Images, cell: &Cell, outcome: &str) -> Vec<String> {
    let mut problems = always(fleet, cell);
    let name = cell.name();
    let now = fleet.system(&name);
    let wanted = match cell.ask {
        Ask::Power(power) => power,
        Ask::Operation(ResetType::ForceOff | ResetType::GracefulShutdown) => PowerState::Off,
        Ask::Boot(_) | Ask::Operation(_) => PowerState::On,
    };
    // On Arm the operating system halts, and the BMC then reports Paused.
    let halted = now.power == PowerState::Paused && cell.ask == Ask::Operation(ResetType::GracefulShutdown);
    if now.power != wanted && !halted {
        problems.push(format!("is {} and not {wanted}", now.power));
    }
    let boots = fleet.simulator.boots(&name).unwrap();
    let last = boots.last().map(|boot| boot.booted_from.clone());
    let right = match (cell.ask, &last) {
        (Ask::Boot("http"), Some(BootSource::Http { uri })) => *uri == Some(images.url("rescue.efi")),
        (Ask::Boot("virtual_media"), Some(BootSource::Media { image, .. })) => *image == images.url("rescue.iso"),
        (Ask::Boot("pxe"), Some(BootSource::Pxe)) | (Ask::Boot("disk"), Some(BootSource::Disk)) => true,
        (Ask::Boot(_), _) => false,
        _ => true,
    };
    if !right {
        problems.push(format!("prepared, and booted from {last:?}"));
    }
    if let Ask::Operation(wanted) = cell.ask {
        let events = fleet.simulator.events(&name, 0).unwrap();
        let made = events
            .iter()
            .filter(|event| matches!(event.kind, EventKind::Reset { reset_type } if reset_type == wanted))
            .count();
        let off = cell.start == Start::Off;
        let expected = match wanted {
            // The server is already on.
            ResetType::On => usize::from(off),
            // The server is powered on instead.
            ResetType::ForceRestart if off => 0,
            _ => 1,
        };
        if made != expected && !wanted.as_str().contains("On") {
            problems.push(format!("{wanted} was executed {made} times: {outcome}"));
        }
    }
    problems
}

/// Checks a server whose preparation failed: it is unchanged, and the error suggests a fix.
pub fn stopped(fleet: &Fleet, cell: &Cell, error: &str) -> Vec<String> {
    let journal = fleet.simulator.journal(&JournalQuery::system(&cell.name()));
    let changes = journal.iter().filter(|entry| entry.method != "GET" && !entry.path.contains("/Sessions"));
    let mut problems: Vec<String> =
        changes.map(|entry| format!("failed after {} {}: {error}", entry.method, entry.path)).collect();
    if !error.contains("eject it first") {
        problems.push(format!("accepted at plan time, but failed: {error}"));
    }
    problems
}

/// Checks a server after the destroy.
pub fn over(fleet: &Fleet, cell: &Cell, before: &SystemStatus, held: &SystemStatus) -> Vec<String> {
    let mut problems = always(fleet, cell);
    let now = fleet.system(&cell.name());
    // A destroy does not undo an operation.
    let wanted = if matches!(cell.ask, Ask::Operation(_)) { held } else { before };
    let next = |status: &SystemStatus| status.pending_boot.clone().unwrap_or_else(|| status.boot.clone());
    if now.power != wanted.power {
        problems.push(format!("released {}, was {}", now.power, wanted.power));
    }
    if next(&now) != next(wanted) {
        problems.push(format!("released with {:?}, was {:?}", next(&now), next(wanted)));
    }
    if now.media != wanted.media {
        problems.push(format!("released with {:?}, was {:?}", now.media, wanted.media));
    }
    let open = fleet.simulator.bmc_status(&now.bmc).unwrap().sessions_open;
    if open > 0 {
        problems.push(format!("{open} sessions were not closed"));
    }
    problems
}

/// Checks that apply at any time.
fn always(fleet: &Fleet, cell: &Cell) -> Vec<String> {
    let name = cell.name();
    let journal = fleet.simulator.journal(&JournalQuery::system(&name));
    let events = fleet.simulator.events(&name, 0).unwrap();
    // Ignore other users' leftovers.
    let ours: Vec<_> = events
        .into_iter()
        .filter(|event| !matches!(&event.kind, EventKind::MediaInserted { image, .. } if image.contains("theirs")))
        .collect();
    [doubled(&ours), refused_twice(&journal), forbidden(&journal)].concat()
}

/// Describes the events for the failure message.
pub fn story(fleet: &Fleet, cell: &Cell) -> String {
    let mut lines: Vec<(u64, String)> = fleet
        .simulator
        .journal(&JournalQuery::system(&cell.name()))
        .into_iter()
        .filter(|entry| entry.method != "GET")
        .map(|entry| {
            let body = entry.body.map(|body| body.to_string()).unwrap_or_default();
            (entry.sequence, format!("{} {} {body} -> {:?}", entry.method, entry.path, entry.status))
        })
        .collect();
    let events = fleet.simulator.events(&cell.name(), 0).unwrap().into_iter();
    lines.extend(
        events
            .filter(|event| !matches!(event.kind, EventKind::Progress { .. }))
            .map(|event| (event.sequence, format!("    {:?}", event.kind))),
    );
    lines.sort();
    lines.into_iter().map(|(_, line)| format!("      {line}\n")).collect()
}
