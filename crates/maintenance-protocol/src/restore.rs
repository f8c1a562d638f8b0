//! The rules of the steps back: the server is given back exactly as it was.
//!
//! They compare what is seen with what was recorded, not with what was changed: so they also put
//! back what a person, or a boot configuration under the hold, did meanwhile. Virtual drives are
//! compared only where the maintenance, or what acted under it, switched, booted or inserted
//! something.

mod effect;

pub use effect::{effect, ends_on, power_restored};

use jiff::Timestamp;

use super::{
    address, drain, gate, gate_chain,
    machine::{BootOverride, MachineView, MediaSlot, PowerState, PowerTarget},
    model::{
        facts::Facts,
        verdict::{Limits, Need, Verdict, after},
    },
    node,
    power::{bring_to, pursue, switch_off},
    spec::MaintenanceKind,
    state::{Maintenance, PriorState, Progress},
    step::{Action, Attempt, Reply, Step},
};

/// The steps back. None when nothing was recorded: then nothing was changed.
#[must_use]
pub fn steps(record: &Maintenance) -> Vec<Step> {
    let mut steps = steps_on_the_machine(record);
    // Last: a claimed server that is handed back switched off would boot from the network.
    steps.extend((0..gate::to_leave(record)).map(|_| Step::LeaveGate));
    // One that others cordoned is theirs, unless it has to be drained once more.
    if record.drained.is_some() {
        steps.push(Step::UncordonNode);
    }
    if record.node.taken.is_some() {
        steps.push(Step::ReturnNode);
    }
    steps
}

fn steps_on_the_machine(record: &Maintenance) -> Vec<Step> {
    match &record.prior {
        None => Vec::new(),
        // An operation is wanted for its effect.
        Some(_) if record.spec.kind == MaintenanceKind::Operation => Vec::new(),
        Some(_) if !gate::may_restore(record) => Vec::new(),
        Some(prior) => steps_to(prior),
    }
}

/// Whether the end of this record means that its prior state was put back and seen: the last step
/// on the machine is [`Step::Verify`], and no record ends before its steps are done.
#[must_use]
pub fn verifies(record: &Maintenance) -> bool {
    steps_on_the_machine(record).contains(&Step::Verify)
}

/// The steps to a state that was recorded.
#[must_use]
pub fn steps_to(prior: &PriorState) -> Vec<Step> {
    let mut steps = vec![Step::StopForRestore];
    if !prior.media.is_empty() {
        steps.push(Step::RestoreMedia);
    }
    match &prior.boot {
        // One that holds for the next start would be used up by the start that puts the power back.
        Some(boot) if once(boot) => {
            steps.extend([Step::DisarmBoot, Step::RestorePower, Step::RestoreBoot]);
        }
        Some(_) => steps.extend([Step::RestoreBoot, Step::RestorePower]),
        None => steps.push(Step::RestorePower),
    }
    steps.push(Step::Verify);
    steps
}

