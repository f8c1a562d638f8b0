//! Converts API server errors into machine errors.

use crate::{
    backend::{BackendError, cluster},
    kubernetes::{ClusterError, FieldProblem},
};

pub(super) use crate::backend::cluster::not_now;

pub(super) fn error(problem: ClusterError) -> BackendError {
    cluster::error(problem, attribute)
}

/// Returns the maintenance attribute behind an object's field.
fn attribute(problem: &FieldProblem) -> Option<&'static str> {
    let field = problem.field.raw();
    [
        ("spec.serverBootConfigurationTemplate.spec.image", "boot_configuration.image"),
        ("spec.serverBootConfigurationTemplate.spec.ignitionSecretRef", "boot_configuration.ignition"),
        ("spec.serverBootConfigurationTemplate", "boot_configuration"),
        ("spec.serverPower", "server_power"),
        ("spec.priority", "priority"),
        ("spec.policy", "policy"),
        ("spec.serverRef", "server"),
        // Claim fields.
        ("spec.image", "image"),
        ("spec.power", "server_power"),
        ("spec.ignitionSecretRef", "ignition"),
        ("metadata.name", "name"),
    ]
    .into_iter()
    .find_map(|(prefix, attribute)| field.starts_with(prefix).then_some(attribute))
}
