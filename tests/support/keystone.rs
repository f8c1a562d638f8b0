//! A real Keystone with accounts, application credentials, tokens and a catalog, in its own
//! database.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::server::{Server, free_port, http_client};

/// Serves a folder from the set-up and writes its address into the catalog.
const SERVE: &str = r#"
import sqlite3, sys
database, port = sys.argv[1], int(sys.argv[2])
del sys.argv[1:]
with sqlite3.connect(database) as db:
    db.execute("UPDATE endpoint SET url = ?", (f"http://127.0.0.1:{port}/v3",))
from cheroot import wsgi
from keystone.server.wsgi import initialize_public_application
wsgi.Server(("127.0.0.1", port), initialize_public_application(), numthreads=4).start()
"#;

/// Password of all accounts, including `admin` from the set-up.
pub const PASSWORD: &str = "correct horse";
/// Region of all catalog entries.
pub const REGION: &str = "r1";
/// Project of the runs.
pub const PROJECT: &str = "ops";

/// A running Keystone.
pub struct Keystone {
    server: Server,
    folder: TempDir,
    port: u16,
    http: reqwest::Client,
    operator: tokio::sync::Mutex<Option<(Instant, String)>>,
}

impl std::fmt::Debug for Keystone {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Keystone").field("port", &self.port).finish_non_exhaustive()
    }
}

/// An application credential.
#[derive(Clone, Debug)]
pub struct Credential {
    pub id: String,
    pub secret: String,
}

fn tool(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/keystone").join(path);
    assert!(path.exists(), "{} is missing: run tools/setup/run keystone", path.display());
    path
}

fn by_password(user: &str, password: &str, scope: &Value) -> Value {
    let user = json!({ "name": user, "domain": { "id": "default" }, "password": password });
    let identity = json!({ "methods": ["password"], "password": { "user": user } });
    json!({ "auth": { "identity": identity, "scope": scope } })
}

