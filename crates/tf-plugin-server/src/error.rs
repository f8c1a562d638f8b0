//! Why the provider cannot be served.
use std::{io, path::PathBuf};

/// Why a provider could not be served, or stopped being served. Errors of single requests become
/// diagnostics instead and never end the process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// Started by hand: the host's magic cookie is not in the environment.
    #[error("this program is started by Terraform or OpenTofu; {} is not set", super::handshake::COOKIE_NAME)]
    NotStartedByHost,
    /// The host does not support the provider's protocol version.
    #[error("the host offers plugin protocol {offered}; this provider speaks version 6")]
    Protocol {
        /// The host's comma-separated list.
        offered: String,
    },
    /// The host sent no client certificate, so any local process could impersonate it.
    #[error("the host sent no client certificate (PLUGIN_CLIENT_CERT); unset TF_DISABLE_PLUGIN_TLS, or use --debug")]
    NoClientCertificate,
    /// The host's certificate is not one PEM certificate.
    #[error("the host's client certificate cannot be read")]
    ClientCertificate(#[source] rustls::pki_types::pem::Error),
    /// The server certificate could not be created.
    #[error("cannot create the server certificate")]
    ServerCertificate(#[from] rcgen::Error),
    /// The TLS library rejected the configuration.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
    /// The private folder or its socket could not be created.
    #[error("cannot listen under {}", parent.display())]
    Listen {
        /// The parent folder.
        parent: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// `--debug` on a system without file sockets: every local process could reach the port.
    #[error("--debug works on Linux and macOS only: elsewhere every local process could connect without a certificate")]
    DebugNeedsUnix,
    /// The operating system rejected a signal handler.
    #[error("cannot watch for signals")]
    Signals(#[source] io::Error),
    /// The handshake line could not be written to standard output.
    #[error("cannot announce the socket to the host")]
    Announce(#[source] io::Error),
    /// The gRPC server ended unexpectedly.
    #[error("the gRPC server failed")]
    Server(#[from] tonic::transport::Error),
    /// The task that ran the gRPC server panicked.
    #[error("the gRPC server was aborted")]
    Aborted(#[source] tokio::task::JoinError),
}
