//! A real S3 server: MinIO, with one bucket.

use std::{
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::TryStreamExt as _;
use http_body_util::BodyExt as _;
use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt as _,
    aws::AmazonS3Builder,
    client::{HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService},
    path::Path as ObjectPath,
};
use secrecy::SecretString;
use terraform_provider_metal::settings::Environment;

use super::server::{Server, free_port};

/// The account of all tests.
const ACCOUNT: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "metal"), ("AWS_SECRET_ACCESS_KEY", "metal-test-secret")];

pub const BUCKET: &str = "locks";

pub struct Bucket {
    server: Server,
    pub port: u16,
}

impl Bucket {
    /// Returns the server shared by all tests of this process. It ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Bucket> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    pub fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("metal-bucket-").tempdir().unwrap().keep();
        // A folder of its data is a bucket.
        std::fs::create_dir_all(folder.join("data").join(BUCKET)).unwrap();
        let port = free_port();
        Self { server: run(&folder, port), port }
    }

    /// Kills the server, as in a power cut.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Restarts it with its data.
    pub fn start_again(&mut self) {
        self.server = run(&self.server.folder, self.port);
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns an unused prefix.
    pub fn prefix() -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a store's URL.
    pub fn url(&self, prefix: &str) -> String {
        url_at(&self.endpoint(), prefix)
    }

    /// Returns the objects of a prefix, for tests that look into the bucket or change it.
    pub fn objects(&self, prefix: &str) -> Objects {
        // As in `main`.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let [(_, user), (_, password)] = ACCOUNT;
        let store = AmazonS3Builder::new()
            .with_bucket_name(BUCKET)
            .with_endpoint(self.endpoint())
            .with_region("us-east-1")
            .with_allow_http(true)
            .with_access_key_id(user)
            .with_secret_access_key(password)
            .with_disable_bulk_delete(true)
            .with_http_connector(Connector(super::server::http_client().build().unwrap()))
            .build()
            .unwrap();
        Objects { store: Arc::new(store), prefix: prefix.to_owned() }
    }
}

fn run(folder: &Path, port: u16) -> Server {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/.tools/bin/minio");
    assert!(Path::new(program).exists(), "MinIO is missing: run `make setup`");
    let [(_, user), (_, password)] = ACCOUNT;
    let command = [
        "env",
        &format!("MINIO_ROOT_USER={user}"),
        &format!("MINIO_ROOT_PASSWORD={password}"),
        "MINIO_CI_CD=1",
        program,
        "server",
        "--quiet",
        "--address",
        &format!("127.0.0.1:{port}"),
        "--console-address",
        &format!("127.0.0.1:{}", free_port()),
        folder.join("data").to_str().unwrap(),
    ]
    .map(str::to_owned);
    let server = Server::start(folder, "TERM", &command);
    let began = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(began.elapsed() < Duration::from_mins(1), "MinIO did not start: {}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

/// Returns a store's URL at an endpoint.
pub fn url_at(endpoint: &str, prefix: &str) -> String {
    format!("s3://{BUCKET}/{prefix}?endpoint={endpoint}&region=us-east-1")
}

/// Returns the account as environment variables.
pub fn account() -> Vec<(String, SecretString)> {
    ACCOUNT.iter().map(|(name, value)| ((*name).to_owned(), SecretString::from(*value))).collect()
}

/// Returns the account's variables for a process.
pub fn variables() -> [(&'static str, &'static str); 2] {
    ACCOUNT
}

/// Returns an environment with the account.
pub fn environment() -> Environment {
    let mut environment = Environment::default();
    environment.variables.extend(ACCOUNT.map(|(name, value)| (name.to_owned(), value.to_owned())));
    environment
}

/// The objects of one store.
#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: String,
}

impl Objects {
    /// Returns all objects by name.
    pub async fn all(&self) -> Vec<(String, String)> {
        let listed: Vec<_> =
            self.store.list(Some(&ObjectPath::from(self.prefix.as_str()))).try_collect().await.unwrap();
        let mut found = Vec::new();
        for meta in listed {
            let bytes = self.store.get(&meta.location).await.unwrap().bytes().await.unwrap();
            let name = meta.location.as_ref()[self.prefix.len() + 1..].to_owned();
            found.push((name, String::from_utf8(bytes.to_vec()).unwrap()));
        }
        found
    }

    pub async fn put(&self, name: &str, text: &str) {
        let path = ObjectPath::from(format!("{}/{name}", self.prefix));
        self.store.put(&path, text.to_owned().into()).await.unwrap();
    }

    pub async fn delete(&self, name: &str) {
        self.store.delete(&ObjectPath::from(format!("{}/{name}", self.prefix))).await.unwrap();
    }

    /// Changes each object of a folder.
    pub async fn edit(&self, folder: &str, change: impl Fn(&mut serde_json::Value)) {
        for (name, text) in self.all().await.into_iter().filter(|(name, _)| name.starts_with(folder)) {
            let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
            change(&mut value);
            let changed = value.to_string();
            if changed != text {
                self.put(&name, &changed).await;
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Connector(reqwest::Client);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let sent = self.0.request(parts.method, parts.uri.to_string()).headers(parts.headers).body(body).send().await;
        let reply = sent.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let mut answer = http::Response::new(());
        (*answer.status_mut(), *answer.headers_mut()) = (reply.status(), reply.headers().clone());
        let body = reply.bytes().await.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        Ok(answer.map(|()| body.into()))
    }
}
