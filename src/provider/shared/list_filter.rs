//! What the lists of existing resources have in common: their arguments, and what these select.

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

/// The error of a list that could not be read.
pub(in crate::provider) fn not_listed(error: &EngineError) -> Diagnostic {
    let problem = of_engine("the list", error);
    diagnostic("Existing resources cannot be listed", problem.detail, AttributePath::root())
}

/// The owner that stands for all owners.
const EVERY_OWNER: &str = "*";

/// The arguments of a list. Each list has some of them.
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

/// Builds the schema of a list: `server` and `owner`, `namespace` where the resource has one, and
/// `states` where it has these states.
pub(in crate::provider) fn list_schema(text: &str, namespace: bool, states: &[&str]) -> Schema {
    let string = |text: &str| optional(AttributeType::String, text);
    let mut all = Attributes::new();
    let mut add = |name: &str, attribute: Attribute| all.insert(name.to_owned(), attribute);
    add("server", string("Only those of this server, by its name. Default: all servers."));
    add(
        "owner",
        string(
            "Only those of this owner; `\"*\"`: of every owner. Default: the provider's `owner`, because an import of what \
             belongs to another owner is refused.",
        ),
    );
    if namespace {
        add("namespace", string("Only those of this namespace. Default: all."));
    }
    if !states.is_empty() {
        let names: Vec<String> = states.iter().map(|state| format!("`{state}`")).collect();
        let text = format!("Only those in one of these states: {}. Default: all.", names.join(", "));
        add("states", optional(AttributeType::List(Box::new(AttributeType::String)), &text));
    }
    schema(text, all)
}

/// The arguments, which are not there where the block has none.
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
            bad(diags, AttributePath::new("states"), "Not a possible value", detail);
        }
    }

    fn states(&self) -> impl Iterator<Item = &str> {
        self.states.iter().flatten().filter_map(given)
    }

    /// Whether a server is asked for.
    pub(in crate::provider) fn selects_server(&self, server: &str) -> bool {
        given(&self.server).is_none_or(|wanted| wanted == server)
    }

    /// Whether a namespace is asked for.
    pub(in crate::provider) fn selects_namespace(&self, namespace: &str) -> bool {
        given(&self.namespace).is_none_or(|wanted| wanted == namespace)
    }

    /// Whether what belongs to an owner is asked for; `None`: it belongs to no owner.
    pub(in crate::provider) fn selects_owner(&self, engine: &Engine, owner: Option<&str>) -> bool {
        match given(&self.owner) {
            Some(EVERY_OWNER) => true,
            Some(wanted) => owner == Some(wanted),
            None => owner == Some(engine.owner()),
        }
    }

    /// Whether a state is asked for.
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
