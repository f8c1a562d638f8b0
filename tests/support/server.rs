//! A server process that always ends with its test and whose folder is then removed.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
};

/// Runs the server and prints its process ID. When the test's end of the pipe closes, including
/// after a kill, it stops the server and removes its folder.
const KEEPER: &str = r#"
trap '' INT TERM
"$@" >"$KEPT_FOLDER/log" 2>&1 </dev/null &
pid=$!
echo "$pid"
cat >/dev/null
kill -"$KEPT_SIGNAL" "$pid" 2>/dev/null
wait "$pid" 2>/dev/null
[ -e "$KEPT_FOLDER/kept" ] || rm -rf "$KEPT_FOLDER"
"#;

/// A running server.
pub struct Server {
    keeper: Child,
    pub pid: u32,
    pub folder: PathBuf,
}

impl Server {
    /// Starts a program with all its data in `folder`. `signal` stops it cleanly.
    pub fn start(folder: &Path, signal: &str, command: &[String]) -> Self {
        let _ = std::fs::remove_file(folder.join("kept"));
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .args(command)
            .env("KEPT_FOLDER", folder)
            .env("KEPT_SIGNAL", signal)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = line.trim().parse().unwrap();
        Self { keeper, pid, folder: folder.to_owned() }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Kills the server, as in a power cut. Its folder stays.
    pub fn kill(&mut self) {
        std::fs::write(self.folder.join("kept"), "").unwrap();
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid).unwrap()).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        drop(self.keeper.stdin.take());
        self.keeper.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Returns an unused port below the system's ephemeral range (`ip_local_port_range`, from 32768).
/// An outgoing connection could take an ephemeral port before the server listens.
pub fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 97).unwrap() * 120;
    loop {
        let port = 20_000 + (first + TAKEN.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Returns a client without idle connections, because a server can close one just as a request is
/// sent.
pub fn http_client() -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0)
}
