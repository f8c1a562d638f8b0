//! Test fixture: a cluster with one family's operators, and servers behind simulated BMCs.

use std::{
    fs,
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    sync::Arc,
};

use bmc_simulator::{BootSource, Simulator, SystemConfig};
use jiff::Timestamp;
use kube::ResourceExt as _;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::super::kubernetes::Kubernetes;
use super::{
    Operators, Options,
    api::{Cluster, Key, Kind, Object, text},
    family::{Family, Place},
    lent::LentKubernetes,
    patience,
};

/// User name of the operators.
const OPERATORS: &str = "ironcore";

/// One request served by the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub user: String,
    pub agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: String,
    /// Plural resource with its group, such as `servers.metal.ironcore.dev`; empty for other
    /// paths.
    pub resource: String,
    /// `status` or another subresource; usually empty.
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub status: u64,
}

/// A running cluster with operators and servers.
pub struct World {
    // Dropped in this order: controllers would log errors about a missing API server.
    pub operators: Operators,
    pub cluster: Cluster,
    pub family: Family,
    pub simulator: Simulator,
    pub kubernetes: LentKubernetes,
    since: Since,
}

/// Start of this world in the API server's log. Watches of an earlier world can end later.
struct Since {
    bytes: u64,
    time: Timestamp,
}

impl World {
    /// Starts everything, with an `Available` server for each simulated machine of the same name.
    pub async fn start(family: Family, options: Options, simulator: &Simulator) -> Self {
        let this = Self::empty(family, options, simulator).await;
        for name in simulator.systems() {
            this.add_server(&name).await;
        }
        for name in simulator.systems() {
            this.until_state(&name, "Available").await;
        }
        this
    }

    /// Starts everything except the servers.
    pub async fn empty(family: Family, options: Options, simulator: &Simulator) -> Self {
        let kubernetes = LentKubernetes::with((family, options.maintenance_operator)).await;
        let bytes = fs::metadata(kubernetes.audit_log()).map_or(0, |log| log.len());
        let since = Since { bytes, time: Timestamp::now() };
        let client = Kubernetes::client(&kubernetes.kubeconfig()).await;
        let operators = Kubernetes::client(&kubernetes.user(OPERATORS, &["system:masters"])).await;
        let options = Options { network_boots: Some(boots_of(simulator)), ..options };
        let operators = Operators::start(operators, family, options);
        let cluster = Cluster { client };
        Self { operators, cluster, family, simulator: simulator.clone(), kubernetes, since }
    }

    /// Adds a server for a simulated machine. Machines behind one BMC share its BMC object.
    pub async fn add_server(&self, name: &str) {
        let bmc = self.simulator.bmc_of(name).unwrap();
        self.add_secret(&bmc).await;
        let (host, port, scheme) = self.address(name);
        let spec = json!({
            "access": {"ip": host, "macAddress": "02:00:00:00:00:01"},
            "bmcSecretRef": {"name": bmc},
            "protocol": {"name": "Redfish", "port": port, "scheme": scheme},
        });
        self.ensure(Kind::Bmc, json!({"metadata": {"name": bmc}, "spec": spec})).await;
        self.add_server_with(name, json!({"bmcRef": {"name": bmc}})).await;
    }

    /// Adds a server with inline BMC settings.
    pub async fn add_server_with_inline_bmc(&self, name: &str) {
        self.add_secret(name).await;
        let (host, port, scheme) = self.address(name);
        let bmc = json!({
            "address": host,
            "bmcSecretRef": {"name": name},
            "protocol": {"name": "Redfish", "port": port, "scheme": scheme},
        });
        self.add_server_with(name, json!({"bmc": bmc})).await;
    }

