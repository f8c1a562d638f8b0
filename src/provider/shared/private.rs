//! What a resource remembers beside its state: which record it stands for, in which store.

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostic, Diagnostics,
    value::{Value, ValueNumber},
};
use uuid::Uuid;

use crate::{
    backend::ExternalOwnership,
    engine::{Engine, EngineError},
    maintenance::{
        ids::{Generation, LockKey, MaintenanceId, Uid},
        state::Maintenance,
    },
    plugin::diagnostic,
};

use crate::provider::shared::values::{Text, given};

/// The host keeps it beside the state and shows it to nobody.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct Private {
    uid: String,
    store: String,
    /// The random number of this state: the record is marked with it.
    state: String,
    /// The highest generation of the record that was seen. A store below it went back in time.
    generation: u64,
}

/// What a state tells of its record by itself.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) struct Remembered<'a> {
    pub(in crate::provider) id: &'a Text,
    pub(in crate::provider) lock_key: &'a Text,
    pub(in crate::provider) requested_at: Option<&'a Text>,
    /// `None` for a resource without that attribute.
    pub(in crate::provider) generation: Option<ValueNumber>,
}

impl Private {
    /// Of a record.
    pub(in crate::provider) fn of(engine: &Engine, record: &Maintenance) -> Self {
        let (uid, store) = (record.uid.0.clone(), engine.store().id().to_owned());
        Self { uid, store, state: String::new(), generation: record.generation }
    }

    /// A number for a state that begins.
    pub(in crate::provider) fn new_state() -> String {
        Uuid::new_v4().simple().to_string()
    }

    /// What this state remembers, with the state's own number.
    pub(in crate::provider) fn of_state(self, state: &str) -> Self {
        Self { state: state.to_owned(), ..self }
    }

    /// The state's own number; empty where it has none.
    pub(in crate::provider) fn state(private: &Value<Self>) -> &str {
        match private {
            Value::Value(private) => &private.state,
            _ => "",
        }
    }

    /// The state's own number, or a new one where it has none.
    pub(in crate::provider) fn state_or_new(private: &Value<Self>) -> String {
        match Self::state(private) {
            "" => Self::new_state(),
            state => state.to_owned(),
        }
    }

    /// Whether it was written with the store that is used now.
    pub(in crate::provider) fn is_of(&self, engine: &Engine) -> bool {
        self.store == engine.store().id()
    }

    /// The highest generation that was seen.
    pub(in crate::provider) fn generation(&self) -> u64 {
        self.generation
    }

    /// With what a refresh has seen.
    pub(in crate::provider) fn after(private: Value<Self>, record: &Maintenance) -> Value<Self> {
        match private {
            Value::Value(private) => {
                let generation = private.generation.max(record.generation);
                Value::Value(Self { generation, ..private })
            }
            other => other,
        }
    }

    /// The record.
    pub(in crate::provider) fn uid(private: &Value<Self>) -> Option<Uid> {
        match private {
            Value::Value(private) => Some(Uid(private.uid.clone())),
            _ => None,
        }
    }

    /// The record.
    pub(in crate::provider) fn own_uid(&self) -> Uid {
        Uid(self.uid.clone())
    }

    /// The record that a destroy is about. Hosts hand nothing of this to the destroy of a tainted
    /// resource (OpenTofu 1.6.2, Terraform 1.15.5): there the name tells, if the last record of
    /// that name is of this owner, this machine and, where the state says it, this run. `None`: the
    /// store has none. One that does not answer proves nothing.
    pub(in crate::provider) async fn of_destroyed(
        engine: &Engine,
        private: &Value<Self>,
        state: &Remembered<'_>,
    ) -> Result<Option<Uid>, EngineError> {
        if let Some(uid) = Self::uid(private) {
            return Ok(Some(uid));
        }
        let Some(id) = given(state.id).and_then(|id| id.parse::<MaintenanceId>().ok()) else { return Ok(None) };
        // Also one that is over: then there is nothing left to do, and the destroy says so.
        let Some(found) = engine.known(&id).await? else { return Ok(None) };
        let record = found.record();
        let same = record.owner == engine.owner()
            && Some(record.lock_key.0.as_str()) == given(state.lock_key)
            && state.requested_at.is_none_or(|at| given(at) == Some(&record.requested_at.to_string()))
            // A state that was copied, or lost the maintenance, is behind. Where the state shows no
            // generation, the refresh before has dropped what another state manages.
            && state.generation.is_none_or(|known| record.known_to.is_none() || known == number(record.generation));
        Ok(same.then(|| record.uid.clone()))
    }

