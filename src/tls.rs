//! TLS with this machine's trusted authorities.

use std::sync::{Arc, OnceLock};

use rustls::{
    ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use rustls_platform_verifier::Verifier;

/// No authorities are installed, as in small container images.
#[derive(Debug, thiserror::Error)]
#[error(
    "this machine does not have certificate authorities: install its package ca-certificates, or set SSL_CERT_FILE to \
     a file of them"
)]
struct NoAuthorities;

/// This machine's authorities, read once when the first certificate is verified. Reading opens
/// several hundred files, and a machine that never verifies a certificate can lack them.
#[derive(Debug)]
struct OfThisMachine {
    /// Additional trusted authorities.
    more: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
    /// `None` if no authorities are installed. The additional authorities were checked before.
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

/// Returns this process's cryptography.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
}

/// Returns TLS that trusts this machine's authorities and the PEM certificates in `more`.
/// `protocols` are HTTP versions, best first (RFC 7301). The machine's authorities are read later:
/// without any, verification fails. Errors concern `more` only.
pub(crate) fn of_this_machine(more: Option<&str>, protocols: &[&str]) -> Result<ClientConfig, String> {
    // Clients without additional authorities share one verifier.
    static SHARED: OnceLock<Arc<OfThisMachine>> = OnceLock::new();
    let made = |more| Arc::new(OfThisMachine { more, provider: provider(), read: OnceLock::new() });
    let verifier = match more {
        None => Arc::clone(SHARED.get_or_init(|| made(Vec::new()))),
        Some(pem) => made(authorities(pem)?),
    };
    judged_by(verifier, protocols)
}

/// Parses at least one PEM certificate.
fn authorities(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let read = read.map_err(|error| error.to_string())?;
    if read.is_empty() {
        return Err("it does not contain a certificate".to_owned());
    }
    for authority in &read {
        RootCertStore::empty().add(authority.clone()).map_err(|error| error.to_string())?;
    }
    Ok(read)
}

/// Returns TLS with a custom verifier.
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

/// Returns an error's innermost cause, or `None`. The outer causes repeat the request, whose
/// address can contain secrets.
pub(crate) fn innermost(error: &dyn std::error::Error) -> Option<String> {
    let mut cause = error.source()?;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    // The prefix that rustls adds to our own errors.
    Some(text.strip_prefix("other error: ").unwrap_or(&text).to_owned())
}
