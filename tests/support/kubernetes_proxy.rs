//! A proxy to an API server or a bucket that counts requests, and answers or delays selected
//! requests.
//!
//! Clients use HTTP/1.1 without TLS; the proxy forwards to the real server.

use std::{
    fmt::Write as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinHandle,
};

use super::kubernetes::Kubernetes;

/// A request.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    /// Includes the query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn is_watch(&self) -> bool {
        self.path.contains("watch=true")
    }
}

/// Handling of a request.
#[derive(Clone)]
pub enum Deal {
    /// Forwards it.
    Pass,
    /// Answers it: status, additional CRLF-terminated header lines, body.
    Answer(u16, &'static str, String),
    /// Forwards it after the notification.
    Wait(Arc<Notify>),
    /// Forwards it twice and returns the second reply.
    Repeat,
    /// Forwards it, then closes the connection without a reply.
    LoseReply,
    /// Forwards it and notifies the test when it completes; the reply is never sent.
    KeepReply(Arc<Notify>),
}

/// Request delayed by [`Proxy::hold_first`].
#[derive(Default)]
pub struct HeldRequest {
    came: Arc<AtomicBool>,
    go_on: Arc<Notify>,
}

impl HeldRequest {
    /// Returns true if the request has arrived.
    pub fn has_come(&self) -> bool {
        self.came.load(Ordering::SeqCst)
    }

    pub fn goes_on(&self) {
        self.go_on.notify_one();
    }
}

type Rule = Box<dyn FnMut(&Seen) -> Deal + Send>;

struct Inner {
    rule: Mutex<Rule>,
    seen: Mutex<Vec<Seen>>,
    http: reqwest::Client,
    upstream: String,
}

impl Inner {
    fn request(&self, seen: &Seen) -> reqwest::RequestBuilder {
        let method = seen.method.parse().unwrap();
        let request = self.http.request(method, format!("{}{}", self.upstream, seen.path)).body(seen.body.clone());
        seen.headers.iter().fold(request, |request, (name, value)| request.header(name, value))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The proxy. It stops on drop.
pub struct Proxy {
    inner: Arc<Inner>,
    port: u16,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Starts a proxy for a cluster.
    pub async fn to(cluster: &Kubernetes) -> Self {
        let ca = reqwest::Certificate::from_pem(&std::fs::read(cluster.ca_file()).unwrap()).unwrap();
        let http = reqwest::Client::builder().tls_certs_only([ca]).build().unwrap();
        Self::between(http, cluster.url()).await
    }

    /// Starts a proxy for a server without TLS.
    pub async fn to_plain(upstream: String) -> Self {
        Self::between(reqwest::Client::builder().no_proxy().build().unwrap(), upstream).await
    }

    async fn between(http: reqwest::Client, upstream: String) -> Self {
        let inner =
            Arc::new(Inner { rule: Mutex::new(Box::new(|_| Deal::Pass)), seen: Mutex::default(), http, upstream });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = inner.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(serving.clone(), stream));
            }
        });
        Self { inner, port, task }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sets the handling of all later requests.
    pub fn rule(&self, rule: impl FnMut(&Seen) -> Deal + Send + 'static) {
        *locked(&self.inner.rule) = Box::new(rule);
    }

    /// Delays the first matching request until the test continues it; all others pass.
    pub fn hold_first(&self, is_meant: impl Fn(&Seen) -> bool + Send + 'static) -> HeldRequest {
        let held = HeldRequest::default();
        let (came, go_on) = (Arc::clone(&held.came), Arc::clone(&held.go_on));
        self.rule(move |seen| {
            let first = is_meant(seen) && !came.swap(true, Ordering::SeqCst);
            if first { Deal::Wait(Arc::clone(&go_on)) } else { Deal::Pass }
        });
        held
    }

    /// Returns all requests since the last call.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *locked(&self.inner.seen))
    }

    pub fn count(&self) -> usize {
        locked(&self.inner.seen).len()
    }
}

