//! Configuration errors.

/// An invalid configuration. Messages contain no secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A value is invalid or missing.
    #[error("{problem}")]
    Value {
        /// The attribute, outermost first; the third step is a server's name.
        attribute: Vec<String>,
        /// The problem and its fix.
        problem: String,
    },
    /// An environment variable cannot be read.
    #[error(
        "the environment variable {variable} is not valid UTF-8. Nothing was done, because the provider might \
         otherwise use another store or account. Correct it, or unset it"
    )]
    NotText {
        /// The variable's name.
        variable: String,
    },
    /// The coordination store cannot be opened.
    #[error("{problem}")]
    Store {
        /// The problem and its fix.
        problem: String,
    },
}

impl SettingsError {
    /// Returns the affected attribute, outermost first.
    #[must_use]
    pub fn attribute(&self) -> Vec<String> {
        match self {
            Self::Value { attribute, .. } => attribute.clone(),
            Self::NotText { .. } => Vec::new(),
            Self::Store { .. } => vec!["coordination_url".to_owned()],
        }
    }

    /// Summarizes the failure.
    #[must_use]
    pub fn summary(&self) -> &'static str {
        match self {
            Self::Value { .. } => "The provider's configuration cannot be used",
            Self::NotText { .. } => "An environment variable cannot be read",
            Self::Store { .. } => "The coordination store cannot be opened",
        }
    }
}
