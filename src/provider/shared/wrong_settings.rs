//! Diagnostics for invalid settings.

use tf_provider::{AttributePath, Diagnostic};

use crate::{plugin::diagnostic, settings::SettingsError};

/// Builds the diagnostic for invalid settings.
pub(in crate::provider) fn of_settings(error: &SettingsError) -> Diagnostic {
    let mut path = AttributePath::root();
    for (n, step) in error.attribute().into_iter().enumerate() {
        // redfish.servers["name"].field
        if n == 2 {
            path.add_key(step);
        } else {
            path.add_attribute(step);
        }
    }
    diagnostic(error.summary(), format!("{error}."), path)
}
