//! Sends mutated host requests to the real program over its socket: values as trees, messages as
//! bytes.
//!
//! Two processes answer. The first is configured for a simulated server and a store, and receives
//! everything except applies, which can wait for a long time by design. The second is
//! unconfigured, for applies and configurations, and is replaced after a configuration.
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use bmc_simulator::{Simulator, SimulatorConfig};
use mutatis::Context;
use prost::{Message as _, bytes::Bytes};
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};
use tokio::{runtime::Runtime, time::timeout};
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};

use crate::{
    SENTINEL,
    child::{Outcome, Target, contains, kind},
    host::{Host, Start, tfplugin6 as wire},
    mutate, render,
};

/// Reply timeout on a busy machine.
const LONGEST: Duration = Duration::from_secs(15);
/// Peak memory limit of a process in KiB. An idle process uses about 60 MiB.
const MEMORY: u64 = 600 << 10;
/// Requests per process, after which its log is searched.
const PER_PROCESS: u32 = 2000;

const CALLS: [&str; 18] = [
    "ValidateProviderConfig",
    "ValidateResourceConfig",
    "ValidateDataResourceConfig",
    "UpgradeResourceState",
    "ConfigureProvider",
    "ReadResource",
    "PlanResourceChange",
    "ApplyResourceChange",
    "ImportResourceState",
    "ReadDataSource",
    "CallFunction",
    "UpgradeResourceIdentity",
    "ValidateActionConfig",
    "PlanAction",
    "ValidateEphemeralResourceConfig",
    "OpenEphemeralResource",
    "RenewEphemeralResource",
    "CloseEphemeralResource",
];

pub struct Wire {
    runtime: Runtime,
    simulator: Simulator,
    folder: tempfile::TempDir,
    schema: wire::get_provider_schema::Response,
    configured: Option<Process>,
    bare: Option<Process>,
    words: Vec<String>,
}

struct Process {
    host: Host,
    requests: u32,
}

impl Wire {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut config = SimulatorConfig::with_systems(1).without_tls();
        config.credentials.password = SENTINEL.into();
        let simulator = runtime.block_on(Simulator::start(config)).unwrap();
        let schema = runtime.block_on(async {
            let mut host = start().await;
            let schema = host.provider.get_provider_schema(wire::get_provider_schema::Request::default()).await;
            let schema = schema.unwrap().into_inner();
            host.shut_down().await;
            schema
        });
        let mut words: Vec<String> = CALLS.map(str::to_owned).into();
        for named in [&schema.resource_schemas, &schema.data_source_schemas, &schema.ephemeral_resource_schemas] {
            for (name, schema) in named {
                words.push(name.clone());
                words.extend(attributes(schema.block.as_ref().unwrap()).map(|attribute| attribute.name.clone()));
            }
        }
        words.extend(schema.functions.keys().cloned());
        let folder = tempfile::tempdir().unwrap();
        Self { runtime, simulator, folder, schema, configured: None, bare: None, words }
    }

    fn settings(&self) -> Value {
        let name = self.simulator.systems()[0].clone();
        let server = json!({ "endpoint": self.simulator.url(&name).unwrap(), "insecure": true, "username": self.simulator.credentials().username,
            "password": "$password" });
        assert_eq!(self.simulator.credentials().password.expose_secret(), SENTINEL);
        let block = self.schema.provider.as_ref().unwrap().block.as_ref().unwrap();
        let store: PathBuf = self.folder.path().join("store.db");
        let given = json!({
            "coordination_url": format!("sqlite://{}", store.display()), "owner": "fuzz",
            "redfish": { "servers": { "node1": server } },
        });
        complete(block, given)
    }
}

fn attributes(block: &wire::schema::Block) -> impl Iterator<Item = &wire::schema::Attribute> {
    let nested = block.attributes.iter().filter_map(|attribute| attribute.nested_type.as_ref());
    block.attributes.iter().chain(nested.flat_map(|nested| nested.attributes.iter()))
}

/// Sets missing attributes to null, like hosts.
fn complete(block: &wire::schema::Block, given: Value) -> Value {
    filled(&block.attributes, given)
}

fn filled(attributes: &[wire::schema::Attribute], mut given: Value) -> Value {
    let mut whole = Map::new();
    for attribute in attributes {
        let value = given.get_mut(&attribute.name).map_or(Value::Null, Value::take);
        let value = match (&attribute.nested_type, value) {
            (Some(nested), Value::Object(fields)) if nested.nesting() == wire::schema::object::NestingMode::Map => {
                fields.into_iter().map(|(key, value)| (key, filled(&nested.attributes, value))).collect()
            }
            (Some(nested), value @ Value::Object(_)) => filled(&nested.attributes, value),
            (_, value) => value,
        };
        whole.insert(attribute.name.clone(), value);
    }
    Value::Object(whole)
}

