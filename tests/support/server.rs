//! A server that ends with the test that started it, however that ends, and takes its folder with it.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Runs the server, says its process number, waits until the test is gone (our end of the pipe is closed then, also by
/// a kill), stops the server by that number and removes its folder.
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

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
