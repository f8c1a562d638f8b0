//! A server for the hosts' `http` backend that stores a state and its lock, like CI systems: a
//! killed run leaves its lock behind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::workspace::Workspace;
use crate::servers::kubernetes_proxy::{Seen, read_request};

#[derive(Default)]
struct Kept {
    state: Option<String>,
    /// Lock data in the host's format.
    lock: Option<String>,
    uploads: usize,
    holds: bool,
    refuses: bool,
}

/// The server. It stops on drop.
pub struct StateServer {
    kept: Arc<Mutex<Kept>>,
    port: u16,
    task: JoinHandle<()>,
}

impl Drop for StateServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn locked(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StateServer {
    pub async fn start() -> Self {
        let kept = Arc::<Mutex<Kept>>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::clone(&kept);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(Arc::clone(&shared), stream));
            }
        });
        Self { kept, port, task }
    }

    /// Configures a workspace to store its state here. Call it before `init`.
    pub fn keep_state_of(&self, workspace: &Workspace) {
        let url = format!("http://127.0.0.1:{}/state", self.port);
        workspace.write(
            "backend.tf",
            &format!(
                "terraform {{\n  backend \"http\" {{\n    address        = \"{url}\"\n    lock_address   = \"{url}\"\n    unlock_address = \
                 \"{url}\"\n  }}\n}}\n"
            ),
        );
    }

    /// Delays uploads: neither stores nor answers them.
    pub fn holds_uploads(&self, holds: bool) {
        locked(&self.kept).holds = holds;
    }

    /// Answers uploads with an error.
    pub fn refuses_uploads(&self, refuses: bool) {
        locked(&self.kept).refuses = refuses;
    }

    /// Number of started uploads.
    pub fn uploads(&self) -> usize {
        locked(&self.kept).uploads
    }

    /// Removes a killed run's lock.
    pub fn unlock(&self) {
        locked(&self.kept).lock = None;
    }

    /// ID of the lock, if locked.
    pub fn lock(&self) -> Option<String> {
        let info: Value = serde_json::from_str(locked(&self.kept).lock.as_deref()?).unwrap();
        Some(info["ID"].as_str().unwrap().to_owned())
    }
}

async fn serve(kept: Arc<Mutex<Kept>>, stream: TcpStream) {
    let mut stream = BufReader::new(stream);
    while let Some(Seen { method, body, .. }) = read_request(&mut stream).await {
        let (status, answer) = answer(&kept, &method, body);
        if status.is_empty() {
            std::future::pending::<()>().await;
        }
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", answer.len());
        if stream.write_all(head.as_bytes()).await.is_err() || stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn answer(kept: &Mutex<Kept>, method: &str, body: String) -> (&'static str, String) {
    let mut kept = locked(kept);
    match method {
        "GET" => kept.state.clone().map_or(("404 Not Found", String::new()), |state| ("200 OK", state)),
        "POST" if kept.holds => {
            kept.uploads += 1;
            ("", String::new())
        }
        "POST" if kept.refuses => ("507 Insufficient Storage", String::new()),
        "POST" => {
            kept.uploads += 1;
            kept.state = Some(body);
            ("200 OK", String::new())
        }
        "LOCK" => {
            if let Some(other) = &kept.lock {
                return ("423 Locked", other.clone());
            }
            kept.lock = Some(body);
            ("200 OK", String::new())
        }
        "UNLOCK" => {
            kept.lock = None;
            ("200 OK", String::new())
        }
        _ => ("405 Method Not Allowed", String::new()),
    }
}
