//! Detects a store that is older than this state, after a restore from a backup.

use tf_provider::{AttributePath, Diagnostics, value::Value};

use crate::{
    engine::Engine,
    maintenance::{
        ids::{Generation, LockKey, Uid},
        state::Maintenance,
    },
    plugin::diagnostic,
    store::RecordLookup,
};

use crate::provider::{
    shared::diagnostics::{AFTER_A_RESTORE, of_engine},
    shared::ended::REVOKED,
    shared::private::{Private, Remembered},
    shared::values::{Text, given},
};

/// A state's data about its record.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) struct Expected<'a> {
    /// The server, for messages.
    pub(in crate::provider) server: &'a str,
    /// The highest generation, if the state shows it.
    pub(in crate::provider) generation: Generation,
    /// `state`, for resources that lock a server.
    pub(in crate::provider) state: Option<&'a Text>,
    /// `lock_key`.
    pub(in crate::provider) lock_key: &'a Text,
}

impl Expected<'_> {
    fn held(&self) -> bool {
        matches!(self.state.and_then(given), Some("Preparing" | "InMaintenance" | REVOKED | "Releasing"))
    }
}

/// Converts a generation from the state.
pub(in crate::provider) fn shown(generation: &Value<i64>) -> Generation {
    match generation {
        Value::Value(generation) => Generation::try_from(*generation).unwrap_or(0),
        _ => 0,
    }
}

/// Returns true if the store is at least as new as this state. Otherwise adds an error, and neither
/// the server nor the state can be changed.
///
/// An unreachable store proves nothing; the next request reports it.
pub(in crate::provider) async fn is_current(
    diags: &mut Diagnostics,
    engine: &Engine,
    private: &Value<Private>,
    found: Option<&Maintenance>,
    expected: &Expected<'_>,
) -> bool {
    let generation = match private {
        // A state from another store is reported when its record is not found.
        Value::Value(private) if private.is_of(engine) => private.generation().max(expected.generation),
        Value::Value(_) => return true,
        _ => expected.generation,
    };
    let key = given(expected.lock_key).map(LockKey::new);
    let Ok(Some(lost)) = engine.lost_since(found, key.as_ref(), generation, expected.held()).await else {
        return true;
    };
    let (server, store) = (expected.server, engine.store().address());
    let unknown = if found.is_none() {
        " If its history was pruned instead, and the server is free, remove the resource from the state."
    } else {
        ""
    };
    diags.add_error(diagnostic(
        format!("The coordination store of {server} went back in time"),
        format!("{store}: {lost}. Nothing was done to the server, and the state is kept. {AFTER_A_RESTORE}{unknown}"),
        AttributePath::root(),
    ));
    false
}

/// Ends a destroy without a record. `None`: an error explains why a record could still exist.
pub(in crate::provider) async fn nothing_left(
    diags: &mut Diagnostics,
    engine: &Engine,
    state: &Remembered<'_>,
    expected: &Expected<'_>,
) -> Option<()> {
    if let Err(error) = Private::held(engine, &Value::Null, state).await {
        diags.add_error(of_engine(expected.server, &error));
        return None;
    }
    is_current(diags, engine, &Value::Null, None, expected).await.then_some(())
}

/// Reads the record and checks the store before a change.
pub(in crate::provider) async fn may_act(
    diags: &mut Diagnostics,
    engine: &Engine,
    private: &Value<Private>,
    uid: &Uid,
    expected: &Expected<'_>,
) -> bool {
    let Ok(found) = engine.store().find_uid(uid).await else { return true };
    is_current(diags, engine, private, found.as_ref().map(RecordLookup::record), expected).await
}