impl Keystone {
    /// Starts Keystone with Ironic's account and the runs' project, and waits until it answers.
    /// `lifetime` applies to its tokens.
    pub async fn start(lifetime: Duration) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = TempDir::with_prefix("keystone-").unwrap();
        let (here, port) = (folder.path().display(), free_port());
        fs::copy(tool("prepared/keystone.sqlite"), folder.path().join("keystone.sqlite")).unwrap();
        for keys in ["fernet", "credential"] {
            fs::create_dir(folder.path().join(keys)).unwrap();
            for key in fs::read_dir(tool("prepared").join(keys)).unwrap() {
                let key = key.unwrap();
                fs::copy(key.path(), folder.path().join(keys).join(key.file_name())).unwrap();
            }
        }
        let configuration = format!(
            "[DEFAULT]
use_stderr = true
[database]
connection = sqlite:///{here}/keystone.sqlite
[token]
provider = fernet
expiration = {}
[fernet_tokens]
key_repository = {here}/fernet
[fernet_receipts]
key_repository = {here}/fernet
[credential]
key_repository = {here}/credential
[identity]
password_hash_rounds = 4
[cache]
enabled = true
backend = oslo_cache.dict
",
            lifetime.as_secs()
        );
        fs::write(folder.path().join("keystone.conf"), configuration).unwrap();
        let command = [
            "env".to_owned(),
            format!("OS_KEYSTONE_CONFIG_FILES={here}/keystone.conf"),
            tool("bin/python").display().to_string(),
            "-c".to_owned(),
            SERVE.to_owned(),
            format!("{here}/keystone.sqlite"),
            port.to_string(),
        ];
        let server = Server::start(folder.path(), "KILL", &command);
        let http = http_client().build().unwrap();
        let keystone = Self { server, folder, port, http, operator: tokio::sync::Mutex::default() };
        keystone.await_answer().await;
        keystone.call(Method::POST, "/projects", json!({ "project": { "name": PROJECT } })).await;
        keystone.call(Method::POST, "/projects", json!({ "project": { "name": "service" } })).await;
        keystone.account("ironic", "service", &["service"]).await;
        keystone
    }

    async fn await_answer(&self) {
        let until = Instant::now() + Duration::from_mins(2);
        while !self.http.get(self.url()).send().await.is_ok_and(|answer| answer.status().is_success()) {
            assert!(Instant::now() < until, "Keystone does not answer:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// `auth_url` of its accounts.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v3", self.port)
    }

    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Writes a file for a test, for example a `clouds.yaml`.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Returns Ironic's middleware configuration. `cached` is the number of seconds that a
    /// validated token stays trusted (default 300; -1 validates on each request, so revocations
    /// apply immediately).
    pub fn middleware(&self, cached: i32) -> String {
        let url = self.url();
        format!(
            "[keystone_authtoken]
auth_type = password
auth_url = {url}
www_authenticate_uri = {url}
username = ironic
password = {PASSWORD}
user_domain_id = default
project_name = service
project_domain_id = default
region_name = {REGION}
token_cache_time = {cached}
"
        )
    }

    async fn log_in(&self, body: &Value) -> (String, Value) {
        let answer = self.http.post(format!("{}/auth/tokens", self.url())).json(body).send().await.unwrap();
        let status = answer.status();
        let token = answer.headers().get("X-Subject-Token").and_then(|token| token.to_str().ok()).map(str::to_owned);
        let text = answer.text().await.unwrap();
        assert!(status.is_success(), "{status} {text}\n{}", self.log());
        (token.unwrap(), serde_json::from_str(&text).unwrap())
    }

    /// Returns a valid token of the system administrator.
    pub async fn operator(&self) -> String {
        let mut kept = self.operator.lock().await;
        if let Some((since, token)) = kept.as_ref()
            && since.elapsed() < Duration::from_secs(20)
        {
            return token.clone();
        }
        let body = by_password("admin", PASSWORD, &json!({ "system": { "all": true } }));
        let (token, _) = self.log_in(&body).await;
        *kept = Some((Instant::now(), token.clone()));
        token
    }

    async fn send(&self, method: Method, path: &str, token: &str, body: &Value) -> Value {
        let mut request = self.http.request(method.clone(), format!("{}{path}", self.url()));
        request = request.header("X-Auth-Token", token);
        if !body.is_null() {
            request = request.json(body);
        }
        let answer = request.send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{method} {path}: {status} {text}\n{}", self.log());
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// Sends a request as administrator and asserts success.
    pub async fn call(&self, method: Method, path: &str, body: Value) -> Value {
        self.send(method, path, &self.operator().await, &body).await
    }

    async fn id_of(&self, kind: &str, name: &str) -> Option<String> {
        let found = self.call(Method::GET, &format!("/{kind}?name={name}"), Value::Null).await;
        found[kind][0]["id"].as_str().map(str::to_owned)
    }

    /// Creates an account with roles in a project. Missing roles are created.
    pub async fn account(&self, name: &str, project: &str, roles: &[&str]) {
        let user = json!({ "user": { "name": name, "domain_id": "default", "password": PASSWORD } });
        let user = self.call(Method::POST, "/users", user).await["user"]["id"].as_str().unwrap().to_owned();
        let project = self.id_of("projects", project).await.unwrap();
        for role in roles {
            let known = self.id_of("roles", role).await;
            let role = match known {
                Some(role) => role,
                None => self.call(Method::POST, "/roles", json!({ "role": { "name": role } })).await["role"]["id"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
            };
            let grant = format!("/projects/{project}/users/{user}/roles/{role}");
            self.call(Method::PUT, &grant, Value::Null).await;
        }
    }

    /// Creates an application credential for an account in the runs' project, with all its roles.
    pub async fn credential(&self, account: &str) -> Credential {
        let scope = json!({ "project": { "name": PROJECT, "domain": { "id": "default" } } });
        let (token, body) = self.log_in(&by_password(account, PASSWORD, &scope)).await;
        let path = format!("/users/{}/application_credentials", body["token"]["user"]["id"].as_str().unwrap());
        let made =
            self.send(Method::POST, &path, &token, &json!({ "application_credential": { "name": "runs" } })).await;
        let text = |name: &str| made["application_credential"][name].as_str().unwrap().to_owned();
        Credential { id: text("id"), secret: text("secret") }
    }

    /// Disables or enables an account. Both revoke its tokens.
    pub async fn enable(&self, account: &str, enabled: bool) {
        let user = self.id_of("users", account).await.unwrap();
        self.call(Method::PATCH, &format!("/users/{user}"), json!({ "user": { "enabled": enabled } })).await;
    }

    /// Revokes a token.
    pub async fn revoke(&self, token: &str) {
        let request = self.http.delete(format!("{}/auth/tokens", self.url()));
        let request = request.header("X-Auth-Token", self.operator().await).header("X-Subject-Token", token);
        let answer = request.send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.status());
    }

    /// Sets Ironic's address in the catalog, replacing an earlier one.
    pub async fn list_ironic(&self, url: &str) {
        let service = if let Some(service) = self.id_of("services", "ironic").await {
            service
        } else {
            let service = json!({ "service": { "name": "ironic", "type": "baremetal" } });
            self.call(Method::POST, "/services", service).await["service"]["id"].as_str().unwrap().to_owned()
        };
        let listed = self.call(Method::GET, &format!("/endpoints?service_id={service}"), Value::Null).await;
        let endpoint = json!({ "endpoint": {
            "service_id": service, "region_id": REGION, "interface": "public", "url": url,
        } });
        match listed["endpoints"][0]["id"].as_str() {
            Some(known) => self.call(Method::PATCH, &format!("/endpoints/{known}"), endpoint).await,
            None => self.call(Method::POST, "/endpoints", endpoint).await,
        };
    }
}
