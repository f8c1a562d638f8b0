//! Valid certificates for another host name: each TLS client refuses them before it sends data.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use secrecy::SecretString;
use serde_json::json;
use terraform_provider_metal::{
    backend::{
        Backend as _,
        ironic::{IronicAccess, IronicBackend, IronicSettings, IronicTrust},
    },
    clock::SystemClock,
    probe::{HttpProbe, Probe as _, ProbeSettings},
    store::{KubernetesOptions, KubernetesStore, PostgresOptions, PostgresStore},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

const PASSWORD: &str = "sentinel-4b1d";
const PATIENCE: Duration = Duration::from_secs(2);

/// A certificate authority with its certificate in a file.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Starts a server for `name` that records all data received over TLS.
    async fn server(&self, name: &str) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec(), b"postgresql".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::<Mutex<Vec<u8>>>::default();
        let all = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(listen(acceptor.clone(), stream, Arc::clone(&all)));
            }
        });
        (address, heard)
    }
}

async fn listen(acceptor: TlsAcceptor, mut stream: TcpStream, heard: Arc<Mutex<Vec<u8>>>) {
    let mut first = [0; 8];
    if stream.peek(&mut first).await.is_ok() && first[0] == 0 {
        // PostgreSQL clients request TLS first.
        stream.read_exact(&mut first).await.unwrap();
        stream.write_all(b"S").await.unwrap();
    }
    let Ok(mut inside) = acceptor.accept(stream).await else { return };
    let mut part = [0; 4096];
    while let Ok(read @ 1..) = inside.read(&mut part).await {
        heard.lock().unwrap().extend_from_slice(&part[..read]);
    }
}

/// Connects a client that trusts this authority, and returns its error.
async fn asked(client: &str, address: SocketAddr, folder: &Path, authority: &Authority) -> String {
    let clock = Arc::new(SystemClock::default());
    let ca = folder.join("ca.pem");
    fs::write(&ca, &authority.pem).unwrap();
    let (ca, password) = (ca.display(), SecretString::from(PASSWORD));
    match client {
        "postgres" => {
            let url = format!("postgres://runner:{PASSWORD}@{address}/metal?sslmode=verify-full&sslrootcert={ca}");
            let options = PostgresOptions { patience: PATIENCE, ..PostgresOptions::default() };
            PostgresStore::open(&SecretString::from(url), clock, &options).await.unwrap_err().to_string()
        }
        "kubernetes" => {
            let config = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{ "name": "c", "cluster": {
                    "server": format!("https://{address}"), "certificate-authority": folder.join("ca.pem"),
                } }],
                "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
                "users": [{ "name": "u", "user": { "token": PASSWORD } }],
            });
            let file = folder.join("kubeconfig");
            fs::write(&file, config.to_string()).unwrap();
            let url = format!("kubernetes://metal?kubeconfig={}", file.display());
            let options = KubernetesOptions { patience: PATIENCE, ..KubernetesOptions::default() };
            KubernetesStore::open(&url, clock, options).await.unwrap_err().to_string()
        }
        "ironic" => {
            let access = IronicAccess::Basic { username: "runner".into(), password };
            let mut settings = IronicSettings::new(Some(format!("https://{address}").parse().unwrap()), access);
            settings.trust = IronicTrust::Authority(authority.pem.clone());
            (settings.read_timeout, settings.request_timeout) = (PATIENCE, PATIENCE);
            let backend = IronicBackend::new(settings, &(clock as _)).unwrap();
            let machine = backend.machine("node").unwrap();
            machine.observe().await.map(|_| ()).unwrap_err().to_string()
        }
        _ => {
            let pem = Some(authority.pem.clone());
            let settings = ProbeSettings { timeout: PATIENCE, ca_certificate_pem: pem, ..ProbeSettings::default() };
            let url = format!("https://{address}/image.iso?signature={PASSWORD}");
            HttpProbe::new(&settings).unwrap().check_image(&url, None).await.unwrap_err().to_string()
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_of_tls_says_anything_to_another_host_of_its_authority() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    for client in ["postgres", "kubernetes", "ironic", "images"] {
        let (address, heard) = authority.server("other.example").await;
        let told = asked(client, address, folder.path(), &authority).await;
        assert!(heard.lock().unwrap().is_empty(), "{client} sent data: {told}");
        assert!(!told.contains(PASSWORD), "{told}");
        // With the right host name the client does send data, so only the name was decisive.
        let (address, heard) = authority.server("127.0.0.1").await;
        asked(client, address, folder.path(), &authority).await;
        assert!(!heard.lock().unwrap().is_empty(), "{client} sent nothing, so this test proves nothing");
    }
}
