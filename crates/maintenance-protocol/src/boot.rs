//! Compares the requested and the recorded boot override with the BMC's values.
//!
//! An accepted request proves nothing: BMCs accept an override and show `Disabled`, another mode or
//! another target. Only differences in the quirk table ([`Quirk`]) are tolerated.

use std::fmt;

use shown_text::{AsRaw, OneLine};

use super::{
    address,
    machine::{BootOverride, MachineView, shown_url},
    model::{
        tolerated::{BootWrites, Quirk, Tolerated},
        verdict::Verdict,
    },
    state::Maintenance,
    step::Action,
};

const ENABLED: &str = "BootSourceOverrideEnabled";
const TARGET: &str = "BootSourceOverrideTarget";
const MODE: &str = "BootSourceOverrideMode";
const ADDRESS: &str = "HttpBootUri";
const PATH: &str = "UefiTargetBootSourceOverride";
const ENTRY: &str = "BootNext";

/// Targets that a system in Legacy mode cannot boot.
const UEFI_ONLY: [&str; 3] = ["UefiHttp", "UefiTarget", "UefiBootNext"];

/// A property with another value on the BMC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The property and both values.
    pub text: String,
    /// The quirk that tolerates it.
    pub quirk: Option<Quirk>,
}

/// Joins the differences that the quirk table does not tolerate.
#[must_use]
pub fn refused(differences: &[Difference]) -> Option<String> {
    let texts: Vec<&str> = differences.iter().filter(|one| one.quirk.is_none()).map(|one| one.text.as_str()).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// Collects the differences that the quirk table tolerates, by quirk.
#[must_use]
pub fn tolerated(differences: &[Difference]) -> Vec<Tolerated> {
    Quirk::ALL
        .into_iter()
        .filter_map(|quirk| {
            let texts: Vec<&str> =
                differences.iter().filter(|one| one.quirk == Some(quirk)).map(|one| one.text.as_str()).collect();
            (!texts.is_empty()).then(|| Tolerated { quirk, shown: texts.join(", ").into() })
        })
        .collect()
}

/// Compares the requested override with the BMC's values. `accepted`: the BMC accepted the request.
#[must_use]
pub fn requested(wanted: &BootOverride, found: &BootOverride, accepted: bool) -> Vec<Difference> {
    let BootOverride { enabled, target, mode, http_boot_uri, uefi_target, boot_next, ignition, external } = wanted;
    let mut all = Vec::new();
    let mut compare = |name, wanted: &Option<OneLine>, found: &Option<OneLine>, quirk: Option<Quirk>| {
        if wanted.is_some() && wanted != found {
            let text = format!("{name} is {}, not {}", value(found.as_ref()), value(wanted.as_ref()));
            all.push(Difference { text, quirk: quirk.filter(|_| accepted) });
        }
    };
    let unlisted = |found: &Option<OneLine>, quirk| found.is_none().then_some(quirk);
    compare(TARGET, target, &found.target, None);
    // An external system stores the whole override.
    if !(*external && accepted) {
        let continuous = enabled.as_raw() == Some("Once") && found.enabled.as_raw() == Some("Continuous");
        let quirk = continuous.then_some(Quirk::OnceAsContinuous);
        compare(ENABLED, enabled, &found.enabled, quirk);
        compare(MODE, mode, &found.mode, unlisted(&found.mode, Quirk::ModeNotListed));
    }
    let quirk = unlisted(&found.uefi_target, Quirk::EntryNotListed);
    compare(PATH, uefi_target, &found.uefi_target, quirk);
    let quirk = unlisted(&found.boot_next, Quirk::EntryNotListed);
    compare(ENTRY, boot_next, &found.boot_next, quirk);
    if mode.is_none() && needs_uefi(wanted) && is_legacy(found) {
        compare(MODE, &Some("UEFI".into()), &found.mode, None);
    }
    let (wanted_uri, found_uri) = (http_boot_uri.as_raw(), found.http_boot_uri.as_raw());
    // Two different addresses can look equal, because neither shows its query.
    if wanted_uri.is_some() && !address::same_or_none(found_uri, wanted_uri) {
        all.push(Difference {
            text: format!("{ADDRESS} is {}, not {}", shown(found_uri), shown(wanted_uri)),
            quirk: None,
        });
    }
    if *external && found.ignition != *ignition {
        all.push(Difference { text: "the ignition file differs".to_owned(), quirk: None });
    }
    all
}

/// Adds the mode UEFI to a request if the BMC chose Legacy. Supermicro does so if the request does
/// not contain a mode.
#[must_use]
pub fn with_mode(wanted: BootOverride, before: Option<&BootOverride>, found: Option<&BootOverride>) -> BootOverride {
    let was_uefi = before.and_then(|before| before.mode.as_raw()) == Some("UEFI");
    if wanted.mode.is_none() && found.is_some_and(is_legacy) && (was_uefi || needs_uefi(&wanted)) {
        return BootOverride { mode: Some("UEFI".into()), ..wanted };
    }
    wanted
}

fn needs_uefi(wanted: &BootOverride) -> bool {
    wanted.target.as_raw().is_some_and(|target| UEFI_ONLY.contains(&target))
}

fn is_legacy(found: &BootOverride) -> bool {
    found.mode.as_raw() == Some("Legacy")
}

/// Compares the recorded override with the BMC's values, property by property.
///
/// While both overrides are disabled, the next start does not use the other properties, so their
/// differences are tolerated. The maintenance's own address and mode must not remain.
#[must_use]
pub fn recorded(before: &BootOverride, found: &BootOverride, writes: Option<&BootWrites>) -> Vec<Difference> {
    let BootOverride { enabled, target, mode, http_boot_uri, uefi_target, boot_next, ignition: _, external } = before;
    let unused = before.is_disabled() && found.is_disabled();
    let mut all = Vec::new();
    if *external || found.external {
        // An external system keeps the whole override.
        if !unused && ((target.is_some() && *target != found.target) || *http_boot_uri != found.http_boot_uri) {
            all.push(Difference { text: format!("boot override is {found}, was {before}"), quirk: None });
        }
        return all;
    }
    if is_unlisted(before) {
        if !found.is_disabled() && writes.is_some() {
            all.push(Difference { text: format!("boot override is {found}, was {before}"), quirk: None });
        }
        return all;
    }
    let inert = unused.then_some(Quirk::UnusedProperty);
    let of_ours = found.mode.is_some() && writes.is_some_and(|writes| writes.mode == found.mode);
    for (name, was, is, quirk) in [
        (ENABLED, enabled, &found.enabled, inert),
        (TARGET, target, &found.target, inert),
        (MODE, mode, &found.mode, inert.filter(|_| !of_ours)),
    ] {
        if was.is_some() && was != is {
            all.push(Difference { text: changed(name, is.as_ref(), was.as_ref()), quirk });
        }
    }
    for (name, was, is) in [(PATH, uefi_target, &found.uefi_target), (ENTRY, boot_next, &found.boot_next)] {
        if was != is {
            all.push(Difference { text: changed(name, is.as_ref(), was.as_ref()), quirk: inert });
        }
    }
    let (was, is) = (http_boot_uri.as_raw(), found.http_boot_uri.as_raw());
    if !address::same_or_none(is, was) {
        let text = format!("{ADDRESS} is {}, was {}", shown(is), shown(was));
        all.push(Difference { text, quirk: inert.filter(|_| is.is_none()) });
    }
    all
}

/// Adds the override that the BMC shows to a wait and to a failure.
#[must_use]
pub fn explain(verdict: Verdict, found: Option<&BootOverride>) -> Verdict {
    match verdict {
        Verdict::Fail(cause) => Verdict::Fail(format!("{cause}; {}", Shown(found)).into()),
        Verdict::Wait { why, until } => Verdict::Wait { why: format!("{why}; {}", Shown(found)).into(), until },
        verdict => verdict,
    }
}

/// Returns true if a machine listed neither `Enabled` nor `Target`.
#[must_use]
pub fn is_unlisted(boot: &BootOverride) -> bool {
    boot.enabled.is_none() && boot.target.is_none()
}

/// Returns true if an override is armed for one start.
#[must_use]
pub fn is_once(boot: &BootOverride) -> bool {
    boot.enabled.as_raw() == Some("Once") && !boot.is_disabled()
}

/// Returns the recorded one-time override if a start has used it since.
///
/// The release arms it again only if the maintenance overwrote it.
#[must_use]
pub fn used_once<'a>(record: &'a Maintenance, found: &BootOverride) -> Option<&'a BootOverride> {
    let before = record.prior.as_ref()?.boot.as_ref().filter(|before| is_once(before))?;
    let used = record.boot_writes.as_ref().map_or(found.is_disabled(), |writes| writes.once_used);
    used.then_some(before)
}

