//! Drives the real binary over the wire protocol, which is cheaper than a host. Requires the
//! sibling module `host`.
use std::{collections::HashMap, fs, path::Path};

use bmc_simulator::Simulator;
use futures_util::{StreamExt as _, stream};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tonic::transport::Channel;

use super::host::{Host, ProviderClient, Start, completed, errors, json as plain, tfplugin6 as wire, value, warnings};

/// Number of resources that a host processes in parallel.
pub const AT_ONCE: usize = 10;

const TYPE: &str = "metal_server_maintenance";
const OPERATION: &str = "metal_server_operation";
const SERVERS: &str = "metal_servers";

/// A configured provider process.
pub struct Provider {
    pub host: Host,
    /// Block of each resource type.
    resources: HashMap<String, wire::schema::Block>,
    servers: wire::schema::Block,
}

/// A resource in the state.
#[derive(Clone)]
pub struct Held {
    kind: &'static str,
    state: Option<wire::DynamicValue>,
    private: prost::bytes::Bytes,
}

/// Returns a provider block for the simulator's machines, with its files in this folder.
pub fn redfish(simulator: &Simulator, folder: &Path) -> Value {
    let (inventory, authority) = (folder.join("servers.yaml"), folder.join("bmc-ca.pem"));
    fs::write(&inventory, simulator.inventory()).unwrap();
    let account = simulator.credentials();
    let mut redfish = json!({
        "inventory_file": inventory,
        "username": account.username,
        "password": account.password.expose_secret(),
        "request_timeout": "3s",
    });
    if let Some(trust) = simulator.trust() {
        fs::write(&authority, &trust.ca_pem).unwrap();
        redfish["ca_certificate_file"] = json!(authority);
    }
    redfish
}

impl Held {
    /// Returns true if the state contains it.
    pub fn exists(&self) -> bool {
        !plain(self.state.as_ref()).is_null()
    }

    pub fn attribute(&self, name: &str) -> Value {
        plain(self.state.as_ref())[name].clone()
    }
}

impl Provider {
    /// Starts the binary, configured for the simulator's machines and a store.
    pub async fn start(simulator: &Simulator, store: &Path) -> Self {
        let redfish = redfish(simulator, store.parent().unwrap());
        let url = format!("sqlite://{}", store.display());
        Self::configured(&json!({ "coordination_url": url, "owner": "bench", "redfish": redfish })).await
    }

    /// Starts the binary with this provider block.
    pub async fn configured(config: &Value) -> Self {
        let program = Some(env!("CARGO_BIN_EXE_terraform-provider-metal").into());
        let mut host = Host::start_with(Start { program, ..Start::default() }).await;
        let schema = host.provider.get_provider_schema(wire::get_provider_schema::Request::default()).await;
        let mut schema = schema.unwrap().into_inner();
        let resources = schema.resource_schemas.into_iter().map(|(kind, of)| (kind, of.block.unwrap())).collect();
        let servers = schema.data_source_schemas.remove(SERVERS).unwrap().block.unwrap();
        let block_of_provider = schema.provider.unwrap().block.unwrap();
        let request = wire::configure_provider::Request {
            config: value(&complete(&block_of_provider, config.clone())),
            terraform_version: "1.6.2".into(),
            ..Default::default()
        };
        let answer = host.provider.configure_provider(request).await.unwrap().into_inner();
        assert_eq!(errors(&answer.diagnostics), [""; 0]);
        Self { host, resources, servers }
    }

    pub fn client(&self) -> ProviderClient<Channel> {
        self.host.provider.clone()
    }

    /// Plans and applies a maintenance for this server.
    pub async fn create(&self, server: &str, name: &str, more: &Value) -> Held {
        let (held, problems) = self.apply(server, name, more).await;
        assert_eq!(problems, [""; 0]);
        held
    }

    /// Plans a maintenance for this server and returns the warnings.
    pub async fn plan(&self, server: &str, name: &str) -> Vec<String> {
        let config = json!({ "server": server, "namespace": "bench", "name": name, "policy": "Enforced" });
        let (problems, warnings) = self.plan_as(TYPE, config).await;
        assert_eq!(problems, [""; 0]);
        warnings
    }

    /// Plans a resource with this type and returns the errors and warnings.
    pub async fn plan_as(&self, kind: &'static str, config: Value) -> (Vec<String>, Vec<String>) {
        let planned = self.planned(kind, value(&complete(&self.resources[kind], config))).await;
        (errors(&planned.diagnostics), warnings(&planned.diagnostics))
    }

    async fn planned(
        &self,
        kind: &'static str,
        config: Option<wire::DynamicValue>,
    ) -> wire::plan_resource_change::Response {
        let request = wire::plan_resource_change::Request {
            type_name: kind.into(),
            prior_state: value(&Value::Null),
            proposed_new_state: config.clone(),
            config,
            ..Default::default()
        };
        self.client().plan_resource_change(request).await.unwrap().into_inner()
    }