async fn start() -> Host {
    let program = Some(env!("CARGO_BIN_EXE_terraform-provider-metal").into());
    let variables = BTreeMap::from([("TF_LOG", "TRACE".to_owned())]);
    Host::start_with(Start { program, variables, ..Start::default() }).await
}

impl Target for Wire {
    fn begin(&mut self) -> Vec<Vec<u8>> {
        let mut cases = vec![json!({ "call": "ValidateProviderConfig", "config": self.settings() })];
        cases.push(json!({ "call": "ConfigureProvider", "config": self.settings() }));
        for (name, schema) in &self.schema.resource_schemas {
            let block = schema.block.as_ref().unwrap();
            let given = json!({ "server": "node1", "namespace": "fuzz", "name": "m", "policy": "Enforced", "server_power": "On",
                "reset": "On", "maintenance": "fuzz/m", "window": { "schedule": "0 22 * * SAT", "duration": "4h", "time_zone": "UTC" } });
            let config = complete(block, given.clone());
            let mut state = given;
            state["id"] = json!("fuzz/m");
            state["uid"] = json!("018f0000-0000-7000-8000-000000000000");
            let state = complete(block, state);
            let private = "{\"generation\":1}";
            cases.extend([
                json!({ "call": "ValidateResourceConfig", "type": name, "config": config }),
                json!({ "call": "PlanResourceChange", "type": name, "config": config, "proposed": config, "prior": null }),
                json!({ "call": "PlanResourceChange", "type": name, "config": config, "proposed": state, "prior": state, "private": private }),
                json!({ "call": "PlanResourceChange", "type": name, "config": null, "proposed": null, "prior": state }),
                json!({ "call": "ApplyResourceChange", "type": name, "config": config, "planned": state, "prior": null }),
                json!({ "call": "ApplyResourceChange", "type": name, "config": null, "planned": null, "prior": state, "private": private }),
                json!({ "call": "ReadResource", "type": name, "prior": state, "private": private }),
                json!({ "call": "UpgradeResourceState", "type": name, "version": 0, "raw": state }),
                json!({ "call": "UpgradeResourceIdentity", "type": name, "version": 0, "raw": { "namespace": "fuzz", "name": "m" } }),
                json!({ "call": "ImportResourceState", "type": name, "id": "fuzz/m" }),
            ]);
        }
        for (name, schema) in &self.schema.data_source_schemas {
            let given = json!({ "server": "node1", "name": "node1", "schedule": "0 22 * * SAT", "duration": "4h", "time_zone": "UTC" });
            let config = complete(schema.block.as_ref().unwrap(), given);
            cases.push(json!({ "call": "ValidateDataResourceConfig", "type": name, "config": config }));
            cases.push(json!({ "call": "ReadDataSource", "type": name, "config": config }));
        }
        let given = json!({ "server": "node1", "namespace": "fuzz", "name": "m", "policy": "Enforced", "operation": "On",
            "applying": false, "timeouts": { "invoke": "1m", "open": "1m" } });
        for (name, action) in &self.schema.action_schemas {
            let config = complete(action.schema.as_ref().unwrap().block.as_ref().unwrap(), given.clone());
            cases.push(json!({ "call": "ValidateActionConfig", "type": name, "config": config }));
            cases.push(json!({ "call": "PlanAction", "type": name, "config": config }));
        }
        for (name, schema) in &self.schema.ephemeral_resource_schemas {
            let config = complete(schema.block.as_ref().unwrap(), given.clone());
            cases.push(json!({ "call": "ValidateEphemeralResourceConfig", "type": name, "config": config }));
            cases.push(json!({ "call": "OpenEphemeralResource", "type": name, "config": config }));
            let private = "{\"uid\":\"018f0000-0000-7000-8000-000000000000\",\"server\":\"node1\",\"limit\":5}";
            cases.push(json!({ "call": "RenewEphemeralResource", "type": name, "private": private }));
            cases.push(json!({ "call": "CloseEphemeralResource", "type": name, "private": private }));
        }
        for (name, function) in &self.schema.functions {
            let arguments: Vec<Value> = function.parameters.iter().map(|_| json!("0 22 * * SAT")).collect();
            cases.push(json!({ "call": "CallFunction", "type": name, "arguments": arguments }));
        }
        cases.iter().map(|case| serde_json::to_vec_pretty(case).unwrap()).collect()
    }