/// What the step under way needs next.
#[must_use]
pub fn judge(
    step: Step,
    record: &Maintenance,
    progress: &Progress,
    facts: &Facts,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    if step == Step::LeaveGate {
        return gate_chain::leave(record, progress, facts, limits, now);
    }
    if step == Step::UncordonNode {
        return drain::uncordon(record, progress, facts, limits, now);
    }
    if step == Step::ReturnNode {
        return node::give_back(record, progress, facts, limits, now);
    }
    let Some(prior) = &record.prior else {
        return Verdict::Done;
    };
    let Some(machine) = &facts.machine else {
        return Verdict::Look(Need::Machine);
    };
    let attempts = &progress.attempts;
    match step {
        Step::StopForRestore => {
            let media = match media_to_compare(record, prior, facts) {
                Ok(media) => media,
                Err(need) => return Verdict::Look(need),
            };
            if !must_stop(record, prior, machine, media) {
                return Verdict::Done;
            }
            let Some(capabilities) = &facts.capabilities else {
                return Verdict::Look(Need::Capabilities);
            };
            switch_off(machine, capabilities, attempts, progress.since, limits, now)
        }
        Step::RestoreMedia if !concerns_drives(record) => Verdict::Done,
        Step::RestoreMedia => {
            let Some(media) = &facts.media else {
                return Verdict::Look(Need::Media);
            };
            restore_media(record, prior, media, progress, limits, now)
        }
        // No start follows that would use an override up.
        Step::DisarmBoot
            if record.is_power_restored(machine.power) || record.restored_power() != Some(PowerTarget::On) =>
        {
            Verdict::Done
        }
        Step::DisarmBoot => {
            let wanted = BootOverride { enabled: Some("Disabled".to_owned()), ..BootOverride::default() };
            let change = Action::SetBoot { wanted, clear_http_boot_uri: false };
            let accepted = attempts.iter().any(|attempt| attempt.action == change && attempt.reply == Reply::Accepted);
            match &machine.boot {
                Some(found) if !found.is_disabled() && !accepted => {
                    pursue(change, attempts, limits.settle, limits, now)
                }
                _ => Verdict::Done,
            }
        }
        Step::RestoreBoot => {
            let Some(before) = &prior.boot else {
                return Verdict::Done;
            };
            if is_unlisted(before) && record.spec.boot.is_none() {
                return Verdict::Done;
            }
            match &machine.boot {
                Some(found) => restore_boot(before, found, attempts, limits, now),
                None => not_shown_yet(before, progress, limits, now)
                    .unwrap_or_else(|| restore_boot(before, &BootOverride::default(), attempts, limits, now)),
            }
        }
        Step::RestorePower => {
            let Some(target) = record.restored_power() else {
                return Verdict::Done;
            };
            if machine.power == PowerState::Paused && record.is_power_restored(machine.power) {
                return Verdict::Done;
            }
            let Some(capabilities) = &facts.capabilities else {
                return Verdict::Look(Need::Capabilities);
            };
            bring_to(target, machine, capabilities, attempts, progress.since, false, limits, now)
        }
        Step::Verify => verify(record, prior, machine, facts, progress, limits, now),
        _ => Verdict::Fail(format!("{step} is not a step of releasing")),
    }
}

/// Whether a machine that has an override listed nothing of it.
fn is_unlisted(boot: &BootOverride) -> bool {
    boot.enabled.is_none() && boot.target.is_none()
}

/// Whether an override holds for one start.
fn once(boot: &BootOverride) -> bool {
    boot.enabled.as_deref() == Some("Once") && !boot.is_disabled()
}

/// Whether drives may be different because of a maintenance. One that boots over the network
/// counts: some machines put the image into a drive by themselves (sushy-tools does for HTTP boot).
/// Where nothing was switched, booted or inserted, what is in the drives is the doing of others.
fn concerns_drives(record: &Maintenance) -> bool {
    let spec = &record.spec;
    !record.drives.is_empty() || record.booted || spec.boot.is_some() || spec.server_power.is_some()
}

/// The drives to compare with the recorded ones, when those matter; else none, so that none is
/// found to differ.
fn media_to_compare<'a>(record: &Maintenance, prior: &PriorState, facts: &'a Facts) -> Result<&'a [MediaSlot], Need> {
    if prior.media.is_empty() || !concerns_drives(record) {
        return Ok(&[]);
    }
    facts.media.as_deref().ok_or(Need::Media)
}

/// Whether the server must be off before it is put back.
///
/// It must when it was off or its owner wants it off by now, when it may run what the maintenance
/// booted, and when a drive's content changes under it (rule 8: media is never ejected from a
/// running installer).
fn must_stop(record: &Maintenance, prior: &PriorState, machine: &MachineView, media: &[MediaSlot]) -> bool {
    if machine.power == PowerState::Off {
        return false;
    }
    record.restored_power() == Some(PowerTarget::Off)
        || record.booted
        || prior.media.iter().any(|before| listed(before, media).is_some_and(|now| is_other(record, before, now)))
}

/// Whether something else is in a drive than before. What a BMC does not tell of a drive that this
/// maintenance never used is not held against it.
fn is_other(record: &Maintenance, before: &MediaSlot, now: &MediaSlot) -> bool {
    if is_used(record, before) { now.content() != before.content() } else { before.differs(now) }
}

