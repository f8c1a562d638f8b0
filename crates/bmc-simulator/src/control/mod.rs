//! The control interface: what [`Simulator`] offers, as JSON over HTTP on 127.0.0.1.
//!
//! | request | does |
//! |---|---|
//! | `GET /` | name of the process, sequence number, counts of machines and requests |
//! | `GET /systems`, `POST /systems` | list; add one ([`SystemConfig`](crate::SystemConfig)) |
//! | `GET /systems/{name}`, `PATCH /systems/{name}` | [`SystemStatus`](crate::SystemStatus); change it ([`SystemChange`](crate::SystemChange)) |
//! | `GET /systems/{name}/events?since=N` | its [`Event`](crate::Event)s |
//! | `GET /bmcs`, `GET /bmcs/{name}` | [`BmcStatus`](crate::BmcStatus) |
//! | `PATCH /bmcs/{name}` | `{"availability": "up"\|"refusing"\|"silent", "close_sessions": true, "unlock_accounts": true}` |
//! | `GET /journal?since=&bmc=&system=&method=&path=&status=&outcome=&limit=` | [`JournalEntry`](crate::JournalEntry)s |
//! | `DELETE /journal` | empties it |
//! | `GET /counts` | [`Counts`](crate::Counts) |
//! | `GET /faults`, `POST /faults` | list; add one ([`Fault`](crate::Fault)), answered with its `id` |
//! | `DELETE /faults`, `DELETE /faults/{id}` | removes all; one |
//! | `GET /held` | [`HeldRequest`](crate::HeldRequest)s |
//! | `POST /held/release`, `POST /held/{sequence}/release` | lets all go; one |
//! | `POST /wait` | waits for a [`WaitFor`] condition; 408 after the time limit |
//! | `PATCH /settings` | `{"latency_ms": N, "journal": {"keep": N}\|"count_only"}` |
//! | `GET /inventory`, `GET /ca.pem` | the list of servers as YAML; the authority's certificate |
//!
//! Errors are answered with 400, 404, 405, 408 or 409 and `{"error": "…"}`.

mod handle;
mod wait;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub use self::wait::{WaitFor, WaitRequest};
use crate::simulator::Simulator;

/// The largest body that the control interface reads.
const LARGEST_BODY: usize = 64 << 20;

/// A control interface response.
pub(crate) enum Answer {
    Json(StatusCode, Value),
    Text(&'static str, String),
}

impl Answer {
    fn ok(value: Value) -> Self {
        Self::Json(StatusCode::OK, value)
    }

    fn error(status: StatusCode, text: &impl ToString) -> Self {
        Self::Json(status, json!({ "error": text.to_string() }))
    }
}

/// Opens the control interface; it ends with the simulator.
pub(crate) async fn listen(simulator: &Simulator, address: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let simulator = simulator.weak();
    let world = simulator.world.clone();
    let task = tokio::spawn(async move {
        let mut stop = simulator.world.stopping();
        loop {
            let accepted = tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                accepted = listener.accept() => accepted,
            };
            if let Ok((stream, _)) = accepted {
                tokio::spawn(serve(simulator.clone(), stream));
            }
        }
    });
    world.keep(task);
    Ok(address)
}

async fn serve(simulator: Simulator, stream: tokio::net::TcpStream) {
    let mut stop = simulator.world.stopping();
    // Without it, answers are only slightly later.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(&simulator, request));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => {}
        // Connection errors concern the client only.
        _ = connection => {}
    }
}

async fn answer(
    simulator: &Simulator,
    request: Request<hyper::body::Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let answer = match Limited::new(body, LARGEST_BODY).collect().await {
        Ok(body) => {
            let query = parts.uri.query().unwrap_or_default();
            handle::handle(simulator, &parts.method, parts.uri.path(), query, &body.to_bytes())
                .await
                .unwrap_or_else(|answer| answer)
        }
        Err(error) => Answer::error(StatusCode::BAD_REQUEST, &error),
    };
    let (status, kind, text) = match answer {
        Answer::Json(status, value) => (status, "application/json", value.to_string()),
        Answer::Text(kind, text) => (StatusCode::OK, kind, text),
    };
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    Ok(response)
}
