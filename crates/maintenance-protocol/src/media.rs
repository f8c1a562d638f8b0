//! Rules for virtual media: the loaded drive must be the drive that boots.
//!
//! The server receives a virtual drive as a USB device, and BMCs name its boot target differently.
//! On some `Cd` is the physical drive (iDRAC), others also list `UsbCd` (Supermicro), and others
//! add a boot menu entry (DSP2046, `BootOption`). Configured values take precedence, then the BMC's
//! list. The result is reported as proven or unproven; a boot from the drive is never assumed.

use jiff::Timestamp;
use shown_text::AsRaw;

use super::{
    address,
    machine::{BootOption, BootOverride, Capabilities, MachineView, MediaSlot, PowerState},
    model::{
        facts::Facts,
        operation::OperationOutcome,
        verdict::{Limits, Need, Verdict, after},
    },
    power::pursue,
    spec::{BootMethod, BootSpec},
    state::{Maintenance, Progress},
    step::{Action, Reply},
};

/// Targets of a virtual optical drive, most specific first. If a BMC distinguishes them, `Cd` is
/// the physical drive.
const OPTICAL: [&str; 5] = ["UsbCd", "UefiUsbCd", "Cd", "UefiCd", "CD/DVD"];
/// Targets of a virtual USB stick.
const STICK: [&str; 5] = ["Usb", "UsbKey", "UefiUsbKey", "UsbHdd", "UefiUsbHdd"];

/// Returns true if the image's name indicates a USB stick.
fn is_stick(image: &str) -> bool {
    let path = image.split(['?', '#']).next().unwrap_or(image).to_ascii_lowercase();
    path.rsplit_once('.').is_some_and(|(_, ending)| ending == "img" || ending == "raw")
}

/// Returns a drive's name: the last segment of its path.
fn name(slot: &MediaSlot) -> &str {
    slot.slot.raw().trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// Splits a name for natural order: slot 2 before slot 10. iDRAC 10 boots only slot 1 but lists
/// slot 2 first.
fn natural(name: &str) -> (String, u64) {
    let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (letters.to_owned(), name[letters.len()..].parse().unwrap_or(0))
}

/// Returns true if the image fits the drive: stick images need a stick, all others an optical
/// drive.
fn takes(slot: &MediaSlot, image: &str) -> bool {
    if is_stick(image) { slot.media_types.iter().any(|kind| kind == "USBStick") } else { slot.is_optical() }
}

/// Returns the drive for an image: the configured drive, otherwise an optical drive, or a stick for
/// stick images.
///
/// The lowest number is chosen even if that drive is loaded. A target such as `Cd` boots the first
/// loaded drive, so a later drive would boot the old medium. Only media with an unknown address are
/// avoided, because a release could not insert them again.
#[must_use]
pub fn choose_slot<'a>(media: &'a [MediaSlot], image: &str, configured: Option<&str>) -> Option<&'a MediaSlot> {
    if let Some(wanted) = configured {
        return media.iter().find(|slot| slot.slot == wanted || name(slot) == wanted);
    }
    let rank = |slot: &&MediaSlot| (slot.content() == Some(""), natural(name(slot)));
    let best = |slots: &mut dyn Iterator<Item = &'a MediaSlot>| slots.min_by_key(rank);
    best(&mut media.iter().filter(|slot| takes(slot, image)))
        .or_else(|| best(&mut media.iter().filter(|slot| slot.is_optical())))
}

/// Returns a medium in another drive that could boot instead. It is ejected if the release can
/// insert it again.
fn rival<'a>(media: &'a [MediaSlot], chosen: &MediaSlot, image: &str) -> Option<&'a MediaSlot> {
    let others = media.iter().filter(|slot| slot.slot != chosen.slot && takes(slot, image) == takes(chosen, image));
    let mut filled = others.filter(|slot| slot.content().is_some_and(|found| !found.is_empty()));
    filled.find(|slot| slot.content().is_some_and(|found| !address::same(found, image)))
}

