//! Mutual TLS with one pinned certificate per side.
//!
//! The host's certificate arrives in the environment; the handshake line returns ours. Chains and
//! names are irrelevant, so the client check is equality.
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

use super::PluginError;

/// A server configuration, and its certificate for the host.
pub(super) struct TlsIdentity {
    pub config: Arc<ServerConfig>,
    pub certificate: CertificateDer<'static>,
}

/// Creates a new key and certificate. Accepts only clients with the certificate `client_pem`.
pub(super) fn identity(client_pem: &str) -> Result<TlsIdentity, PluginError> {
    let admitted = CertificateDer::from_pem_slice(client_pem.as_bytes()).map_err(PluginError::ClientCertificate)?;
    // P-256: go-plugin uses P-521, whose key generation and signatures cost milliseconds at every
    // start. A key that lives for one run does not require more than 128 bits of security.
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(["localhost".to_owned()])?;
    // The host uses this certificate as its only trusted root, and expects the name "localhost".
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.self_signed(&key)?.der().clone();

    // aws-lc-rs, because ring cannot verify the host's P-521 signature.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = OnlyTheHost { admitted, provider: Arc::clone(&provider) };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(vec![certificate.clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsIdentity { config: Arc::new(config), certificate })
}

/// Accepts exactly one certificate. The handshake's signature proves that the client has its key.
#[derive(Debug)]
struct OnlyTheHost {
    admitted: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for OnlyTheHost {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if *end_entity == self.admitted {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn certificate() -> rcgen::Certificate {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.self_signed(&key).unwrap()
    }

    #[test]
    fn only_the_certificate_of_the_host_is_admitted() {
        let host = certificate();
        let verifier = OnlyTheHost { admitted: host.der().clone(), provider: Arc::new(aws_lc_rs::default_provider()) };
        let now = UnixTime::now();
        assert!(verifier.client_auth_mandatory());
        assert!(verifier.verify_client_cert(host.der(), &[], now).is_ok());
        // Same name and key type, but another key.
        assert!(verifier.verify_client_cert(certificate().der(), &[], now).is_err());
        // The host's certificate in the chain does not authorize another certificate.
        let chain = [host.der().clone()];
        assert!(verifier.verify_client_cert(certificate().der(), &chain, now).is_err());
    }

    #[test]
    fn our_certificate_can_be_a_root_and_names_localhost() {
        let ours = identity(&certificate().pem()).unwrap().certificate;
        let (_, parsed) = x509_parser::parse_x509_certificate(&ours).unwrap();
        assert!(parsed.is_ca());
        let names = parsed.subject_alternative_name().unwrap().unwrap();
        let name = x509_parser::extensions::GeneralName::DNSName("localhost");
        assert!(names.value.general_names.contains(&name));
    }

    #[test]
    fn a_certificate_that_is_none_is_refused() {
        assert!(matches!(identity("nonsense"), Err(PluginError::ClientCertificate(_))));
    }
}
