//! Real etcd clusters on loopback.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};

use super::server::{Server, free_port};

fn program() -> String {
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/.tools/bin/etcd");
    assert!(std::path::Path::new(built).exists(), "etcd is not there: make setup");
    built.to_owned()
}

/// Ends a member. Asked nicely it would wait some seconds for the clients that watch, and its data
/// goes with the test.
const SIGNAL: &str = "KILL";

struct Member {
    server: Server,
    client: u16,
    peer: u16,
    folder: PathBuf,
    command: Vec<String>,
}

/// A cluster of one or more members.
pub struct Etcd {
    members: Vec<Member>,
}

impl Etcd {
    /// The one-member cluster that all tests of this process share. It ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Etcd> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(1, &[]))
    }

    /// A cluster of one's own, with more arguments.
    pub fn start(members: usize, more: &[&str]) -> Self {
        let ports: Vec<(u16, u16)> = (0..members).map(|_| (free_port(), free_port())).collect();
        let scheme = if more.iter().any(|argument| argument.starts_with("--cert-file")) { "https" } else { "http" };
        let all: Vec<String> =
            ports.iter().enumerate().map(|(n, (_, peer))| format!("m{n}=http://127.0.0.1:{peer}")).collect();
        let members = ports
            .iter()
            .enumerate()
            .map(|(n, (client, peer))| {
                let folder = tempfile::Builder::new().prefix("metal-etcd-").tempdir().unwrap().keep();
                let client_url = format!("{scheme}://127.0.0.1:{client}");
                let peer_url = format!("http://127.0.0.1:{peer}");
                let mut command = vec![
                    program(),
                    format!("--name=m{n}"),
                    format!("--data-dir={}", folder.join("data").display()),
                    format!("--listen-client-urls={client_url}"),
                    format!("--advertise-client-urls={client_url}"),
                    format!("--listen-peer-urls={peer_url}"),
                    format!("--initial-advertise-peer-urls={peer_url}"),
                    format!("--initial-cluster={}", all.join(",")),
                    "--unsafe-no-fsync".to_owned(),
                    "--log-level=error".to_owned(),
                ];
                command.extend(more.iter().map(|argument| (*argument).to_owned()));
                let server = Server::start(&folder, SIGNAL, &command);
                Member { server, client: *client, peer: *peer, folder, command }
            })
            .collect();
        let mut this = Self { members };
        for member in 0..this.members.len() {
            this.wait_until_ready(member);
        }
        this
    }

    /// One member that keeps its promises through a power cut, as people run it: what a figure
    /// about its speed has to be of.
    pub fn durable() -> Self {
        // The last one of a name counts.
        Self::start(1, &["--unsafe-no-fsync=false"])
    }

    /// Waits until a member takes part: its port is open, and it knows a leader.
    fn wait_until_ready(&mut self, member: usize) {
        let began = Instant::now();
        loop {
            let https = self.members[member].command.iter().any(|argument| argument.starts_with("--cert-file"));
            let ready = if https {
                TcpStream::connect(("127.0.0.1", self.members[member].client)).is_ok()
            } else {
                self.get(member, "/health").is_some_and(|answer| answer.contains("\"health\":\"true\""))
            };
            if ready {
                return;
            }
            let log = self.members[member].server.log();
            // While it was dead, somebody's connection may have got its port.
            if log.contains("address already in use") && began.elapsed() < Duration::from_secs(50) {
                let one = &mut self.members[member];
                one.server.kill();
                one.server = Server::start(&one.folder, SIGNAL, &one.command);
            }
            assert!(began.elapsed() < Duration::from_mins(1), "etcd did not start: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn get(&self, member: usize, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.members[member].client)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// How many ranges of keys the only member has read so far.
    pub fn ranges(&self) -> u64 {
        let metrics = self.get(0, "/metrics").unwrap();
        let counted = metrics.lines().find_map(|line| line.strip_prefix("etcd_mvcc_range_total "));
        let counted = counted.unwrap_or_else(|| panic!("etcd counts no ranges:\n{metrics}"));
        // The number may be written as 1e+06.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let counted = counted.trim().parse::<f64>().unwrap() as u64;
        counted
    }

    /// `host:port` of all members.
    pub fn hosts(&self) -> String {
        let hosts: Vec<String> = self.members.iter().map(|member| format!("127.0.0.1:{}", member.client)).collect();
        hosts.join(",")
    }

    /// A URL for a prefix.
    pub fn url(&self, prefix: &str) -> String {
        format!("etcd://{}/{prefix}", self.hosts())
    }

    /// A prefix that nobody else has.
    pub fn prefix() -> String {
        format!("test/{}", uuid::Uuid::new_v4().simple())
    }

    /// Which member leads.
    pub async fn leader(&self) -> usize {
        let mut by_id = std::collections::HashMap::new();
        let mut leader = 0;
        for (n, member) in self.members.iter().enumerate() {
            let Ok(mut client) = etcd_client::Client::connect([format!("127.0.0.1:{}", member.client)], None).await
            else {
                continue;
            };
            let Ok(status) = client.status().await else { continue };
            by_id.insert(status.header().unwrap().member_id(), n);
            leader = status.leader();
        }
        by_id[&leader]
    }

    /// Copies the disk of the only member, as a snapshot of its volume does.
    pub fn save(&mut self) {
        self.kill(0);
        let folder = self.members[0].folder.clone();
        let _ = std::fs::remove_dir_all(folder.join("saved"));
        copy_folder(&folder.join("data"), &folder.join("saved"));
        self.start_again(0);
    }

    /// Puts the copy back, on the same address.
    pub fn go_back(&mut self) {
        self.kill(0);
        let folder = self.members[0].folder.clone();
        std::fs::remove_dir_all(folder.join("data")).unwrap();
        copy_folder(&folder.join("saved"), &folder.join("data"));
        self.start_again(0);
    }

    /// Ends a member as a power cut would.
    pub fn kill(&mut self, member: usize) {
        self.members[member].server.kill();
    }

    /// Starts it again, with what it had on its disk.
    pub fn start_again(&mut self, member: usize) {
        let old = &self.members[member];
        let (folder, command) = (old.folder.clone(), old.command.clone());
        let (client, peer) = (old.client, old.peer);
        let server = Server::start(&folder, SIGNAL, &command);
        self.members[member] = Member { server, client, peer, folder, command };
        self.wait_until_ready(member);
    }
}

fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
    // Its owner alone may look into it, or etcd complains.
    assert!(to.exists());
}