/// Returns the body of a Kubernetes `Status`.
pub fn status(code: u16, reason: &str) -> String {
    serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": format!("simulated failure: {reason}"),
    })
    .to_string()
}

/// Answers 429 with `Retry-After: 1`.
pub fn too_many() -> Deal {
    let mut body: serde_json::Value = serde_json::from_str(&status(429, "TooManyRequests")).unwrap();
    body["details"] = serde_json::json!({"retryAfterSeconds": 1});
    Deal::Answer(429, "Retry-After: 1\r\n", body.to_string())
}

async fn serve(inner: Arc<Inner>, stream: TcpStream) {
    let mut stream = BufReader::new(stream);
    while let Some(seen) = read_request(&mut stream).await {
        locked(&inner.seen).push(seen.clone());
        let deal = (locked(&inner.rule))(&seen);
        match &deal {
            Deal::Answer(code, header, body) => {
                let length = body.len();
                let head = "Content-Type: application/json\r\nContent-Length";
                let answer = format!("HTTP/1.1 {code} Test\r\n{head}: {length}\r\n{header}\r\n{body}");
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
                continue;
            }
            Deal::Wait(until) => until.notified().await,
            Deal::Repeat => {
                let first = inner.request(&seen).send().await;
                drop(first.unwrap().bytes().await);
            }
            Deal::Pass | Deal::LoseReply | Deal::KeepReply(_) => {}
        }
        let lose = matches!(deal, Deal::LoseReply | Deal::KeepReply(_));
        let goes_on = forward(&inner, &mut stream, &seen, lose).await;
        if let Deal::KeepReply(done) = deal {
            done.notify_one();
            // Until the client disconnects.
            let _ = stream.read_line(&mut String::new()).await;
        }
        if !goes_on {
            return;
        }
    }
}

/// Reads a connection's next request and the headers that affect the reply. Returns `None` at its
/// end.
pub async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().ok()?;
        } else if is_forwarded(&name.to_ascii_lowercase()) {
            headers.push((name.to_owned(), value.to_owned()));
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Seen { method, path, headers, body: String::from_utf8(body).ok()? })
}

/// Returns true for a header that changes the reply. A signature covers `host`.
fn is_forwarded(name: &str) -> bool {
    let fixed = ["authorization", "accept", "content-type", "host", "if-match", "if-none-match"].contains(&name);
    fixed || name.starts_with("x-amz-") || name.starts_with("x-ms-") || name.starts_with("x-goog-")
}

/// Returns false if the connection ended.
async fn forward(inner: &Inner, stream: &mut BufReader<TcpStream>, seen: &Seen, lose: bool) -> bool {
    let Ok(mut reply) = inner.request(seen).send().await else { return false };
    let mut head = format!("HTTP/1.1 {} Real\r\n", reply.status().as_u16());
    for name in ["content-type", "date", "retry-after", "etag", "last-modified", "x-goog-generation"] {
        if let Some(value) = reply.headers().get(name) {
            let _ = write!(head, "{name}: {}\r\n", value.to_str().unwrap());
        }
    }
    if seen.is_watch() {
        // Until the client stops reading.
        head.push_str("Connection: close\r\n\r\n");
        if stream.write_all(head.as_bytes()).await.is_err() {
            return false;
        }
        let mut ended = [0; 1];
        loop {
            tokio::select! {
                chunk = reply.chunk() => match chunk {
                    Ok(Some(chunk)) if stream.write_all(&chunk).await.is_ok() => {}
                    _ => return false,
                },
                _ = stream.get_mut().peek(&mut ended) => return false,
            }
        }
    }
    let Ok(body) = reply.bytes().await else { return false };
    if lose {
        return false;
    }
    let _ = write!(head, "Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.is_ok() && stream.write_all(&body).await.is_ok()
}
