//! What an API server's answers mean for a machine.

use crate::{
    backend::BackendError,
    kubernetes::{ClusterError, FieldProblem},
};

/// Something else goes on with an object; later it may be possible.
pub(super) fn not_now(address: String, request: String, message: String) -> BackendError {
    BackendError::Rejected { address, request, status: 409, message, retry_after: None, transient: true }
}

/// A cluster's error as a machine's.
pub(super) fn error(problem: ClusterError) -> BackendError {
    let message = problem.to_string();
    match problem {
        ClusterError::Unreachable { address, cause } => BackendError::ClusterAway { address, cause },
        ClusterError::ReplyLost { address, request, cause } => BackendError::ReplyLost { address, request, cause },
        ClusterError::Forbidden { .. } | ClusterError::Unauthorized { .. } => BackendError::Denied { message },
        ClusterError::Invalid { address, request, message, fields } => {
            let attribute = fields.iter().find_map(attribute);
            let said: Vec<String> = fields.iter().map(FieldProblem::to_string).collect();
            let message = if said.is_empty() { message } else { said.join("; ") };
            BackendError::Invalid { address, request, message, attribute }
        }
        ClusterError::Conflict { address, request, message } => not_now(address, request, message),
        ClusterError::Busy { address, request, message, retry_after } => {
            BackendError::Rejected { address, request, status: 429, message, retry_after, transient: true }
        }
        ClusterError::Expired { address, request, message } => {
            BackendError::Rejected { address, request, status: 410, message, retry_after: None, transient: true }
        }
        ClusterError::Rejected { address, request, code, message } => {
            let transient = code >= 500;
            BackendError::Rejected { address, request, status: code, message, retry_after: None, transient }
        }
        ClusterError::AlreadyExists { address, request } => {
            let message = "it exists already".to_owned();
            not_now(address, request, message)
        }
        ClusterError::NotFound { address, request } => {
            BackendError::Missing { address, what: format!("{request}: not found") }
        }
        ClusterError::Configuration { address, cause } => BackendError::Unsupported { address, what: cause },
        ClusterError::Protocol { address, request, what } => {
            BackendError::Protocol { address, what: format!("{request}: {what}") }
        }
    }
}

/// The attribute of a maintenance that a field of an object was made from.
fn attribute(problem: &FieldProblem) -> Option<&'static str> {
    let field = problem.field.as_str();
    [
        ("spec.serverBootConfigurationTemplate.spec.image", "boot_configuration.image"),
        ("spec.serverBootConfigurationTemplate.spec.ignitionSecretRef", "boot_configuration.ignition"),
        ("spec.serverBootConfigurationTemplate", "boot_configuration"),
        ("spec.serverPower", "server_power"),
        ("spec.priority", "priority"),
        ("spec.policy", "policy"),
        ("spec.serverRef", "server"),
        // Of a claim.
        ("spec.image", "image"),
        ("spec.power", "server_power"),
        ("spec.ignitionSecretRef", "ignition"),
        ("metadata.name", "name"),
    ]
    .into_iter()
    .find_map(|(prefix, attribute)| field.starts_with(prefix).then_some(attribute))
}
