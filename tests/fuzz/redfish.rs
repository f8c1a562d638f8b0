//! Fuzzes the Redfish client with mutated responses of a simulated BMC.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bmc_simulator::{Simulator, SimulatorConfig};
use jiff::Timestamp;
use mutatis::Context;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value, json};
use terraform_provider_metal::{
    backend::{
        Backend as _,
        redfish::{Authentication, MediaSettings, Patience, RedfishBackend, RedfishSettings, ServerSettings, Trust},
    },
    clock::{Clock, SystemClock},
    maintenance::machine::{BootOverride, ResetType},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    time::timeout,
};

use crate::{
    SENTINEL,
    child::{Outcome, Target, kind},
    mutate, render,
};

const CALLS: [&str; 9] =
    ["identify", "observe", "capabilities", "media", "reset", "boot", "insert", "eject", "account"];

const WORDS: [&str; 60] = [
    "@odata.id",
    "@odata.type",
    "@odata.etag",
    "@odata.context",
    "Members",
    "Members@odata.nextLink",
    "Members@odata.count",
    "Systems",
    "/redfish/v1",
    "/redfish/v1/Systems",
    "/redfish/v1/Systems/1",
    "https://10.0.0.1/redfish/v1",
    "//10.0.0.1/",
    "UUID",
    "PowerState",
    "On",
    "Off",
    "PoweringOn",
    "Boot",
    "BootSourceOverrideTarget",
    "BootSourceOverrideEnabled",
    "BootSourceOverrideMode",
    "HttpBootUri",
    "UefiHttp",
    "Once",
    "BootSourceOverrideTarget@Redfish.AllowableValues",
    "Actions",
    "#ComputerSystem.Reset",
    "target",
    "ResetType@Redfish.AllowableValues",
    "@Redfish.ActionInfo",
    "@Redfish.Settings",
    "SettingsObject",
    "Status",
    "Health",
    "BootProgress",
    "LastState",
    "LastResetTime",
    "VirtualMedia",
    "Image",
    "Inserted",
    "ConnectedVia",
    "MediaTypes",
    "error",
    "@Message.ExtendedInfo",
    "MessageId",
    "Message",
    "MessageArgs",
    "Base.1.0.PropertyValueNotInList",
    "TaskState",
    "Completed",
    "Exception",
    "Location",
    "ETag",
    "Retry-After",
    "WWW-Authenticate",
    "X-Auth-Token",
    "Content-Type",
    "text/html",
    "Links",
];

pub struct Redfish {
    runtime: Runtime,
    endpoint: String,
    served: Arc<Served>,
    /// Responses of an unmodified BMC.
    usual: BTreeMap<String, Value>,
}

/// Current responses, by method and path.
#[derive(Default)]
struct Served {
    answers: Mutex<BTreeMap<String, Value>>,
    /// Requests to the unmodified BMC, while they are recorded.
    asked: Mutex<Vec<(String, String)>>,
}

impl Redfish {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let served = Arc::new(Served::default());
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let serving = Arc::clone(&served);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(talk(stream, Arc::clone(&serving)));
            }
        });
        let mut of = Self { runtime, endpoint, served, usual: BTreeMap::new() };
        of.learn();
        of
    }

    /// Records a simulated BMC's responses until the calls send no new requests.
    fn learn(&mut self) {
        let mut config = SimulatorConfig::with_systems(1).without_tls();
        config.credentials.password = SENTINEL.into();
        let simulator = self.runtime.block_on(Simulator::start(config)).unwrap();
        let account = simulator.credentials().clone();
        let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build().unwrap();
        let base = simulator.url(&simulator.systems()[0]).unwrap();
        for _ in 0..20 {
            for call in CALLS {
                self.run(&serde_json::to_vec(&json!({ "call": call, "answers": {} })).unwrap());
            }
            let mut new = false;
            for (method, path) in std::mem::take(&mut *self.served.asked.lock().unwrap()) {
                let key = format!("{method} {path}");
                if self.usual.contains_key(&key) {
                    continue;
                }
                new = true;
                let answer = if method == "GET" {
                    let request = client.get(format!("{}{path}", base.trim_end_matches('/')));
                    let request = request.basic_auth(&account.username, Some(account.password.expose_secret()));
                    self.runtime.block_on(async {
                        let reply = request.send().await.unwrap();
                        let status = reply.status().as_u16();
                        let etag = reply.headers().get("etag").and_then(|etag| etag.to_str().ok()).unwrap_or("\"1\"").to_owned();
                        let body: Value = reply.json().await.unwrap_or_default();
                        json!({ "status": status, "headers": { "ETag": etag, "Content-Type": "application/json" }, "body": body })
                    })
                } else if path.ends_with("/Sessions") {
                    json!({ "status": 201, "headers": { "X-Auth-Token": "t", "Location": format!("{path}/1") }, "body": { "Id": "1" } })
                } else {
                    json!({ "status": 200, "headers": { "Content-Type": "application/json" }, "body": {} })
                };
                self.usual.insert(key, answer);
            }
            if !new {
                return;
            }
        }
    }

    fn settings(&self) -> RedfishSettings {
        let server = ServerSettings {
            endpoint: self.endpoint.parse().unwrap(),
            system_id: None,
            lock_key: None,
            labels: BTreeMap::new(),
            username: "root".to_owned(),
            password: SecretString::from(SENTINEL),
            media: MediaSettings::default(),
            trust: Trust::Fingerprint([0; 32]),
        };
        RedfishSettings {
            servers: [("node1".to_owned(), server)].into(),
            request_timeout: Duration::from_millis(400),
            read_timeout: Duration::from_millis(400),
            authentication: Authentication::Session,
            patience: Patience { away: Duration::ZERO, doubt: Duration::ZERO },
            ..RedfishSettings::default()
        }
    }
}

