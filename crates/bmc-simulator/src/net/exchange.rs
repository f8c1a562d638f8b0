//! Processes a request: journal, faults, service, journal.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming as HttpBody;
use hyper::{Method, Request, Response, StatusCode, header};

use super::body::{Cut, ReplyBody};
use crate::bmc::Bmc;
use crate::fault::{FaultAction, FaultBody, Phase, Target};
use crate::hold::HeldRequest;
use crate::journal::{JournalEntry, Outcome};
use crate::machine::Machine;
use crate::redact::redact;
use crate::redfish::{self, Incoming, LARGEST_BODY, Message, Reply, Route};
use crate::world::World;

/// A request in progress. If it is dropped early, it is recorded as abandoned.
struct Passage<'a> {
    world: &'a World,
    sequence: u64,
    method: Method,
    status: Option<StatusCode>,
    outcome: Outcome,
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        let finished = self.world.timeline.stamp().micros;
        let (outcome, status) = (self.outcome, self.status.map(|status| status.as_u16()));
        self.world.journal.finish(self.sequence, &self.method, status, |entry| {
            entry.finished_micros = Some(finished);
            entry.outcome = outcome;
            entry.status = status;
        });
        self.world.timeline.announce();
    }
}

/// How the answer is sent.
enum Departure {
    Whole,
    Broken(usize),
}

pub(crate) async fn exchange(
    world: Arc<World>,
    bmc: Arc<Bmc>,
    connection: u64,
    request: Request<HttpBody>,
) -> Result<Response<ReplyBody>, Cut> {
    let (parts, body) = request.into_parts();
    let body = match Limited::new(body, LARGEST_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            return Ok(into_response(Reply::empty(413), &Departure::Whole));
        }
        Err(_) => return Err(Cut),
    };
    let incoming = Incoming {
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().map(str::to_owned),
        method: parts.method,
        headers: parts.headers,
        body,
    };
    let route = Route::parse(&bmc, &incoming.path);
    let machine = route.as_ref().and_then(Route::machine).cloned().or_else(|| bmc.only_system());
    bmc.requests.fetch_add(1, Ordering::Relaxed);
    if let Some(machine) = &machine {
        machine.requests.fetch_add(1, Ordering::Relaxed);
    }
    let mut passage = begin(&world, &bmc, machine.as_deref(), connection, &incoming);
    let latency = world.latency();
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    let faults = world.faults.meeting(&Target {
        bmc: &bmc.name,
        system: machine.as_deref().map(|machine| &*machine.name),
        method: incoming.method.as_str(),
        path: &incoming.path,
        body: &incoming.body,
    });
    if faults.is_empty() {
        let reply = carry_out(&world, passage.sequence, &bmc, &incoming, route.as_ref());
        return Ok(depart(&mut passage, reply, &Departure::Whole));
    }
    world.journal.update(passage.sequence, |entry| {
        entry.faults = faults.iter().map(|(id, _)| *id).collect();
    });
    let mut incoming = incoming;
    for (_, action) in &faults {
        if let FaultAction::Alter { property, value } = action {
            incoming.alter(property, value.as_ref());
        }
    }
    let held = |phase| HeldRequest {
        sequence: passage.sequence,
        bmc: bmc.name.to_string(),
        system: machine.as_deref().map(|machine| machine.name.to_string()),
        method: incoming.method.to_string(),
        path: incoming.path.clone(),
        phase,
    };
    let actions: Vec<FaultAction> = faults.into_iter().map(|(_, action)| action).collect();
    if let Some(FaultAction::Late { time }) = actions.iter().find(|action| matches!(action, FaultAction::Late { .. })) {
        // A separate task, because this task ends with the connection.
        let (time, sequence) = (*time, passage.sequence);
        let (world, bmc) = (Arc::clone(&world), Arc::clone(&bmc));
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            carry_out(&world, sequence, &bmc, &incoming, route.as_ref());
        });
        return std::future::pending().await;
    }
    let is_ignored = |action: &FaultAction| matches!(action, FaultAction::Ignore | FaultAction::IgnoreFirst);
    let ignored = actions.iter().any(is_ignored);
    let instead = match before(&world, &actions, &held).await {
        Verdict::GoOn => None,
        Verdict::Instead(reply) => Some(*reply),
        Verdict::Cut => {
            passage.outcome = Outcome::Cut;
            return Err(Cut);
        }
    };
    let reply = instead.unwrap_or_else(|| match &machine {
        Some(machine) if ignored => pretend(machine, &bmc, &incoming, route.as_ref()),
        _ => carry_out(&world, passage.sequence, &bmc, &incoming, route.as_ref()),
    });
    match after(&world, &actions, &held, reply).await {
        Ok((reply, departure)) => {
            let response = depart(&mut passage, reply, &departure);
            if matches!(departure, Departure::Broken(_)) {
                passage.outcome = Outcome::Cut;
            }
            Ok(response)
        }
        Err(cut) => {
            passage.outcome = Outcome::Cut;
            Err(cut)
        }
    }
}

