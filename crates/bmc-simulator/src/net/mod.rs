//! The BMCs' network side: listeners, connections, and request processing with faults and journal.

mod body;
mod connection;
mod exchange;
mod listener;
mod tls;

pub(crate) use self::listener::{listen, set_availability};
pub(crate) use self::tls::generate;
pub use self::tls::{TlsError, Trust};