    fn mutate(&mut self, context: &mut Context, input: &mut Vec<u8>, _: &[Vec<u8>]) {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        mutate::within(input, |case| match context.rng().gen_index(10) {
            Some(0) => {
                let flips = case.entry("flip").or_insert_with(|| json!([]));
                let flip = json!([context.rng().gen_u16(), context.rng().gen_u8()]);
                if let Some(flips) = flips.as_array_mut() {
                    flips.push(flip);
                }
            }
            Some(1) => {
                case.insert("call".to_owned(), json!(CALLS[context.rng().gen_index(CALLS.len()).unwrap_or(0)]));
            }
            _ => {
                let parts: Vec<String> = case.keys().filter(|key| *key != "call").cloned().collect();
                let part = context.rng().choose(&parts);
                if let Some(part) = part.and_then(|part| case.get_mut(part)) {
                    mutate::tree(context, part, &words);
                }
            }
        });
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let Ok(case) = serde_json::from_slice::<Value>(input) else { return Outcome::default() };
        let call = case["call"].as_str().unwrap_or_default().to_owned();
        let bare = matches!(call.as_str(), "ConfigureProvider" | "ApplyResourceChange" | "OpenEphemeralResource");
        let mut message = encoded(&case, &call);
        for flip in case["flip"].as_array().into_iter().flatten() {
            let (at, byte) = (flip[0].as_u64().unwrap_or(0), flip[1].as_u64().unwrap_or(0));
            let length = message.len().max(1);
            if let Some(place) = message.get_mut(usize::try_from(at).unwrap_or(0) % length) {
                *place = u8::try_from(byte & 0xff).unwrap();
            }
        }
        let process = if bare { self.bare.take() } else { self.configured.take() };
        let settings = (!bare).then(|| self.settings());
        let (outcome, process) = self.runtime.block_on(async {
            let mut process = match process {
                Some(process) => process,
                None => begun(settings).await,
            };
            process.requests += 1;
            let (outcome, ended) = asked(&mut process, &call, message.into()).await;
            if ended || process.requests >= PER_PROCESS || (call == "ConfigureProvider" && outcome.broken.is_none()) {
                return (finished(process, outcome).await, None);
            }
            (outcome, Some(process))
        });
        if bare {
            self.bare = process;
        } else {
            self.configured = process;
        }
        outcome
    }
}

async fn begun(settings: Option<Value>) -> Process {
    let host = start().await;
    let mut process = Process { host, requests: 0 };
    if let Some(settings) = settings {
        let message = encoded(&json!({ "config": settings }), "ConfigureProvider");
        let (outcome, _) = asked(&mut process, "ConfigureProvider", message.into()).await;
        assert!(!String::from_utf8_lossy(&outcome.said).contains("rror"), "{}", String::from_utf8_lossy(&outcome.said));
    }
    process
}

async fn asked(process: &mut Process, call: &str, message: Bytes) -> (Outcome, bool) {
    let mut client = Grpc::new(process.host.channel.clone()).max_decoding_message_size(256 << 20);
    let path = PathAndQuery::try_from(format!("/tfplugin6.Provider/{call}"))
        .unwrap_or_else(|_| PathAndQuery::from_static("/"));
    let reply = timeout(LONGEST, async {
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        client.unary(Request::new(message), path, Raw).await
    });
    let mut outcome = Outcome::default();
    match reply.await {
        Err(_) => outcome.broken = Some(format!("no reply to {call} within {LONGEST:?}")),
        Ok(Err(status)) => {
            outcome.said = format!("{call} {status}").into_bytes();
            outcome.kind = kind(&format!("{call} {status}"));
        }
        Ok(Ok(reply)) => {
            outcome.said = reply.into_inner().into();
            outcome.kind = format!("{call} {}", kind(&words(&outcome.said)));
        }
    }
    if contains(&outcome.said, b"The provider panicked") {
        outcome.broken = Some(format!("a panic in {call}: {}", words(&outcome.said)));
    }
    if let Ok(Some(status)) = process.host.child.try_wait() {
        outcome.broken = Some(format!("the provider ended in {call}: {status}"));
        return (outcome, true);
    }
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", process.host.child.id().unwrap())).unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().split(' ').next()?.parse().ok());
    if peak.is_some_and(|peak: u64| peak > MEMORY) {
        outcome.broken = Some(format!("{} MiB of memory after {call}", peak.unwrap_or(0) >> 10));
    }
    (outcome, false)
}

/// Shuts a process down and adds its log to the last reply.
async fn finished(process: Process, mut outcome: Outcome) -> Outcome {
    if outcome.broken.is_none() {
        let (_, log) = process.host.shut_down().await;
        outcome.said.extend(log.into_bytes());
    }
    outcome
}

