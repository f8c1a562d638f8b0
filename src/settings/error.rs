//! What can be wrong with a configuration.

/// A configuration that cannot be used. Messages hold no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A value is wrong or missing.
    #[error("{problem}")]
    Value {
        /// The attribute, outermost first; the third step is a server's name.
        attribute: Vec<String>,
        /// What is wrong and what to do.
        problem: String,
    },
    /// An environment variable cannot be read.
    #[error(
        "the environment variable {variable} is not valid UTF-8. Nothing was done: without it, another store or account might be \
         used. Correct it, or unset it"
    )]
    NotText {
        /// Its name.
        variable: String,
    },
    /// The coordination store cannot be opened.
    #[error("{problem}")]
    Store {
        /// What is wrong and what to do.
        problem: String,
    },
}

impl SettingsError {
    /// The attribute it is about, outermost first.
    #[must_use]
    pub fn attribute(&self) -> Vec<String> {
        match self {
            Self::Value { attribute, .. } => attribute.clone(),
            Self::NotText { .. } => Vec::new(),
            Self::Store { .. } => vec!["coordination_url".to_owned()],
        }
    }

    /// What failed, in a few words.
    #[must_use]
    pub fn summary(&self) -> &'static str {
        match self {
            Self::Value { .. } => "The provider's configuration cannot be used",
            Self::NotText { .. } => "An environment variable cannot be read",
            Self::Store { .. } => "The coordination store cannot be opened",
        }
    }
}
