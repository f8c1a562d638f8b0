//! An API server with controllable wrong responses: a plain HTTP proxy in front of a real server.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use futures_util::StreamExt as _;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::kubernetes::Kubernetes;

/// Fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not forwarded; answered with this status.
    Answer(u16),
    /// Forwarded; the connection closes without a reply.
    LoseReply,
}

/// A fault for a number of requests with a method; an empty method matches all.
#[derive(Debug)]
struct Plan {
    fault: Fault,
    method: &'static str,
    left: usize,
}

#[derive(Debug, Default)]
struct State {
    plan: Option<Plan>,
    hit: usize,
    asked: usize,
}

/// The proxy. It stops on drop.
pub struct Faulty {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Upstream {
    http: reqwest::Client,
    url: String,
}

impl Faulty {
    /// Starts a proxy in front of an API server.
    pub async fn to(kubernetes: &Kubernetes) -> Self {
        let ca = reqwest::Certificate::from_pem(&std::fs::read(kubernetes.ca_file()).unwrap()).unwrap();
        let http = reqwest::Client::builder().tls_certs_only([ca]).no_proxy().build().unwrap();
        let upstream = Arc::new(Upstream { http, url: kubernetes.url() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (upstream, state) = (Arc::clone(&upstream), Arc::clone(&shared));
                tokio::spawn(async move { serve(stream, &upstream, &state).await });
            }
        });
        Self { address, state, task }
    }

    /// URL of the proxy.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Injects a fault into the next requests with a method.
    pub fn fail(&self, fault: Fault, method: &'static str, times: usize) {
        let mut state = self.state.lock().unwrap();
        state.plan = Some(Plan { fault, method, left: times });
        state.hit = 0;
    }

    /// Removes all faults. Returns the number of failed requests.
    pub fn heal(&self) -> usize {
        let mut state = self.state.lock().unwrap();
        state.plan = None;
        state.hit
    }

    /// Number of requests that failed due to the current fault.
    pub fn hit(&self) -> usize {
        self.state.lock().unwrap().hit
    }

    /// Number of received requests.
    pub fn asked(&self) -> usize {
        self.state.lock().unwrap().asked
    }
}

fn judge(state: &Mutex<State>, method: &str) -> Option<Fault> {
    let mut state = state.lock().unwrap();
    state.asked += 1;
    let plan = state.plan.as_mut()?;
    if plan.left == 0 || !(plan.method.is_empty() || plan.method == method) {
        return None;
    }
    plan.left -= 1;
    let fault = plan.fault;
    state.hit += 1;
    Some(fault)
}

/// Serves one request per connection.
async fn serve(mut stream: TcpStream, upstream: &Upstream, state: &Mutex<State>) -> Option<()> {
    let mut bytes = Vec::new();
    let mut part = [0; 8192];
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        let n = stream.read(&mut part).await.ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&part[..n]);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, value)| value.parse().ok());
    let mut body = bytes[end..].to_vec();
    while body.len() < length.unwrap_or(0) {
        let n = stream.read(&mut part).await.ok().filter(|n| *n > 0)?;
        body.extend_from_slice(&part[..n]);
    }
    let fault = judge(state, &method);
    if let Some(Fault::Answer(code)) = fault {
        return refuse(&mut stream, code).await;
    }
    let mut request = upstream.http.request(method.parse().ok()?, format!("{}{path}", upstream.url)).body(body);
    for (name, value) in headers {
        if !matches!(name.as_str(), "host" | "connection" | "content-length") {
            request = request.header(name, value);
        }
    }
    let Ok(reply) = request.send().await else { return refuse(&mut stream, 503).await };
    if fault == Some(Fault::LoseReply) {
        return None;
    }
    let kind = reply.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or("text/plain");
    let head = format!(
        "HTTP/1.1 {} X\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
        reply.status().as_u16()
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    let mut parts = reply.bytes_stream();
    while let Some(Ok(part)) = parts.next().await {
        stream.write_all(format!("{:x}\r\n", part.len()).as_bytes()).await.ok()?;
        stream.write_all(&part).await.ok()?;
        stream.write_all(b"\r\n").await.ok()?;
    }
    stream.write_all(b"0\r\n\r\n").await.ok()
}

async fn refuse(stream: &mut TcpStream, code: u16) -> Option<()> {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
        "message": format!("made up: {reason}"),
        "details": if code == 429 { json!({"retryAfterSeconds": 1}) } else { json!({}) },
    })
    .to_string();
    let head = format!(
        "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{status}",
        status.len()
    );
    stream.write_all(head.as_bytes()).await.ok()
}