/// Returns a reply's parts that look like sentences.
fn words(reply: &[u8]) -> String {
    let text = String::from_utf8_lossy(reply);
    let sentences = text.split(|character: char| character.is_control()).filter(|part| part.contains(' '));
    sentences.take(4).map(|part| part.chars().take(120).collect::<String>() + "; ").collect()
}

#[allow(clippy::unnecessary_wraps, reason = "fields of messages are options")]
fn value(of: &Value, key: &str) -> Option<wire::DynamicValue> {
    let mut msgpack = Vec::new();
    render::msgpack(of, key, &mut msgpack);
    Some(wire::DynamicValue { msgpack: msgpack.into(), ..Default::default() })
}

#[allow(clippy::unnecessary_wraps, reason = "fields of messages are options")]
fn raw(of: &Value) -> Option<wire::RawState> {
    let mut text = Vec::new();
    render::json(of, "", &mut text);
    Some(wire::RawState { json: text.into(), ..Default::default() })
}

/// Encodes a case as its call's message.
fn encoded(case: &Value, call: &str) -> Vec<u8> {
    let text = |name: &str| case[name].as_str().unwrap_or_default().to_owned();
    let of = |name: &str| case.get(name).and_then(|of| value(of, name));
    let (type_name, private) = (text("type"), Bytes::from(text("private")));
    let version = case["version"].as_i64().unwrap_or(0);
    match call {
        "ValidateProviderConfig" => wire::validate_provider_config::Request { config: of("config") }.encode_to_vec(),
        "ConfigureProvider" => wire::configure_provider::Request {
            config: of("config"),
            terraform_version: "1.9.0".into(),
            ..Default::default()
        }
        .encode_to_vec(),
        "ValidateActionConfig" => {
            wire::validate_action_config::Request { action_type: type_name, config: of("config") }.encode_to_vec()
        }
        "PlanAction" => {
            wire::plan_action::Request { action_type: type_name, config: of("config"), ..Default::default() }
                .encode_to_vec()
        }
        "ValidateEphemeralResourceConfig" => {
            wire::validate_ephemeral_resource_config::Request { type_name, config: of("config") }.encode_to_vec()
        }
        "OpenEphemeralResource" => {
            wire::open_ephemeral_resource::Request { type_name, config: of("config"), ..Default::default() }
                .encode_to_vec()
        }
        "RenewEphemeralResource" => {
            wire::renew_ephemeral_resource::Request { type_name, private: Some(private) }.encode_to_vec()
        }
        "CloseEphemeralResource" => {
            wire::close_ephemeral_resource::Request { type_name, private: Some(private) }.encode_to_vec()
        }
        "ValidateResourceConfig" => {
            wire::validate_resource_config::Request { type_name, config: of("config"), ..Default::default() }
                .encode_to_vec()
        }
        "PlanResourceChange" => wire::plan_resource_change::Request {
            type_name,
            prior_state: of("prior"),
            proposed_new_state: of("proposed"),
            config: of("config"),
            prior_private: private,
            ..Default::default()
        }
        .encode_to_vec(),
        "ApplyResourceChange" => wire::apply_resource_change::Request {
            type_name,
            prior_state: of("prior"),
            planned_state: of("planned"),
            config: of("config"),
            planned_private: private,
            ..Default::default()
        }
        .encode_to_vec(),
        "ReadResource" => {
            wire::read_resource::Request { type_name, current_state: of("prior"), private, ..Default::default() }
                .encode_to_vec()
        }
        "UpgradeResourceState" => {
            wire::upgrade_resource_state::Request { type_name, version, raw_state: raw(&case["raw"]) }.encode_to_vec()
        }
        "UpgradeResourceIdentity" => {
            wire::upgrade_resource_identity::Request { type_name, version, raw_identity: raw(&case["raw"]) }
                .encode_to_vec()
        }
        "ImportResourceState" => {
            wire::import_resource_state::Request { type_name, id: text("id"), ..Default::default() }.encode_to_vec()
        }
        "ReadDataSource" | "ValidateDataResourceConfig" => {
            wire::read_data_source::Request { type_name, config: of("config"), ..Default::default() }.encode_to_vec()
        }
        _ => {
            let arguments = case["arguments"].as_array().into_iter().flatten();
            let arguments = arguments.filter_map(|argument| value(argument, "")).collect();
            wire::call_function::Request { name: type_name, arguments }.encode_to_vec()
        }
    }
}

/// Codec for raw bytes.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put(to, item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = prost::bytes::Buf::remaining(from);
        Ok(Some(prost::bytes::Buf::copy_to_bytes(from, length)))
    }
}
