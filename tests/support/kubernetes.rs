//! Real Kubernetes API servers on loopback, each with its own etcd, without controllers or nodes.

use std::{
    fs,
    future::Future,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Client, Config, ResourceExt as _,
    api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::{GroupVersionKind, TypeMeta, params::GetParams, request::Request},
    discovery::{Scope, pinned_kind},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use serde_json::{Value, json};

use super::server::{Server, free_port};

/// Signal to end both servers. With SIGTERM the API server waits for watchers; the data is
/// disposable.
const SIGNAL: &str = "KILL";

/// Key prefix of all objects in etcd.
pub const REGISTRY: &str = "/registry/";

/// Token users and their groups. Other users get a certificate from [`Kubernetes::user`].
const TOKENS: [(&str, &str); 7] = [
    ("admin", "system:masters"),
    ("runner", "runners"),
    ("approver", "approvers"),
    ("reviewer", "reviewers"),
    ("spare-1", "spares"),
    ("spare-2", "spares"),
    ("nobody", ""),
];

/// File of [`Kubernetes::audit_log`].
const AUDIT: &str = "audit";

fn program(name: &str) -> String {
    let built = format!("{}/.tools/bin/{name}", env!("CARGO_MANIFEST_DIR"));
    assert!(Path::new(&built).exists(), "{name} is missing: run `make setup`");
    built
}

/// Runs a future to completion on a separate thread, so that it also works within a runtime.
fn wait_for<T: Send>(doing: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(doing);
        match scope.spawn(run).join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// An API server and its etcd.
pub struct Kubernetes {
    // Fields are dropped in this order, so that the API server ends before its etcd.
    api: Server,
    etcd: Server,
    port: u16,
    etcd_port: u16,
    command: Vec<String>,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Kubernetes {
    /// Returns the server shared by all tests of this process. It ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Kubernetes> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Starts a separate server.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a separate server with extra arguments; the last argument of a name wins.
    pub fn start_with(more: &[&str]) -> Self {
        Self::start_on(start_etcd(false), more, false)
    }

    /// Starts a separate server with an audit log: [`Kubernetes::audit_log`].
    pub fn audited() -> Self {
        Self::start_on(start_etcd(false), &[], true)
    }

    /// Starts a server with fsync, as in production. Benchmarks need it.
    pub fn durable() -> Self {
        Self::start_on(start_etcd(true), &[], false)
    }

    fn start_on((etcd, etcd_port): (Server, u16), more: &[&str], audited: bool) -> Self {
        // As in `main`.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = tempfile::Builder::new().prefix("metal-kubernetes-").tempdir().unwrap().keep();
        let port = free_port();
        let file = |name: &str, text: &str| {
            fs::write(folder.join(name), text).unwrap();
            format!("{}/{name}", folder.display())
        };
        let tokens = TOKENS.map(|(name, groups)| format!("token-of-{name},{name},{name},\"{groups}\"\n")).concat();
        let (issuer, accounts) = (issuer(), KeyPair::generate().unwrap());
        let mut command = vec![
            program("kube-apiserver"),
            format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}/certs", folder.display()),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--token-auth-file={}", file("tokens.csv", &tokens)),
            format!("--client-ca-file={}", file("clients.crt", &issuer.pem())),
            "--authorization-mode=RBAC".to_owned(),
            format!("--service-account-issuer=https://127.0.0.1:{port}"),
            format!("--service-account-key-file={}", file("accounts.pub", &accounts.public_key_pem())),
            format!("--service-account-signing-key-file={}", file("accounts.key", &accounts.serialize_pem())),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--profiling=false".to_owned(),
        ];
        if audited {
            let policy = json!({
                "apiVersion": "audit.k8s.io/v1",
                "kind": "Policy",
                "omitStages": ["RequestReceived"],
                "rules": [{"level": "Metadata"}],
            });
            command.push(format!("--audit-policy-file={}", file("audit-policy", &policy.to_string())));
            command.push(format!("--audit-log-path={}/{AUDIT}", folder.display()));
        }
        command.extend(more.iter().map(|argument| (*argument).to_owned()));
        let this = Self { api: Server::start(&folder, SIGNAL, &command), etcd, port, etcd_port, command, issuer };
        this.wait_until_ready();
        this
    }

    fn wait_until_ready(&self) {
        let began = Instant::now();
        while !(self.ca_file().exists() && wait_for(self.is_ready())) {
            assert!(began.elapsed() < Duration::from_mins(2), "the API server did not start: {}", self.api.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    async fn is_ready(&self) -> bool {
        let Ok(ca) = reqwest::Certificate::from_pem(&fs::read(self.ca_file()).unwrap()) else { return false };
        let http = reqwest::Client::builder().tls_certs_only([ca]).timeout(Duration::from_secs(5)).build().unwrap();
        let asked = http.get(format!("{}/readyz", self.url())).bearer_auth(Self::token("admin")).send().await;
        asked.is_ok_and(|reply| reply.status().is_success())
    }

    /// `https://host:port`.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// `host:port` of the API server.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `host:port` of its etcd.
    pub fn etcd_host(&self) -> String {
        format!("127.0.0.1:{}", self.etcd_port)
    }

    /// CA file for the server's certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.api.folder.join("certs/apiserver.crt")
    }

    pub fn log(&self) -> String {
        self.api.log()
    }

    /// Audit log of [`Kubernetes::audited`]: one `audit.k8s.io/v1` event per line.
    pub fn audit_log(&self) -> PathBuf {
        self.api.folder.join(AUDIT)
    }

    /// Token of a [`TOKENS`] user.
    pub fn token(name: &str) -> String {
        assert!(TOKENS.iter().any(|(known, _)| *known == name), "{name} is not in TOKENS");
        format!("token-of-{name}")
    }

    /// Path of an administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of("admin")
    }

    /// Path of a kubeconfig with a [`TOKENS`] user's token.
    pub fn kubeconfig_of(&self, name: &str) -> PathBuf {
        self.kubeconfig_at(&self.url(), name)
    }

    /// Same as `kubeconfig_of`, with the proxy at `url` as the server.
    pub fn kubeconfig_at(&self, url: &str, name: &str) -> PathBuf {
        self.write_kubeconfig(url, &json!({"token": Self::token(name)}))
    }

    /// Path of a kubeconfig with a client certificate for this user and these groups.
    pub fn user(&self, name: &str, groups: &[&str]) -> PathBuf {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |kind: &str, text: String| {
            let path = self.api.folder.join(format!("user-{}.{kind}", uuid::Uuid::new_v4().simple()));
            fs::write(&path, text).unwrap();
            path
        };
        let user = json!({
            "client-certificate": file("crt", certificate.pem()),
            "client-key": file("key", key.serialize_pem()),
        });
        self.write_kubeconfig(&self.url(), &user)
    }

    fn write_kubeconfig(&self, url: &str, user: &Value) -> PathBuf {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": self.ca_file()}}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
        });
        let path = self.api.folder.join(format!("kubeconfig-{}", uuid::Uuid::new_v4().simple()));
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// URL of a coordination store in a namespace, as administrator.
    pub fn store(&self, namespace: &str) -> String {
        Self::store_of(namespace, &self.kubeconfig())
    }

    /// Same as `store`, with this kubeconfig.
    pub fn store_of(namespace: &str, kubeconfig: &Path) -> String {
        format!("kubernetes://{namespace}?kubeconfig={}", kubeconfig.display())
    }

    /// Creates a client from a kubeconfig.
    pub async fn client(kubeconfig: &Path) -> Client {
        let read = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    }

    /// Creates a namespace with a unique name.
    pub fn namespace(&self) -> String {
        let name = format!("n{}", uuid::Uuid::new_v4().simple());
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        wait_for(async {
            let client = Self::client(&self.kubeconfig()).await;
            let all: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client);
            all.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
        });
        name
    }

    /// Returns all ConfigMaps of a namespace.
    pub async fn config_maps(&self, namespace: &str) -> Vec<ConfigMap> {
        let all: Api<ConfigMap> = Api::namespaced(Self::client(&self.kubeconfig()).await, namespace);
        all.list(&ListParams::default()).await.unwrap().items
    }

    /// Changes one key of a ConfigMap.
    pub async fn set_data(&self, namespace: &str, map: &ConfigMap, key: &str, value: &str) {
        let all: Api<ConfigMap> = Api::namespaced(Self::client(&self.kubeconfig()).await, namespace);
        let patch = json!({"data": {key: value}});
        all.patch(&map.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    /// Replaces all ConfigMaps of a namespace, like a backup tool.
    pub async fn replace_config_maps(&self, namespace: &str, maps: Vec<ConfigMap>) {
        let all: Api<ConfigMap> = Api::namespaced(Self::client(&self.kubeconfig()).await, namespace);
        for map in self.config_maps(namespace).await {
            all.delete(&map.name_any(), &DeleteParams::default()).await.unwrap();
        }
        for mut map in maps {
            (map.metadata.resource_version, map.metadata.uid) = (None, None);
            all.create(&PostParams::default(), &map).await.unwrap();
        }
    }

    /// Server-side-applies a YAML text's documents in order, by default to namespace `default`.
    pub fn apply(&self, yaml: &str) {
        self.apply_in("default", yaml);
    }

    /// Same as `apply` with another default namespace. Waits until new custom resources are
    /// served.
    pub fn apply_in(&self, namespace: &str, yaml: &str) {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
        wait_for(async {
            let client = Self::client(&self.kubeconfig()).await;
            for document in documents.into_iter().filter(|document| !document.is_null()) {
                apply_one(&client, namespace, document).await;
            }
        });
    }

    /// Returns the number of requests served for store objects, without watches.
    pub async fn requests(&self) -> u64 {
        self.requests_about(&["configmaps", "leases"]).await
    }

    /// Returns the number of requests served for these resources, without watches.
    pub async fn requests_about(&self, kinds: &[&str]) -> u64 {
        let asked = Request::new("").get("metrics", &GetParams::default()).unwrap();
        let text = Self::client(&self.kubeconfig()).await.request_text(asked).await.unwrap();
        let counts = |line: &&str| line.starts_with("apiserver_request_total{") && !line.contains("verb=\"WATCH\"");
        let ours = |line: &&str| kinds.iter().any(|kind| line.contains(&format!("resource=\"{kind}\"")));
        let lines = text.lines().filter(counts).filter(ours);
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }

    /// Kills the API server, as in a power cut. Its etcd continues.
    pub fn kill(&mut self) {
        self.api.kill();
    }

    /// Restarts it with the same port, data and certificates.
    pub fn start_again(&mut self) {
        let folder = self.api.folder.clone();
        self.api = Server::start(&folder, SIGNAL, &self.command);
        self.wait_until_ready();
    }
}

fn start_etcd(durable: bool) -> (Server, u16) {
    let folder = tempfile::Builder::new().prefix("metal-kubernetes-etcd-").tempdir().unwrap().keep();
    let (client, peer) = (free_port(), free_port());
    let command = [
        program("etcd"),
        format!("--data-dir={}", folder.join("data").display()),
        format!("--listen-client-urls=http://127.0.0.1:{client}"),
        format!("--advertise-client-urls=http://127.0.0.1:{client}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
        format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
        format!("--initial-cluster=default=http://127.0.0.1:{peer}"),
        format!("--unsafe-no-fsync={}", !durable),
        "--log-level=error".to_owned(),
    ];
    (Server::start(&folder, SIGNAL, &command), client)
}

/// Issuer of the certificates from [`Kubernetes::user`].
fn issuer() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "clients of the tests");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

async fn apply_one(client: &Client, namespace: &str, document: Value) {
    let object: DynamicObject = serde_json::from_value(document).unwrap();
    let kind =
        GroupVersionKind::try_from(object.types.clone().unwrap_or_else(|| panic!("no kind: {object:?}"))).unwrap();
    let began = Instant::now();
    // The API server serves a new custom resource after a short delay.
    let (resource, capabilities) = loop {
        match pinned_kind(client, &kind).await {
            Ok(found) => break found,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(30), "{kind:?}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let all: Api<DynamicObject> = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object.namespace().unwrap_or_else(|| namespace.to_owned());
            Api::namespaced_with(client.clone(), &namespace, &resource)
        }
    };
    let (name, how) = (object.name_any(), PatchParams::apply("tests").force());
    all.patch(&name, &how, &Patch::Apply(&object)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    let definition =
        TypeMeta { api_version: "apiextensions.k8s.io/v1".to_owned(), kind: "CustomResourceDefinition".to_owned() };
    while object.types.as_ref() == Some(&definition) && !is_established(&all.get(&name).await.unwrap()) {
        assert!(began.elapsed() < Duration::from_secs(30), "{name} is not established");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn is_established(definition: &DynamicObject) -> bool {
    let conditions = definition.data.pointer("/status/conditions").and_then(Value::as_array);
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Established" && one["status"] == "True"))
}
