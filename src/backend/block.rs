//! The block of a backend or of a gate in the provider configuration: its attributes, each named
//! once, and what is written of them.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use secrecy::SecretString;

/// A variable of the environment, where it is set and not empty.
pub type Variables<'a> = &'a (dyn Fn(&str) -> Option<String> + Sync);

/// One attribute of a block, and the variable of the environment that holds where it is not set.
#[derive(Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: AttributeKind,
    text: &'static str,
    variable: Option<&'static str>,
    otherwise: &'static str,
    /// Whether a block without it is refused.
    pub required: bool,
}

impl Setting {
    /// An attribute that only the block sets. `text`: its description in Markdown, with its default
    /// where it has one.
    #[must_use]
    pub const fn new(name: &'static str, kind: AttributeKind, text: &'static str) -> Self {
        Self { name, kind, text, variable: None, otherwise: "", required: false }
    }

    /// The attribute with a variable of the environment as its default. `otherwise`: what holds
    /// where that is not set either, as the end of the sentence that names the variable.
    #[must_use]
    pub const fn or_env(mut self, variable: &'static str, otherwise: &'static str) -> Self {
        (self.variable, self.otherwise) = (Some(variable), otherwise);
        self
    }

    /// The attribute as one that a block must have.
    #[must_use]
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Its description in Markdown.
    #[must_use]
    pub fn description(&self) -> String {
        match self.variable {
            Some(variable) => format!("{} Default: `{variable}`{}.", self.text, self.otherwise),
            None => self.text.to_owned(),
        }
    }

    /// The name of its variable, for messages; that of the attribute where it has none.
    #[must_use]
    pub fn variable(&self) -> &'static str {
        self.variable.unwrap_or(self.name)
    }

    /// What its variable says.
    #[must_use]
    pub fn from_env(&self, env: Variables<'_>) -> Option<String> {
        self.variable.and_then(env)
    }

    /// The text of a block, else that of the variable.
    #[must_use]
    pub fn value(&self, block: &Block, env: Variables<'_>) -> Option<String> {
        block.text(self.name).or_else(|| self.from_env(env))
    }

    /// The secret of a block, else that of the variable.
    #[must_use]
    pub fn secret(&self, block: &Block, env: Variables<'_>) -> Option<SecretString> {
        block.secret(self.name).or_else(|| self.from_env(env).map(SecretString::from))
    }
}

/// What an attribute holds.
#[derive(Debug)]
pub enum AttributeKind {
    /// A text.
    Text,
    /// A text that may not be empty.
    Name,
    /// A text that no plan, state, log or message shows.
    Secret,
    /// `true` or `false`.
    Flag,
    /// A duration such as `"90s"`.
    Duration,
    /// Texts by name.
    Texts,
    /// Objects by name, with these attributes.
    Objects(&'static [Setting]),
}

/// A value of an attribute.
#[derive(Clone, Debug)]
pub enum Given {
    /// Of [`AttributeKind::Text`] and [`AttributeKind::Name`].
    Text(String),
    /// Of [`AttributeKind::Secret`].
    Secret(SecretString),
    /// Of [`AttributeKind::Flag`].
    Flag(bool),
    /// Of [`AttributeKind::Duration`].
    Duration(Duration),
    /// Of [`AttributeKind::Texts`].
    Texts(BTreeMap<String, String>),
    /// Of [`AttributeKind::Objects`].
    Objects(BTreeMap<String, Block>),
    /// Known only after apply.
    Unknown,
}

/// A block as it is written. An attribute that is not set is absent.
#[derive(Clone, Debug, Default)]
pub struct Block(BTreeMap<String, Given>);

impl Block {
    /// Sets an attribute.
    pub fn set(&mut self, name: &str, value: Given) {
        self.0.insert(name.to_owned(), value);
    }

    /// A text, where it is set and known.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        match self.0.get(name)? {
            Given::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    /// A secret, where it is set and known.
    #[must_use]
    pub fn secret(&self, name: &str) -> Option<SecretString> {
        match self.0.get(name)? {
            Given::Secret(secret) => Some(secret.clone()),
            _ => None,
        }
    }

    /// A flag, where it is set and known.
    #[must_use]
    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.0.get(name)? {
            Given::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    /// A duration, where it is set and known.
    #[must_use]
    pub fn duration(&self, name: &str) -> Option<Duration> {
        match self.0.get(name)? {
            Given::Duration(duration) => Some(*duration),
            _ => None,
        }
    }

    /// Texts by name; empty where they are not set or not known.
    #[must_use]
    pub fn texts(&self, name: &str) -> BTreeMap<String, String> {
        match self.0.get(name) {
            Some(Given::Texts(texts)) => texts.clone(),
            _ => BTreeMap::new(),
        }
    }

    /// Objects by name; none where they are not set or not known.
    pub fn objects(&self, name: &str) -> impl Iterator<Item = (&String, &Self)> {
        let objects = match self.0.get(name) {
            Some(Given::Objects(objects)) => Some(objects),
            _ => None,
        };
        objects.into_iter().flatten()
    }

    /// Whether an attribute is set, perhaps to a value that is not known yet.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether an attribute is set to a value that is known.
    #[must_use]
    pub fn is_known(&self, name: &str) -> bool {
        self.has(name) && !self.is_unknown(name)
    }

    /// Whether an attribute is known only after apply.
    #[must_use]
    pub fn is_unknown(&self, name: &str) -> bool {
        matches!(self.0.get(name), Some(Given::Unknown))
    }

    /// Whether any attribute of it, or of an object in it, is known only after apply.
    #[must_use]
    pub fn has_unknown(&self) -> bool {
        self.0.values().any(|given| match given {
            Given::Unknown => true,
            Given::Objects(objects) => objects.values().any(Self::has_unknown),
            _ => false,
        })
    }
}

/// A value of a block that is wrong or missing. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Problem {
    /// The attribute in the block, outermost first; the second step is a name in a map.
    pub at: Vec<String>,
    /// What is wrong and what to do.
    pub problem: String,
}

impl Problem {
    /// A problem of an attribute.
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