/// Whether this maintenance may have filled or emptied a drive.
fn is_used(record: &Maintenance, drive: &MediaSlot) -> bool {
    record.drives.iter().any(|used| drive_name(used) == drive_name(&drive.slot))
}

/// The end of a drive's path.
fn drive_name(slot: &str) -> Option<&str> {
    slot.rsplit('/').next()
}

/// A recorded drive as it is now; `None` when it is not listed any more.
///
/// A BMC that shows its drives in two collections has them under the same name in both, and may be
/// read in one and then in the other.
fn listed<'a>(before: &MediaSlot, media: &'a [MediaSlot]) -> Option<&'a MediaSlot> {
    let same = media.iter().find(|now| now.slot == before.slot);
    same.or_else(|| media.iter().find(|now| drive_name(&now.slot) == drive_name(&before.slot)))
}

/// What to do about a drive that this maintenance may have filled or emptied, and that is not
/// listed any more: what is in it cannot be told. A machine that lists none for a moment is given
/// time.
fn absent(
    record: &Maintenance,
    before: &MediaSlot,
    since: Timestamp,
    limits: &Limits,
    now: Timestamp,
) -> Option<Verdict> {
    if !is_used(record, before) {
        return None;
    }
    let until = after(since, limits.media);
    let why = format!("the virtual drive {}, which this maintenance used, is not listed any more", before.slot);
    Some(if now < until { Verdict::Wait { why, until: Some(until) } } else { Verdict::Fail(why) })
}

fn restore_media(
    record: &Maintenance,
    prior: &PriorState,
    media: &[MediaSlot],
    progress: &Progress,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    for before in &prior.media {
        let Some(drive) = listed(before, media) else {
            match absent(record, before, progress.since, limits, now) {
                Some(verdict) => return verdict,
                None => continue,
            }
        };
        let found = drive.content();
        if address::same_or_none(found, before.content()) || !is_other(record, before, drive) {
            continue;
        }
        if found.is_none() && before.content() == Some("") {
            return Verdict::Fail(format!(
                "the virtual drive {} is empty, and the machine did not report what was in it before",
                before.slot
            ));
        }
        let slot = before.slot.clone();
        let insert = before.content().map(|image| Action::Insert {
            slot: slot.clone(),
            image: image.to_owned(),
            write_protected: before.write_protected.unwrap_or(true),
        });
        let inserted = insert
            .as_ref()
            .is_some_and(|insert| progress.attempts.iter().any(|a| a.action == *insert && a.reply == Reply::Accepted));
        let action = match (found, insert) {
            // Listed under a name of the machine's own.
            (Some(_), Some(_)) if inserted => continue,
            (Some(_), _) => Action::Eject { slot },
            (None, Some(insert)) => insert,
            (None, None) => continue,
        };
        return pursue(action, &progress.attempts, limits.media, limits, now);
    }
    Verdict::Done
}

/// Waits for a boot override that was recorded, and of which nothing is shown: a BMC that was just
/// restarted shows little for a moment. Afterwards it counts as not set.
fn not_shown_yet(before: &BootOverride, progress: &Progress, limits: &Limits, now: Timestamp) -> Option<Verdict> {
    let until = after(progress.since, limits.settle);
    let why = format!("the machine shows no boot override any more, which was {before}");
    (now < until).then_some(Verdict::Wait { why, until: Some(until) })
}

fn restore_boot(
    before: &BootOverride,
    found: &BootOverride,
    attempts: &[Attempt],
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let Some(change) = boot_change(before, found) else {
        return Verdict::Done;
    };
    // What is left of a disabled override means nothing to the firmware until it is used again. It
    // is set as it was where the machine takes that. A machine that refuses it is released
    // nevertheless; one that is busy is not.
    let external = before.external || found.external;
    let leftover = before.is_disabled() && found.is_disabled() && !external;
    let replies = || attempts.iter().filter(|attempt| attempt.action == change).map(|attempt| &attempt.reply);
    // A machine that accepts a value and shows another (`Once` is listed as `Continuous`) is not
    // asked without an end.
    let accepted = replies().any(|reply| *reply == Reply::Accepted);
    if accepted && (leftover || (before.target == found.target && !external)) {
        return Verdict::Done;
    }
    let busy = matches!(replies().next_back(), Some(Reply::Refused { transient: true, .. }));
    match pursue(change, attempts, limits.settle, limits, now) {
        Verdict::Fail(_) if leftover && !busy => Verdict::Done,
        verdict => verdict,
    }
}

