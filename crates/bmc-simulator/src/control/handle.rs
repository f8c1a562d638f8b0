//! Executes the requests to the control interface.

use std::time::Duration;

use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Answer;
use super::wait::{WaitRequest, wait};
use crate::bmc::Availability;
use crate::clock::optional_millis;
use crate::config::SystemConfig;
use crate::fault::Fault;
use crate::hold::HeldQuery;
use crate::journal::{JournalMode, JournalQuery};
use crate::operate::{SimulatorError, SystemChange};
use crate::simulator::Simulator;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct BmcChange {
    availability: Option<Availability>,
    close_sessions: bool,
    unlock_accounts: bool,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    #[serde(rename = "latency_ms", with = "optional_millis")]
    latency: Option<Duration>,
    journal: Option<JournalMode>,
}

pub(crate) async fn handle(
    simulator: &Simulator,
    method: &Method,
    path: &str,
    query: &str,
    body: &[u8],
) -> Result<Answer, Answer> {
    let segments: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(decode).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match (method.as_str(), segments.as_slice()) {
        ("GET", []) => Ok(Answer::ok(overview(simulator))),
        (_, ["systems", ..]) => systems(simulator, method, &segments[1..], query, body),
        (_, ["bmcs", ..]) => bmcs(simulator, method, &segments[1..], body).await,
        (_, ["faults", ..]) => faults(simulator, method, &segments[1..], body),
        (_, ["held", ..]) => held(simulator, method, &segments[1..]),
        ("GET", ["journal"]) => {
            let query = journal_query(query)?;
            Ok(Answer::ok(json!(simulator.journal(&query))))
        }
        ("DELETE", ["journal"]) => {
            simulator.clear_journal();
            Ok(done())
        }
        ("GET", ["counts"]) => Ok(Answer::ok(json!(simulator.counts()))),
        ("POST", ["wait"]) => wait(simulator, parse::<WaitRequest>(body)?).await,
        ("PATCH", ["settings"]) => {
            let settings: Settings = parse(body)?;
            if let Some(latency) = settings.latency {
                simulator.set_latency(latency);
            }
            if let Some(mode) = settings.journal {
                simulator.set_journal(mode);
            }
            Ok(done())
        }
        ("GET", ["inventory"]) => Ok(Answer::Text("application/yaml", simulator.inventory())),
        ("GET", ["ca.pem"]) => match simulator.trust() {
            Some(trust) => Ok(Answer::Text("application/x-pem-file", trust.ca_pem.clone())),
            None => Err(Answer::error(StatusCode::NOT_FOUND, &"the BMCs speak plain HTTP")),
        },
        _ => Err(nowhere(method, path)),
    }
}

fn systems(
    simulator: &Simulator,
    method: &Method,
    segments: &[&str],
    query: &str,
    body: &[u8],
) -> Result<Answer, Answer> {
    match (method.as_str(), segments) {
        ("GET", []) => {
            let all: Result<Vec<_>, _> = simulator.systems().iter().map(|name| simulator.system(name)).collect();
            Ok(Answer::ok(json!(all.map_err(missing)?)))
        }
        ("POST", []) => {
            let config: SystemConfig = parse(body)?;
            let name = config.name.clone();
            simulator.add_system(config).map_err(|error| Answer::error(StatusCode::CONFLICT, &error))?;
            let url = simulator.url(&name).map_err(missing)?;
            let mut status = json!(simulator.system(&name).map_err(missing)?);
            status["url"] = url.into();
            Ok(Answer::Json(StatusCode::CREATED, status))
        }
        ("GET", [name]) => Ok(Answer::ok(json!(simulator.system(name).map_err(missing)?))),
        ("PATCH", [name]) => {
            let change: SystemChange = parse(body)?;
            simulator.change_system(name, change).map_err(missing)?;
            Ok(Answer::ok(json!(simulator.system(name).map_err(missing)?)))
        }
        ("GET", [name, "events"]) => {
            let since = journal_query(query)?.since.unwrap_or(0);
            let events = simulator.events(name, since).map_err(missing)?;
            Ok(Answer::ok(json!(events)))
        }
        _ => Err(nowhere(method, "systems")),
    }
}

