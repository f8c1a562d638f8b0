//! A resource's private data: its record and store.

use serde::{Deserialize, Serialize};
use tf_provider::{AttributePath, Diagnostics, value::Value};
use uuid::Uuid;

use crate::{
    backend::ExternalOwnership,
    engine::{Engine, EngineError, MaintenanceStatus},
    maintenance::{
        ids::{LockKey, MaintenanceId, Uid},
        lock::ServerLock,
        state::Maintenance,
    },
    plugin::diagnostic,
    store::{LockView, RecordLookup},
};

use crate::provider::{
    shared::diagnostics::of_engine,
    shared::values::{Text, given},
};

/// Private state: the host stores it with the state and never shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct Private {
    uid: String,
    store: String,
    /// This state's random number, with which the record is marked.
    state: String,
    /// The highest generation read so far. A lower generation means that the store was restored.
    generation: u64,
    /// The server's power and boot override before the maintenance, for people whose store was
    /// deleted; empty if they were not recorded.
    #[serde(default)]
    before: String,
    /// True if the plan's `effect` shows the record's release.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    replaced: bool,
}

/// The attributes that identify a record.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) struct Remembered<'a> {
    pub(in crate::provider) id: &'a Text,
    pub(in crate::provider) lock_key: &'a Text,
    pub(in crate::provider) mark: Mark<'a>,
}

