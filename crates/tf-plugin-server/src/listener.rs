//! Listens for the host: on a socket in a private folder, or on a local port without file sockets
//! (Windows, like go-plugin).
#[cfg(unix)]
use std::{
    fs::Permissions,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::Path,
};
use std::{
    io,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rustls::ServerConfig;
use tempfile::TempDir;
#[cfg(any(not(unix), test))]
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{mpsc, watch},
};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use super::PluginError;

/// `sun_path` has 108 bytes on Linux and 104 on macOS, including the terminating zero.
#[cfg(unix)]
const LONGEST_SOCKET_PATH: usize = 103;
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(50);
/// A silent peer must not occupy a task forever.
const TLS_PATIENCE: Duration = Duration::from_secs(10);

/// The address for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// `unix` or `tcp`, go-plugin's network names.
    pub network: &'static str,
    /// A path, or an IP address with its port.
    pub text: String,
}

#[derive(Debug)]
enum Listener {
    #[cfg(unix)]
    File(UnixListener),
    #[cfg(any(not(unix), test))]
    Port(TcpListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<Stream> {
        match self {
            #[cfg(unix)]
            Self::File(listener) => listener.accept().await.map(|(stream, _)| Box::pin(stream) as Stream),
            #[cfg(any(not(unix), test))]
            Self::Port(listener) => listener.accept().await.map(|(stream, _)| {
                // Requests and answers are small, and each waits for the other.
                let _ = stream.set_nodelay(true);
                Box::pin(stream) as Stream
            }),
        }
    }
}

/// A listening socket for this user only, in a folder that is deleted with it. On other systems a
/// local port, which only the host's certificate opens.
#[derive(Debug)]
pub(super) struct Socket {
    listener: Listener,
    address: Address,
    folder: Option<TempDir>,
}

impl Socket {
    /// Listens in a new folder with mode 0700 under `parent`, or under the system's temporary
    /// folder.
    #[cfg(unix)]
    pub fn bind(parent: Option<PathBuf>) -> Result<Self, PluginError> {
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let bound = Self::bind_under(&parent);
        let result = match bound {
            // Hosts use a folder under TMPDIR, whose path can be too long. A short path works too,
            // because the folder is private anywhere.
            Ok(None) => Self::bind_under(Path::new("/tmp")),
            other => other,
        };
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "the socket path is too long");
        result.and_then(|socket| socket.ok_or_else(too_long)).map_err(|source| PluginError::Listen { parent, source })
    }

    /// Listens on a free local port; hosts do not specify a folder here.
    #[cfg(not(unix))]
    pub fn bind(_: Option<PathBuf>) -> Result<Self, PluginError> {
        Self::on_port().map_err(|source| PluginError::Listen { parent: PathBuf::from("127.0.0.1"), source })
    }

    #[cfg(any(not(unix), test))]
    fn on_port() -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let text = listener.local_addr()?.to_string();
        let listener = Listener::Port(TcpListener::from_std(listener)?);
        Ok(Self { listener, address: Address { network: "tcp", text }, folder: None })
    }

    /// Returns `None` if the path exceeds a socket address.
    #[cfg(unix)]
    fn bind_under(parent: &Path) -> io::Result<Option<Self>> {
        let folder =
            tempfile::Builder::new().prefix("tf").permissions(Permissions::from_mode(0o700)).tempdir_in(parent)?;
        let path = folder.path().join("s");
        if path.as_os_str().as_bytes().len() > LONGEST_SOCKET_PATH {
            return Ok(None);
        }
        let listener = Listener::File(UnixListener::bind(&path)?);
        let address = Address { network: "unix", text: path.display().to_string() };
        Ok(Some(Self { listener, address, folder: Some(folder) }))
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Accepts connections until `down`; `open` counts the live connections. With `tls`, returns
    /// only connections that completed the handshake. Dropping the returned folder deletes it.
    pub fn accept(
        self,
        tls: Option<Arc<ServerConfig>>,
        open: watch::Sender<usize>,
        down: CancellationToken,
    ) -> (ReceiverStream<io::Result<Connection>>, Option<TempDir>) {
        let Self { listener, folder, .. } = self;
        let (sender, receiver) = mpsc::channel(8);
        let acceptor = tls.map(TlsAcceptor::from);
        tokio::spawn(async move {
            while let Some(accepted) = down.run_until_cancelled(listener.accept()).await {
                match accepted {
                    Ok(stream) => {
                        let (acceptor, sender, open) = (acceptor.clone(), sender.clone(), open.clone());
                        tokio::spawn(async move {
                            if let Some(io) = admit(stream, acceptor).await {
                                // Fails if the server ended, which also drops the
                                // connection.
                                let _ = sender.send(Ok(Connection::new(io, open))).await;
                            }
                        });
                    }
                    Err(error) => {
                        // Most likely out of file descriptors; wait instead of spinning.
                        tracing::warn!(%error, "cannot accept a connection");
                        let _ = tokio::time::timeout(PAUSE, down.cancelled()).await;
                    }
                }
            }
        });
        (ReceiverStream::new(receiver), folder)
    }
}

