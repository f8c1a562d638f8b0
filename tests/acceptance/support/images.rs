//! A web server with images.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::watch,
    task::JoinHandle,
};

/// Content of every served image.
pub const CONTENT: &[u8] = b"an image";
/// SHA-256 of [`CONTENT`].
pub const SHA256: &str = "a5df3fde7b200c3fa2791144c7e05c5c2bced4c6ad863d3a4cf76c972c1712f9";

/// Serves `CONTENT` under every path with the suffix `.iso`, `.img` or `.efi`, otherwise 404. It
/// stops on drop.
#[derive(Debug)]
pub struct Images {
    address: SocketAddr,
    task: JoinHandle<()>,
    asked: Arc<AtomicUsize>,
    more: Arc<Mutex<Vec<String>>>,
    answers: watch::Sender<bool>,
}

impl Images {
    /// Starts a server.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let (asked, more) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (counter, served) = (Arc::clone(&asked), Arc::clone(&more));
        let (answers, answering) = watch::channel(true);
        let task = tokio::spawn(async move {
            loop {
                let Ok((mut stream, _)) = listener.accept().await else { continue };
                let (counter, served) = (Arc::clone(&counter), Arc::clone(&served));
                let mut answering = answering.clone();
                tokio::spawn(async move {
                    let mut request = Vec::new();
                    let mut part = [0; 1024];
                    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
                        match stream.read(&mut part).await {
                            Ok(0) | Err(_) => return,
                            Ok(n) => request.extend_from_slice(&part[..n]),
                        }
                    }
                    let line = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
                    let path = line.split(' ').nth(1).unwrap_or_default();
                    let path = path.split('?').next().unwrap_or_default();
                    counter.fetch_add(1, Ordering::Relaxed);
                    let _ = answering.wait_for(|answers| *answers).await;
                    let also = served.lock().expect("no panic").iter().any(|name| path == format!("/{name}"));
                    let found = also || [".iso", ".img", ".efi"].iter().any(|ending| path.ends_with(ending));
                    let (status, body) = if found { ("200 OK", CONTENT) } else { ("404 Not Found", &b""[..]) };
                    let head =
                        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                    let _ = stream.write_all(head.as_bytes()).await;
                    if !line.starts_with("HEAD") {
                        let _ = stream.write_all(body).await;
                    }
                    let _ = stream.shutdown().await;
                });
            }
        });
        Self { address, task, asked, more, answers }
    }

    /// Number of requests.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Pauses or resumes responses.
    pub fn answers(&self, answers: bool) {
        self.answers.send_replace(answers);
    }

    /// Serves an additional name.
    pub fn also_serves(&self, name: &str) {
        self.more.lock().expect("no panic").push(name.to_owned());
    }

    /// URL of a file.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        self.task.abort();
    }
}
