//! Restores the boot override.

use jiff::Timestamp;
use shown_text::{AsRaw, OneLine};

use crate::{
    address,
    boot::{self, Difference},
    machine::{BootOverride, MachineView},
    model::{
        facts::Facts,
        tolerated::Tolerated,
        verdict::{Limits, Verdict, after},
    },
    power::pursue,
    state::{Maintenance, Progress},
    step::{Action, Attempt, Reply},
};

/// Waits for a recorded override that the BMC does not report, because a BMC that has just
/// restarted reports few values. After the time limit it counts as not set.
pub(super) fn not_shown_yet(
    before: &BootOverride,
    progress: &Progress,
    limits: &Limits,
    now: Timestamp,
) -> Option<Verdict> {
    let until = after(progress.since, limits.settle);
    let why = format!("the machine does not show a boot override any more; it was {before}");
    (now < until).then_some(Verdict::Wait { why: why.into(), until: Some(until) })
}

/// Disables an override. If the BMC accepts that without an effect, the target `None` ends it.
pub(super) fn end_override(
    change: Action,
    found: &BootOverride,
    attempts: &[Attempt],
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let by_target = Action::SetBoot {
        wanted: BootOverride {
            enabled: Some("Disabled".into()),
            target: Some("None".into()),
            ..BootOverride::default()
        },
        clear_http_boot_uri: false,
    };
    let last = attempts.iter().rfind(|attempt| attempt.action == change);
    let is_spent = last.is_some_and(|last| {
        !matches!(last.reply, Reply::Refused { .. }) && now >= after(last.answered_at(), limits.settle)
    });
    let action = if is_spent { by_target } else { change };
    boot::explain(pursue(action, attempts, limits.settle, limits, now), Some(found))
}

pub(super) fn restore_boot(
    record: &Maintenance,
    before: &BootOverride,
    found: &BootOverride,
    attempts: &[Attempt],
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    if boot::used_once(record, found).is_some() {
        return Verdict::Done;
    }
    let Some(change) = boot_change(before, found) else {
        return Verdict::Done;
    };
    let external = before.external || found.external;
    if before.is_disabled() && !found.is_disabled() && !external {
        return end_override(change, found, attempts, limits, now);
    }
    // The quirk table tolerates the remaining differences, but the BMC still receives one request
    // to restore them. Only a busy BMC blocks the release.
    let writes = record.boot_writes.as_ref();
    let tolerated = !external && boot::refused(&boot::recorded(before, found, writes)).is_none();
    let replies = || attempts.iter().filter(|attempt| attempt.action == change).map(|attempt| &attempt.reply);
    if tolerated && replies().any(|reply| *reply == Reply::Accepted) {
        return Verdict::Done;
    }
    let busy = matches!(replies().next_back(), Some(Reply::Refused { transient: true, .. }));
    match pursue(change, attempts, limits.settle, limits, now) {
        Verdict::Fail(_) if tolerated && !busy => Verdict::Done,
        verdict => boot::explain(verdict, Some(found)),
    }
}

/// Returns the change from `found` to `before`; `None` if they are equal.
pub(super) fn boot_change(before: &BootOverride, found: &BootOverride) -> Option<Action> {
    // An external system stores the complete override.
    if before.external || found.external {
        let clear_http_boot_uri = before.http_boot_uri.is_none() && found.http_boot_uri.is_some();
        return (before != found).then(|| Action::SetBoot { wanted: before.clone(), clear_http_boot_uri });
    }
    let changed = |before: &Option<OneLine>, found: &Option<OneLine>| {
        if before == found { None } else { before.clone() }
    };
    // An empty name clears a boot menu entry.
    let entry = |before: &Option<OneLine>, found: &Option<OneLine>| {
        if before.is_none() && found.is_some() { Some(OneLine::default()) } else { changed(before, found) }
    };
    let ended = boot::is_unlisted(before) && !found.is_disabled();
    // Only the target `None` ended the override: another target would arm it again.
    let by_target = found.is_disabled() && found.enabled.as_raw().is_some_and(|enabled| enabled != "Disabled");
    let wanted = BootOverride {
        enabled: if ended { Some("Disabled".into()) } else { changed(&before.enabled, &found.enabled) },
        target: changed(&before.target, &found.target).filter(|_| !(by_target && before.is_disabled())),
        mode: changed(&before.mode, &found.mode),
        http_boot_uri: before
            .http_boot_uri
            .clone()
            .filter(|before| !found.http_boot_uri.as_raw().is_some_and(|found| address::same(found, before.raw()))),
        uefi_target: entry(&before.uefi_target, &found.uefi_target),
        boot_next: entry(&before.boot_next, &found.boot_next),
        ignition: None,
        external: false,
    };
    let clear_http_boot_uri =
        before.http_boot_uri.is_none() && found.http_boot_uri.as_raw().is_some_and(|uri| !uri.is_empty());
    if wanted == BootOverride::default() && !clear_http_boot_uri {
        return None;
    }
    Some(Action::SetBoot { wanted, clear_http_boot_uri })
}

/// Compares the recorded override with the machine's override.
pub(super) fn boot_differences(record: &Maintenance, machine: &MachineView) -> Vec<Difference> {
    let Some(before) = record.prior.as_ref().and_then(|prior| prior.boot.as_ref()) else { return Vec::new() };
    let none = BootOverride::default();
    let found = match &machine.boot {
        Some(found) => found,
        // Some BMCs do not list a disabled override.
        None if before.is_disabled() => return Vec::new(),
        None => &none,
    };
    match boot::used_once(record, found) {
        Some(before) => vec![boot::used_once_difference(before)],
        None => boot::recorded(before, found, record.boot_writes.as_ref()),
    }
}

/// Returns the differences that a release tolerates.
#[must_use]
pub fn tolerated(record: &Maintenance, facts: &Facts) -> Vec<Tolerated> {
    facts.machine.as_ref().map_or_else(Vec::new, |machine| boot::tolerated(&boot_differences(record, machine)))
}
