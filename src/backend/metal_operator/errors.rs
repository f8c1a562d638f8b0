//! What an API server's answers mean for a machine.

use crate::{
    backend::{BackendError, cluster},
    kubernetes::{ClusterError, FieldProblem},
};

pub(super) use crate::backend::cluster::not_now;

/// A cluster's error as a machine's.
pub(super) fn error(problem: ClusterError) -> BackendError {
    cluster::error(problem, attribute)
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