    /// Same as `create`, and returns plan or apply errors.
    pub async fn apply(&self, server: &str, name: &str, more: &Value) -> (Held, Vec<String>) {
        let mut config = json!({ "server": server, "namespace": "bench", "name": name, "policy": "Enforced" });
        for (key, of) in more.as_object().into_iter().flatten() {
            config[key] = of.clone();
        }
        self.apply_as(TYPE, config).await
    }

    /// Plans and applies a resource with this type. Returns plan or apply errors.
    pub async fn apply_as(&self, kind: &'static str, config: Value) -> (Held, Vec<String>) {
        let config = value(&complete(&self.resources[kind], config));
        let planned = self.planned(kind, config.clone()).await;
        let refused = errors(&planned.diagnostics);
        if !refused.is_empty() {
            return (Held { kind, state: value(&Value::Null), private: planned.planned_private }, refused);
        }
        let request = wire::apply_resource_change::Request {
            type_name: kind.into(),
            prior_state: value(&Value::Null),
            planned_state: planned.planned_state,
            planned_private: planned.planned_private,
            config,
            ..Default::default()
        };
        let applied = self.client().apply_resource_change(request).await.unwrap().into_inner();
        let held = Held { kind, state: applied.new_state, private: applied.private };
        (held, errors(&applied.diagnostics))
    }

    /// Refreshes a resource. Returns it and the warnings.
    pub async fn read(&self, held: &Held) -> (Held, Vec<String>) {
        let request = wire::read_resource::Request {
            type_name: held.kind.into(),
            current_state: held.state.clone(),
            private: held.private.clone(),
            ..Default::default()
        };
        let answer = self.client().read_resource(request).await.unwrap().into_inner();
        assert_eq!(errors(&answer.diagnostics), [""; 0]);
        (Held { kind: held.kind, state: answer.new_state, private: answer.private }, warnings(&answer.diagnostics))
    }

    /// Refreshes held servers with a plain client's parallelism.
    pub async fn refresh_all(&self, held: &[Held]) {
        let reads = stream::iter(held).map(async |held| {
            let (after, warnings) = self.read(held).await;
            assert_eq!(warnings, [""; 0]);
            assert_eq!(after.attribute("state"), "InMaintenance");
        });
        reads.buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    /// Reads `metal_servers` and returns their names.
    pub async fn names(&self) -> Vec<String> {
        let request = wire::read_data_source::Request {
            type_name: SERVERS.into(),
            config: value(&complete(&self.servers, json!({}))),
            ..Default::default()
        };
        let answer = self.client().read_data_source(request).await.unwrap().into_inner();
        assert_eq!(errors(&answer.diagnostics), [""; 0]);
        let names = plain(answer.state.as_ref())["names"].clone();
        serde_json::from_value(names).unwrap()
    }

    /// Refreshes a finished operation, which uses neither store nor BMC. Measures the wire alone.
    pub async fn read_what_asks_nobody(&self, number: usize) {
        let state = json!({
            "id": format!("bench/done-{number}"), "server": format!("node{number}"), "namespace": "bench",
            "name": format!("done-{number}"), "operation": "ForceRestart", "when_off": "skip", "proof": "power",
            "policy": "Enforced", "priority": 0, "hold_place_for": "15m", "state": "Completed", "outcome": "Proven",
            "requested_at": "2026-11-21T10:00:00Z", "completed_at": "2026-11-21T10:01:00Z", "lock_key": "key",
            "previous_power_state": "On",
        });
        let request = wire::read_resource::Request {
            type_name: OPERATION.into(),
            current_state: value(&complete(&self.resources[OPERATION], state)),
            ..Default::default()
        };
        let answer = self.client().read_resource(request).await.unwrap().into_inner();
        assert_eq!(errors(&answer.diagnostics), [""; 0]);
        assert_eq!(plain(answer.new_state.as_ref())["state"], "Completed");
    }

    pub async fn destroy(&self, held: Held) {
        let (left, problems) = self.try_destroy(held).await;
        assert_eq!((problems, left.exists()), (Vec::new(), false));
    }

    /// Same as `destroy`. Returns the remaining resource and the errors.
    pub async fn try_destroy(&self, held: Held) -> (Held, Vec<String>) {
        let request = wire::apply_resource_change::Request {
            type_name: held.kind.into(),
            prior_state: held.state,
            planned_state: value(&Value::Null),
            planned_private: held.private,
            config: value(&Value::Null),
            ..Default::default()
        };
        let answer = self.client().apply_resource_change(request).await.unwrap().into_inner();
        let left = Held { kind: held.kind, state: answer.new_state, private: answer.private };
        (left, errors(&answer.diagnostics))
    }

    pub async fn stop(&self) {
        self.client().stop_provider(wire::stop_provider::Request {}).await.unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.host.child.id().unwrap()
    }

    /// Shuts the process down and waits for its exit.
    pub async fn end(self) {
        let (status, log) = self.host.shut_down().await;
        assert!(status.success(), "{log}");
    }
}

/// Fills in null for all attributes and blocks of the schema without a given value.
fn complete(block: &wire::schema::Block, given: Value) -> Value {
    if !given.is_object() {
        return given;
    }
    let mut object = completed(&block.attributes, &given);
    for nested in &block.block_types {
        object[&nested.type_name] = Value::Null;
    }
    object
}
