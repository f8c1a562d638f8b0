//! TLS that trusts what this machine trusts, and what a failure of it means.

use std::sync::{Arc, OnceLock};

use rustls::{
    ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use rustls_platform_verifier::Verifier;

/// Nothing to judge a certificate by: small container images have no authorities.
#[derive(Debug, thiserror::Error)]
#[error(
    "this machine has no certificate authorities: install its package of them (ca-certificates), or name a file of them in \
     SSL_CERT_FILE"
)]
struct NoAuthorities;

/// The authorities of this machine, read once and when a first certificate is judged: reading them
/// opens some hundred files, and a machine that needs none of them may have none.
#[derive(Debug)]
struct OfThisMachine {
    /// Authorities that are trusted besides.
    more: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
    /// `None`: there are none. The others were judged before.
    read: OnceLock<Option<Verifier>>,
}

impl OfThisMachine {
    fn verifier(&self) -> Result<&Verifier, rustls::Error> {
        let read = || Verifier::new_with_extra_roots(self.more.clone(), Arc::clone(&self.provider)).ok();
        let none = || rustls::Error::Other(OtherError(Arc::new(NoAuthorities)));
        self.read.get_or_init(read).as_ref().ok_or_else(none)
    }
}

impl ServerCertVerifier for OfThisMachine {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verifier()?.verify_server_cert(end_entity, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The cryptography of this process.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
}

/// TLS that trusts what this machine trusts, and the authorities in `more` (PEM) besides.
/// `protocols` are those of HTTP, the best first (RFC 7301). The machine's own are not read here: a
/// machine without any is refused when a certificate is to be judged. The error is about `more`.
pub(crate) fn of_this_machine(more: Option<&str>, protocols: &[&str]) -> Result<ClientConfig, String> {
    // Without authorities besides, all clients share what is read.
    static SHARED: OnceLock<Arc<OfThisMachine>> = OnceLock::new();
    let made = |more| Arc::new(OfThisMachine { more, provider: provider(), read: OnceLock::new() });
    let verifier = match more {
        None => Arc::clone(SHARED.get_or_init(|| made(Vec::new()))),
        Some(pem) => made(authorities(pem)?),
    };
    judged_by(verifier, protocols)
}

/// The certificates in a PEM text, of which there is one at least.
fn authorities(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let read = read.map_err(|error| error.to_string())?;
    if read.is_empty() {
        return Err("it holds no certificate".to_owned());
    }
    for authority in &read {
        RootCertStore::empty().add(authority.clone()).map_err(|error| error.to_string())?;
    }
    Ok(read)
}

/// TLS where this verifier judges the certificates.
pub(crate) fn judged_by(verifier: Arc<dyn ServerCertVerifier>, protocols: &[&str]) -> Result<ClientConfig, String> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Ok(config)
}

/// The innermost cause of an error: the outer ones repeat what was asked, and an address there may
/// hold what is secret. `None` when there is none below it.
pub(crate) fn innermost(error: &dyn std::error::Error) -> Option<String> {
    let mut cause = error.source()?;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    // What rustls says before an error that is ours.
    Some(text.strip_prefix("other error: ").unwrap_or(&text).to_owned())
}