async fn admit(stream: Stream, acceptor: Option<TlsAcceptor>) -> Option<Stream> {
    let Some(acceptor) = acceptor else {
        return Some(stream);
    };
    match tokio::time::timeout(TLS_PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(Box::pin(stream)),
        Ok(Err(error)) => {
            tracing::warn!(%error, "refused a connection");
            None
        }
        Err(_) => {
            tracing::warn!("refused a connection: no TLS handshake in time");
            None
        }
    }
}

/// A byte stream in both directions, with or without TLS.
trait Duplex: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}
type Stream = Pin<Box<dyn Duplex>>;

/// An admitted connection.
pub(super) struct Connection {
    io: Stream,
    open: watch::Sender<usize>,
}

impl Connection {
    fn new(io: Stream, open: watch::Sender<usize>) -> Self {
        open.send_modify(|count| *count += 1);
        Self { io, open }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.send_modify(|count| *count -= 1);
    }
}

impl Connected for Connection {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_shutdown(cx)
    }
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn the_socket_lies_in_a_private_folder_that_goes_away() {
        let parent = tempfile::tempdir().unwrap();
        let socket = Socket::bind(Some(parent.path().to_owned())).unwrap();
        assert_eq!(socket.address().network, "unix");
        let folder = Path::new(&socket.address().text).parent().unwrap().to_owned();
        assert_eq!(folder.parent().unwrap(), parent.path());
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(socket);
        assert!(!folder.exists());
    }

    #[tokio::test]
    async fn a_parent_too_deep_for_a_socket_address_is_left() {
        let parent = tempfile::tempdir().unwrap();
        let deep = parent.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let socket = Socket::bind(Some(deep.clone())).unwrap();
        assert!(!Path::new(&socket.address().text).starts_with(&deep));
        // The failed path leaves no files.
        assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_parent_that_does_not_exist_is_an_error_that_names_it() {
        let error = Socket::bind(Some(PathBuf::from("/nonexistent/parent"))).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/parent"));
    }

    /// Windows case, in which only certificates exclude other users; `tls` tests the certificates.
    #[tokio::test]
    async fn a_port_brings_out_only_who_finishes_the_handshake() {
        use tokio::{
            io::{AsyncReadExt as _, AsyncWriteExt as _},
            net::TcpStream,
        };
        use tokio_stream::StreamExt as _;

        let key = rcgen::KeyPair::generate().unwrap();
        let host = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        let identity = crate::tls::identity(&host.pem()).unwrap();
        for tls in [Some(identity.config), None] {
            let (socket, secured) = (Socket::on_port().unwrap(), tls.is_some());
            let address = socket.address().clone();
            assert!(address.network == "tcp" && address.text.starts_with("127.0.0.1:"), "{address:?}");
            let (down, open) = (CancellationToken::new(), watch::Sender::new(0));
            let (mut accepted, folder) = socket.accept(tls, open.clone(), down.clone());
            assert!(folder.is_none());
            let mut client = TcpStream::connect(&address.text).await.unwrap();
            client.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
            if secured {
                // The client receives an alert and is disconnected.
                let mut told = Vec::new();
                let _ = client.read_to_end(&mut told).await;
                assert_eq!(told.first(), Some(&21), "an alert of TLS");
                assert_eq!(*open.borrow(), 0);
            } else {
                let mut connection = accepted.next().await.unwrap().unwrap();
                let mut asked = [0; 3];
                connection.read_exact(&mut asked).await.unwrap();
                assert_eq!((&asked, *open.borrow()), (b"PRI", 1));
            }
            down.cancel();
            assert!(accepted.next().await.is_none());
        }
    }
}
