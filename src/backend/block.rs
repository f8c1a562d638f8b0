//! Attributes of a backend's or gate's block in the provider configuration, and their values.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use secrecy::SecretString;

/// Looks up an environment variable; `None` if it is unset or empty.
pub type Variables<'a> = &'a (dyn Fn(&str) -> Option<String> + Sync);

/// A block attribute, and the environment variable that supplies its default.
#[derive(Debug)]
pub struct Setting {
    /// The attribute name.
    pub name: &'static str,
    /// The value type.
    pub kind: AttributeKind,
    text: &'static str,
    variable: Option<&'static str>,
    otherwise: &'static str,
    /// True if a block without this attribute is rejected.
    pub required: bool,
}

impl Setting {
    /// Returns an attribute that only the block can set. `text` is its Markdown description,
    /// including any default.
    #[must_use]
    pub const fn new(name: &'static str, kind: AttributeKind, text: &'static str) -> Self {
        Self { name, kind, text, variable: None, otherwise: "", required: false }
    }

    /// Sets an environment variable as the default. `otherwise` ends the sentence about that
    /// variable: it describes the fallback if the variable is unset too.
    #[must_use]
    pub const fn or_env(mut self, variable: &'static str, otherwise: &'static str) -> Self {
        (self.variable, self.otherwise) = (Some(variable), otherwise);
        self
    }

    /// Marks the attribute as required.
    #[must_use]
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Returns the Markdown description.
    #[must_use]
    pub fn description(&self) -> String {
        match self.variable {
            Some(variable) => format!("{} Default: `{variable}`{}.", self.text, self.otherwise),
            None => self.text.to_owned(),
        }
    }

    /// Returns the environment variable's name for messages, or the attribute's name without one.
    #[must_use]
    pub fn variable(&self) -> &'static str {
        self.variable.unwrap_or(self.name)
    }

    /// Returns the environment variable's value.
    #[must_use]
    pub fn from_env(&self, env: Variables<'_>) -> Option<String> {
        self.variable.and_then(env)
    }

    /// Returns the block's text, or the environment variable's value.
    #[must_use]
    pub fn value(&self, block: &Block, env: Variables<'_>) -> Option<String> {
        block.text(self.name).or_else(|| self.from_env(env))
    }

    /// Returns the block's list, or the environment variable's parts; empty if both are unset.
    #[must_use]
    pub fn list(&self, block: &Block, env: Variables<'_>) -> Vec<String> {
        let from_env = || self.from_env(env).unwrap_or_default();
        let parts = |text: String| text.split(',').map(|part| part.trim().to_owned()).collect::<Vec<_>>();
        let listed = block.list(self.name).map_or_else(|| parts(from_env()), <[String]>::to_vec);
        listed.into_iter().filter(|part| !part.is_empty()).collect()
    }

    /// Returns the block's secret, or the environment variable's value.
    #[must_use]
    pub fn secret(&self, block: &Block, env: Variables<'_>) -> Option<SecretString> {
        block.secret(self.name).or_else(|| self.from_env(env).map(SecretString::from))
    }
}

/// The value type of an attribute.
#[derive(Debug)]
pub enum AttributeKind {
    /// A string.
    Text,
    /// A non-empty string.
    Name,
    /// A string that never appears in a plan, state, log or message.
    Secret,
    /// `true` or `false`.
    Flag,
    /// A duration such as `"90s"`.
    Duration,
    /// A map of strings.
    Texts,
    /// A list of strings. An environment variable separates them by commas.
    List,
    /// A map of objects with these attributes.
    Objects(&'static [Setting]),
}

/// An attribute value.
#[derive(Clone, Debug)]
pub enum Given {
    /// A value for [`AttributeKind::Text`] or [`AttributeKind::Name`].
    Text(String),
    /// A value for [`AttributeKind::Secret`].
    Secret(SecretString),
    /// A value for [`AttributeKind::Flag`].
    Flag(bool),
    /// A value for [`AttributeKind::Duration`].
    Duration(Duration),
    /// A value for [`AttributeKind::Texts`].
    Texts(BTreeMap<String, String>),
    /// A value for [`AttributeKind::List`].
    List(Vec<String>),
    /// A value for [`AttributeKind::Objects`].
    Objects(BTreeMap<String, Block>),
    /// A value that Terraform supplies during apply.
    Unknown,
}

/// A configuration block. Attributes that are not set are absent.
#[derive(Clone, Debug, Default)]
pub struct Block(BTreeMap<String, Given>);

impl Block {
    /// Sets an attribute.
    pub fn set(&mut self, name: &str, value: Given) {
        self.0.insert(name.to_owned(), value);
    }

