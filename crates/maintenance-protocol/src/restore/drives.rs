//! Restores virtual drives, if the maintenance switched, booted or inserted something.

use jiff::Timestamp;

use crate::{
    address,
    machine::{MediaSlot, shown_url},
    model::{
        facts::Facts,
        verdict::{Limits, Need, Verdict, after},
    },
    power::pursue,
    state::{Maintenance, PriorState, Progress},
    step::{Action, Reply},
};

/// Returns true if the maintenance could change drives. sushy-tools inserts the image for HTTP
/// boot, so a network boot counts. Without such a maintenance, only other authors changed them.
pub(super) fn concerns_drives(record: &Maintenance) -> bool {
    let spec = &record.spec;
    !record.drives.is_empty() || record.booted || spec.boot.is_some() || spec.server_power.is_some()
}

/// Returns the drives to compare with the recorded ones; empty if they are not relevant.
pub(super) fn media_to_compare<'a>(
    record: &Maintenance,
    prior: &PriorState,
    facts: &'a Facts,
) -> Result<&'a [MediaSlot], Need> {
    if prior.media.is_empty() || !concerns_drives(record) {
        return Ok(&[]);
    }
    facts.media.as_deref().ok_or(Need::Media)
}

/// Returns true if a drive's medium or its write protection differs. Missing values in drives that
/// this maintenance never used do not count.
pub(super) fn is_other(record: &Maintenance, before: &MediaSlot, now: &MediaSlot) -> bool {
    let is_used = is_used(record, before);
    if has_same_medium(before, now) {
        return is_used && is_unprotected(before, now);
    }
    is_used || before.differs(now)
}

pub(super) fn has_same_medium(before: &MediaSlot, now: &MediaSlot) -> bool {
    address::same_or_none(now.content(), before.content())
}

/// Returns true if the write protection differs. Empty drives report any value.
pub(super) fn is_unprotected(before: &MediaSlot, now: &MediaSlot) -> bool {
    let both = before.inserted && now.inserted;
    both && before.write_protected.zip(now.write_protected).is_some_and(|(before, now)| before != now)
}

/// Returns true if this maintenance possibly loaded or ejected a drive.
pub(super) fn is_used(record: &Maintenance, drive: &MediaSlot) -> bool {
    record.drives.iter().any(|used| drive_name(used.raw()) == drive_name(drive.slot.raw()))
}

/// Returns the last segment of the path.
pub(super) fn drive_name(slot: &str) -> Option<&str> {
    slot.rsplit('/').next()
}

/// Finds a recorded drive in the current list.
///
/// A BMC that lists its drives in two collections uses the same names in both.
pub(super) fn listed<'a>(before: &MediaSlot, media: &'a [MediaSlot]) -> Option<&'a MediaSlot> {
    let same = media.iter().find(|now| now.slot == before.slot);
    same.or_else(|| media.iter().find(|now| drive_name(now.slot.raw()) == drive_name(before.slot.raw())))
}

/// Waits for a missing drive that this maintenance possibly loaded or ejected. Then the step fails,
/// because the drive's content is unknown.
pub(super) fn absent(
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
    Some(if now < until { Verdict::Wait { why: why.into(), until: Some(until) } } else { Verdict::Fail(why.into()) })
}

pub(super) fn restore_media(
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
        if !is_other(record, before, drive) {
            continue;
        }
        if found.is_none() && before.content() == Some("") {
            return Verdict::Fail(
                format!("the virtual drive {} is empty, and the machine did not report its prior medium", before.slot)
                    .into(),
            );
        }
        let slot = before.slot.clone();
        let insert = before.content().map(|image| Action::Insert {
            slot: slot.clone(),
            image: image.into(),
            write_protected: before.write_protected.unwrap_or(true),
        });
        let inserted = insert
            .as_ref()
            .is_some_and(|insert| progress.attempts.iter().any(|a| a.action == *insert && a.reply == Reply::Accepted));
        let action = match (found, insert) {
            // The machine reports the medium under its own name.
            (Some(_), Some(_)) if inserted => continue,
            (Some(_), _) => Action::Eject { slot },
            (None, Some(insert)) => insert,
            (None, None) => continue,
        };
        return pursue(action, &progress.attempts, limits.media, limits, now);
    }
    Verdict::Done
}

/// Returns the difference between a recorded drive and its current state.
pub(super) fn drive_difference(record: &Maintenance, before: &MediaSlot, now: &MediaSlot) -> Option<String> {
    // Path and media types identify the drive; they are not its state.
    let MediaSlot { slot, media_types: _, image: _, inserted, write_protected: _ } = before;
    if now.inserted != *inserted {
        let was = if *inserted { "filled" } else { "empty" };
        return Some(format!("virtual drive {slot} was {was} and is not"));
    }
    if !is_other(record, before, now) {
        return None;
    }
    if has_same_medium(before, now) {
        let was = if before.write_protected == Some(true) { "write-protected" } else { "writable" };
        return Some(format!("the medium in virtual drive {slot} was {was} and is not"));
    }
    let shown = |drive: &MediaSlot| match drive.content() {
        Some("") | None => "a medium without an address".to_owned(),
        Some(image) => shown_url(image),
    };
    Some(format!("virtual drive {slot} contains {}, contained {}", shown(now), shown(before)))
}