/// Distinguishes records with the same name.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) enum Mark<'a> {
    /// The state's number, which the record has too: `managed_by`.
    Number(&'a Text),
    /// The request time, for records that no state manages.
    RequestedAt(&'a Text),
}

impl Private {
    /// Returns the private state for a record.
    pub(in crate::provider) fn of(engine: &Engine, record: &Maintenance) -> Self {
        let (uid, store) = (record.uid.raw().to_owned(), engine.store().id().to_owned());
        let (state, generation) = (String::new(), record.generation);
        Self { uid, store, state, generation, before: before(record), replaced: false }
    }

    /// Marks a plan whose `effect` shows the release.
    pub(in crate::provider) fn replaced(self) -> Self {
        Self { replaced: true, ..self }
    }

    /// Returns true if the plan's `effect` shows the release.
    pub(in crate::provider) fn is_replaced(private: &Value<Self>) -> bool {
        matches!(private, Value::Value(private) if private.replaced)
    }

    /// Generates a number for a new state.
    pub(in crate::provider) fn new_state() -> String {
        Uuid::new_v4().simple().to_string()
    }

    /// Sets the state's number.
    pub(in crate::provider) fn of_state(self, state: &str) -> Self {
        Self { state: state.to_owned(), ..self }
    }

    /// Returns the state's number; empty without one.
    pub(in crate::provider) fn state(private: &Value<Self>) -> &str {
        match private {
            Value::Value(private) => &private.state,
            _ => "",
        }
    }

    /// Returns the state's number, or a new number if that is missing.
    pub(in crate::provider) fn state_or_new(private: &Value<Self>) -> String {
        match Self::state(private) {
            "" => Self::new_state(),
            state => state.to_owned(),
        }
    }

    /// Returns true if it was written with the current store.
    pub(in crate::provider) fn is_of(&self, engine: &Engine) -> bool {
        self.store == engine.store().id()
    }

    /// Returns the recorded prior state as a sentence, with its use.
    fn shown_before(&self) -> String {
        match self.before.as_str() {
            "" => String::new(),
            before => format!(
                " Before the maintenance the server had: {before}. If its store was deleted, restore that by hand first."
            ),
        }
    }

    /// Returns the highest generation read so far.
    pub(in crate::provider) fn generation(&self) -> u64 {
        self.generation
    }

    /// Updates it after a refresh.
    pub(in crate::provider) fn after(private: Value<Self>, record: &Maintenance) -> Value<Self> {
        match private {
            Value::Value(private) => {
                let generation = private.generation.max(record.generation);
                let before = Some(before(record)).filter(|now| !now.is_empty()).unwrap_or(private.before);
                Value::Value(Self { generation, before, ..private })
            }
            other => other,
        }
    }

    /// Returns the record's uid.
    pub(in crate::provider) fn uid(private: &Value<Self>) -> Option<Uid> {
        match private {
            Value::Value(private) => Some(Uid::new(private.uid.clone())),
            _ => None,
        }
    }

    /// Returns the record's uid.
    pub(in crate::provider) fn own_uid(&self) -> Uid {
        Uid::new(self.uid.clone())
    }

    /// Finds a resource's record, for every kind of record; no other code decides this. Hosts omit
    /// the private state when they destroy tainted resources, and an outdated state file contains
    /// an ended record. Both still have the name: its record counts if owner, machine and mark
    /// match. Returns `private` unchanged if the store does not match or answer; callers report
    /// that.
    pub(in crate::provider) async fn recovered(
        engine: &Engine,
        private: Value<Self>,
        state: &Remembered<'_>,
    ) -> Value<Self> {
        let outdated = match &private {
            // The record is in another store.
            Value::Value(kept) if !kept.is_of(engine) => return private,
            Value::Value(kept) => match engine.store().find_uid(&kept.own_uid()).await {
                Ok(Some(RecordLookup::Past(_)) | None) => {
                    engine.note_managed(&kept.own_uid());
                    Some(kept.generation)
                }
                Ok(Some(RecordLookup::Active(record))) => {
                    if record.refuses_state(&kept.state).is_none() {
                        engine.note_managed(&record.uid);
                    }
                    return private;
                }
                Err(_) => return private,
            },
            _ => None,
        };
        let Some(id) = given(state.id).and_then(|id| id.parse::<MaintenanceId>().ok()) else { return private };
        let Ok(Some(found)) = engine.known(&id).await else { return private };
        let active = matches!(found, RecordLookup::Active(_));
        let record = found.record();
        let newer = outdated.is_none_or(|generation| active && record.generation > generation);
        if !newer || Some(record.lock_key.raw()) != given(state.lock_key) {
            return private;
        }
        let number = match state.mark {
            Mark::RequestedAt(at) if given(at) == Some(&record.requested_at.to_string()) => String::new(),
            Mark::RequestedAt(_) => return private,
            Mark::Number(number) => {
                let known = Some(Self::state(&private)).filter(|number| !number.is_empty()).or(given(number));
                known.map_or_else(Self::new_state, str::to_owned)
            }
        };
        let refused = record.refuses_state(&number).is_some();
        // Another owner's record with this number: the provider's owner changed.
        let marked = record.known_to.as_ref().is_some_and(|known| known.state == number) || number.is_empty();
        let foreign = !marked && record.refuses_owner(engine.owner()).is_some();
        if foreign || (refused && outdated.is_some()) {
            return private;
        }
        if active && !refused {
            engine.note_managed(&record.uid);
        }
        Value::Value(Self::of(engine, record).of_state(&number))
    }

    /// Reads the record in any phase; `None`: the store answered and does not have it.
    pub(in crate::provider) async fn held(
        engine: &Engine,
        private: &Value<Self>,
        state: &Remembered<'_>,
    ) -> Result<Option<MaintenanceStatus>, EngineError> {
        match (Self::uid(private), given(state.id).and_then(|id| id.parse().ok())) {
            (Some(uid), _) => engine.held(&uid).await,
            (None, Some(id)) => engine.known(&id).await.map(|_| None),
            (None, None) => Ok(None),
        }
    }

    /// Reports why an update without a record failed.
    pub(in crate::provider) async fn not_found(
        diags: &mut Diagnostics,
        engine: &Engine,
        server: &str,
        state: &Remembered<'_>,
    ) {
        diags.add_error(match Self::held(engine, &Value::Null, state).await {
            Err(error) => of_engine(server, &error),
            Ok(_) => diagnostic(
                format!("The record of {server} was not found"),
                format!(
                    "{} does not contain a record of {}. The server and the state are unchanged. Plan again: the \
                     refresh checks if the resource still exists.",
                    engine.store().address(),
                    given(state.id).unwrap_or("this resource")
                ),
                AttributePath::root(),
            ),
        });
    }
}

/// Describes a record's prior state, without image addresses.
fn before(record: &Maintenance) -> String {
    let Some(prior) = &record.prior else { return String::new() };
    let boot = prior.boot.as_ref().map(|boot| format!(", boot override {boot}")).unwrap_or_default();
    let filled = prior.media.iter().filter(|slot| slot.content().is_some()).count();
    let media = if filled > 0 { format!(", {filled} virtual drives filled") } else { String::new() };
    format!("power {}{boot}{media}", prior.power)
}

/// The fix after a store was deleted. The host shows the resource address with the error.
const STORE_DELETED: &str = "If that store was deleted, no other place has a record of the resource: remove it from \
                             the state with `tofu state rm ADDRESS` (or `terraform state rm ADDRESS`) and apply \
                             again.";

/// The private state of a claim or an approval: where it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct Owned {
    pub(in crate::provider) uid: String,
    pub(in crate::provider) lock_key: String,
    pub(in crate::provider) store: String,
    /// The related claim's uid, if a cluster stores the claims.
    pub(in crate::provider) claim: String,
}

