//! Sealed addresses: URLs of images and checks that can contain a signature or token.
//!
//! A query can grant access to the image, so a record stores the address without it. It stores a
//! digest of the parameters that select the image. The acting process has the full address from its
//! configuration. Signatures are ignored in comparisons, because each run can sign again.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};
use shown_text::{AsRaw, OneLine};
use url::Url;

use super::{
    spec::{BootMethod, BootSpec, CompleteWhen, Spec, UrlCheck},
    state::{Maintenance, PriorState},
};

/// Prefix of a sealed address's fragment. Fragments are never sent to a server.
const MARK: &str = "metal-sealed:";

/// The digest if `image_sha256` identifies the image, so no parameter selects it.
const BY_CONTENT: &str = "content";

/// Parameters in lower case that authorize access and do not select content. If an entry is
/// missing, a new signature counts as a different image.
const SIGNATURES: [&str; 30] = [
    "signature",
    "sig",
    "sign",
    "expires",
    "expiry",
    "expire",
    "exp",
    "policy",
    "key-pair-id",
    "token",
    "access_token",
    "auth",
    "auth_key",
    "authorization",
    "jwt",
    "hmac",
    "md5",
    "secret",
    "password",
    "api_key",
    "apikey",
    "googleaccessid",
    "awsaccesskeyid",
    "ossaccesskeyid",
    "security-token",
    "temp_url_sig",
    "temp_url_expires",
    "verify",
    "hdnea",
    "hdnts",
];

/// Prefixes of such parameters.
const PREFIXES: [&str; 4] = ["x-amz-", "x-goog-", "x-oss-", "x-cos-"];

/// Parameters of a shared access signature (Azure), ignored together with `sig`.
const SHARED_ACCESS: [&str; 14] =
    ["se", "sp", "sv", "sr", "st", "spr", "sip", "ss", "srt", "skoid", "sktid", "skt", "ske", "sks"];

/// Removes user, query and fragment, and adds a digest of all parameters that select the image.
/// Returns bare, sealed and invalid addresses unchanged.
#[must_use]
pub fn seal(address: &str, sha256: Option<&str>) -> String {
    let Ok(mut url) = Url::parse(address) else { return address.to_owned() };
    let bare = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    if is_sealed(address) || url.cannot_be_a_base() || (bare && url.password().is_none()) {
        return address.to_owned();
    }
    let digest = if sha256.is_some() { BY_CONTENT.to_owned() } else { digest(&url) };
    let _ = (url.set_username(""), url.set_password(None));
    url.set_query(None);
    url.set_fragment(Some(&format!("{MARK}{digest}")));
    url.into()
}

/// Returns true if the address is sealed.
#[must_use]
pub fn is_sealed(address: &str) -> bool {
    address.split_once('#').is_some_and(|(_, fragment)| fragment.starts_with(MARK))
}

/// Returns true if the machine's address matches the recorded address.
#[must_use]
pub fn same(shown: &str, recorded: &str) -> bool {
    let by_content = recorded.ends_with(&format!("#{MARK}{BY_CONTENT}"));
    shown == recorded || (is_sealed(recorded) && seal(shown, by_content.then_some("")) == recorded)
}

/// Compares optional addresses with [`same`].
pub(super) fn same_or_none(shown: Option<&str>, recorded: Option<&str>) -> bool {
    match (shown, recorded) {
        (Some(shown), Some(recorded)) => same(shown, recorded),
        (shown, recorded) => shown == recorded,
    }
}

/// Removes secrets that [`seal`] hides in `address` from a machine's text.
#[must_use]
pub fn without_secrets(text: &str, address: &str) -> String {
    let Ok(url) = Url::parse(address) else { return text.to_owned() };
    let query = url.query().unwrap_or_default();
    let values = query.split('&').filter_map(|part| part.split_once('=')).map(|(_, value)| value);
    let decoded: Vec<_> = url.query_pairs().map(|(_, value)| value.into_owned()).collect();
    let parts = [query, url.password().unwrap_or_default(), url.fragment().unwrap_or_default()];
    let parts = parts.into_iter().chain(values).chain(decoded.iter().map(String::as_str));
    // Parts of up to 3 characters are not secrets, and replacing them would damage words.
    parts.filter(|part| part.len() > 3).fold(text.to_owned(), |text, part| text.replace(part, "…"))
}

/// Seals the record's own images in a prior state. Other images stay complete, because they must be
/// restored and no configuration contains them.
pub(super) fn without_own(mut prior: PriorState, record: &Maintenance) -> PriorState {
    let updates = record.update.iter().flat_map(|update| [&update.previous, &update.wanted]);
    let specs = std::iter::once(&record.spec).chain(updates);
    let own: Vec<OneLine> = specs.filter_map(|spec| spec.sealed().boot?.image).collect();
    let uri = prior.boot.as_mut().map(|boot| &mut boot.http_boot_uri);
    for image in prior.media.iter_mut().map(|slot| &mut slot.image).chain(uri).flatten() {
        if let Some(own) = own.iter().find(|own| same(image.raw(), own.raw())) {
            image.clone_from(own);
        }
    }
    prior
}

