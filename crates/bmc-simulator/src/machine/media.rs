//! A machine's virtual media devices.

use super::history::{BootSource, EventKind};
use super::state::State;
use crate::personality::MediaRules;
use crate::words::PowerState;

/// A device and its image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Media {
    pub(crate) device: usize,
    pub(crate) inserted: Option<Inserted>,
    /// The image that some BMCs still show after an eject.
    pub(crate) stale_image: Option<String>,
}

/// An inserted image. Its password is checked and dropped.
#[derive(Clone, Debug)]
pub(crate) struct Inserted {
    pub(crate) image: String,
    pub(crate) write_protected: bool,
    pub(crate) transfer_protocol: Option<String>,
    pub(crate) user_name: Option<String>,
    /// When readers first see it.
    pub(crate) shown_from: tokio::time::Instant,
}

impl State {
    pub(crate) fn insert(&mut self, device: usize, rules: &MediaRules, what: Inserted) {
        let id = rules.devices[device].id.clone();
        if self.media[device].inserted.is_some() {
            self.eject(device, rules);
        }
        self.record(EventKind::MediaInserted { device: id, image: what.image.clone() });
        self.media[device].stale_image = None;
        self.media[device].inserted = Some(what);
    }

    /// Ejects; returns false if the device was empty.
    pub(crate) fn eject(&mut self, device: usize, rules: &MediaRules) -> bool {
        let Some(media) = self.media[device].inserted.take() else {
            return false;
        };
        let id = rules.devices[device].id.clone();
        let runs_from_it = self.power != PowerState::Off
            && self.last_boot.as_ref().is_some_and(|boot| {
                matches!(&boot.booted_from, BootSource::Media { device, image }
                    if *device == id && *image == media.image)
            });
        if rules.image_stays_after_eject {
            self.media[device].stale_image = Some(media.image.clone());
        }
        self.record(EventKind::MediaEjected { device: id, image: media.image, ejected_while_running: runs_from_it });
        true
    }
}
