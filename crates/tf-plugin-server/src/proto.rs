//! The messages and services of `proto/`, as the build script generates them, with the clients of a
//! host for tests.
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

/// Sizes only: what is in it may be a secret, and messages get printed while one looks for a bug.
impl fmt::Debug for tfplugin6::DynamicValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DynamicValue({} bytes)", self.msgpack.len() + self.json.len())
    }
}

/// Sizes only, as above.
impl fmt::Debug for tfplugin6::RawState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawState({} bytes)", self.json.len())
    }
}
