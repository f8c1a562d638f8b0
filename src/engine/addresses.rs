//! Full addresses of images and checks. Records contain them without signatures and tokens; the
//! acting process reads them from its configuration.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use secrecy::{ExposeSecret as _, SecretString};

use crate::{
    backend::BackendError,
    maintenance::{
        address::{is_sealed, seal, without_secrets},
        machine::BootOverride,
        spec::Spec,
        step::Action,
    },
    shown::{AsRaw, OneLine},
};

use super::EngineError;

/// Full addresses that this process received, by their stored form.
#[derive(Debug, Default)]
pub(super) struct Addresses(Mutex<HashMap<String, SecretString>>);

impl Addresses {
    /// Keeps a specification's addresses; the newest signature wins.
    pub(super) fn keep(&self, spec: &Spec) {
        spec.checks().for_each(|check| self.keep_as(seal(check.url.raw(), None), check.url.raw()));
        let Some(boot) = spec.boot.as_ref().filter(|boot| !boot.method.is_external()) else { return };
        let Some(image) = &boot.image else { return };
        self.keep_as(seal(image.raw(), boot.image_sha256.as_deref()), image.raw());
    }

    /// Keeps an image address under both stored forms, with and without a checksum.
    pub(super) fn keep_plain(&self, image: &str) {
        for sha256 in [None, Some("")] {
            self.keep_as(seal(image, sha256), image);
        }
    }

    fn keep_as(&self, sealed: String, image: &str) {
        if sealed != image {
            self.known().insert(sealed, SecretString::from(image));
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, SecretString>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the secrets in a specification's addresses from text for its record.
    pub(super) fn without_secrets_of(&self, spec: &Spec, text: String) -> String {
        let image = spec.boot.as_ref().and_then(|boot| boot.image.as_ref());
        let addresses = image.into_iter().chain(spec.checks().map(|check| &check.url));
        let opened = addresses.filter_map(|address| self.open(address.raw()).ok());
        opened.fold(text, |text, address| without_secrets(&text, &address))
    }

    /// Returns the full address.
    pub(super) fn open(&self, image: &str) -> Result<String, EngineError> {
        if !is_sealed(image) {
            return Ok(image.to_owned());
        }
        let known = self.known().get(image).map(|whole| whole.expose_secret().to_owned());
        known.ok_or_else(|| {
            let image = image.split('#').next().unwrap_or_default().to_owned();
            EngineError::AddressUnknown { image }
        })
    }

    /// Returns the action with full addresses, as the machine needs it.
    pub(super) fn open_action(&self, action: &Action) -> Result<Action, EngineError> {
        Ok(match action {
            Action::Insert { slot, image, write_protected } => Action::Insert {
                slot: slot.clone(),
                image: self.open(image.raw())?.into(),
                write_protected: *write_protected,
            },
            Action::SetBoot { wanted, clear_http_boot_uri } => {
                let http_boot_uri = wanted.http_boot_uri.as_raw().map(|image| self.open(image)).transpose()?;
                let wanted = BootOverride { http_boot_uri: http_boot_uri.map(OneLine::from), ..wanted.clone() };
                Action::SetBoot { wanted, clear_http_boot_uri: *clear_http_boot_uri }
            }
            other => other.clone(),
        })
    }
}

/// Returns a machine's error text without any image signature that it repeats.
pub(super) fn said(error: &BackendError, opened: &Action) -> String {
    let text = error.to_string();
    match opened {
        Action::Insert { image, .. } => without_secrets(&text, image.raw()),
        Action::SetBoot { wanted: BootOverride { http_boot_uri: Some(image), .. }, .. } => {
            without_secrets(&text, image.raw())
        }
        _ => text,
    }
}
