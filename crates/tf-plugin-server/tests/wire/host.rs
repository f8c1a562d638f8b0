//! The host's side of the wire: starts a provider like go-plugin (by default the fixture) and calls
//! it. The benchmarks use it too.
use std::{
    collections::BTreeMap,
    os::unix::net::UnixStream as StdUnixStream,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime},
};
use serde::Serialize;
use tempfile::TempDir;
use tf_provider::value::ValueAny;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    net::UnixStream,
    process::{Child, ChildStdout, Command},
    task::JoinHandle,
};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

#[allow(unused_imports, reason = "the benchmarks check no health")]
pub use tf_plugin_server::proto::health;
pub use tf_plugin_server::proto::{plugin, tfplugin6};
pub use tfplugin6::provider_client::ProviderClient;

pub const COOKIE: (&str, &str) =
    ("TF_PLUGIN_MAGIC_COOKIE", "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2");

/// A self-signed certificate on curve P-521, which go-plugin creates for every start.
pub struct Credentials {
    pub pem: String,
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Credentials {
    pub fn new() -> Self {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), certificate: certificate.der().clone(), key: key.serialize_der() }
    }
}

/// A started provider and the host's connection to it.
pub struct Host {
    pub child: Child,
    pub socket: PathBuf,
    pub server_certificate: CertificateDer<'static>,
    pub credentials: Credentials,
    pub provider: ProviderClient<Channel>,
    pub channel: Channel,
    /// The complete handshake line.
    pub line: String,
    pub folder: TempDir,
    stdout: BufReader<ChildStdout>,
    stderr: JoinHandle<String>,
    log: tokio::sync::watch::Receiver<String>,
}

/// Start settings: another program, more variables, or a wrapper program.
#[derive(Default)]
pub struct Start {
    pub program: Option<PathBuf>,
    pub variables: BTreeMap<&'static str, String>,
    pub shell: Option<&'static str>,
}

