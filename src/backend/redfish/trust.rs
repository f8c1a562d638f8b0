//! TLS clients for each kind of certificate verification.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls::{
    DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use sha2::{Digest, Sha256};

use crate::{
    backend::web,
    outbound::{HttpClient, Route},
    tls,
};

use super::{settings::Trust, signature};

/// Accepts exactly one certificate, or any, and records the certificate that it received.
#[derive(Debug)]
struct Pinned {
    /// `None` accepts any certificate, to read it.
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

    // The fingerprint identifies the key; the signature proves its possession.
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

/// Returns a TLS configuration that verifies by fingerprint; `None` accepts any certificate, to
/// read it.
pub(super) fn judged_by_fingerprint(
    expected: Option<[u8; 32]>,
    seen: Arc<Mutex<Option<[u8; 32]>>>,
    protocols: &[&str],
) -> Result<rustls::ClientConfig, String> {
    tls::judged_by(Arc::new(Pinned { expected, seen, provider: tls::provider() }), protocols)
}

/// A TLS client and, with a fingerprint, the last received certificate.
#[derive(Clone, Debug)]
pub(super) struct Trusting {
    pub(super) client: HttpClient,
    /// A client without idle connections, for changes. Some BMCs (HPE) reset idle connections,
    /// which would leave a change's outcome unknown.
    pub(super) fresh: HttpClient,
    /// The only accepted certificate, with a fingerprint.
    pub(super) expected: Option<[u8; 32]>,
    pub(super) seen: Arc<Mutex<Option<[u8; 32]>>>,
    /// The setting that decides about trust.
    pub(super) judged_by: &'static str,
}

/// A backend's HTTP clients, one per kind of trust, route and scheme. Creating a client costs as
/// much as several requests, and a fleet can have a thousand BMCs.
#[derive(Clone, Debug, Default)]
pub(in crate::backend) struct Clients(Arc<Mutex<HashMap<ClientKey, Trusting>>>);

/// Trust, route, and true for https.
type ClientKey = (Trust, Route, bool);

impl Clients {
    /// Returns the client for a trust setting and a route, for https (`secure`) or http. `timeout`
    /// applies to connections and must be equal in each call.
    pub(super) fn of(&self, trust: &Trust, route: Route, secure: bool, timeout: Duration) -> Result<Trusting, String> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (trust.clone(), route, secure);
        if let Some(made) = made.get(&key) {
            return Ok(made.clone());
        }
        let new = client(trust, &key.1, secure, timeout)?;
        made.insert(key, new.clone());
        Ok(new)
    }
}

/// Returns a client with this verification.
pub(super) fn client(trust: &Trust, route: &Route, secure: bool, timeout: Duration) -> Result<Trusting, String> {
    let seen: Arc<Mutex<Option<[u8; 32]>>> = Arc::default();
    let adapt = |idle: usize, builder: reqwest::ClientBuilder| {
        let builder = builder
            .connect_timeout(timeout)
            .pool_max_idle_per_host(idle)
            // BMCs are in a separate network, and an environment proxy would see their passwords.
            .no_proxy()
            .tcp_keepalive(None)
            // BMCs use HTTP/1.1, some of them loosely. All kinds of trust use the same protocol.
            .http1_only()
            .http1_ignore_invalid_headers_in_responses(true)
            .http1_allow_spaces_after_header_name_in_responses(true)
            .http1_allow_obsolete_multiline_headers_in_responses(true);
        Ok(match trust {
            Trust::System => builder.tls_backend_preconfigured(tls::of_this_machine(None, &["http/1.1"])?),
            Trust::Anything => builder.tls_danger_accept_invalid_certs(true),
            Trust::Authority(pem) => web::only_authorities(builder, pem)?,
            Trust::Fingerprint(expected) => {
                let config = judged_by_fingerprint(Some(*expected), Arc::clone(&seen), &["http/1.1"])?;
                builder.tls_backend_preconfigured(config)
            }
        })
    };
    let build = |idle: usize| HttpClient::new(secure, route.clone(), |builder| adapt(idle, builder));
    let (client, fresh) = (build(super::bmc::MOST_AT_ONCE)?, build(0)?);
    let expected = if let Trust::Fingerprint(expected) = trust { Some(*expected) } else { None };
    let judged_by = match trust {
        Trust::System => "this machine's authorities",
        Trust::Authority(_) => "ca_certificate_file",
        Trust::Fingerprint(_) => "certificate_sha256",
        Trust::Anything => "insecure, which trusts any certificate",
    };
    Ok(Trusting { client, fresh, expected, seen, judged_by })
}

/// Parses a fingerprint: 64 hexadecimal digits, with or without colons.
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

/// Formats a fingerprint as configurations contain it.
pub(super) fn show_fingerprint(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
