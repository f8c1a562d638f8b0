//! The network side of the BMCs: listeners, connections, and the way of one request through faults,
//! journal and service.

mod body;
mod connection;
mod exchange;
mod listener;
mod tls;

pub(crate) use self::listener::{listen, set_availability};
pub(crate) use self::tls::generate;
pub use self::tls::{TlsError, Trust};