fn digest(url: &Url) -> String {
    let shared = url.query_pairs().any(|(name, _)| name == "sig");
    let mut choosing = Sha256::new();
    for (name, value) in url.query_pairs() {
        let lower = name.to_ascii_lowercase();
        let signs = SIGNATURES.contains(&lower.as_str())
            || PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
            || (shared && SHARED_ACCESS.contains(&lower.as_str()));
        if !signs {
            choosing.update(format!("{}:{name}{}:{value}", name.len(), value.len()));
        }
    }
    choosing.finalize()[..16].iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

impl BootSpec {
    /// Returns the specification with sealed addresses.
    #[must_use]
    pub fn sealed(&self) -> Self {
        let image = match self.method {
            BootMethod::Http | BootMethod::VirtualMedia => {
                self.image.as_raw().map(|image| seal(image, self.image_sha256.as_deref()).into())
            }
            // Image names of an external system do not contain signatures.
            BootMethod::External(_) | BootMethod::Pxe | BootMethod::Disk => self.image.clone(),
        };
        let ready_when = self.ready_when.as_ref().map(UrlCheck::sealed);
        Self { image, ready_when, ..self.clone() }
    }
}

impl UrlCheck {
    /// Returns the check with a sealed address.
    #[must_use]
    pub fn sealed(&self) -> Self {
        Self { url: seal(self.url.raw(), None).into(), status: self.status }
    }
}

impl CompleteWhen {
    /// Returns the condition with sealed addresses.
    #[must_use]
    pub fn sealed(&self) -> Self {
        match self {
            Self::PowerState(_) => self.clone(),
            Self::Url(check) => Self::Url(check.sealed()),
        }
    }
}

impl Spec {
    /// Returns the specification with sealed addresses.
    #[must_use]
    pub fn sealed(&self) -> Self {
        let boot = self.boot.as_ref().map(BootSpec::sealed);
        let complete_when = self.complete_when.as_ref().map(CompleteWhen::sealed);
        Self { boot, complete_when, ..self.clone() }
    }

    /// Returns the URLs that the provider itself queries.
    pub fn checks(&self) -> impl Iterator<Item = &UrlCheck> {
        let completion = match &self.complete_when {
            Some(CompleteWhen::Url(check)) => Some(check),
            _ => None,
        };
        let ready = self.boot.as_ref().and_then(|boot| boot.ready_when.as_ref());
        ready.into_iter().chain(completion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::MaintenanceKind;

    const SIGNED: &str = "https://images.example/a.iso?X-Amz-Signature=abc123&X-Amz-Date=20260101&versionId=7";

    #[test]
    fn a_sealed_address_leads_to_the_image_and_opens_nothing() {
        let sealed = seal(SIGNED, None);
        assert!(sealed.starts_with("https://images.example/a.iso#metal-sealed:"), "{sealed}");
        for part in ["abc123", "20260101", "versionId", "X-Amz"] {
            assert!(!sealed.contains(part), "{sealed}");
        }
        assert_eq!(seal(&sealed, None), sealed);
        assert!(is_sealed(&sealed) && !is_sealed(SIGNED));
        let named = seal("https://user:hunter2@images.example/a.iso", None);
        assert!(!named.contains("hunter2") && !named.contains("user"), "{named}");
        for kept in ["https://images.example/a.iso", "registry.example/os:1", "oci:os@sha256:abc"] {
            assert_eq!(seal(kept, None), kept);
        }
    }

    #[test]
    fn another_signature_is_the_same_image_and_another_version_is_not() {
        let again = SIGNED.replace("abc123", "def456").replace("20260101", "20260202");
        assert_eq!(seal(&again, None), seal(SIGNED, None));
        assert!(same(&again, &seal(SIGNED, None)) && !same(&again, SIGNED));
        let other = SIGNED.replace("versionId=7", "versionId=8");
        assert_ne!(seal(&other, None), seal(SIGNED, None));
        assert_eq!(seal(&other, Some("00")), seal(SIGNED, Some("00")), "the digest identifies the image");
        assert!(same(&other, &seal(SIGNED, Some("00"))));
        let azure = "https://a.example/i.iso?sv=1&se=2026&sr=b&sig=x";
        assert_eq!(seal(&azure.replace("2026", "2027").replace("sig=x", "sig=y"), None), seal(azure, None));
        assert_ne!(seal("https://a.example/i?st=1", None), seal("https://a.example/i?st=2", None));
    }

    #[test]
    fn a_new_signature_is_the_same_request() {
        let spec = |image: &str| {
            let boot = BootSpec { image: Some(image.into()), ..BootSpec::new(BootMethod::Http) };
            Spec { boot: Some(boot), ..Spec::new(MaintenanceKind::Maintenance, "node-1") }
        };
        assert_eq!(spec(SIGNED).digest(), spec(&SIGNED.replace("abc123", "def456")).digest());
        assert_eq!(spec(SIGNED).digest(), spec(SIGNED).sealed().digest());
        assert_ne!(spec(SIGNED).digest(), spec(&SIGNED.replace("versionId=7", "versionId=8")).digest());
    }

    #[test]
    fn a_record_keeps_no_token_of_a_check() {
        let check =
            |token: &str| UrlCheck { url: format!("https://ci.example/job?id=7&token={token}").into(), status: 200 };
        let spec = |token: &str| {
            let boot = BootSpec { ready_when: Some(check(token)), ..BootSpec::new(BootMethod::Pxe) };
            let complete_when = Some(CompleteWhen::Url(check(token)));
            Spec { boot: Some(boot), complete_when, ..Spec::new(MaintenanceKind::Maintenance, "node-1") }
        };
        let sealed = spec("s3cret").sealed();
        assert!(!format!("{sealed:?}").contains("s3cret"), "{sealed:?}");
        assert_eq!(sealed.checks().count(), 2);
        assert!(sealed.checks().all(|check| is_sealed(check.url.raw())));
        assert_eq!(spec("one").digest(), spec("two").digest(), "a token that was renewed");
        assert_eq!(spec("one").digest(), spec("one").sealed().digest());
    }

    #[test]
    fn words_of_a_machine_lose_the_signature() {
        let said = format!("The value {SIGNED} is not supported; signature abc123.");
        let kept = without_secrets(&said, SIGNED);
        assert!(kept.contains("images.example/a.iso") && !kept.contains("abc123"), "{kept}");
    }
}
