//! A server that ends with the test that started it, however that ends, and takes its folder with
//! it.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
};

/// Runs the server, says its process number, waits until the test is gone (our end of the pipe is
/// closed then, also by a kill), stops the server by that number and removes its folder.
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
    /// Starts a program that keeps everything in `folder`. `signal` ends it well.
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

    /// Ends the server as a power cut would. Its folder stays.
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

/// A port that nothing listens on. It is below the ports that the system gives to connections
/// (`ip_local_port_range`, from 32768 on): one of those can be taken by any connection before the
/// server that is started for it listens.
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

/// A client of such a server that keeps no idle connection: the server may close one while a
/// request is on its way, and the request fails then.
pub fn http_client() -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0)
}