    async fn add_server_with(&self, name: &str, mut spec: Value) {
        let uuid = SystemConfig::default_uuid(name).to_string();
        spec["systemUUID"] = uuid.clone().into();
        if self.family == Family::V0_1 {
            spec["uuid"] = uuid.into();
        }
        self.cluster.create(Kind::Server, json!({"metadata": {"name": name}, "spec": spec})).await.unwrap();
    }

    async fn add_secret(&self, name: &str) {
        use base64::{Engine as _, prelude::BASE64_STANDARD};
        let account = self.simulator.credentials();
        let data = json!({
            "username": BASE64_STANDARD.encode(&account.username),
            "password": BASE64_STANDARD.encode(account.password.expose_secret()),
        });
        self.ensure(Kind::BmcSecret, json!({"metadata": {"name": name}, "data": data})).await;
    }

    fn address(&self, name: &str) -> (String, u16, String) {
        let url: url::Url = self.simulator.url(name).unwrap().parse().unwrap();
        (url.host_str().unwrap().to_owned(), url.port_or_known_default().unwrap(), url.scheme().to_owned())
    }

    /// Creates an object unless its name exists.
    pub async fn ensure(&self, kind: Kind, object: Value) {
        match self.cluster.create(kind, object).await {
            Err(error) if !super::api::is_conflict(&error) => panic!("{error}"),
            _ => {}
        }
    }

    /// Returns an object.
    ///
    /// # Panics
    /// If it does not exist.
    pub async fn object(&self, kind: Kind, key: &Key) -> Object {
        self.find(kind, key).await.unwrap_or_else(|| panic!("{kind:?} {key:?} does not exist"))
    }

    pub async fn find(&self, kind: Kind, key: &Key) -> Option<Object> {
        self.cluster.get(kind, key).await.unwrap()
    }

    pub async fn list(&self, kind: Kind) -> Vec<Object> {
        self.cluster.list(kind).await.unwrap()
    }

    /// Returns a server.
    pub async fn server(&self, name: &str) -> Value {
        serde_json::to_value(self.object(Kind::Server, &Key::cluster(name)).await).unwrap()
    }

    /// Waits until an object matches, and returns it.
    pub async fn until(&self, kind: Kind, key: &Key, what: &str, wanted: impl Fn(&Object) -> bool) -> Object {
        patience::until(&format!("{kind:?} {key:?}: {what}"), async || {
            self.find(kind, key).await.filter(|object| wanted(object))
        })
        .await
    }

    /// Waits until an object does not exist.
    pub async fn until_gone(&self, kind: Kind, key: &Key) {
        patience::until(&format!("{kind:?} {key:?} is deleted"), async || {
            self.find(kind, key).await.is_none().then_some(())
        })
        .await;
    }

    /// Waits for a server's state.
    pub async fn until_state(&self, server: &str, state: &str) {
        self.until(Kind::Server, &Key::cluster(server), state, |server| text(server, "/status/state") == state).await;
    }

    /// Returns the family's `ServerMaintenance` kind.
    pub fn maintenances(&self) -> Kind {
        Kind::maintenance(self.family.group().expect("a family with ServerMaintenance"))
    }

    /// Claims a server and waits until it runs for its owner.
    pub async fn claim(&self, server: &str, namespace: &str, name: &str) {
        self.request_claim(server, namespace, name).await;
        let key = Key::within(namespace, name);
        self.until(Kind::Claim, &key, "bound", |claim| text(claim, "/status/phase") == "Bound").await;
        let on =
            |server: &Object| text(server, "/status/state") == "Reserved" && text(server, "/status/powerState") == "On";
        self.until(Kind::Server, &Key::cluster(server), "runs for its owner", on).await;
    }

