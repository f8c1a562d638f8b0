//! What a plan tells its reviewer: only reads, and works with the store, the BMC or both down.

use tf_provider::{AttributePath, Diagnostics};

use crate::{
    engine::Engine,
    maintenance::{
        ids::MaintenanceId,
        machine::{MachineView, PowerTarget},
        prepare::missing_capabilities,
        queue::{self, Ahead},
        spec::{Spec, shown_url},
    },
    plugin::diagnostic,
};

use super::{diagnostics::of_machine, values::bad};

/// Reviews a hold that is about to be asked for.
pub(super) async fn maintenance(diags: &mut Diagnostics, engine: &Engine, spec: &Spec, id: Option<&MaintenanceId>) {
    let boot_at = AttributePath::new("boot_configuration");
    let Some(now) = server(diags, engine, spec, Some(&boot_at)).await else { return };
    effects(diags, engine, spec, now, id).await;
}

/// Reviews a boot configuration that is about to be made.
pub(super) async fn boot_configuration(diags: &mut Diagnostics, engine: &Engine, spec: &Spec) {
    let Some(now) = server(diags, engine, spec, None).await else { return };
    effects(diags, engine, spec, now, None).await;
}

/// Reviews a change of a hold: what it lacks, and what happens to the server.
pub(super) async fn changed_hold(diags: &mut Diagnostics, engine: &Engine, spec: &Spec) {
    let boot_at = AttributePath::new("boot_configuration");
    server(diags, engine, spec, Some(&boot_at)).await;
}

/// Checks that the server exists and can do what is asked. Tells how it is; the inner `None`: it does not answer. The
/// outer one: an error was reported.
async fn server(
    diags: &mut Diagnostics,
    engine: &Engine,
    spec: &Spec,
    boot_at: Option<&AttributePath>,
) -> Option<Option<MachineView>> {
    let machine = match engine.machine(&spec.server) {
        Ok(machine) => machine,
        Err(error) => {
            diags.add_error(super::diagnostics::of_engine(&spec.server, &error));
            return None;
        }
    };
    let capabilities = match machine.capabilities().await {
        Ok(capabilities) => capabilities,
        Err(error) if error.is_transient() => {
            diags.add_warning(diagnostic(
                "BMC did not answer",
                format!("{}: {error}. What the server can do was not checked.", spec.server),
                AttributePath::new("server"),
            ));
            return Some(None);
        }
        Err(error) => {
            diags.add_error(of_machine(&spec.server, &error));
            return None;
        }
    };
    let errors = diags.errors.len();
    for (name, problem) in missing_capabilities(spec, &capabilities) {
        let path = match (name, boot_at) {
            ("server_power", _) | (_, None) => AttributePath::new(if name == "boot" { "method" } else { name }),
            ("boot", Some(at)) => at.clone(),
            (name, Some(at)) => at.clone().attribute(name),
        };
        bad(diags, path, &format!("{} cannot do what is asked", spec.server), problem);
    }
    (diags.errors.len() == errors).then_some(())?;
    Some(machine.observe().await.ok())
}

async fn effects(
    diags: &mut Diagnostics,
    engine: &Engine,
    spec: &Spec,
    now: Option<MachineView>,
    id: Option<&MaintenanceId>,
) {
    let mut lines = Vec::new();
    if let Some(warning) = engine.store().reach_warning() {
        diags.add_warning(diagnostic("The lock covers this machine only", warning, AttributePath::root()));
    }
    let power = now.as_ref().map_or("unknown".to_owned(), |now| now.power.to_string());
    let will = will_happen(spec);
    if !will.is_empty() {
        lines.push(format!("{} {will}", spec.server));
    }
    lines.push(format!("Now: {power}."));
    match ahead(engine, spec, id).await {
        None => lines.push("Queue: not known, the coordination store or the BMC did not answer.".to_owned()),
        Some(ahead) if ahead.is_empty() => lines.push("Queue: free.".to_owned()),
        Some(ahead) => {
            let names: Vec<String> = ahead.iter().map(ToString::to_string).collect();
            lines.push(format!("Queue: {} ahead: {}.", ahead.len(), names.join(", ")));
        }
    }
    let summary =
        if will.is_empty() { "Servers will be taken out of service" } else { "Servers will be switched or booted" };
    diags.add_warning(diagnostic(summary, lines.join("\n"), AttributePath::root()));
}

/// What a wish does to a running server, in words.
pub(super) fn will_happen(spec: &Spec) -> String {
    let boots = spec.boot.as_ref().map(|boot| {
        let image = boot.image.as_deref().map(|image| format!(" from {}", shown_url(image))).unwrap_or_default();
        format!("{}{image}", boot.method.name())
    });
    match (boots, spec.server_power) {
        (Some(boots), Some(PowerTarget::On)) => format!("is switched off and boots by {boots}."),
        (Some(boots), Some(PowerTarget::Off)) => format!("is switched off; its next start is by {boots}."),
        (Some(boots), None) => format!("keeps its power; its next start is by {boots}."),
        (None, Some(power)) => format!("is switched {}.", power.to_string().to_lowercase()),
        (None, None) => String::new(),
    }
}

/// Who would be before a new wish for this server.
async fn ahead(engine: &Engine, spec: &Spec, id: Option<&MaintenanceId>) -> Option<Vec<Ahead>> {
    let key = engine.known_lock_key(&spec.server).await?;
    let view = engine.store().view(&key).await.ok()?;
    let holder = view.lock.holder().into_iter();
    let waiting = queue::waiting(&view.lock, engine.tuning().aging, view.now);
    let before: Vec<Ahead> = holder
        .chain(waiting.into_iter().filter(|entry| entry.spec.priority >= spec.priority))
        .filter(|entry| Some(&entry.id) != id)
        .map(|entry| queue::describe(&view.lock, entry, &view.leases, view.now))
        .collect();
    Some(before)
}
