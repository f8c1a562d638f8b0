//! Plan texts about overdue maintenance that apply releases.

use std::time::Duration;

use crate::{
    engine::PlannedRun,
    maintenance::{
        forecast::Reclaimed,
        queue::{self, shown_time},
        step::Action,
    },
    store::LockView,
};

use crate::provider::{shared::prospect::Prospect, shared::values::shown_duration};

/// Summary of a warning: apply releases an overdue maintenance.
pub(in crate::provider) const RELEASED: &str = "Another maintenance will be released";

/// The text about the current holder, if it is overdue or becomes overdue during the wait. `None`:
/// apply does not release it.
pub(in crate::provider) fn released(
    prospect: &Prospect,
    planned: &PlannedRun,
    view: &LockView,
    patience: Option<Duration>,
) -> Option<String> {
    let server = &prospect.server;
    if let Some(reclaimed) = &prospect.reclaimed {
        return Some(format!(
            "{server}: {} of {} is overdue since {} and no process is attached. Apply restores it first{}, then locks the \
             server.",
            reclaimed.id,
            reclaimed.owner,
            shown_time(reclaimed.since),
            restored(reclaimed)
        ));
    }
    if !planned.waits() {
        return None;
    }
    if let Some(overdue) = queue::reclaimable(&view.lock, &view.leases, view.now) {
        let since = overdue.expires_at().map_or_else(String::new, |at| format!(" since {}", shown_time(at)));
        return Some(format!(
            "{server}: {} of {} is overdue{since} and no process is attached. Once nothing else keeps this maintenance from \
             starting, apply restores it first, then locks the server.",
            overdue.id, overdue.owner
        ));
    }
    let holder = prospect.ahead.iter().find(|entry| entry.holds)?;
    let (expires, patience) = (holder.expires_at?, patience?);
    let owner = &view.lock.holder()?.owner;
    let within = Duration::try_from(expires.duration_since(view.now)).is_ok_and(|left| left <= patience);
    within.then(|| {
        format!(
            "{server}: {} of {owner} expires {}, before apply stops waiting ({}). If no process is attached to it then, apply \
             restores it first, then locks the server.",
            holder.id,
            shown_time(expires),
            shown_duration(patience)
        )
    })
}

/// The restore's effect, in brackets.
fn restored(reclaimed: &Reclaimed) -> String {
    let boot = |action: &Action| matches!(action, Action::SetBoot { .. });
    let media = |action: &Action| matches!(action, Action::Insert { .. } | Action::Eject { .. });
    let Some((before, after)) = reclaimed.power else {
        return " (effect unknown: its BMC was not read)".to_owned();
    };
    let restarts = reclaimed.calls.iter().any(|action| matches!(action, Action::Reset(_)));
    let mut parts = Vec::new();
    match (before == after, restarts) {
        (false, _) => parts.push(format!("power {before} -> {after}")),
        (true, true) => parts.push(format!("power {before} -> Off -> {after}")),
        (true, false) => {}
    }
    parts.extend(reclaimed.calls.iter().any(boot).then(|| "boot override".to_owned()));
    parts.extend(reclaimed.calls.iter().any(media).then(|| "virtual drives".to_owned()));
    if parts.is_empty() {
        parts.push("power and boot stay".to_owned());
    }
    format!(" ({})", parts.join(", "))
}