/// Returns why a drive cannot be used: a medium without address, which a release cannot insert
/// again, is in it or could boot instead. `media` is the prior state.
///
/// A boot menu entry or a configured drive avoids the ambiguity.
#[must_use]
pub(super) fn held_unknown(boot: &BootSpec, has: &Capabilities, media: &[MediaSlot]) -> Option<String> {
    let image = boot.image.as_raw().filter(|_| boot.method == BootMethod::VirtualMedia)?;
    let chosen = choose_slot(media, image, has.media_slot.as_raw())?;
    let apart = has.media_slot.is_some() || menu_may_tell(boot, has);
    let unknown = |slot: &&MediaSlot| slot.content() == Some("");
    let other = || media.iter().filter(|slot| !apart && takes(slot, image) == takes(chosen, image)).find(unknown);
    Some(chosen).filter(unknown).or_else(other).map(unknown_medium)
}

fn unknown_medium(slot: &MediaSlot) -> String {
    format!(
        "virtual drive {} contains a medium without a reported address, so a release could not restore it; eject it \
         first",
        slot.slot
    )
}

/// Returns why an image cannot be inserted into a virtual drive: the attribute and the reason.
#[must_use]
pub fn missing_drive(boot: &BootSpec, has: &Capabilities, media: &[MediaSlot]) -> Option<(&'static str, String)> {
    if boot.method != BootMethod::VirtualMedia {
        return None;
    }
    let image = boot.image.as_raw().unwrap_or_default();
    let names = || media.iter().map(name).collect::<Vec<_>>().join(", ");
    if media.is_empty() {
        return Some(("method", "The machine does not have usable virtual media.".to_owned()));
    }
    match (choose_slot(media, image, has.media_slot.as_raw()), &has.media_slot) {
        (Some(_), _) => None,
        (None, Some(wanted)) => Some((
            "method",
            format!("The machine does not list the virtual drive {wanted} (media_slot); it lists {}.", names()),
        )),
        (None, None) => {
            Some(("method", format!("The machine does not have a virtual drive for this image; it lists {}.", names())))
        }
    }
}

/// Returns true if the boot menu can select the drive: it is listed, an entry can be booted, and no
/// target is configured.
fn menu_may_tell(boot: &BootSpec, has: &Capabilities) -> bool {
    let by_entry = has.boot_targets.iter().any(|target| target == "UefiTarget" || target == "UefiBootNext");
    // A boot menu selection applies to one start (DSP2046, UefiTargetBootSourceOverride).
    has.boot_menu && by_entry && boot.once && has.media_target.is_none()
}

/// Returns why a loaded drive cannot be booted, as far as the BMC lists its targets.
#[must_use]
pub fn missing_target(boot: &BootSpec, has: &Capabilities) -> Option<(&'static str, String)> {
    let listed = has.boot_targets.join(", ");
    if let Some(wanted) = &has.media_target {
        let known = has.boot_targets.iter().any(|target| target == wanted);
        return (!known)
            .then(|| ("method", format!("The machine cannot boot from {wanted} (boot_target); it lists {listed}.")));
    }
    let known = |targets: &[&str]| has.boot_targets.iter().any(|listed| targets.contains(&listed.raw()));
    (!known(&OPTICAL) && !known(&STICK) && !menu_may_tell(boot, has))
        .then(|| ("method", format!("The machine does not have a boot target for a virtual drive; it lists {listed}.")))
}

/// Returns true if a boot menu entry's name matches a virtual drive of this kind.
fn is_virtual(option: &BootOption, stick: bool) -> bool {
    let text = format!("{} {}", option.name, option.path.as_raw().unwrap_or_default()).to_ascii_lowercase();
    let kinds: &[&str] = if stick { &["usb", "disk", "floppy", "stick"] } else { &["cd", "dvd", "optical", "media"] };
    text.contains("virtual") && kinds.iter().any(|kind| text.contains(kind))
}