fn begin<'a>(
    world: &'a World,
    bmc: &Bmc,
    machine: Option<&Machine>,
    connection: u64,
    incoming: &Incoming,
) -> Passage<'a> {
    let sequence = world.timeline.next();
    if world.journal.keeps(&incoming.method) {
        world.journal.begin(JournalEntry {
            sequence,
            at: world.timeline.stamp(),
            finished_micros: None,
            bmc: bmc.name.to_string(),
            system: machine.map(|machine| machine.name.to_string()),
            method: incoming.method.to_string(),
            path: incoming.path.clone(),
            query: incoming.query.clone(),
            body: redact(&incoming.body),
            if_match: incoming.header("if-match").map(str::to_owned),
            user_agent: incoming.header("user-agent").map(str::to_owned),
            authentication: redfish::method_of(incoming),
            account: None,
            connection,
            outcome: Outcome::UnderWay,
            status: None,
            applied: false,
            faults: Vec::new(),
        });
        world.timeline.announce();
    } else {
        world.journal.count();
    }
    Passage { world, sequence, method: incoming.method.clone(), status: None, outcome: Outcome::Abandoned }
}

/// Executes the request, and records the account and the result.
fn carry_out(world: &World, sequence: u64, bmc: &Arc<Bmc>, incoming: &Incoming, route: Option<&Route>) -> Reply {
    let (reply, account) = redfish::answer(bmc, incoming, route);
    let reads = incoming.method == Method::GET || incoming.method == Method::HEAD;
    world.journal.update(sequence, |entry| {
        entry.account = account;
        entry.applied = reply.is_success() && !reads;
    });
    reply
}

/// Answers as if the request had been executed, and leaves the machine unchanged.
fn pretend(machine: &Arc<Machine>, bmc: &Arc<Bmc>, incoming: &Incoming, route: Option<&Route>) -> Reply {
    let before = machine.snapshot();
    let (mut reply, _) = redfish::answer(bmc, incoming, route);
    machine.restore(before);
    // A change is answered with the current resource.
    if reply.is_success() && incoming.method == Method::PATCH && !reply.body.is_empty() {
        let read = Incoming { method: Method::GET, body: Bytes::new(), ..incoming.clone() };
        reply = redfish::answer(bmc, &read, route).0;
    }
    reply
}

enum Verdict {
    GoOn,
    Instead(Box<Reply>),
    Cut,
}

