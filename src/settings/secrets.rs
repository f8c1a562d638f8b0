//! Files named in the configuration.

use crate::files::{self, PathTrust};

use super::{Environment, SettingsError};

/// Reads a file named in the configuration.
pub(super) fn read_file(path: &str, attribute: Vec<String>, trust: PathTrust) -> Result<String, SettingsError> {
    files::read(path, files::SMALL, trust)
        .map_err(|error| SettingsError::Value { attribute, problem: error.to_string() })
}

/// Reads image addresses from a file, one per line. As arguments they would be visible to every
/// user of the machine.
pub fn image_addresses(path: &str, env: &Environment) -> Result<Vec<String>, SettingsError> {
    let text = read_file(path, vec!["image-addresses".to_owned()], env.path_trust()?)?;
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}
