//! A network with controllable faults: toxiproxy between a client and a server on loopback.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::server::{Server, free_port};

/// A proxy to one server. <https://github.com/Shopify/toxiproxy> describes its API and its toxics.
pub struct Toxiproxy {
    server: Server,
    control: u16,
    port: u16,
}

impl Toxiproxy {
    /// Starts a proxy in front of `upstream` (`host:port`).
    pub fn to(upstream: &str) -> Self {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/.tools/bin/toxiproxy");
        assert!(Path::new(program).exists(), "toxiproxy is missing: run `make setup`");
        let folder = tempfile::Builder::new().prefix("metal-toxiproxy-").tempdir().unwrap().keep();
        let (control, port) = (free_port(), free_port());
        let command = [program, "-host", "127.0.0.1", "-port", &control.to_string()].map(str::to_owned);
        let this = Self { server: Server::start(&folder, "TERM", &command), control, port };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", control)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(30), "toxiproxy did not start: {}", this.server.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        let listen = this.host();
        this.ask("POST", "/proxies", &json!({"name": "way", "listen": listen, "upstream": upstream, "enabled": true}));
        this
    }

    /// Address for clients.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends all connections and refuses new ones.
    pub fn cut(&self) {
        self.ask("POST", "/proxies/way", &json!({"enabled": false}));
    }

    /// Accepts new connections again.
    pub fn mend(&self) {
        self.ask("POST", "/proxies/way", &json!({"enabled": true}));
    }

    /// Redirects to another server. All connections end.
    pub fn lead_to(&self, upstream: &str) {
        self.ask("POST", "/proxies/way", &json!({"upstream": upstream, "enabled": true}));
    }

    /// Drops all replies; requests still arrive.
    pub fn lose_replies(&self) {
        // Connections stay open, so only the client's own timeout detects the fault.
        self.poison("silence", "timeout", &json!({"timeout": 0}));
    }

    /// Ends each new connection after this many bytes of replies.
    pub fn limit_replies(&self, bytes: u32) {
        self.poison("limit", "limit_data", &json!({"bytes": bytes}));
    }

    /// Delays replies by this many milliseconds, with jitter.
    pub fn delay_replies(&self, milliseconds: u32) {
        self.poison("delay", "latency", &json!({"latency": milliseconds, "jitter": milliseconds / 2}));
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.ask("POST", "/reset", &Value::Null);
    }

    fn poison(&self, name: &str, kind: &str, attributes: &Value) {
        let toxic = json!({
            "name": name, "type": kind, "stream": "downstream", "toxicity": 1.0, "attributes": attributes,
        });
        self.ask("POST", "/proxies/way/toxics", &toxic);
    }

    fn ask(&self, method: &str, path: &str, body: &Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(("127.0.0.1", self.control)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 2"), "{method} {path}: {answer}");
    }
}
