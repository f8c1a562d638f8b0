//! The boot override: validation of writes, and consumption by a boot.

use serde_json::Value;

use super::history::{BootOverride, BootRecord, BootSource, EventKind};
use super::state::State;
use crate::personality::{BootRules, MediaRules, SettingsApply};
use crate::redfish::Message;
use crate::words::{BootMode, BootTarget, OverrideEnabled};

/// Validates a write to `Boot`; the result replaces `current` completely.
///
/// An error rejects the whole write, and names every wrong property.
pub(crate) fn judge(current: &BootOverride, wanted: &Value, rules: &BootRules) -> Result<BootOverride, Vec<Message>> {
    let Some(wanted) = wanted.as_object() else {
        return Err(vec![Message::property_value_type(wanted, "Boot")]);
    };
    let mut next = current.clone();
    let mut faults = Vec::new();
    for required in &rules.required {
        if !wanted.contains_key(required) {
            faults.push(Message::property_missing(required).about(&format!("/Boot/{required}")));
        }
    }
    for (name, value) in wanted {
        let verdict = match name.as_str() {
            "BootSourceOverrideEnabled" => {
                choose(value, name, &rules.enabled, OverrideEnabled::parse).map(|value| next.enabled = value)
            }
            "BootSourceOverrideTarget" => {
                choose(value, name, &rules.targets, BootTarget::parse).map(|value| next.target = value)
            }
            "BootSourceOverrideMode" if !rules.modes.is_empty() => {
                choose(value, name, &rules.modes, BootMode::parse).map(|value| next.mode = value)
            }
            "HttpBootUri" if rules.http_boot_uri => match value {
                Value::Null => {
                    next.http_boot_uri = None;
                    Ok(())
                }
                Value::String(uri) if uri.is_empty() => {
                    next.http_boot_uri = None;
                    Ok(())
                }
                Value::String(uri) if uri.starts_with("http://") || uri.starts_with("https://") => {
                    next.http_boot_uri = Some(uri.clone());
                    Ok(())
                }
                Value::String(_) => Err(Message::property_value_format(value, name)),
                _ => Err(Message::property_value_type(value, name)),
            },
            "UefiTargetBootSourceOverride" | "BootNext" if rules.menu => match value {
                Value::Null | Value::String(_) => {
                    let text = value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
                    if name == "BootNext" {
                        next.boot_next = text;
                    } else {
                        next.uefi_target = text;
                    }
                    Ok(())
                }
                _ => Err(Message::property_value_type(value, name)),
            },
            _ if name.contains('@') => Ok(()),
            _ => Err(Message::property_unknown(name)),
        };
        if let Err(message) = verdict {
            faults.push(message.about(&format!("/Boot/{name}")));
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    if next.enabled == OverrideEnabled::Disabled && !wanted.contains_key("BootSourceOverrideTarget") {
        next.target = BootTarget::None;
    }
    Ok(next)
}

/// Returns a filled virtual drive's entry in the firmware's boot menu.
pub(crate) fn menu_entry(device: usize) -> String {
    format!("Boot{:04X}", 16 + device)
}

/// Returns a virtual drive's UEFI device path.
pub(crate) fn device_path(device: usize) -> String {
    format!("PciRoot(0x0)/Pci(0x14,0x0)/USB(0x{device:X},0x0)")
}

fn choose<T: Copy + PartialEq>(
    value: &Value,
    name: &str,
    allowed: &[T],
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, Message> {
    let Value::String(text) = value else {
        return Err(Message::property_value_type(value, name));
    };
    parse(text).filter(|value| allowed.contains(value)).ok_or_else(|| Message::property_value_not_in_list(value, name))
}

impl State {
    /// Activates a validated override, now or at the next boot.
    pub(crate) fn set_override(&mut self, next: BootOverride, apply: SettingsApply) {
        self.record(EventKind::OverrideSet(next.clone()));
        match apply {
            SettingsApply::Immediate => {
                self.boot = next;
                self.pending_boot = None;
            }
            SettingsApply::OnReset => self.pending_boot = Some(next),
        }
    }

    /// Chooses and records the boot source, and consumes a one-time override.
    pub(crate) fn choose_boot_source(&mut self, media: &MediaRules) {
        if let Some(pending) = self.pending_boot.take() {
            self.boot = pending;
        }
        let requested = self.boot.clone();
        let booted_from = if requested.enabled == OverrideEnabled::Disabled {
            BootSource::Disk
        } else {
            self.source_for(&requested, media)
        };
        if requested.enabled == OverrideEnabled::Once {
            self.boot.enabled = OverrideEnabled::Disabled;
            self.boot.target = BootTarget::None;
            self.boot.uefi_target = None;
            self.boot.boot_next = None;
        }
        let once = requested.enabled == OverrideEnabled::Once;
        let record = BootRecord { requested, booted_from };
        self.last_boot = Some(record.clone());
        self.record(EventKind::Booted(record));
        if once {
            self.record(EventKind::OverrideConsumed);
        }
    }

    fn source_for(&self, requested: &BootOverride, rules: &MediaRules) -> BootSource {
        let from_media = self
            .media
            .iter()
            .filter(|media| match requested.target {
                BootTarget::UefiTarget => requested.uefi_target.as_deref() == Some(&*device_path(media.device)),
                BootTarget::UefiBootNext => requested.boot_next.as_deref() == Some(&*menu_entry(media.device)),
                target => rules.devices[media.device].boots_as.contains(&target),
            })
            .find_map(|media| {
                media.inserted.as_ref().map(|inserted| BootSource::Media {
                    device: rules.devices[media.device].id.clone(),
                    image: inserted.image.clone(),
                })
            });
        match (from_media, requested.target) {
            (Some(media), _) => media,
            (None, BootTarget::UefiHttp) => BootSource::Http { uri: requested.http_boot_uri.clone() },
            (None, BootTarget::Pxe) => BootSource::Pxe,
            // Like firmware, skip a device without media and continue with the disk.
            (
                None,
                BootTarget::None
                | BootTarget::Hdd
                | BootTarget::Cd
                | BootTarget::Usb
                | BootTarget::UsbCd
                | BootTarget::UefiUsbCd
                | BootTarget::UsbKey
                | BootTarget::UefiTarget
                | BootTarget::UefiBootNext
                | BootTarget::Floppy,
            ) => BootSource::Disk,
            (None, target) => BootSource::Other { target },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_wrong_property_spoils_the_whole_write_and_each_is_named() {
        let wanted = json!({
            "BootSourceOverrideEnabled": "Once",
            "BootSourceOverrideTarget": "Bogus",
            "Fancy": 1,
        });
        let faults = judge(&BootOverride::default(), &wanted, &BootRules::default()).unwrap_err();
        let ids: Vec<_> = faults.iter().map(|fault| fault.id).collect();
        assert_eq!(ids, ["PropertyValueNotInList", "PropertyUnknown"]);
    }

    #[test]
    fn a_disabled_override_forgets_its_target_unless_told_one() {
        let rules = BootRules::default();
        let current =
            BootOverride { enabled: OverrideEnabled::Continuous, target: BootTarget::Pxe, ..BootOverride::default() };
        let off = json!({"BootSourceOverrideEnabled": "Disabled"});
        assert_eq!(judge(&current, &off, &rules).unwrap().target, BootTarget::None);
        let off = json!({"BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "Hdd"});
        assert_eq!(judge(&current, &off, &rules).unwrap().target, BootTarget::Hdd);
    }

    #[test]
    fn a_mode_that_is_not_offered_is_unknown() {
        let rules = BootRules { modes: Vec::new(), ..BootRules::default() };
        let wanted = json!({"BootSourceOverrideMode": "UEFI"});
        let faults = judge(&BootOverride::default(), &wanted, &rules).unwrap_err();
        assert_eq!(faults[0].id, "PropertyUnknown");
    }
}