/// The change that makes `found` equal to `before` in every property; `None` when it is.
fn boot_change(before: &BootOverride, found: &BootOverride) -> Option<Action> {
    // What an external system boots is written whole or not at all.
    if before.external || found.external {
        let clear_http_boot_uri = before.http_boot_uri.is_none() && found.http_boot_uri.is_some();
        return (before != found).then(|| Action::SetBoot { wanted: before.clone(), clear_http_boot_uri });
    }
    // While both are disabled, a leftover target means nothing to the firmware, but it is put back
    // all the same where it was listed: exactly as it was.
    let changed = |before: &Option<String>, found: &Option<String>| {
        if before == found { None } else { before.clone() }
    };
    // An entry of the boot menu that was chosen and never booted. An empty name clears it.
    let unused = before.is_disabled() && found.is_disabled();
    let entry = |before: &Option<String>, found: &Option<String>| {
        if unused && before.is_none() && found.is_some() { Some(String::new()) } else { changed(before, found) }
    };
    let ended = is_unlisted(before) && !found.is_disabled();
    let wanted = BootOverride {
        enabled: if ended { Some("Disabled".to_owned()) } else { changed(&before.enabled, &found.enabled) },
        target: changed(&before.target, &found.target),
        mode: changed(&before.mode, &found.mode),
        http_boot_uri: before
            .http_boot_uri
            .clone()
            .filter(|before| !found.http_boot_uri.as_deref().is_some_and(|found| address::same(found, before))),
        uefi_target: entry(&before.uefi_target, &found.uefi_target),
        boot_next: entry(&before.boot_next, &found.boot_next),
        ignition: None,
        external: false,
    };
    let clear_http_boot_uri =
        before.http_boot_uri.is_none() && found.http_boot_uri.as_deref().is_some_and(|uri| !uri.is_empty());
    if wanted == BootOverride::default() && !clear_http_boot_uri {
        return None;
    }
    Some(Action::SetBoot { wanted, clear_http_boot_uri })
}

/// The last look: everything as recorded, or what is not.
fn verify(
    record: &Maintenance,
    prior: &PriorState,
    machine: &MachineView,
    facts: &Facts,
    progress: &Progress,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let media = match media_to_compare(record, prior, facts) {
        Ok(media) => media,
        Err(need) => return Verdict::Look(need),
    };
    if let (Some(before), None) = (&prior.boot, &machine.boot)
        && !before.is_disabled()
        && let Some(verdict) = not_shown_yet(before, progress, limits, now)
    {
        return verdict;
    }
    let none = BootOverride::default();
    let mut differs = Vec::new();
    if let Some(target) = record.restored_power().filter(|_| !record.is_power_restored(machine.power)) {
        differs.push(match record.power_after() {
            None => format!("power is {}, was {}", machine.power, prior.power),
            Some(_) => format!("power is {}, and the external system wants {target} by now", machine.power),
        });
    }
    if let (Some(before), found) = (&prior.boot, machine.boot.as_ref().unwrap_or(&none))
        && ((before.target.is_some() && before.target != found.target)
            || (is_unlisted(before) && record.spec.boot.is_some())
            || ((before.external || found.external) && before.http_boot_uri != found.http_boot_uri))
        && !(before.is_disabled() && found.is_disabled())
    {
        differs.push(format!("boot override is {found}, was {before}"));
    }
    for before in &prior.media {
        match listed(before, media) {
            Some(now) if now.inserted != before.inserted => {
                let was = if before.inserted { "filled" } else { "empty" };
                differs.push(format!("virtual drive {} was {was} and is not", before.slot));
            }
            Some(_) => {}
            None => {
                if let Some(verdict) = absent(record, before, progress.since, limits, now) {
                    return verdict;
                }
            }
        }
    }
    if differs.is_empty() {
        Verdict::Done
    } else {
        Verdict::Fail(format!("it is not as it was: {}", differs.join("; ")))
    }
}

#[cfg(test)]
mod tests;
