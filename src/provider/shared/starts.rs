//! Names the system that a planned start boots, if a boot override decides it.

use crate::{
    engine::Engine,
    maintenance::{
        boot,
        ids::MaintenanceId,
        machine::{MachineView, PowerTarget, ResetType},
        operate::{OperationSpec, WhenOff},
        spec::{BootSpec, Spec},
    },
};

/// Summary of a warning: the server does not boot its disk.
const ARMED: &str = "A start uses an armed boot override";
/// Summary of a warning: the server boots its disk during a maintenance that booted another system.
const USED_UP: &str = "A restart boots the server's own disk";

/// Returns the armed boot override that a planned start uses, as summary and detail.
pub(in crate::provider) fn armed(spec: &Spec, view: Option<&MachineView>) -> Option<(&'static str, String)> {
    let view = view.filter(|view| starts(spec, view))?;
    let boot = boot::armed(view)?;
    Some((ARMED, format!("{}: the boot override {boot} is armed, and this start boots it.", spec.server)))
}

/// Warns if a restart under a maintenance boots production, because the first start used the
/// one-time override.
pub(in crate::provider) async fn under(
    engine: &Engine,
    hold: &str,
    spec: &Spec,
    view: Option<&MachineView>,
) -> Option<(&'static str, String)> {
    if view.map_or(spec.operation.is_none(), |view| !starts(spec, view)) {
        return None;
    }
    if let Some(armed) = armed(spec, view) {
        return Some(armed);
    }
    let seen = view.and_then(|view| view.boot.as_ref());
    let text = match hold.parse().ok().map(|id| boots_once(engine, id)) {
        Some(found) => match found.await {
            Some(boots) if boots.is_empty() => None,
            Some(boots) if seen.is_some() => Some(format!(
                "The one-time boot override of {hold} is used up, so this start boots the server's own disk during \
                 the maintenance. Set once = false to boot by {} again.",
                boots[0].method.name()
            )),
            _ => Some(may_be_used(hold)),
        },
        None => Some(may_be_used(hold)),
    };
    text.map(|text| (USED_UP, format!("{}: {text}", spec.server)))
}

fn may_be_used(hold: &str) -> String {
    format!(
        "If {hold} boots the server by a one-time override (once = true, the default), its first start uses the override, and this \
         start boots the server's own disk. Set once = false to boot the same target again."
    )
}

/// Returns one-time boots requested by a maintenance or by boot configurations under it. `None`:
/// the maintenance does not exist yet.
async fn boots_once(engine: &Engine, id: MaintenanceId) -> Option<Vec<BootSpec>> {
    let hold = engine.planned_record(&id).await.ok()??;
    let view = engine.planned_view(&hold.lock_key).await.ok()?;
    let under = view.lock.active.iter().filter(|record| record.spec.parent.as_ref() == Some(&hold.uid));
    let specs = std::iter::once(&hold.spec).chain(under.map(|record| &record.spec));
    Some(specs.filter_map(|spec| spec.boot.clone()).filter(|boot| boot.once).collect())
}

/// Returns true if a request starts or restarts the server without a boot configuration.
fn starts(spec: &Spec, view: &MachineView) -> bool {
    let on = view.power.settled() == Some(PowerTarget::On);
    match &spec.operation {
        _ if spec.boot.is_some() => false,
        None => spec.server_power == Some(PowerTarget::On) && !on,
        Some(OperationSpec { reset: ResetType::On, .. }) => !on,
        Some(OperationSpec { reset: ResetType::Nmi, .. }) => false,
        Some(operation) => operation.target().is_none() && (on || operation.when_off == WhenOff::PowerOn),
    }
}
