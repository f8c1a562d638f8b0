//! A proxy to an Ironic that counts requests, loses replies, and answers selected requests.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// One request.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    /// Includes the query.
    pub path: String,
    /// Header lines with lower-case names.
    pub headers: String,
    pub body: String,
}

impl Seen {
    pub fn is(&self, method: &str, part: &str) -> bool {
        self.method == method && self.path.contains(part)
    }
}

/// Forwarded headers.
const PASSED: [&str; 4] = ["x-openstack-ironic-api-version", "content-type", "authorization", "x-auth-token"];

/// Handling of a request.
pub enum Deal {
    /// Forwards it.
    Pass,
    /// Forwards it, then closes the connection without a reply.
    LoseReply,
    /// Answers it: status, additional CRLF-terminated header lines, body.
    Answer(u16, String, String),
}

type Rule = Box<dyn FnMut(&Seen) -> Deal + Send>;

struct State {
    rule: Rule,
    seen: Vec<Seen>,
}

/// The proxy. It stops on drop.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    pub async fn to(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { rule: Box::new(|_| Deal::Pass), seen: Vec::new() }));
        let (url, shared) = (url.to_owned(), Arc::clone(&state));
        // Ironic can close an idle connection just as a request is sent.
        let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (http, url, state) = (http.clone(), url.clone(), Arc::clone(&shared));
                tokio::spawn(async move { serve(stream, &http, &url, &state).await });
            }
        });
        Self { address, state, task }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn rule(&self, rule: impl FnMut(&Seen) -> Deal + Send + 'static) {
        self.state.lock().unwrap().rule = Box::new(rule);
    }

    pub fn count(&self, method: &str, part: &str) -> usize {
        self.state.lock().unwrap().seen.iter().filter(|seen| seen.is(method, part)).count()
    }

    /// Token of the newest request with a token.
    pub fn token(&self) -> Option<String> {
        let state = self.state.lock().unwrap();
        let of = |seen: &Seen| {
            let line = seen.headers.lines().find_map(|line| line.strip_prefix("x-auth-token:"))?;
            Some(line.trim().to_owned())
        };
        state.seen.iter().rev().find_map(of)
    }

    /// Method and path of each request, in order.
    pub fn requests(&self) -> Vec<(String, String)> {
        let state = self.state.lock().unwrap();
        state.seen.iter().map(|seen| (seen.method.clone(), seen.path.clone())).collect()
    }

    pub fn total(&self) -> usize {
        self.state.lock().unwrap().seen.len()
    }
}

async fn serve(stream: TcpStream, http: &reqwest::Client, url: &str, state: &Mutex<State>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if stream.read_line(&mut first).await.ok()? == 0 {
            return None;
        }
        let mut words = first.split_whitespace();
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (mut headers, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.ok()?;
            if line.trim().is_empty() {
                break;
            }
            let (name, value) = line.split_once(':')?;
            let name = name.to_ascii_lowercase();
            if name == "content-length" {
                length = value.trim().parse().ok()?;
            }
            headers.extend([name.as_str(), ":", value]);
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let seen = Seen { method, path, headers, body: String::from_utf8_lossy(&body).into_owned() };
        let deal = {
            let mut state = state.lock().unwrap();
            state.seen.push(seen.clone());
            (state.rule)(&seen)
        };
        let (status, more, text) = match deal {
            Deal::Answer(status, more, text) => (status, more, text),
            Deal::Pass | Deal::LoseReply => {
                let lost = matches!(deal, Deal::LoseReply);
                let mut request = http.request(seen.method.parse().ok()?, format!("{url}{}", seen.path));
                for line in seen.headers.lines() {
                    let (name, value) = line.split_once(':')?;
                    if PASSED.contains(&name) {
                        request = request.header(name, value.trim());
                    }
                }
                let response = request.body(seen.body.clone()).send().await.ok()?;
                let status = response.status().as_u16();
                let more = ["X-OpenStack-Ironic-API-Maximum-Version", "X-Subject-Token"].map(|name| {
                    let value = response.headers().get(name).and_then(|value| value.to_str().ok());
                    value.map(|value| format!("{name}: {value}\r\n")).unwrap_or_default()
                });
                let more = more.concat();
                let text = response.text().await.ok()?;
                if lost {
                    return None;
                }
                (status, more, text)
            }
        };
        let body = if status == 204 { String::new() } else { text };
        let answer = format!("HTTP/1.1 {status} x\r\n{more}Content-Length: {}\r\n\r\n{body}", body.len());
        stream.get_mut().write_all(answer.as_bytes()).await.ok()?;
    }
}