/// Returns the override that boots the loaded drive. It selects a boot menu entry if that is
/// exactly the drive.
fn target(
    boot: &BootSpec,
    has: &Capabilities,
    stick: bool,
    before: Option<&[BootOption]>,
    menu: &[BootOption],
) -> BootOverride {
    let plain = |target: &str| BootOverride { target: Some(target.into()), ..wanted_override(boot, false) };
    if let Some(target) = &has.media_target {
        return plain(target.raw());
    }
    let lists = |wanted: &str| has.boot_targets.iter().any(|target| target == wanted);
    if menu_may_tell(boot, has) {
        let new = |option: &&BootOption| {
            before.is_some_and(|before| {
                before.iter().all(|old| old.reference != option.reference || old.path != option.path)
            })
        };
        let mut appeared = menu.iter().filter(new);
        // If several entries are new, the name identifies the drive.
        let alone = appeared.next().filter(|_| appeared.next().is_none());
        let named = || menu.iter().filter(new).find(|option| is_virtual(option, stick));
        let found = alone.or_else(named).or_else(|| menu.iter().find(|option| is_virtual(option, stick)));
        if let Some(option) = found {
            if let Some(path) = option.path.as_ref().filter(|path| lists("UefiTarget") && !path.is_empty()) {
                return BootOverride { uefi_target: Some(path.clone()), ..plain("UefiTarget") };
            }
            if lists("UefiBootNext") && !option.reference.is_empty() {
                return BootOverride { boot_next: Some(option.reference.clone()), ..plain("UefiBootNext") };
            }
        }
    }
    let families: [&[&str]; 2] = if stick { [&STICK, &OPTICAL] } else { [&OPTICAL, &STICK] };
    let listed = families.into_iter().flatten().find(|target| lists(target));
    plain(listed.copied().unwrap_or(&boot.method.target()))
}

/// Returns the override for the virtual drive, or the fact to read first. The first choice is
/// final.
pub(super) fn wanted(
    boot: &BootSpec,
    record: &Maintenance,
    progress: &Progress,
    facts: &Facts,
) -> Result<BootOverride, Need> {
    let chosen = progress.attempts.iter().rev().find_map(|attempt| match &attempt.action {
        Action::SetBoot { wanted, .. } => Some(wanted.clone()),
        _ => None,
    });
    if let Some(chosen) = chosen {
        return Ok(chosen);
    }
    let has = facts.capabilities.as_ref().ok_or(Need::Capabilities)?;
    let menu = if menu_may_tell(boot, has) { facts.menu.as_deref().ok_or(Need::Menu)? } else { &[] };
    Ok(target(boot, has, into_stick(boot, record, has), facts.menu_before.as_deref(), menu))
}

/// Returns true if the server receives the image as a USB stick.
fn into_stick(boot: &BootSpec, record: &Maintenance, has: &Capabilities) -> bool {
    let image = boot.image.as_raw().unwrap_or_default();
    let drives = record.prior.as_ref().map_or(&[][..], |prior| &prior.media);
    match choose_slot(drives, image, has.media_slot.as_raw()) {
        Some(slot) => is_stick(image) || !slot.is_optical(),
        None => is_stick(image),
    }
}

/// Returns the evidence after the override is set: `Accepted` if it selects a boot menu entry.
pub(super) fn chosen(wanted: &BootOverride) -> OperationOutcome {
    if wanted.names_an_entry() { OperationOutcome::Accepted } else { OperationOutcome::Unproven }
}

/// Evaluates if a started server booted the drive. Proof requires a selected boot menu entry and an
/// override that the firmware used. Power alone proves nothing, and a generic target can be another
/// drive.
pub(super) fn proof(progress: &Progress, machine: &MachineView, limits: &Limits, now: Timestamp) -> Verdict {
    if machine.power != PowerState::On || progress.outcome != Some(OperationOutcome::Accepted) {
        return Verdict::Concluded(OperationOutcome::Unproven);
    }
    if machine.boot.as_ref().is_some_and(BootOverride::is_disabled) {
        return Verdict::Concluded(OperationOutcome::Proven);
    }
    let until = after(progress.since, limits.boot_progress);
    if now < until {
        let why = "the firmware has not applied the boot override yet".to_owned();
        return Verdict::Wait { why: why.into(), until: Some(until) };
    }
    Verdict::Concluded(OperationOutcome::Unproven)
}

