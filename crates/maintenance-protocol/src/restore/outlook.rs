//! Simulates a release with its step rules, so that the destroy plan lists its calls.

use jiff::Timestamp;
use shown_text::OneLine;

use super::{judge, steps_on_the_machine};
use crate::{
    boot,
    machine::{BootOverride, Capabilities, MachineView, MediaSlot, PowerState, ResetType},
    media::{note_drive, wanted_override},
    model::{
        facts::Facts,
        verdict::{Limits, Verdict},
    },
    spec::BootSpec,
    state::{Maintenance, Progress},
    step::{Action, Attempt, Reply},
};

/// Upper limit; each step sends fewer calls.
const MOST_CALLS: usize = 64;

/// The simulated release.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    /// The calls in order.
    pub calls: Vec<Action>,
    /// The armed override when the release starts the server.
    pub boots: Option<BootOverride>,
    /// Why the release would stop.
    pub stops: Option<String>,
}

/// Simulates a release. Missing facts are derived from the record.
pub(super) fn outlook(record: &Maintenance, facts: &Facts, limits: &Limits, mut now: Timestamp) -> Outlook {
    let mut record = record.clone();
    let (mut facts, mut found) = (assumed(&record, facts), Outlook::default());
    for step in steps_on_the_machine(&record) {
        let mut progress = Progress::new(vec![step], now);
        for _ in 0..MOST_CALLS {
            match judge(step, &record, &progress, &facts, limits, now) {
                Verdict::Act(action) => {
                    note_drive(&mut record, &action);
                    boot::note_write(&mut record, &action, None, false);
                    let attempt = Attempt { reply: Reply::Accepted, ..Attempt::intended(action.clone(), now) };
                    progress.attempts.push(attempt);
                    if let Some(machine) = &mut facts.machine {
                        if action == Action::Reset(ResetType::On) {
                            found.boots = machine.boot.clone().filter(|boot| !boot.is_disabled());
                        }
                        play(&action, machine, facts.media.as_deref_mut().unwrap_or_default());
                    }
                    found.calls.push(action);
                }
                Verdict::Wait { until: Some(until), .. } if until > now => now = until,
                Verdict::Fail(why) => return Outlook { stops: Some(why.to_string()), ..found },
                _ => break,
            }
        }
    }
    found
}

/// Applies a successful call.
fn play(action: &Action, machine: &mut MachineView, media: &mut [MediaSlot]) {
    match action {
        Action::Reset(ResetType::GracefulShutdown | ResetType::ForceOff) => machine.power = PowerState::Off,
        Action::Reset(_) => {
            machine.power = PowerState::On;
            machine.boot_progress = None;
            if let Some(boot) = machine.boot.as_mut().filter(|boot| boot::is_once(boot)) {
                (boot.enabled, boot.target) = (Some("Disabled".into()), Some("None".into()));
            }
        }
        Action::SetBoot { wanted, clear_http_boot_uri } => {
            let boot = machine.boot.get_or_insert_default();
            if wanted.external || boot.external {
                boot.clone_from(wanted);
            }
            let set = |now: &mut Option<OneLine>, wanted: &Option<OneLine>| {
                if wanted.is_some() {
                    *now = wanted.clone().filter(|wanted| !wanted.is_empty());
                }
            };
            set(&mut boot.enabled, &wanted.enabled);
            set(&mut boot.target, &wanted.target);
            set(&mut boot.mode, &wanted.mode);
            set(&mut boot.http_boot_uri, &wanted.http_boot_uri);
            set(&mut boot.uefi_target, &wanted.uefi_target);
            set(&mut boot.boot_next, &wanted.boot_next);
            if *clear_http_boot_uri {
                boot.http_boot_uri = None;
            }
        }
        Action::Insert { slot, image, write_protected } => {
            if let Some(drive) = media.iter_mut().find(|drive| drive.slot == *slot) {
                (drive.inserted, drive.image) = (true, Some(image.clone()));
                drive.write_protected = drive.write_protected.map(|_| *write_protected);
            }
        }
        Action::Eject { slot } => {
            if let Some(drive) = media.iter_mut().find(|drive| drive.slot == *slot) {
                (drive.inserted, drive.image) = (false, None);
            }
        }
        _ => {}
    }
}

/// Completes the facts from the record.
fn assumed(record: &Maintenance, read: &Facts) -> Facts {
    let mut facts = read.clone();
    let prior = record.prior.clone();
    facts.capabilities.get_or_insert_with(|| Capabilities {
        resets: vec![ResetType::On, ResetType::GracefulShutdown, ResetType::ForceOff],
        ..Capabilities::default()
    });
    facts.machine.get_or_insert_with(|| {
        let before = prior.as_ref();
        let seen = record.last_power.or(before.map(|prior| prior.power)).unwrap_or_default();
        let spec = record.spec.boot.as_ref().filter(|_| record.boot_writes.is_some());
        let left = |boot: &BootSpec| {
            let used = record.booted && boot.once;
            (!used).then(|| wanted_override(boot, false))
        };
        let recorded = || before.and_then(|prior| prior.boot.clone());
        MachineView {
            power: record.spec.server_power.map_or(seen, PowerState::from),
            boot: spec.and_then(left).or_else(recorded),
            ..MachineView::default()
        }
    });
    if let Some(machine) = &mut facts.machine {
        // A pending power change ends before the release starts.
        match machine.power {
            PowerState::PoweringOn => machine.power = PowerState::On,
            PowerState::PoweringOff => machine.power = PowerState::Off,
            _ => {}
        }
    }
    facts.media.get_or_insert_with(|| {
        let mut drives = prior.map(|prior| prior.media).unwrap_or_default();
        let image = record.spec.boot.as_ref().and_then(|boot| boot.image.clone());
        for drive in drives.iter_mut().filter(|drive| record.drives.contains(&drive.slot) && image.is_some()) {
            (drive.inserted, drive.image) = (true, image.clone());
        }
        drives
    });
    facts
}
