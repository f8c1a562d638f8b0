//! The BMCs' certificate, generated at start.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, crypto};
use sha2::{Digest, Sha256};

/// The certificates that a client needs to trust the BMCs.
#[derive(Clone, Debug)]
pub struct Trust {
    /// The authority's certificate, PEM.
    pub ca_pem: String,
    /// The BMCs' certificate, PEM.
    pub certificate_pem: String,
    /// SHA-256 of the BMCs' certificate (DER), in lower-case hexadecimal without separators.
    pub certificate_sha256: String,
}

/// A certificate could not be created.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It could not be generated or signed.
    #[error("generating the certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// It could not be used.
    #[error("using the generated certificate: {0}")]
    Use(#[from] rustls::Error),
}

/// Generates an authority and one certificate for all BMCs.
pub(crate) fn generate(address: IpAddr) -> Result<(Arc<ServerConfig>, Trust), TlsError> {
    let mut ca = CertificateParams::default();
    ca.distinguished_name.push(DnType::CommonName, "BMC simulator authority");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;

    let mut leaf = CertificateParams::new(vec!["localhost".to_owned()])?;
    leaf.distinguished_name.push(DnType::CommonName, "BMC simulator");
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    for address in [address, [127, 0, 0, 1].into(), std::net::Ipv6Addr::LOCALHOST.into()] {
        leaf.subject_alt_names.push(SanType::IpAddress(address));
    }
    let key = KeyPair::generate()?;
    let leaf = leaf.signed_by(&key, &ca)?;

    let chain = vec![CertificateDer::from(leaf.der().to_vec()), CertificateDer::from(ca.der().to_vec())];
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)?;
    // BMCs speak HTTP/1.1 only.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let trust =
        Trust { ca_pem: ca.pem(), certificate_pem: leaf.pem(), certificate_sha256: hex(&Sha256::digest(leaf.der())) };
    Ok((Arc::new(config), trust))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
