//! Files that the configuration names.

use crate::files;

use super::SettingsError;

/// Reads a file that the configuration names.
pub(super) fn read_file(path: &str, attribute: Vec<String>) -> Result<String, SettingsError> {
    files::read(path, files::SMALL).map_err(|error| SettingsError::Value { attribute, problem: error.to_string() })
}

/// The addresses in a file for the command line, one a line: on the command line itself every user
/// of the machine sees them.
pub fn image_addresses(path: &str) -> Result<Vec<String>, SettingsError> {
    let text = read_file(path, vec!["image-addresses".to_owned()])?;
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}