async fn bmcs(simulator: &Simulator, method: &Method, segments: &[&str], body: &[u8]) -> Result<Answer, Answer> {
    match (method.as_str(), segments) {
        ("GET", []) => Ok(Answer::ok(json!(simulator.bmcs()))),
        ("GET", [name]) => Ok(Answer::ok(json!(simulator.bmc_status(name).map_err(missing)?))),
        ("PATCH", [name]) => {
            let change: BmcChange = parse(body)?;
            if change.close_sessions {
                simulator.close_sessions(name).map_err(missing)?;
            }
            if change.unlock_accounts {
                simulator.unlock_accounts(name).map_err(missing)?;
            }
            if let Some(availability) = change.availability {
                simulator.set_availability(name, availability).await.map_err(missing)?;
            }
            Ok(Answer::ok(json!(simulator.bmc_status(name).map_err(missing)?)))
        }
        _ => Err(nowhere(method, "bmcs")),
    }
}

fn faults(simulator: &Simulator, method: &Method, segments: &[&str], body: &[u8]) -> Result<Answer, Answer> {
    match (method.as_str(), segments) {
        ("GET", []) => Ok(Answer::ok(json!(simulator.faults()))),
        ("POST", []) => {
            let fault: Fault = parse(body)?;
            let id = simulator.inject(fault);
            Ok(Answer::Json(StatusCode::CREATED, json!({ "id": id })))
        }
        ("DELETE", []) => {
            simulator.clear_faults();
            Ok(done())
        }
        ("DELETE", [id]) => {
            simulator.remove_fault(number(id)?).map_err(missing)?;
            Ok(done())
        }
        _ => Err(nowhere(method, "faults")),
    }
}

fn held(simulator: &Simulator, method: &Method, segments: &[&str]) -> Result<Answer, Answer> {
    match (method.as_str(), segments) {
        ("GET", []) => Ok(Answer::ok(json!(simulator.held(&HeldQuery::default())))),
        ("POST", ["release"]) => {
            let released = simulator.release_all();
            Ok(Answer::ok(json!({ "released": released })))
        }
        ("POST", [sequence, "release"]) => {
            simulator.release(number(sequence)?).map_err(missing)?;
            Ok(Answer::ok(json!({ "released": 1 })))
        }
        _ => Err(nowhere(method, "held")),
    }
}

fn overview(simulator: &Simulator) -> Value {
    json!({
        "name": "bmc-simulator",
        "sequence": simulator.sequence(),
        "systems": simulator.systems().len(),
        "bmcs": simulator.world.bmcs().len(),
        "requests": simulator.counts().requests,
        "held": simulator.held(&HeldQuery::default()).len(),
    })
}

fn done() -> Answer {
    Answer::ok(json!({}))
}

#[allow(clippy::needless_pass_by_value, reason = "map_err gives it away")]
fn missing(error: SimulatorError) -> Answer {
    Answer::error(StatusCode::NOT_FOUND, &error)
}

fn nowhere(method: &Method, path: &str) -> Answer {
    Answer::error(StatusCode::NOT_FOUND, &format!("{method} {path} does not exist"))
}

fn number(text: &str) -> Result<u64, Answer> {
    text.parse().map_err(|_| Answer::error(StatusCode::BAD_REQUEST, &format!("{text} is not a number")))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Answer> {
    serde_json::from_slice(body).map_err(|error| Answer::error(StatusCode::BAD_REQUEST, &error))
}

/// Parses the query of `GET /journal`; the field name decides between number and text.
fn journal_query(query: &str) -> Result<JournalQuery, Answer> {
    let mut fields = serde_json::Map::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value);
        let value = match name {
            "since" | "status" | "limit" => Value::from(number(&value)?),
            _ => Value::from(value),
        };
        fields.insert(name.to_owned(), value);
    }
    serde_json::from_value(Value::Object(fields)).map_err(|error| Answer::error(StatusCode::BAD_REQUEST, &error))
}

/// Decodes percent-encoding; malformed sequences stay unchanged.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(escaped.unwrap_or(bytes[at]));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
