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

/// Names the armed boot override that a planned start uses.
pub(in crate::provider) fn armed(spec: &Spec, view: Option<&MachineView>) -> Option<String> {
    let view = view.filter(|view| starts(spec, view))?;
    Some(format!("Boot override: {} is armed, and this start boots it.", boot::armed(view)?))
}

/// Warns if a restart under a maintenance boots production, because the first start used the one-time
/// override.
pub(in crate::provider) async fn under(
    engine: &Engine,
    hold: &str,
    spec: &Spec,
    view: Option<&MachineView>,
) -> Option<String> {
    if view.map_or(spec.operation.is_none(), |view| !starts(spec, view)) {
        return None;
    }
    if let Some(armed) = armed(spec, view) {
        return Some(armed);
    }
    let seen = view.and_then(|view| view.boot.as_ref());
    match hold.parse().ok().map(|id| boots_once(engine, id)) {
        Some(found) => match found.await {
            Some(Some(boot)) if seen.is_some() => Some(format!(
                "The one-time boot override of {hold} is used up, so this start boots the server's own disk in the middle of the \
                 maintenance. Set once = false to boot by {} again.",
                boot.method.name()
            )),
            Some(None) => None,
            _ => Some(may_be_used(hold)),
        },
        None => Some(may_be_used(hold)),
    }
}

fn may_be_used(hold: &str) -> String {
    format!(
        "If {hold} boots the server by a one-time override (once = true, the default), its first start uses the override, and this \
         start boots the server's own disk. Set once = false to boot the same target again."
    )
}

/// Returns the one-time boot that a maintenance, or a boot configuration under it, requested. The
/// outer `None`: the maintenance does not exist yet.
async fn boots_once(engine: &Engine, id: MaintenanceId) -> Option<Option<BootSpec>> {
    let hold = engine.planned_record(&id).await.ok()??;
    let view = engine.planned_view(&hold.lock_key).await.ok()?;
    let under = view.lock.active.iter().filter(|record| record.spec.parent.as_ref() == Some(&hold.uid));
    let boots =
        std::iter::once(&hold.spec).chain(under.map(|record| &record.spec)).filter_map(|spec| spec.boot.clone());
    Some(boots.into_iter().find(|boot| boot.once))
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