    /// The error of a state without it.
    pub(in crate::provider) fn missing(server: &str) -> Diagnostic {
        diagnostic(
            format!("The state of {server} is incomplete"),
            "It does not say which record it stands for; perhaps it was edited by hand. Remove the resource from the state \
             and import it by namespace/name.",
            AttributePath::root(),
        )
    }
}

fn number(generation: Generation) -> ValueNumber {
    Value::Value(i64::try_from(generation).unwrap_or(i64::MAX))
}

/// What a claim or an approval remembers: where it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct Owned {
    pub(in crate::provider) uid: String,
    pub(in crate::provider) lock_key: String,
    pub(in crate::provider) store: String,
    /// Where claims are a cluster's: the incarnation of the claim that it is about.
    pub(in crate::provider) claim: String,
}

impl Owned {
    /// Of something that the servers' own cluster keeps.
    pub(in crate::provider) fn in_cluster(
        there: &dyn ExternalOwnership,
        key: &LockKey,
        uid: &str,
        claim: &str,
    ) -> Self {
        let (uid, claim) = (uid.to_owned(), claim.to_owned());
        Self { uid, lock_key: key.0.clone(), store: there.address(), claim }
    }

    /// Of something kept with a machine.
    pub(in crate::provider) fn new(engine: &Engine, key: &LockKey, uid: &Uid) -> Self {
        let (uid, store) = (uid.0.clone(), engine.store().id().to_owned());
        Self { uid, lock_key: key.0.clone(), store, claim: String::new() }
    }

    /// The machine.
    pub(in crate::provider) fn key(&self) -> LockKey {
        LockKey(self.lock_key.clone())
    }

    /// The incarnation.
    pub(in crate::provider) fn own_uid(&self) -> Uid {
        Uid(self.uid.clone())
    }

    /// What a destroy is about; where the host kept nothing (see [`Private::of_destroyed`]), what
    /// the state tells.
    pub(in crate::provider) fn of_destroyed(
        engine: &Engine,
        private: Value<Self>,
        uid: Option<Uid>,
        lock_key: &Text,
    ) -> Value<Self> {
        match (&private, uid, given(lock_key)) {
            (Value::Value(_), ..) => private,
            (_, Some(uid), Some(key)) => Value::Value(Self::new(engine, &LockKey(key.to_owned()), &uid)),
            _ => private,
        }
    }

    /// What the state remembers, if it is of this store. Otherwise an error says which store it is
    /// of.
    pub(in crate::provider) fn here(
        diags: &mut Diagnostics,
        engine: &Engine,
        private: &Value<Self>,
        what: &str,
    ) -> Option<Self> {
        let problem = match private {
            Value::Value(owned) if owned.store == engine.store().id() => return Some(owned.clone()),
            Value::Value(owned) => format!(
                "The state was written with the store {}, this provider uses {} ({}). Nothing was changed.",
                owned.store,
                engine.store().id(),
                engine.store().address()
            ),
            _ => "The state does not name its coordination store; perhaps it was edited by hand. Remove the resource \
                  from the state and create it again."
                .to_owned(),
        };
        diags.add_error(diagnostic(format!("{what} is in another coordination store"), problem, AttributePath::root()));
        None
    }
}

/// A record that this store does not know. `true`: it is gone. When the state is of another store,
/// nothing is known and an error says so.
pub(in crate::provider) fn missing_here(
    diags: &mut Diagnostics,
    engine: &Engine,
    server: &str,
    private: &Value<Private>,
) -> bool {
    let Value::Value(private) = private else { return true };
    let store = engine.store();
    if private.store == store.id() {
        return true;
    }
    diags.add_error(diagnostic(
        format!("The record of {server} is in another coordination store"),
        format!(
            "The state was written with the store {}, this provider uses {} ({}), which does not know it. Nothing was \
             done to the server, and the state is kept. Set coordination_url to the store that was used before.",
            private.store,
            store.id(),
            store.address()
        ),
        AttributePath::root(),
    ));
    false
}
