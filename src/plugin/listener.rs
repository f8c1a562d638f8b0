//! The socket in a folder of our own, and the connections made to it.
use std::{
    fs::Permissions,
    io,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rustls::ServerConfig;
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixListener, UnixStream},
    sync::{mpsc, watch},
};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use super::PluginError;

/// `sun_path` holds 108 bytes on Linux and 104 on macOS, with the closing zero.
const LONGEST_SOCKET_PATH: usize = 103;
/// After a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);
/// A peer that connects and then says nothing must not occupy a task for ever.
const TLS_PATIENCE: Duration = Duration::from_secs(10);

/// A listening socket that only this user can reach; its folder goes away with it.
#[derive(Debug)]
pub(super) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    folder: TempDir,
}

impl Socket {
    /// Listens in a new folder of mode 0700 under `parent`, or under the system's temporary folder.
    pub fn bind(parent: Option<PathBuf>) -> Result<Self, PluginError> {
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let bound = Self::bind_under(&parent);
        let result = match bound {
            // Hosts put their folder under TMPDIR, which may be deep; a short place still works,
            // since the folder is private wherever it is.
            Ok(None) => Self::bind_under(Path::new("/tmp")),
            other => other,
        };
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "the socket path is too long");
        result.and_then(|socket| socket.ok_or_else(too_long)).map_err(|source| PluginError::Listen { parent, source })
    }

    /// `None`: the path would be longer than a socket address can be.
    fn bind_under(parent: &Path) -> io::Result<Option<Self>> {
        let folder =
            tempfile::Builder::new().prefix("tf").permissions(Permissions::from_mode(0o700)).tempdir_in(parent)?;
        let path = folder.path().join("s");
        if path.as_os_str().as_bytes().len() > LONGEST_SOCKET_PATH {
            return Ok(None);
        }
        let listener = UnixListener::bind(&path)?;
        Ok(Some(Self { listener, path, folder }))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts until `down`; every connection counts in `open` for as long as it lives. With `tls`,
    /// only connections that finished the handshake come out. The folder lasts as long as what is
    /// returned beside them.
    pub fn accept(
        self,
        tls: Option<Arc<ServerConfig>>,
        open: watch::Sender<usize>,
        down: CancellationToken,
    ) -> (ReceiverStream<io::Result<Connection>>, TempDir) {
        let Self { listener, folder, .. } = self;
        let (sender, receiver) = mpsc::channel(8);
        let acceptor = tls.map(TlsAcceptor::from);
        tokio::spawn(async move {
            while let Some(accepted) = down.run_until_cancelled(listener.accept()).await {
                match accepted {
                    Ok((stream, _)) => {
                        let (acceptor, sender, open) = (acceptor.clone(), sender.clone(), open.clone());
                        tokio::spawn(async move {
                            if let Some(io) = admit(stream, acceptor).await {
                                // Fails only when the server is gone, and the connection with it.
                                let _ = sender.send(Ok(Connection::new(io, open))).await;
                            }
                        });
                    }
                    Err(error) => {
                        // Out of file descriptors, most likely: do not spin until some are free.
                        tracing::warn!(%error, "cannot accept a connection");
                        let _ = tokio::time::timeout(PAUSE, down.cancelled()).await;
                    }
                }
            }
        });
        (ReceiverStream::new(receiver), folder)
    }
}

async fn admit(stream: UnixStream, acceptor: Option<TlsAcceptor>) -> Option<Pin<Box<dyn Duplex>>> {
    let Some(acceptor) = acceptor else {
        return Some(Box::pin(stream));
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

/// Bytes both ways, over TLS or not.
trait Duplex: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// An admitted connection.
pub(super) struct Connection {
    io: Pin<Box<dyn Duplex>>,
    open: watch::Sender<usize>,
}

impl Connection {
    fn new(io: Pin<Box<dyn Duplex>>, open: watch::Sender<usize>) -> Self {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn the_socket_lies_in_a_private_folder_that_goes_away() {
        let parent = tempfile::tempdir().unwrap();
        let socket = Socket::bind(Some(parent.path().to_owned())).unwrap();
        let folder = socket.path().parent().unwrap().to_owned();
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
        assert!(!socket.path().starts_with(&deep));
        // Nothing is left where it could not be.
        assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_parent_that_does_not_exist_is_an_error_that_names_it() {
        let error = Socket::bind(Some(PathBuf::from("/nonexistent/parent"))).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/parent"));
    }
}