/// Returns the command with the host's variables, isolated from the test's environment.
pub fn command(start: &Start, credentials: &Credentials, folder: &Path) -> Command {
    let program = start.program.clone().unwrap_or_else(|| std::env::current_exe().unwrap());
    let mut command = match start.shell {
        Some(script) => {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(script).arg("sh").arg(program);
            shell
        }
        None => Command::new(program),
    };
    for name in ["TF_LOG", "TF_LOG_PROVIDER", "RUST_BACKTRACE"] {
        command.env_remove(name);
    }
    command
        .env(COOKIE.0, COOKIE.1)
        .env("PLUGIN_PROTOCOL_VERSIONS", "5,6")
        .env("PLUGIN_CLIENT_CERT", &credentials.pem)
        .env("PLUGIN_UNIX_SOCKET_DIR", folder)
        .envs(&start.variables)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

impl Host {
    pub async fn start() -> Self {
        Self::start_with(Start::default()).await
    }

    pub async fn start_with(start: Start) -> Self {
        let (credentials, folder) = (Credentials::new(), tempfile::tempdir().unwrap());
        let mut child = command(&start, &credentials, folder.path()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let (told, log) = tokio::sync::watch::channel(String::new());
        let stderr = tokio::spawn(async move {
            let mut line = String::new();
            while errors.read_line(&mut line).await.unwrap() > 0 {
                told.send_modify(|text| text.push_str(&std::mem::take(&mut line)));
            }
            told.borrow().clone()
        });
        let mut line = String::new();
        stdout.read_line(&mut line).await.unwrap();
        let fields: Vec<&str> = line.trim_end().split('|').collect();
        assert_eq!(fields.len(), 6, "handshake line {line:?}");
        let socket = PathBuf::from(fields[3]);
        let server_certificate = CertificateDer::from(STANDARD_NO_PAD.decode(fields[5]).unwrap());
        let config = client_config(&server_certificate, Some(&credentials));
        let channel = connect(&socket, Some(config)).await.unwrap();
        Self {
            child,
            socket,
            server_certificate,
            credentials,
            provider: client(&channel),
            channel,
            line,
            folder,
            stdout,
            stderr,
            log,
        }
    }

    /// Waits for a text in its log.
    pub async fn logs(&mut self, wanted: &str) {
        self.log.wait_for(|log| log.contains(wanted)).await.unwrap();
    }

    /// Requests the provider's end and waits for it. Returns the exit status and the log.
    pub async fn shut_down(mut self) -> (ExitStatus, String) {
        let mut controller = plugin::grpc_controller_client::GrpcControllerClient::new(self.channel.clone());
        controller.shutdown(plugin::Empty {}).await.unwrap();
        self.ended().await
    }

    /// Waits for the process's end. Checks that standard output is silent and the folder is
    /// deleted.
    pub async fn ended(&mut self) -> (ExitStatus, String) {
        let status = self.child.wait().await.unwrap();
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "", "standard output belongs to the handshake");
        assert!(!self.socket.parent().unwrap().exists(), "the socket's folder still exists");
        let log = (&mut self.stderr).await.unwrap();
        (status, log)
    }

    pub fn signal(&self, name: &str) {
        signal(name, self.child.id().unwrap());
    }
}

pub fn signal(name: &str, pid: u32) {
    let status = std::process::Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

/// Waits for a condition.
#[allow(clippy::disallowed_methods, reason = "looks again and again, until a limit")]
pub async fn until(what: &str, mut reached: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if reached() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never happened: {what}");
}

pub fn client(channel: &Channel) -> ProviderClient<Channel> {
    let limit = 256 << 20;
    ProviderClient::new(channel.clone()).max_decoding_message_size(limit).max_encoding_message_size(limit)
}

/// Connects; in plain text without a configuration.
pub async fn connect(socket: &Path, tls: Option<ClientConfig>) -> Result<Channel, tonic::transport::Error> {
    let (socket, tls) = (socket.to_owned(), tls.map(Arc::new));
    let connector = tower::service_fn(move |_| {
        let (socket, tls) = (socket.clone(), tls.clone());
        async move {
            let stream = UnixStream::connect(socket).await?;
            let stream: std::pin::Pin<Box<dyn Duplex>> = match tls {
                Some(tls) => {
                    let name = ServerName::try_from("localhost").unwrap();
                    Box::pin(TlsConnector::from(tls).connect(name, stream).await?)
                }
                None => Box::pin(stream),
            };
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}

trait Duplex: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send> Duplex for T {}

/// Returns true if a process still listens.
pub fn listens(socket: &Path) -> bool {
    StdUnixStream::connect(socket).is_ok()
}

pub fn client_config(server: &CertificateDer<'static>, credentials: Option<&Credentials>) -> ClientConfig {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = OnlyTheProvider { expected: server.clone(), provider: Arc::clone(&provider) };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match credentials {
        Some(of) => {
            let key = PrivateKeyDer::Pkcs8(of.key.clone().into());
            builder.with_client_auth_cert(vec![of.certificate.clone()], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// go-plugin trusts only the announced certificate as root, which amounts to equality. (rustls
/// would reject a root that presents itself.)
#[derive(Debug)]
struct OnlyTheProvider {
    expected: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for OnlyTheProvider {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        assert_eq!(*end_entity, self.expected, "another certificate than announced");
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns a value as hosts send it, in an option like every message field.
#[allow(clippy::unnecessary_wraps, reason = "fields of messages are options")]
pub fn value(of: &impl Serialize) -> Option<tfplugin6::DynamicValue> {
    let msgpack = rmp_serde::to_vec_named(of).unwrap().into();
    Some(tfplugin6::DynamicValue { msgpack, ..Default::default() })
}

/// Adds null for every missing attribute, as hosts do in configurations.
#[allow(dead_code, reason = "the wire tests name every attribute")]
pub fn completed(of: &[tfplugin6::schema::Attribute], given: &serde_json::Value) -> serde_json::Value {
    use serde_json::{Map, Value};
    use tfplugin6::schema::{Attribute, object::NestingMode};
    let names = given.as_object().into_iter().flat_map(Map::keys);
    for name in names {
        assert!(of.iter().any(|attribute| attribute.name == *name), "no attribute {name}");
    }
    let filled = |attribute: &Attribute| {
        let inside = &given[&attribute.name];
        let inside = match (&attribute.nested_type, inside) {
            (_, Value::Null) => Value::Null,
            (Some(nested), Value::Object(_)) if nested.nesting() == NestingMode::Single => {
                completed(&nested.attributes, inside)
            }
            (Some(nested), Value::Object(fields)) => {
                fields.iter().map(|(key, item)| (key.clone(), completed(&nested.attributes, item))).collect()
            }
            (Some(nested), Value::Array(items)) => {
                items.iter().map(|item| completed(&nested.attributes, item)).collect()
            }
            (_, inside) => inside.clone(),
        };
        (attribute.name.clone(), inside)
    };
    Value::Object(of.iter().map(filled).collect())
}

/// Returns a received value as JSON, with unknown values as `"<unknown>"`.
pub fn json(of: Option<&tfplugin6::DynamicValue>) -> serde_json::Value {
    let of = of.expect("a value");
    if of.msgpack.is_empty() {
        serde_json::from_slice(&of.json).unwrap()
    } else {
        tree(rmp_serde::from_slice(&of.msgpack).unwrap())
    }
}

fn tree(of: ValueAny) -> serde_json::Value {
    match of {
        ValueAny::String(text) => text.into(),
        ValueAny::Number(number) => number.into(),
        ValueAny::Bool(flag) => flag.into(),
        ValueAny::List(items) => items.into_iter().map(tree).collect(),
        ValueAny::Map(fields) => fields.into_iter().map(|(key, of)| (key, tree(of))).collect(),
        ValueAny::Null => serde_json::Value::Null,
        ValueAny::Unknown => "<unknown>".into(),
    }
}

/// Returns the errors among diagnostics, as "summary: detail".
pub fn errors(of: &[tfplugin6::Diagnostic]) -> Vec<String> {
    texts(of, tfplugin6::diagnostic::Severity::Error)
}

pub fn warnings(of: &[tfplugin6::Diagnostic]) -> Vec<String> {
    texts(of, tfplugin6::diagnostic::Severity::Warning)
}

fn texts(of: &[tfplugin6::Diagnostic], severity: tfplugin6::diagnostic::Severity) -> Vec<String> {
    let chosen = of.iter().filter(|diagnostic| diagnostic.severity() == severity);
    chosen.map(|diagnostic| format!("{}: {}", diagnostic.summary, diagnostic.detail)).collect()
}