impl Target for Redfish {
    fn begin(&mut self) -> Vec<Vec<u8>> {
        let mut cases = Vec::new();
        for call in CALLS {
            // Mutate only the responses that the call reads.
            self.served.asked.lock().unwrap().clear();
            self.run(&serde_json::to_vec(&json!({ "call": call, "answers": {} })).unwrap());
            let asked = std::mem::take(&mut *self.served.asked.lock().unwrap());
            let answers: Map<String, Value> = asked
                .into_iter()
                .map(|(method, path)| format!("{method} {path}"))
                .filter_map(|key| self.usual.get(&key).map(|answer| (key, answer.clone())))
                .collect();
            cases.push(serde_json::to_vec_pretty(&json!({ "call": call, "answers": answers })).unwrap());
        }
        cases
    }

    fn mutate(&mut self, context: &mut Context, input: &mut Vec<u8>, _: &[Vec<u8>]) {
        mutate::within(input, |case| {
            let Some(Value::Object(answers)) = case.get_mut("answers") else { return };
            let Some(key) = context.rng().choose(answers.keys()).cloned() else { return };
            let answer = answers.get_mut(&key).expect("it was chosen from the keys");
            match context.rng().gen_index(12) {
                Some(0) => answer["status"] = json!(100 + context.rng().gen_u16() % 500),
                Some(1) => {
                    let statuses = [202, 204, 301, 307, 401, 403, 404, 405, 409, 412, 428, 429, 500, 503];
                    answer["status"] = json!(context.rng().choose(statuses));
                }
                Some(2) => {
                    let name = context.rng().choose(WORDS).unwrap_or("ETag");
                    let said = context.rng().choose(WORDS).unwrap_or("");
                    if answer["headers"].is_object() {
                        answer["headers"][name] = json!(said);
                    }
                }
                Some(3) => answer["cut"] = json!(context.rng().gen_u16() % 600),
                Some(4) => {
                    let mut text = Vec::new();
                    render::json(&answer["body"], "", &mut text);
                    mutate::text(context, &mut text, &[], &WORDS);
                    answer["body"] = json!({ "$raw": String::from_utf8_lossy(&text) });
                }
                Some(5) => mutate::tree(context, &mut answer["headers"], &WORDS),
                _ => mutate::tree(context, &mut answer["body"], &WORDS),
            }
        });
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let Ok(case) = serde_json::from_slice::<Value>(input) else { return Outcome::default() };
        let mut answers = self.usual.clone();
        for (key, answer) in case["answers"].as_object().into_iter().flatten() {
            answers.insert(key.clone(), answer.clone());
        }
        *self.served.answers.lock().unwrap() = answers;
        let clock: Arc<dyn Clock> = Arc::new(Hasty::default());
        let settings = self.settings();
        let call = case["call"].as_str().unwrap_or_default();
        let said = self.runtime.block_on(async {
            let backend = RedfishBackend::new(settings, &clock).unwrap();
            let said = timeout(Duration::from_secs(12), made(&backend, call)).await;
            backend.close().await;
            said
        });
        match said {
            Ok(said) => Outcome { kind: format!("{call} {}", kind(&said)), said: said.into_bytes(), broken: None },
            Err(_) => Outcome { broken: Some(format!("{call} did not end in 12 s")), ..Outcome::default() },
        }
    }
}

