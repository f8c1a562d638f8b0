//! Arguments and filters shared by all list resources.

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostic, Diagnostics,
    schema::{Attribute, AttributeType, Schema},
    value::{Value, ValueList},
};

use crate::{
    engine::{Engine, EngineError},
    plugin::diagnostic,
};

use crate::provider::{
    shared::diagnostics::of_engine,
    shared::schema::{Attributes, optional, schema},
    shared::values::{Text, bad, given, not_empty},
};

/// Builds the error for a list that could not be read.
pub(in crate::provider) fn not_listed(error: &EngineError) -> Diagnostic {
    let problem = of_engine("the list", error);
    diagnostic("Existing resources cannot be listed", problem.detail, AttributePath::root())
}

/// Selects all owners.
const EVERY_OWNER: &str = "*";

/// The arguments of all lists; each list uses some of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct FilterModel {
    #[serde(default)]
    server: Text,
    #[serde(default)]
    namespace: Text,
    #[serde(default)]
    owner: Text,
    #[serde(default)]
    states: ValueList<Text>,
}

/// Builds a list's schema: `server` and `owner`, `namespace` if the resource has it, and `states`
/// if any are given.
pub(in crate::provider) fn list_schema(text: &str, namespace: bool, states: &[&str]) -> Schema {
    let string = |text: &str| optional(AttributeType::String, text);
    let mut all = Attributes::new();
    let mut add = |name: &str, attribute: Attribute| all.insert(name.to_owned(), attribute);
    add("server", string("Only results for this server, by its name. Default: all servers."));
    add(
        "owner",
        string(
            "Only this owner's results; `\"*\"`: every owner's. Default: the provider's `owner`, because an import rejects another owner's records.",
        ),
    );
    if namespace {
        add("namespace", string("Only results in this namespace. Default: all."));
    }
    if !states.is_empty() {
        let names: Vec<String> = states.iter().map(|state| format!("`{state}`")).collect();
        let text = format!("Only results in one of these states: {}. Default: all.", names.join(", "));
        add("states", optional(AttributeType::List(Box::new(AttributeType::String)), &text));
    }
    schema(text, all)
}

/// Returns the arguments; a block without arguments is null.
pub(in crate::provider) fn filter_of(config: Value<FilterModel>) -> FilterModel {
    match config {
        Value::Value(filter) => filter,
        _ => FilterModel::default(),
    }
}

impl FilterModel {
    /// Checks the known values.
    pub(in crate::provider) fn check(&self, diags: &mut Diagnostics, states: &[&str]) {
        for (name, text) in [("server", &self.server), ("namespace", &self.namespace), ("owner", &self.owner)] {
            not_empty(diags, text, AttributePath::new(name));
        }
        let unknown = self.states().find(|state| !states.contains(state));
        if let Some(state) = unknown {
            let names: Vec<String> = states.iter().map(|state| format!("{state:?}")).collect();
            let detail = format!("{state:?} is not one of {}.", names.join(", "));
            bad(diags, AttributePath::new("states"), "Invalid value", detail);
        }
    }

    fn states(&self) -> impl Iterator<Item = &str> {
        self.states.iter().flatten().filter_map(given)
    }

    /// Returns true if a server matches.
    pub(in crate::provider) fn selects_server(&self, server: &str) -> bool {
        given(&self.server).is_none_or(|wanted| wanted == server)
    }

    /// Returns true if a namespace matches.
    pub(in crate::provider) fn selects_namespace(&self, namespace: &str) -> bool {
        given(&self.namespace).is_none_or(|wanted| wanted == namespace)
    }

    /// Returns true if an owner matches; `None`: without an owner.
    pub(in crate::provider) fn selects_owner(&self, engine: &Engine, owner: Option<&str>) -> bool {
        match given(&self.owner) {
            Some(EVERY_OWNER) => true,
            Some(wanted) => owner == Some(wanted),
            None => owner == Some(engine.owner()),
        }
    }

    /// Returns true if a state matches.
    pub(in crate::provider) fn selects_state(&self, state: &Text) -> bool {
        let mut wanted = self.states().peekable();
        wanted.peek().is_none() || wanted.any(|wanted| given(state) == Some(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(text: &str) -> Text {
        Value::Value(text.to_owned())
    }

    #[test]
    fn without_arguments_everything_is_selected() {
        let filter = filter_of(Value::Null);
        assert!(filter.selects_server("node1") && filter.selects_namespace("tests"));
        assert!(filter.selects_state(&known("Pending")) && filter.selects_state(&Value::Null));
    }

    #[test]
    fn each_argument_excludes_what_differs() {
        let filter = FilterModel {
            server: known("node1"),
            namespace: known("tests"),
            states: Value::Value(vec![known("Pending"), known("InMaintenance")]),
            ..FilterModel::default()
        };
        assert!(filter.selects_server("node1") && !filter.selects_server("node2"));
        assert!(filter.selects_namespace("tests") && !filter.selects_namespace("db"));
        assert!(filter.selects_state(&known("InMaintenance")) && !filter.selects_state(&known("Releasing")));
    }

    #[test]
    fn a_state_that_does_not_exist_is_refused() {
        let filter = FilterModel { states: Value::Value(vec![known("Held")]), ..FilterModel::default() };
        let mut diags = Diagnostics::default();
        filter.check(&mut diags, &["Pending"]);
        assert_eq!(diags.errors[0].attribute, AttributePath::new("states"));
    }
}
