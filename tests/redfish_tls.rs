//! TLS of old BMCs: a pinned certificate can use outdated algorithms, and a failed handshake
//! reports its cause.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use secrecy::SecretString;
use sha2::{Digest as _, Sha256};
use terraform_provider_metal::{
    backend::{
        Backend as _, BackendError,
        redfish::{MediaSettings, RedfishBackend, RedfishSettings, ServerSettings, Trust},
    },
    clock::SystemClock,
    maintenance::machine::{MachineView, PowerState},
};

/// A BMC with ten-year-old TLS, which no Rust library serves. Arguments: file with key and
/// certificate, TLS version and ciphers.
const OLD_BMC: &str = r#"
import http.server, ssl, sys
class Bmc(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = b'{"Id": "1", "PowerState": "On"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.set_ciphers(sys.argv[3] + ":@SECLEVEL=0")
context.minimum_version = context.maximum_version = getattr(ssl.TLSVersion, sys.argv[2])
context.load_cert_chain(sys.argv[1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bmc)
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

/// A 1024-bit key and its X.509 v1 certificate, signed with SHA-1, without a host name. Test data
/// only.
const OLD: &str = "-----BEGIN PRIVATE KEY-----
MIICeQIBADANBgkqhkiG9w0BAQEFAASCAmMwggJfAgEAAoGBAOVNvh+T9e2MUmti
bJo4UrPjTbGZQPZDn+iit0Fi2uOco47UViVXuWvT5HM3nTx6ym3D1FPrwUzN1OZ7
jc/4JEeyqhWPvr1xkLP/CV7SfCUu+ciGG0D02QAE87gvuekJuoI5sPVVTHT45yG2
Snc7AmcViLquTmgQPazl22PU13BJAgMBAAECgYEAjHbtKkbm9ZdpvaJTSL2L2+o3
470vkCuov0c93u4BjECd6JamFsYALc9lODcvOKc3bbnyTV4z0SqdanrxSh6FicVN
KmeshEBs4sHlk1rXpMzcdH9b4xrncE9iMAGL5Yc8PGPe/I2CAX0lFSKrJ5SaXi18
EiMTvuMtd3W4Jt7HkMkCQQD0dUGyb70eGodDWeXd1ZgpuDb/f4IwlZ/fHIE5uUxu
UJ8UAKM90JRmfUyVjyiL7aZuHjXsYoEXDFQ+xc4K/WRrAkEA8CFREo+mI+9c/LnV
QzFWEAzgE1PWmQnMe65UvfBYIGh5W07oOOGxxa266InCNMnfQByPJO1hwfsWzI5y
H7fLGwJBAKBtRyUT4XedD0GrAIh5gTd31lgMVOMPfnCMI14/daI7tHoLBRYvCQTN
m/HWllRmLL+9gcPUzUTT6YGcjGB39GsCQQDNJzmziOSheOPRyxanlGP5zHY4LP1/
vD5mQHeH2un/riJYXx7JUhFmWNoBx4gTP5ErnfqxytklOFavJtfbv1OXAkEAqe2r
DQsfzDWz19G4yD8rVCteaRXjdHYnPwNERZB7D9jIAOjHztAgSAnvNS5N4KojhJ+/
bfTfSuyb5XI1z0ADLw==
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBqDCCARECFBb2jXf8xRu+OkzOvKQFRWykIZaVMA0GCSqGSIb3DQEBBQUAMBIx
EDAOBgNVBAMMB29sZC1ibWMwIBcNMjYxMTIyMjIwMjAwWhgPMjEyNjEwMjkyMjAy
MDBaMBIxEDAOBgNVBAMMB29sZC1ibWMwgZ8wDQYJKoZIhvcNAQEBBQADgY0AMIGJ
AoGBAOVNvh+T9e2MUmtibJo4UrPjTbGZQPZDn+iit0Fi2uOco47UViVXuWvT5HM3
nTx6ym3D1FPrwUzN1OZ7jc/4JEeyqhWPvr1xkLP/CV7SfCUu+ciGG0D02QAE87gv
uekJuoI5sPVVTHT45yG2Snc7AmcViLquTmgQPazl22PU13BJAgMBAAEwDQYJKoZI
hvcNAQEFBQADgYEAcZz6fL21KT3gWF+cXaQ+9+3uT8CWcdE4TeqE+IBaUlVIgE2g
Z90FMkd2Fx+y3Rs8IdKYvkdum/l5u3qDqjW6BfG64V4i2TVZqOYlfessTIXuDJtM
GsLaCZ28sBqp+TC0OJsfB5YuHxzm6ann/XoXhbcNBIDzwteYk7DXvr6bSoY=
-----END CERTIFICATE-----
";

struct Bmc(Child, u16);

impl Drop for Bmc {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(version: &str, ciphers: &str) -> Bmc {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("old.pem");
    std::fs::write(&file, OLD).unwrap();
    let arguments = ["-c", OLD_BMC, file.to_str().unwrap(), version, ciphers];
    let mut child = Command::new("python3").args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    Bmc(child, line.trim().parse().unwrap())
}

fn fingerprint() -> [u8; 32] {
    let (_, rest) = OLD.split_once("-----BEGIN CERTIFICATE-----").unwrap();
    let text: String = rest.split("-----END").next().unwrap().split_whitespace().collect();
    let der = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).unwrap();
    Sha256::digest(der).into()
}

async fn observe(bmc: &Bmc, trust: Trust) -> Result<MachineView, BackendError> {
    let server = ServerSettings {
        endpoint: format!("https://127.0.0.1:{}", bmc.1).parse().unwrap(),
        system_id: Some("1".into()),
        media: MediaSettings::default(),
        lock_key: None,
        labels: BTreeMap::new(),
        username: "admin".into(),
        password: SecretString::from("secret"),
        trust,
    };
    let settings = RedfishSettings { servers: [("node".to_owned(), server)].into(), ..RedfishSettings::default() };
    let backend = RedfishBackend::new(settings, &(Arc::new(SystemClock::default()) as _)).unwrap();
    backend.machine("node").unwrap().observe().await
}

#[tokio::test]
async fn a_pinned_certificate_may_be_v1_with_a_short_key_and_sha_1() {
    for (version, ciphers) in [("TLSv1_2", "ECDHE-RSA-AES128-GCM-SHA256"), ("TLSv1_3", "ALL")] {
        let bmc = start(version, ciphers);
        let view =
            observe(&bmc, Trust::Fingerprint(fingerprint())).await.unwrap_or_else(|error| panic!("{version}: {error}"));
        assert_eq!(view.power, PowerState::On, "{version}");
        let error = observe(&bmc, Trust::Fingerprint([7; 32])).await.unwrap_err();
        assert!(matches!(error, BackendError::Untrusted { .. }), "{error:?}");
        assert!(error.to_string().contains("differs from the pinned one"), "{error}");
    }
}

#[tokio::test]
async fn tls_that_is_too_old_is_named_with_what_to_do() {
    for (version, ciphers) in [("TLSv1_2", "AES128-SHA"), ("TLSv1_1", "ALL")] {
        let bmc = start(version, ciphers);
        for trust in [Trust::Fingerprint(fingerprint()), Trust::Anything] {
            let error = observe(&bmc, trust).await.unwrap_err();
            assert!(!error.is_transient(), "{version} {ciphers}: {error:?}");
            assert!(error.to_string().contains("ECDHE") && error.to_string().contains("firmware"), "{error}");
        }
    }
}