async fn made(backend: &RedfishBackend, call: &str) -> String {
    let machine = backend.machine("node1").unwrap();
    let slot = "/redfish/v1/Managers/1/VirtualMedia/Cd";
    macro_rules! said {
        ($call:expr) => {
            match $call.await {
                Ok(value) => format!("{value:?}"),
                Err(error) => {
                    use std::error::Error as _;
                    format!("{error}: {error:?} {:?}", error.source())
                }
            }
        };
    }
    match call {
        "identify" => said!(machine.identify()),
        "observe" => said!(machine.observe()),
        "capabilities" => said!(machine.capabilities()),
        "media" => said!(machine.media(&[])),
        "reset" => said!(machine.reset(ResetType::On)),
        "boot" => {
            let wanted =
                BootOverride { target: Some("Cd".into()), enabled: Some("Once".into()), ..BootOverride::default() };
            said!(machine.set_boot_override(&wanted, true))
        }
        "insert" => match machine.media(&[]).await {
            Ok(media) => {
                let slot = media.first().map_or(slot.to_owned(), |drive| drive.slot.clone().into_raw());
                said!(machine.insert_medium(&slot, "http://127.0.0.1/a.iso", true))
            }
            Err(error) => error.to_string(),
        },
        "eject" => match machine.media(&[]).await {
            Ok(media) => {
                let slot = media.first().map_or(slot.to_owned(), |drive| drive.slot.clone().into_raw());
                said!(machine.eject_medium(&slot))
            }
            Err(error) => error.to_string(),
        },
        _ => match machine.bmc() {
            Some(bmc) => said!(bmc.account()),
            None => String::new(),
        },
    }
}

/// A clock whose sleeps return immediately but still count towards timeouts.
#[derive(Debug, Default)]
struct Hasty {
    clock: SystemClock,
    skipped: Mutex<Duration>,
}

#[async_trait]
impl Clock for Hasty {
    fn now(&self) -> Timestamp {
        self.clock.now() + *self.skipped.lock().unwrap()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic() + *self.skipped.lock().unwrap()
    }

    async fn sleep(&self, duration: Duration) {
        *self.skipped.lock().unwrap() += duration;
        tokio::task::yield_now().await;
    }
}

/// Serves one connection: reads the header, skips the body and writes the response unchanged.
async fn talk(mut stream: TcpStream, served: Arc<Served>) {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let head = loop {
            if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(count) => read.extend(&buffer[..count]),
            }
        };
        let text = String::from_utf8_lossy(&read[..head]).to_ascii_lowercase();
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .and_then(|length| length.trim().parse().ok());
        let length: usize = length.unwrap_or(0);
        while read.len() < head + length {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(count) => read.extend(&buffer[..count]),
            }
        }
        let line = String::from_utf8_lossy(&read[..head]).lines().next().unwrap_or_default().to_owned();
        read.drain(..head + length);
        let mut words = line.split(' ');
        let (method, path) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
        let answer = served.answers.lock().unwrap().get(&format!("{method} {path}")).cloned();
        served.asked.lock().unwrap().push((method, path));
        let (bytes, close) = written(&answer.unwrap_or_else(|| json!({ "status": 404, "body": {} })));
        if stream.write_all(&bytes).await.is_err() || close {
            return;
        }
    }
}

fn written(answer: &Value) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    match answer["body"]["$raw"].as_str() {
        Some(raw) => body.extend(raw.bytes()),
        None => render::json(&answer["body"], "", &mut body),
    }
    let mut bytes = format!("HTTP/1.1 {} X\r\nContent-Length: {}\r\n", answer["status"], body.len()).into_bytes();
    for (name, value) in answer["headers"].as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        bytes.extend(format!("{name}: {value}\r\n").into_bytes());
    }
    bytes.extend(b"\r\n");
    let head = bytes.len();
    bytes.append(&mut body);
    let cut = answer["cut"].as_u64().and_then(|cut| usize::try_from(cut).ok());
    if let Some(cut) = cut {
        bytes.truncate(head + cut);
    }
    (bytes, cut.is_some())
}