    /// Claims a server without waiting.
    pub async fn request_claim(&self, server: &str, namespace: &str, name: &str) {
        self.ensure(Kind::Namespace, json!({"metadata": {"name": namespace}})).await;
        let ignition = format!("{name}-ignition");
        let secret = json!({
            "metadata": {"name": ignition, "namespace": namespace},
            "stringData": {"ignition": "{\"ignition\":{\"version\":\"3.3.0\"}}"},
        });
        self.ensure(Kind::Secret, secret).await;
        let spec = json!({
            "power": "On",
            "serverRef": {"name": server},
            "image": "registry.example/os:1",
            "ignitionSecretRef": {"name": ignition},
        });
        let claim = json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
        self.cluster.create(Kind::Claim, claim).await.unwrap();
    }

    /// Approves maintenance on a claim, as this family's owners do.
    pub async fn approve(&self, namespace: &str, claim: &str) {
        self.set_approval(namespace, claim, json!("true")).await;
    }

    /// Withdraws the approval.
    pub async fn withdraw(&self, namespace: &str, claim: &str) {
        self.set_approval(namespace, claim, Value::Null).await;
    }

    async fn set_approval(&self, namespace: &str, claim: &str, value: Value) {
        let (place, key) = self.family.approvals()[0];
        let field = if place == Place::Label { "labels" } else { "annotations" };
        let change = json!({"metadata": {field: {key: value}}});
        self.cluster.merge(Kind::Claim, &Key::within(namespace, claim), change).await.unwrap();
    }

    /// Returns a claim's labels and annotations about maintenance, sorted, as `label key=value`.
    pub async fn marks(&self, namespace: &str, claim: &str) -> Vec<String> {
        marks(&self.object(Kind::Claim, &Key::within(namespace, claim)).await)
    }

    /// Returns all served requests, without those of the operators and the API server itself.
    pub fn requests(&self) -> Vec<Request> {
        let mut log = fs::File::open(self.kubernetes.audit_log()).unwrap();
        log.seek(SeekFrom::Start(self.since.bytes)).unwrap();
        let lines = BufReader::new(log).lines().map_while(Result::ok);
        let mut all: Vec<Request> = lines.filter_map(|line| request(&line, self.since.time)).collect();
        all.retain(|request| request.user != OPERATORS && !request.user.starts_with("system:"));
        all
    }

    /// Returns one user's requests.
    pub fn requests_of(&self, user: &str) -> Vec<Request> {
        let mut all = self.requests();
        all.retain(|request| request.user == user);
        all
    }
}

/// Returns a claim's labels and annotations about maintenance.
pub fn marks(claim: &Object) -> Vec<String> {
    let about = |place: &str, key: &str, value: &str| {
        let key = key.strip_prefix("metal.ironcore.dev/").filter(|key| key.starts_with("maintenance"))?;
        Some(format!("{place} {key}={value}"))
    };
    let labels = claim.labels().iter().filter_map(|(key, value)| about("label", key, value));
    let annotations = claim.annotations().iter().filter_map(|(key, value)| about("annotation", key, value));
    labels.chain(annotations).collect()
}

/// Parses a log line, unless it is older than `since`.
fn request(line: &str, since: Timestamp) -> Option<Request> {
    let entry: Value = serde_json::from_str(line).ok()?;
    let came: Timestamp = entry["requestReceivedTimestamp"].as_str()?.parse().ok()?;
    if came < since {
        return None;
    }
    let word = |pointer: &str| entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (plural, group) = (word("/objectRef/resource"), word("/objectRef/apiGroup"));
    Some(Request {
        user: word("/user/username"),
        agent: word("/userAgent"),
        verb: word("/verb"),
        resource: if group.is_empty() { plural } else { format!("{plural}.{group}") },
        subresource: word("/objectRef/subresource"),
        namespace: word("/objectRef/namespace"),
        name: word("/objectRef/name"),
        status: entry.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default(),
    })
}

fn boots_of(simulator: &Simulator) -> super::NetworkBoots {
    let simulator = simulator.clone();
    Arc::new(move |name: &str| {
        let boots = simulator.boots(name).unwrap_or_default();
        boots.iter().filter(|boot| matches!(boot.booted_from, BootSource::Pxe)).count()
    })
}
