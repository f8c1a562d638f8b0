//! What a resource remembers beside its state: which record it stands for, in which store.

use serde::{Deserialize, Serialize};
use tf_provider::{AttributePath, Diagnostic, Diagnostics, value::Value};

use crate::{
    engine::Engine,
    maintenance::{ids::Uid, state::Maintenance},
    plugin::diagnostic,
};

/// The host keeps it beside the state and shows it to nobody.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Private {
    uid: String,
    store: String,
}

impl Private {
    /// Of a record.
    pub(super) fn of(engine: &Engine, record: &Maintenance) -> Self {
        Self { uid: record.uid.0.clone(), store: engine.store().id().to_owned() }
    }

    /// The record.
    pub(super) fn uid(private: &Value<Self>) -> Option<Uid> {
        match private {
            Value::Value(private) => Some(Uid(private.uid.clone())),
            _ => None,
        }
    }

    /// The record.
    pub(super) fn own_uid(&self) -> Uid {
        Uid(self.uid.clone())
    }

    /// The error of a state without it.
    pub(super) fn missing(server: &str) -> Diagnostic {
        diagnostic(
            format!("The state of {server} is incomplete"),
            "It does not say which record it stands for; perhaps it was edited by hand. Remove the resource from the state \
             and import it by namespace/name.",
            AttributePath::root(),
        )
    }
}

/// A record that this store does not know. `true`: it is gone. When the state is of another store, nothing is known and
/// an error says so.
pub(super) fn missing_here(diags: &mut Diagnostics, engine: &Engine, server: &str, private: &Value<Private>) -> bool {
    let Value::Value(private) = private else { return true };
    let store = engine.store();
    if private.store == store.id() {
        return true;
    }
    diags.add_error(diagnostic(
        format!("The hold on {server} is in another coordination store"),
        format!(
            "The state was written with the store {}, this provider uses {} ({}), which does not know the hold. Nothing was \
             done to the server, and the state is kept. Set coordination_url to the store that was used before.",
            private.store,
            store.id(),
            store.address()
        ),
        AttributePath::root(),
    ));
    false
}