    /// Returns a string if it is set and known.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        match self.0.get(name)? {
            Given::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    /// Returns a secret if it is set and known.
    #[must_use]
    pub fn secret(&self, name: &str) -> Option<SecretString> {
        match self.0.get(name)? {
            Given::Secret(secret) => Some(secret.clone()),
            _ => None,
        }
    }

    /// Returns a flag if it is set and known.
    #[must_use]
    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.0.get(name)? {
            Given::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    /// Returns a duration if it is set and known.
    #[must_use]
    pub fn duration(&self, name: &str) -> Option<Duration> {
        match self.0.get(name)? {
            Given::Duration(duration) => Some(*duration),
            _ => None,
        }
    }

    /// Returns a map of strings, empty if it is unset or unknown.
    #[must_use]
    pub fn texts(&self, name: &str) -> BTreeMap<String, String> {
        match self.0.get(name) {
            Some(Given::Texts(texts)) => texts.clone(),
            _ => BTreeMap::new(),
        }
    }

    /// Returns a list of strings if it is set and known.
    #[must_use]
    pub fn list(&self, name: &str) -> Option<&[String]> {
        match self.0.get(name)? {
            Given::List(list) => Some(list),
            _ => None,
        }
    }

    /// Returns a map's objects, or none if it is unset or unknown.
    pub fn objects(&self, name: &str) -> impl Iterator<Item = (&String, &Self)> {
        let objects = match self.0.get(name) {
            Some(Given::Objects(objects)) => Some(objects),
            _ => None,
        };
        objects.into_iter().flatten()
    }

    /// Returns true if an attribute is set, even to an unknown value.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns true if an attribute is set to a known value.
    #[must_use]
    pub fn is_known(&self, name: &str) -> bool {
        self.has(name) && !self.is_unknown(name)
    }

    /// Returns true if an attribute is unknown until apply.
    #[must_use]
    pub fn is_unknown(&self, name: &str) -> bool {
        matches!(self.0.get(name), Some(Given::Unknown))
    }

    /// Returns true if any attribute, including those of nested objects, is unknown until apply.
    #[must_use]
    pub fn has_unknown(&self) -> bool {
        self.0.values().any(|given| match given {
            Given::Unknown => true,
            Given::Objects(objects) => objects.values().any(Self::has_unknown),
            _ => false,
        })
    }
}

/// A wrong or missing value in a block. Contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Problem {
    /// The attribute's path, outermost first; the second step is a map key.
    pub at: Vec<String>,
    /// The problem and its fix.
    pub problem: String,
}

impl Problem {
    /// Returns a problem at an attribute path.
    pub fn of(at: &[&str], problem: impl Into<String>) -> Self {
        Self { at: at.iter().map(|step| (*step).to_owned()).collect(), problem: problem.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_value_is_seen_wherever_it_is_and_is_never_a_value() {
        let (mut inner, mut block) = (Block::default(), Block::default());
        inner.set("endpoint", Given::Unknown);
        block.set("insecure", Given::Flag(true));
        assert!(!block.has_unknown());
        block.set("servers", Given::Objects(BTreeMap::from([("node1".to_owned(), inner)])));
        assert!(block.has_unknown() && !block.is_unknown("servers"));
        let (_, server) = block.objects("servers").next().unwrap();
        assert!(server.is_unknown("endpoint") && server.has("endpoint") && !server.is_known("endpoint"));
        assert_eq!(server.text("endpoint"), None);
    }
}