impl Owned {
    /// Returns the private state for an object in the servers' own cluster.
    pub(in crate::provider) fn in_cluster(
        there: &dyn ExternalOwnership,
        key: &LockKey,
        uid: &str,
        claim: &str,
    ) -> Self {
        let (uid, claim) = (uid.to_owned(), claim.to_owned());
        Self { uid, lock_key: key.raw().to_owned(), store: there.address(), claim }
    }

    /// Returns the private state for an object stored with a lock.
    pub(in crate::provider) fn new(engine: &Engine, key: &LockKey, uid: &Uid) -> Self {
        let (uid, store) = (uid.raw().to_owned(), engine.store().id().to_owned());
        Self { uid, lock_key: key.raw().to_owned(), store, claim: String::new() }
    }

    /// Returns the private state of a claim or approval whose lock is in this store. Without `uid`,
    /// it was deleted. `None`: the store does not contain the lock, so it could be another store.
    pub(in crate::provider) fn found(engine: &Engine, view: &LockView, uid: Option<&Uid>) -> Option<Self> {
        let known = *view.lock != ServerLock::new(view.lock.key.clone());
        known.then(|| Self::new(engine, &view.lock.key, uid.unwrap_or(&Uid::new(String::new()))))
    }

    /// Returns the lock key.
    pub(in crate::provider) fn key(&self) -> LockKey {
        LockKey::new(self.lock_key.clone())
    }

    /// Returns the uid.
    pub(in crate::provider) fn own_uid(&self) -> Uid {
        Uid::new(self.uid.clone())
    }

    /// Returns the private state if it belongs to this store. Otherwise adds an error with the
    /// other store.
    pub(in crate::provider) fn here(
        diags: &mut Diagnostics,
        engine: &Engine,
        private: &Value<Self>,
        what: &str,
    ) -> Option<Self> {
        let problem = match private {
            Value::Value(owned) if owned.store == engine.store().id() => return Some(owned.clone()),
            Value::Value(owned) => format!(
                "The state was written with the store {}, this provider uses {} ({}). Nothing was changed. {STORE_DELETED}",
                owned.store,
                engine.store().id(),
                engine.store().address()
            ),
            _ => format!(
                "The state does not contain private data, and {} does not contain the machine or does not answer. \
                 Nothing was changed. Set coordination_url to the store that was used before, and run the command \
                 again.",
                engine.store().address()
            ),
        };
        diags.add_error(diagnostic(format!("{what} is in another coordination store"), problem, AttributePath::root()));
        None
    }
}

/// Handles a record that this store does not have. Returns true if it was deleted. If the state
/// belongs to another store, the outcome is unknown and an error explains that.
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
            "The state was written with the store {}; this provider uses {} ({}), which does not contain the record. \
             Nothing was done to the server, and the state is kept.{} Set coordination_url to the store that was used before. \
             {STORE_DELETED}",
            private.store,
            store.id(),
            store.address(),
            private.shown_before()
        ),
        AttributePath::root(),
    ));
    false
}
