//! Reports requests of one plan that never apply together.

use tf_provider::{AttributePath, Diagnostics};

use crate::{
    engine::{Engine, Lasting, PlannedName},
    maintenance::{ids::LockKey, ids::MaintenanceId, spec::Spec},
};

use crate::provider::shared::values::bad;

/// Notes a maintenance that keeps its server, reviewed since `begun`, and reports a clash.
pub(in crate::provider) fn lasting(
    diags: &mut Diagnostics,
    engine: &Engine,
    key: Option<&LockKey>,
    spec: &Spec,
    lasting: Lasting,
    begun: u64,
) {
    // Without a name, the next plan of the same request would look like a second one.
    let own = lasting.name.clone();
    let Some(key) = key.filter(|_| spec.complete_when.is_none() && own.id.is_some()) else { return };
    let Some(other) = engine.planned().add_lasting(key, lasting, begun) else { return };
    let server = &own.server;
    let detail = format!(
        "{} holds {server} until it is destroyed, and {} of this configuration needs {}{}. Apply would wait for it until its time \
         limit ends. For work under the maintenance, set maintenance_id to its id. For one maintenance after the other, use \
         wait_for = \"Completed\", or apply them separately.",
        shown(&own),
        shown(&other),
        if other.server == *server { "the same server" } else { other.server.as_str() },
        same_machine(&own, &other, key),
    );
    bad(diags, AttributePath::new("server"), &format!("{server} is needed twice in this configuration"), detail);
}

/// Notes a request without `maintenance_id`, and reports the maintenance that refuses it.
pub(in crate::provider) fn turn(
    diags: &mut Diagnostics,
    engine: &Engine,
    key: Option<&LockKey>,
    id: Option<&MaintenanceId>,
    server: &str,
) {
    let Some(key) = key else { return };
    let own = PlannedName { id: id.cloned(), server: server.to_owned() };
    let found = engine.planned().add_turn(key, own.clone());
    engine.planned().end_turn(key, &own);
    let Some(holder) = found else { return };
    let detail = format!(
        "{} of this configuration holds {} until it is destroyed{}. Until then, apply refuses requests without \
         maintenance_id. Set maintenance_id to that metal_server_maintenance's id.",
        shown(&holder),
        holder.server,
        same_machine(&own, &holder, key),
    );
    bad(diags, AttributePath::new("maintenance_id"), &format!("{server} is held in this configuration"), detail);
}

fn shown(name: &PlannedName) -> String {
    name.id.as_ref().map_or_else(|| format!("A request for {}", name.server), ToString::to_string)
}

fn same_machine(own: &PlannedName, other: &PlannedName, key: &LockKey) -> String {
    if own.server == other.server {
        return String::new();
    }
    format!(" ({} and {} are one machine, lock key {key})", own.server, other.server)
}
