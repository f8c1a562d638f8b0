//! A certificate authority for one test, and a server certificate for loopback signed by it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use sha2::{Digest, Sha256};

/// Files of an authority and a server.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The authority's certificate (PEM).
    pub authority: PathBuf,
    /// The server's certificate (PEM).
    pub certificate: PathBuf,
    /// The server's private key (PEM).
    pub key: PathBuf,
    /// SHA-256 of the server's certificate (DER), lower-case hex without separators.
    pub fingerprint: String,
}

impl Certificates {
    /// Creates new files in `folder`.
    pub fn new(folder: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let authority_key = KeyPair::generate().expect("a key");
        let authority = params.self_signed(&authority_key).expect("an authority");
        let issuer = Issuer::new(params, authority_key);

        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let params = CertificateParams::new(names).expect("valid names");
        let key = KeyPair::generate().expect("a key");
        let server = params.signed_by(&key, &issuer).expect("a certificate");

        let this = Self {
            authority: folder.join("authority.pem"),
            certificate: folder.join("certificate.pem"),
            key: folder.join("key.pem"),
            fingerprint: hex(&Sha256::digest(server.der())),
        };
        fs::write(&this.authority, authority.pem()).expect("writable");
        fs::write(&this.certificate, server.pem()).expect("writable");
        fs::write(&this.key, key.serialize_pem()).expect("writable");
        this
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
