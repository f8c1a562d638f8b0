//! A `BareMetalHost`'s desired and running image. No I/O.

use crate::{
    backend::cluster::{annotation, text},
    maintenance::machine::BootOverride,
    shown::AsRaw,
};

use super::host::{Host, IMAGE};

impl<'a> Host<'a> {
    /// Returns true if the host is about to be provisioned or deprovisioned, because its spec
    /// differs from the running image or deployment.
    pub(super) fn will_change(self) -> bool {
        let image = self.has_image();
        match self.state() {
            "available" | "ready" => image && self.online(),
            "provisioned" => !image || self.has_another_image(),
            _ => false,
        }
    }

    /// Returns true if the spec names another image or deployment than the running one. The
    /// operator then deprovisions the host (`host_state_machine.go`, `imageProvisioningCancelled`).
    fn has_another_image(self) -> bool {
        let differs = |field: &str| {
            let runs = text(self.0, &format!("/status/provisioning/{field}")).filter(|it| !it.is_empty());
            let wanted = text(self.0, &format!("/spec/{field}")).filter(|it| !it.is_empty());
            runs.is_some() && runs != wanted
        };
        differs("image/url") || differs("customDeploy/method")
    }

    /// Returns true if the spec names an image or a deployment.
    pub(super) fn has_image(self) -> bool {
        text(self.0, "/spec/image/url").is_some() || text(self.0, "/spec/customDeploy/method").is_some()
    }

    pub(super) fn image(self) -> Option<&'a str> {
        text(self.0, "/spec/image/url")
    }

    /// Returns the boot override behind our image; `None` if we did not set an image.
    pub(super) fn made_image(self) -> Option<BootOverride> {
        let made = serde_json::from_str(annotation(self.0, IMAGE)?).ok()?;
        Some(BootOverride { external: true, ..made })
    }

    /// Returns true if the image in the spec is ours.
    pub(super) fn has_our_image(self) -> bool {
        self.image().is_some() && self.made_image().is_some_and(|made| made.http_boot_uri.as_raw() == self.image())
    }

    /// Returns true if the host no longer runs our image: it is available again, or has another
    /// author's image.
    pub(super) fn is_unbooted(self) -> bool {
        let available = self.is_settled() && !self.is_provisioned();
        !self.has_our_image() && (self.has_image() || available)
    }

    /// Returns true if removing the image leaves the disks unchanged.
    pub(super) fn keeps_disks(self) -> bool {
        text(self.0, "/spec/automatedCleaningMode") == Some("disabled")
    }
}
