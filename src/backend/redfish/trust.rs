//! TLS clients for each way to judge a certificate.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use reqwest::{Client, redirect::Policy};
use rustls::{
    DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use sha2::{Digest, Sha256};

use crate::{backend::web, tls};

use super::{settings::Trust, signature};

/// Accepts exactly one certificate, or any, and remembers which one it saw.
#[derive(Debug)]
struct Pinned {
    /// `None`: any, to read it.
    expected: Option<[u8; 32]>,
    seen: Arc<Mutex<Option<[u8; 32]>>>,
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn signed(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if signature::verifies(&self.provider, cert, dss.scheme, message, dss.signature()) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        Err(rustls::Error::InvalidCertificate(rustls::CertificateError::BadSignature))
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let seen: [u8; 32] = Sha256::digest(end_entity.as_ref()).into();
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        if self.expected.is_none_or(|expected| expected == seen) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure))
        }
    }

    // The fingerprint says which key is right; the signature proves that it is there.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let of_tls12_only =
            [SignatureScheme::RSA_PKCS1_SHA256, SignatureScheme::RSA_PKCS1_SHA384, SignatureScheme::RSA_PKCS1_SHA512];
        if of_tls12_only.contains(&dss.scheme) {
            return Err(rustls::PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        }
        self.signed(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// TLS where the fingerprint of a certificate decides; `None` accepts any certificate, to read it.
pub(super) fn judged_by_fingerprint(
    expected: Option<[u8; 32]>,
    seen: Arc<Mutex<Option<[u8; 32]>>>,
    protocols: &[&str],
) -> Result<rustls::ClientConfig, String> {
    tls::judged_by(Arc::new(Pinned { expected, seen, provider: tls::provider() }), protocols)
}

/// A client and, where a fingerprint decides, the one that was seen last.
#[derive(Clone, Debug)]
pub(super) struct Trusting {
    pub(super) client: Client,
    /// A client without connections that wait to be used again: some BMCs (HPE) reset those, and
    /// whether they carried out what was sent on one is unknown then. A change is worth a
    /// connection of its own.
    pub(super) fresh: Client,
    /// The one certificate that is right, where a fingerprint decides.
    pub(super) expected: Option<[u8; 32]>,
    pub(super) seen: Arc<Mutex<Option<[u8; 32]>>>,
    /// The setting that decides.
    pub(super) judged_by: &'static str,
}

/// The HTTP clients of a backend, one for each kind of trust: making one costs as much as some
/// requests, and a fleet has a thousand BMCs.
#[derive(Clone, Debug, Default)]
pub(in crate::backend) struct Clients(Arc<Mutex<HashMap<Trust, Trusting>>>);

impl Clients {
    /// The client for a trust. `timeout` is that of its connections, the same at each call.
    pub(super) fn of(&self, trust: &Trust, timeout: Duration) -> Result<Trusting, String> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made.get(trust) {
            return Ok(made.clone());
        }
        let new = client(trust, timeout)?;
        made.insert(trust.clone(), new.clone());
        Ok(new)
    }
}

/// A client that judges certificates as told and follows no redirect: credentials go nowhere else.
pub(super) fn client(trust: &Trust, timeout: Duration) -> Result<Trusting, String> {
    let seen: Arc<Mutex<Option<[u8; 32]>>> = Arc::default();
    let build = |idle: usize| -> Result<Client, String> {
        let builder = Client::builder()
            .connect_timeout(timeout)
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .pool_max_idle_per_host(idle)
            // BMCs are in a network of their own, and what the environment names would see their
            // passwords.
            .no_proxy()
            .tcp_keepalive(None)
            // BMCs speak HTTP/1.1, some of them loosely; one way for every kind of trust.
            .http1_only()
            .http1_ignore_invalid_headers_in_responses(true)
            .http1_allow_spaces_after_header_name_in_responses(true)
            .http1_allow_obsolete_multiline_headers_in_responses(true)
            .user_agent(concat!("terraform-provider-metal/", env!("CARGO_PKG_VERSION")));
        let builder = match trust {
            Trust::System => builder.tls_backend_preconfigured(tls::of_this_machine(None, &["http/1.1"])?),
            Trust::Anything => builder.tls_danger_accept_invalid_certs(true),
            Trust::Authority(pem) => web::only_authorities(builder, pem)?,
            Trust::Fingerprint(expected) => {
                let config = judged_by_fingerprint(Some(*expected), Arc::clone(&seen), &["http/1.1"])?;
                builder.tls_backend_preconfigured(config)
            }
        };
        builder.build().map_err(|error| format!("no TLS client: {error}"))
    };
    let (client, fresh) = (build(super::bmc::MOST_AT_ONCE)?, build(0)?);
    let expected = if let Trust::Fingerprint(expected) = trust { Some(*expected) } else { None };
    let judged_by = match trust {
        Trust::System => "the authorities of this machine",
        Trust::Authority(_) => "ca_certificate_file",
        Trust::Fingerprint(_) => "certificate_sha256",
        Trust::Anything => "insecure, which trusts any certificate",
    };
    Ok(Trusting { client, fresh, expected, seen, judged_by })
}

/// Reads a fingerprint: 64 hexadecimal digits, with or without colons.
#[must_use]
pub fn parse_fingerprint(text: &str) -> Option<[u8; 32]> {
    let digits: String = text.chars().filter(|c| *c != ':').collect();
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).ok()?;
    }
    Some(bytes)
}

/// A fingerprint as it is written in a configuration.
pub(super) fn show_fingerprint(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