/// Applies faults before the request is executed.
async fn before(world: &World, actions: &[FaultAction], held: &impl Fn(Phase) -> HeldRequest) -> Verdict {
    for action in actions {
        let instead = match action {
            FaultAction::Delay { time } => {
                tokio::time::sleep(*time).await;
                continue;
            }
            FaultAction::Hold { phase: Phase::Before } => {
                world.holds.stall(held(Phase::Before)).await;
                continue;
            }
            FaultAction::Silence => std::future::pending().await,
            FaultAction::Cut => return Verdict::Cut,
            FaultAction::Answer { apply: false, .. } => injected(action),
            FaultAction::Busy { retry_after_seconds } => {
                let message = Message::busy(*retry_after_seconds);
                let mut reply = Reply::error(503, &[message]);
                reply.set(header::RETRY_AFTER, &retry_after_seconds.to_string());
                reply
            }
            FaultAction::Redirect { location } => {
                let mut reply = Reply::empty(307);
                reply.set(header::LOCATION, location);
                reply
            }
            FaultAction::Hold { phase: Phase::After }
            | FaultAction::Answer { .. }
            | FaultAction::Late { .. }
            | FaultAction::LoseReply
            | FaultAction::Ignore
            | FaultAction::IgnoreFirst
            | FaultAction::Alter { .. }
            | FaultAction::Add { .. }
            | FaultAction::Show { .. }
            | FaultAction::Truncate { .. } => continue,
        };
        return Verdict::Instead(Box::new(instead));
    }
    Verdict::GoOn
}

/// Applies faults after the request was executed.
async fn after(
    world: &World,
    actions: &[FaultAction],
    held: &impl Fn(Phase) -> HeldRequest,
    mut reply: Reply,
) -> Result<(Reply, Departure), Cut> {
    let mut departure = Departure::Whole;
    for action in actions {
        match action {
            FaultAction::Hold { phase: Phase::After } => world.holds.stall(held(Phase::After)).await,
            FaultAction::LoseReply => return Err(Cut),
            FaultAction::Answer { apply: true, .. } => reply = injected(action),
            FaultAction::Show { property, value } => reply.edit_json(|body| {
                if let Some(shown) = body.pointer_mut(property) {
                    *shown = value.clone();
                }
            }),
            FaultAction::Add { place, bytes } => reply.body = place.add(&reply.body, bytes).into(),
            FaultAction::Truncate { bytes, honest_length } => {
                if *honest_length {
                    reply.body.truncate(*bytes);
                } else {
                    departure = Departure::Broken(*bytes);
                }
            }
            _ => {}
        }
    }
    Ok((reply, departure))
}

fn injected(action: &FaultAction) -> Reply {
    let FaultAction::Answer { status, body, headers, .. } = action else {
        return Reply::empty(500);
    };
    let mut reply = match body {
        FaultBody::Empty => Reply::empty(*status),
        FaultBody::Json(value) => Reply::json(*status, value),
        FaultBody::Error { key, message } => {
            let mut reply = Reply::error(*status, &[Message::general(message)]);
            let id = format!("{}.{key}", redfish::REGISTRY);
            reply.edit_json(|value| {
                value["error"]["code"] = id.as_str().into();
                value["error"]["@Message.ExtendedInfo"][0]["MessageId"] = id.into();
            });
            reply
        }
        FaultBody::Html(text) => Reply::with_body(*status, "text/html", text.clone()),
        FaultBody::Raw(text) => Reply::with_body(*status, "application/json", text.clone()),
        FaultBody::Large(bytes) => {
            let filling = "x".repeat(bytes.saturating_sub(8));
            Reply::with_body(*status, "application/json", format!("{{\"x\":\"{filling}\"}}"))
        }
    };
    for (name, value) in headers {
        reply.set_header(name, value);
    }
    reply
}

fn depart(passage: &mut Passage<'_>, reply: Reply, departure: &Departure) -> Response<ReplyBody> {
    passage.status = Some(reply.status);
    passage.outcome = Outcome::Answered;
    into_response(reply, departure)
}

fn into_response(reply: Reply, departure: &Departure) -> Response<ReplyBody> {
    let body: Bytes = reply.body;
    let mut response = Response::new(match departure {
        Departure::Whole => ReplyBody::whole(body),
        Departure::Broken(keep) => ReplyBody::broken(body, *keep),
    });
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    response
}
