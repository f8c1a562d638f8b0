//! What a `BareMetalHost` is to run and what it runs. No I/O.

use crate::{
    backend::cluster::{annotation, text},
    maintenance::machine::BootOverride,
};

use super::host::{Host, IMAGE};

impl<'a> Host<'a> {
    /// Whether it is about to be provisioned or deprovisioned, because image or deployment of its
    /// spec differ from what runs.
    pub(super) fn will_change(self) -> bool {
        let image = self.has_image();
        match self.state() {
            "available" | "ready" => image && self.online(),
            "provisioned" => !image || self.has_another_image(),
            _ => false,
        }
    }

    /// Whether its spec names another image or deployment than runs: the operator then deprovisions
    /// it (`host_state_machine.go`, `imageProvisioningCancelled`).
    fn has_another_image(self) -> bool {
        let differs = |field: &str| {
            let runs = text(self.0, &format!("/status/provisioning/{field}")).filter(|it| !it.is_empty());
            let wanted = text(self.0, &format!("/spec/{field}")).filter(|it| !it.is_empty());
            runs.is_some() && runs != wanted
        };
        differs("image/url") || differs("customDeploy/method")
    }

    /// Whether its spec names an image or a deployment.
    pub(super) fn has_image(self) -> bool {
        text(self.0, "/spec/image/url").is_some() || text(self.0, "/spec/customDeploy/method").is_some()
    }

    /// The image that its spec names.
    pub(super) fn image(self) -> Option<&'a str> {
        text(self.0, "/spec/image/url")
    }

    /// The override of which we made an image; `None`: we made none.
    pub(super) fn made_image(self) -> Option<BootOverride> {
        let made = serde_json::from_str(annotation(self.0, IMAGE)?).ok()?;
        Some(BootOverride { external: true, ..made })
    }

    /// Whether the image that its spec names is the one that we made.
    pub(super) fn has_our_image(self) -> bool {
        self.image().is_some() && self.made_image().is_some_and(|made| made.http_boot_uri.as_deref() == self.image())
    }

    /// Whether it no longer runs what we booted: it is available again, or has an image of another
    /// author.
    pub(super) fn is_unbooted(self) -> bool {
        let available = self.is_settled() && !self.is_provisioned();
        !self.has_our_image() && (self.has_image() || available)
    }

    /// Whether the end of an image leaves the disks as they are.
    pub(super) fn keeps_disks(self) -> bool {
        text(self.0, "/spec/automatedCleaningMode") == Some("disabled")
    }
}