pub(super) fn insert(
    record: &Maintenance,
    progress: &Progress,
    facts: &Facts,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let Some((boot, image)) = record.spec.boot.as_ref().and_then(|boot| Some((boot, boot.image.as_ref()?))) else {
        return Verdict::Done;
    };
    let Some(media) = &facts.media else {
        return Verdict::Look(Need::Media);
    };
    let Some(has) = &facts.capabilities else {
        return Verdict::Look(Need::Capabilities);
    };
    // The first choice is final, even for a process that takes over, unless the drive rejected the
    // image.
    let refusal = |name: &str| {
        progress.attempts.iter().find_map(|attempt| match (&attempt.action, &attempt.reply) {
            (Action::Insert { slot, .. }, Reply::Refused { message, transient: false }) if slot == name => {
                Some(message)
            }
            _ => None,
        })
    };
    let chosen = progress.attempts.iter().rev().find_map(|attempt| match &attempt.action {
        Action::Insert { slot, .. } => Some(slot),
        _ => None,
    });
    let slot = if let Some(name) = chosen.filter(|name| refusal(name.raw()).is_none()) {
        media.iter().find(|slot| slot.slot == *name).cloned()
    } else {
        let left: Vec<MediaSlot> = media.iter().filter(|slot| refusal(slot.slot.raw()).is_none()).cloned().collect();
        choose_slot(&left, image.raw(), has.media_slot.as_raw()).cloned()
    };
    let Some(slot) = slot else {
        return Verdict::Fail(match chosen.and_then(|name| refusal(name.raw())) {
            Some(message) => format!("no virtual drive accepts this image; the last drive answered: {message}").into(),
            None => "the machine does not have a virtual drive for this image".into(),
        });
    };
    let insert = Action::Insert { slot: slot.slot.clone(), image: image.clone(), write_protected: true };
    let accepted = progress.attempts.iter().any(|attempt| attempt.action == insert && attempt.reply == Reply::Accepted);
    let eject = |slot: &MediaSlot| {
        pursue(Action::Eject { slot: slot.slot.clone() }, &progress.attempts, limits.media, limits, now)
    };
    if let Some(other) = rival(media, &slot, image.raw()) {
        return eject(other);
    }
    match slot.content() {
        // Some machines report the image under a different name.
        Some(found) if address::same(found, image.raw()) || accepted => Verdict::Done,
        Some("") if !is_ours(record, &slot) => Verdict::Fail(unknown_medium(&slot).into()),
        Some(_) => eject(&slot),
        None if menu_may_tell(boot, has) && facts.menu_before.is_none() => Verdict::Look(Need::MenuBefore),
        None => pursue(insert, &progress.attempts, limits.media, limits, now),
    }
}

/// Returns true if this maintenance inserted the medium without address. Some machines never report
/// an address, and the drive was empty before.
fn is_ours(record: &Maintenance, slot: &MediaSlot) -> bool {
    let before = record.prior.as_ref().and_then(|prior| prior.media.iter().find(|before| before.slot == slot.slot));
    record.drives.contains(&slot.slot) && before.is_some_and(|before| before.content().is_none())
}

/// Stores the changed drive, which the release must read again.
pub(super) fn note_drive(record: &mut Maintenance, action: &Action) {
    if let Action::Insert { slot, .. } | Action::Eject { slot } = action
        && !record.drives.contains(slot)
    {
        record.drives.push(slot.clone());
    }
}

/// Returns the override for a boot specification. `there` is true if the external system boots the
/// server.
#[must_use]
pub fn wanted_override(boot: &BootSpec, there: bool) -> BootOverride {
    BootOverride {
        enabled: Some(if boot.once { "Once" } else { "Continuous" }.into()),
        target: Some(boot.method.target().into_owned().into()),
        mode: boot.boot_mode.map(|mode| mode.as_redfish().into()),
        http_boot_uri: if boot.method == BootMethod::Http || boot.method.is_external() || there {
            boot.image.clone()
        } else {
            None
        },
        uefi_target: None,
        boot_next: None,
        ignition: boot.ignition.clone(),
        external: boot.method.is_external(),
    }
}

#[cfg(test)]
mod tests;