/// Reports a used one-time override as a tolerated difference.
#[must_use]
pub fn used_once_difference(before: &BootOverride) -> Difference {
    let text = format!("The one-time boot override ({before}) was used during the maintenance");
    Difference { text, quirk: Some(Quirk::OnceUsed) }
}

/// Notes a write to the override, by the record or by `child` under it.
pub(super) fn note_write(record: &mut Maintenance, action: &Action, child: Option<&Maintenance>, preparing: bool) {
    let Action::SetBoot { wanted, .. } = action else { return };
    // The last state that was read before the write.
    let seen = match child {
        Some(child) => child.prior.as_ref(),
        None => record.update.as_ref().and_then(|update| update.before.as_ref()),
    };
    let seen = seen.and_then(|state| state.boot.as_ref());
    let armed = record.prior.as_ref().and_then(|prior| prior.boot.as_ref()).is_some_and(is_once);
    let used = armed && seen.is_some_and(BootOverride::is_disabled);
    let writes = record.boot_writes.get_or_insert(BootWrites { mode: None, once_used: used });
    if preparing && wanted.mode.is_some() {
        writes.mode.clone_from(&wanted.mode);
    }
}

/// Returns the text for the armed override; `None`: the machine follows its boot order.
#[must_use]
pub fn armed(machine: &MachineView) -> Option<String> {
    machine.boot.as_ref().filter(|boot| !boot.is_disabled()).map(ToString::to_string)
}

fn shown(address: Option<&str>) -> String {
    address.map_or_else(|| "not set".to_owned(), shown_url)
}

fn value(value: Option<&OneLine>) -> &str {
    value.map_or("not listed", OneLine::shown)
}

fn changed(name: &str, found: Option<&OneLine>, before: Option<&OneLine>) -> String {
    format!("{name} is {}, was {}", value(found), value(before))
}

/// Displays every property of the BMC's override.
#[derive(Debug)]
pub struct Shown<'a>(pub Option<&'a BootOverride>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(boot) = self.0 else { return f.write_str("the BMC does not show a boot override") };
        write!(
            f,
            "the BMC shows {ENABLED} {}, {TARGET} {}",
            value(boot.enabled.as_ref()),
            value(boot.target.as_ref())
        )?;
        let uri = boot.http_boot_uri.as_raw().map(|uri| shown_url(uri).into());
        let more = [(MODE, &boot.mode), (ADDRESS, &uri), (PATH, &boot.uefi_target), (ENTRY, &boot.boot_next)];
        for (name, value) in more {
            if let Some(value) = value {
                write!(f, ", {name} {value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
