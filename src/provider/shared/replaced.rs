//! A replacement under the same name: `effect` names the release before it.
//!
//! Hosts drop all warnings of a forced replacement (`-replace`, `replace_triggered_by`), so only
//! `effect` shows the release. Hosts repeat this plan during apply without the old state, and
//! reject a different text. In that plan the name is still in use (`create_before_destroy`), or
//! this run released it ([`note`]).

use tf_provider::value::Value;

use crate::{
    engine::Engine,
    maintenance::{ids::MaintenanceId, state::Maintenance},
};

use crate::provider::{
    shared::private::Private,
    shared::values::{Text, given},
};

const AFTER: &str = ", after the release of ";

/// Adds the release to the planned effect. Returns private state for the old object's destroy.
pub(in crate::provider) async fn plan(
    engine: &Engine,
    id: Option<&MaintenanceId>,
    server: &Text,
    adopt: bool,
    effect: &mut Text,
) -> Value<Private> {
    let Some(id) = id else {
        // The plan during apply knows the name, and adds the release if there was one.
        *effect = Value::Unknown;
        return Value::Null;
    };
    let Some(server) = given(server) else { return Value::Null };
    let ours = |before: &Maintenance| before.refuses_owner(engine.owner()).is_none();
    let Some(before) = active(engine, id).await.filter(ours) else {
        if !adopt && engine.has_replaced(id, server) {
            add(effect, id);
        }
        return Value::Null;
    };
    let (managed, same_server) = (engine.manages(&before.uid), before.server() == server);
    // Without `adopt`, only a release frees a name that a state manages. Otherwise a create under
    // `create_before_destroy` continues the record.
    let released = same_server && !adopt && before.known_to.is_some();
    if released {
        add(effect, id);
    } else if same_server && managed {
        *effect = Value::Unknown;
    }
    let Some(known) = before.known_to.as_ref().filter(|_| managed) else { return Value::Null };
    let private = Private::of(engine, &before).of_state(known.state.raw());
    if !released {
        return Value::Value(private);
    }
    engine.announce(&before.uid, Some(id));
    Value::Value(private.replaced())
}

/// Notes a release by this run, or an earlier one that the plan had listed.
pub(in crate::provider) async fn note(engine: &Engine, private: &Value<Private>, released: Option<&Maintenance>) {
    if let Some(record) = released {
        engine.note_replaced(&record.id, record.server());
    } else if Private::is_replaced(private)
        && let Some(uid) = Private::uid(private)
        && let Ok(Some(over)) = engine.held(&uid).await
    {
        engine.note_replaced(&over.record.id, over.record.server());
    }
}

/// Returns true if a plan in this folder replaces the record under its own name.
pub(in crate::provider) async fn is_announced(engine: &Engine, id: Option<&MaintenanceId>) -> bool {
    let Some(id) = id else { return false };
    let Some(uid) = engine.predecessor(id) else { return false };
    active(engine, id).await.is_some_and(|record| record.uid == uid)
}

/// Removes the release text after apply.
pub(in crate::provider) fn settle(effect: &mut Text) {
    if let Value::Value(text) = effect
        && let Some(at) = text.find(AFTER)
    {
        text.truncate(at);
    }
}

fn add(effect: &mut Text, id: &MaintenanceId) {
    if let Value::Value(text) = effect {
        text.push_str(&format!("{AFTER}{id}"));
    }
}

/// The active record of a name. One store read serves all new names of a plan.
async fn active(engine: &Engine, id: &MaintenanceId) -> Option<Maintenance> {
    engine.planned_record(id).await.ok()??;
    engine.active(id).await.ok()
}
