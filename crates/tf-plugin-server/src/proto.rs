//! Generated messages and services from `proto/`, including host clients for tests.
use std::fmt;

/// The provider protocol.
#[allow(missing_docs, missing_debug_implementations, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod tfplugin6 {
    tonic::include_proto!("tfplugin6");
}

/// go-plugin's own services.
#[allow(missing_docs, missing_debug_implementations, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod plugin {
    tonic::include_proto!("plugin");
}

/// The health service.
#[allow(missing_docs, missing_debug_implementations, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod health {
    tonic::include_proto!("grpc.health.v1");
}

/// Prints only sizes, because the content can be a secret and messages are printed for debugging.
impl fmt::Debug for tfplugin6::DynamicValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DynamicValue({} bytes)", self.msgpack.len() + self.json.len())
    }
}

/// Prints only sizes, for the same reason.
impl fmt::Debug for tfplugin6::RawState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawState({} bytes)", self.json.len())
    }
}
