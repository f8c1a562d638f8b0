//! Plan reviews: they only read, and work while the store or the BMC is unreachable.

use tf_provider::{AttributePath, Diagnostics};

use crate::{
    backend::{BackendError, BmcInspection},
    engine::{Engine, EngineError},
    maintenance::{
        forecast::SeenServer,
        identity::IdentityError,
        ids::{LockKey, MaintenanceId, Uid},
        lock::Refusal,
        machine::{Capabilities, MachineView},
        media::missing_drive,
        operate::CompletionProof,
        power,
        prepare::missing_capabilities,
        prior, queue,
        spec::{BootMethod, MaintenanceKind, Spec},
    },
    plugin::diagnostic,
};

use crate::provider::{
    shared::diagnostics::{of_engine, of_machine, silent, value_or_error},
    shared::others,
    shared::outlook,
    shared::prospect::{PlannedRequest, Prospect},
    shared::replaced,
    shared::standing::becomes_of,
    shared::starts,
    shared::together,
    shared::values::{Text, bad, given},
};

/// Summary of a warning: apply changes power or boot.
pub(in crate::provider) const SWITCHED: &str = "Servers will be switched or booted";
/// Summary of an error, before the server: create refuses the name.
const NAME_IN_USE: &str = "A name is in use";
/// Summary of a warning: an answer of a BMC was repaired.
const INVALID_JSON: &str = "A BMC sends invalid JSON";
/// Summary of a warning: the server's properties and capabilities were not read.
const NOT_CHECKED: &str = "A BMC was not checked";

/// Reviews a planned request for a lock. Returns the server's lock key, if known.
pub(in crate::provider) async fn maintenance(
    diags: &mut Diagnostics,
    engine: &Engine,
    asked: &PlannedRequest<'_>,
) -> Option<LockKey> {
    let boot_at = AttributePath::new("boot_configuration");
    let seen = Box::pin(server(diags, engine, asked.spec, Some(&boot_at), asked.replaces.is_some())).await?;
    Box::pin(effects(diags, engine, asked, seen)).await
}

/// Reviews a boot configuration before its creation.
pub(in crate::provider) async fn boot_configuration(
    diags: &mut Diagnostics,
    engine: &Engine,
    asked: &PlannedRequest<'_>,
    hold: Option<&str>,
) {
    let Some(seen) = Box::pin(server(diags, engine, asked.spec, None, asked.replaces.is_some())).await else { return };
    match hold {
        None => {
            let key = Box::pin(effects(diags, engine, asked, seen)).await;
            together::turn(diags, engine, key.as_ref(), asked.id, asked.spec.server.shown());
        }
        Some(hold) => under(diags, engine, asked, hold, seen.view.as_ref()).await,
    }
}

/// Reviews an action under a held maintenance.
async fn under(
    diags: &mut Diagnostics,
    engine: &Engine,
    asked: &PlannedRequest<'_>,
    hold: &str,
    view: Option<&MachineView>,
) {
    let spec = asked.spec;
    let mut detail =
        format!("{} {} It happens under {hold}.", spec.server, spec.effect_on(view.map(|view| view.power)));
    if let Some((summary, start)) = Box::pin(starts::under(engine, hold, spec, view)).await {
        diags.add_warning(diagnostic(summary, start, AttributePath::root()));
    }
    if let Ok(hold) = hold.parse()
        && let Some(node) = Box::pin(engine.drain_outlook_under(&hold)).await
    {
        detail = format!("{detail}\n{node}");
    }
    detail.extend(asked.earlier.map(|earlier| format!("\n{}", becomes_of(earlier))));
    diags.add_warning(diagnostic(SWITCHED, detail, AttributePath::root()));
}

/// Reviews an operation before its creation, queued separately or under a maintenance.
pub(in crate::provider) async fn operation(
    diags: &mut Diagnostics,
    engine: &Engine,
    asked: &PlannedRequest<'_>,
    hold: Option<&str>,
) {
    let spec = asked.spec;
    let Some(seen) = Box::pin(server(diags, engine, spec, None, false)).await else { return };
    let wants_boot = spec.operation.as_ref().is_some_and(|operation| operation.proof == CompletionProof::Boot);
    if wants_boot && seen.view.as_ref().is_some_and(|view| view.boot_progress.is_none()) {
        bad(
            diags,
            AttributePath::new("proof"),
            &format!("{} does not support this request", spec.server),
            "The BMC does not report boot progress. Set proof = \"power\".",
        );
        return;
    }
    match hold {
        None => {
            let key = Box::pin(effects(diags, engine, asked, seen)).await;
            together::turn(diags, engine, key.as_ref(), asked.id, asked.spec.server.shown());
        }
        Some(hold) => under(diags, engine, asked, hold, seen.view.as_ref()).await,
    }
}

/// Checks that a separately queued operation lasts: adds an error if the server's external system
/// would undo it immediately.
pub(in crate::provider) async fn lasts(diags: &mut Diagnostics, engine: &Engine, spec: &Spec) -> bool {
    let Some(operation) = &spec.operation else { return true };
    let Ok(machine) = engine.machine(spec.server.shown()) else { return true };
    let Some(system) = machine.maintenance_system() else { return true };
    match system.would_last(operation.reset).await {
        Err(error @ BackendError::Unsupported { .. }) => {
            let at = AttributePath::new("operation");
            bad(diags, at, &format!("{} does not support this request", spec.server), format!("{error}."));
            false
        }
        Ok(()) | Err(_) => true,
    }
}

/// Returns the named maintenance's uid, if any. `Err`: an error was added.
pub(in crate::provider) async fn hold(
    diags: &mut Diagnostics,
    engine: &Engine,
    hold: Option<&MaintenanceId>,
    server: &str,
) -> Result<Option<Uid>, ()> {
    let Some(id) = hold else { return Ok(None) };
    let at = || AttributePath::new("maintenance_id");
    match engine.active(id).await {
        Ok(hold) if hold.spec.kind == MaintenanceKind::Maintenance => {
            if let Some(refusal) = hold.refuses_under(engine.owner()) {
                diags.add_error(of_engine(server, &EngineError::Refused(refusal)));
                return Err(());
            }
            Ok(Some(hold.uid))
        }
        Ok(_) => {
            bad(
                diags,
                at(),
                "Not a maintenance",
                format!("{id} does not lock a server; use a metal_server_maintenance's id."),
            );
            Err(())
        }
        Err(error) => {
            let mut problem = of_engine(server, &error);
            problem.attribute = at();
            diags.add_error(problem);
            Err(())
        }
    }
}

/// Checks that this owner can act under the named maintenance. A plan can come before that
/// maintenance exists.
pub(in crate::provider) async fn may_act_under(
    diags: &mut Diagnostics,
    engine: &Engine,
    hold: Option<&MaintenanceId>,
    server: &str,
) {
    let Some(id) = hold else { return };
    if let Ok(hold) = engine.active(id).await
        && let Some(refusal) = hold.refuses_under(engine.owner())
    {
        diags.add_error(of_engine(server, &EngineError::Refused(refusal)));
    }
}

/// Warns that nothing was checked, because the provider's configuration is not known before apply.
pub(in crate::provider) fn not_checked(diags: &mut Diagnostics, effect: &Text) {
    let effect = given(effect).unwrap_or("the effect on the server is not known yet");
    diags.add_warning(diagnostic(
        NOT_CHECKED,
        format!(
            "{effect} (not checked): the provider's configuration is only known during apply. The plan did not read \
             the BMC, the queue, approvals or the window."
        ),
        AttributePath::root(),
    ));
}

/// A server as it answered; each is `None` where it did not.
pub(in crate::provider) struct PlanCheck {
    pub(in crate::provider) view: Option<MachineView>,
    pub(in crate::provider) capabilities: Option<Capabilities>,
    key: Option<LockKey>,
}

/// Checks that the server exists and supports the request. Returns its answer, or `None` after
/// reporting an error.
pub(in crate::provider) async fn server(
    diags: &mut Diagnostics,
    engine: &Engine,
    spec: &Spec,
    boot_at: Option<&AttributePath>,
    exists: bool,
) -> Option<PlanCheck> {
    let machine = value_or_error(diags, spec.server.shown(), engine.machine(spec.server.shown()))?;
    let capabilities = match machine.capabilities().await {
        Ok(capabilities) => capabilities,
        Err(error) if error.is_transient() || unchecked(&error) => {
            diags.add_warning(diagnostic(
                match &error {
                    _ if unchecked(&error) => "A server could not be checked",
                    BackendError::ClusterAway { .. } => silent(&error),
                    _ => NOT_CHECKED,
                },
                format!("{}: {error}. The server's capabilities were not checked.", spec.server),
                AttributePath::new("server"),
            ));
            return Some(PlanCheck { view: None, capabilities: None, key: None });
        }
        Err(error) => {
            // OpenTofu plans changes before a destroy, and an error would prevent the destroy.
            let warns = exists && matches!(error, BackendError::NoServer { .. });
            let found = if warns { &mut diags.warnings } else { &mut diags.errors };
            found.push(of_machine(spec.server.shown(), &error));
            return None;
        }
    };
    let errors = diags.errors.len();
    let mut missing = missing_capabilities(spec, &capabilities);
    let by_drive = spec.boot.as_ref().filter(|boot| boot.method == BootMethod::VirtualMedia);
    if let Some(boot) = by_drive.filter(|_| missing.is_empty()) {
        match machine.media(&[]).await {
            Ok(drives) => missing.extend(missing_drive(boot, &capabilities, &drives)),
            Err(error) if error.is_transient() => diags.add_warning(diagnostic(
                NOT_CHECKED,
                format!("{}: {error}. The virtual drives were not checked.", spec.server),
                AttributePath::new("server"),
            )),
            Err(error @ BackendError::Unsupported { .. }) => missing.push(("method", format!("{error}."))),
            Err(error) => missing.push(("method", format!("The virtual drives cannot be read: {error}."))),
        }
    }
    for (name, problem) in missing {
        let path = match (name, boot_at) {
            ("server_power", _) | (_, None) => AttributePath::new(if name == "boot" { "method" } else { name }),
            ("boot", Some(at)) => at.clone(),
            (name, Some(at)) => at.clone().attribute(name),
        };
        bad(diags, path, &format!("{} does not support this request", spec.server), problem);
    }
    (diags.errors.len() == errors).then_some(())?;
    let key = match engine.lock_key_now(spec.server.shown()).await {
        Ok(key) => key,
        // After a BMC reset, the UUID can be missing for a while.
        Err(error @ EngineError::Identity(IdentityError::NoUuid { .. })) => {
            let text = of_engine(spec.server.shown(), &error);
            let at = AttributePath::new("server");
            diags.add_warning(diagnostic("Server reports no system UUID", text.detail, at));
            None
        }
        Err(error @ (EngineError::Identity(_) | EngineError::Machine(BackendError::NoLockKey { .. }))) => {
            diags.add_error(of_engine(spec.server.shown(), &error));
            return None;
        }
        Err(_) => None,
    };
    let view = machine.observe().await.ok();
    let flaws = machine.bmc().map(BmcInspection::flaws).unwrap_or_default();
    if !flaws.is_empty() {
        let detail = format!("{}: {}. The valid part is used.", spec.server, flaws.join("; "));
        diags.add_warning(diagnostic(INVALID_JSON, detail, AttributePath::root()));
    }
    if let Some(view) = &view
        && prior::missing(spec, [], view).is_some()
        && let Ok(systems) = engine.systems(spec).await
        && let Some(what) = prior::missing(spec, &systems, view)
    {
        let at = match boot_at.filter(|_| spec.server_power.is_none()) {
            Some(boot) => boot.clone(),
            None => AttributePath::new(if spec.server_power.is_some() { "server_power" } else { "method" }),
        };
        bad(
            diags,
            at,
            &format!("The state of {} is not known", spec.server),
            format!(
                "Its BMC shows {what}, so the server could not be restored. Plan again when the BMC shows its \
                 complete state, or lock the server without server_power and boot configuration."
            ),
        );
        return None;
    }
    if let Some(view) = &view
        && power::unreachable(spec, [], view.power, &capabilities).is_some()
        && let Ok(systems) = engine.systems(spec).await
        && let Some((name, problem)) = power::unreachable(spec, &systems, view.power, &capabilities)
    {
        let summary = format!("{} does not support this request", spec.server);
        bad(diags, AttributePath::new(name), &summary, format!("{problem} The power state is {}.", view.power));
        return None;
    }
    Some(PlanCheck { view, capabilities: Some(capabilities), key })
}

/// Returns true for errors that prevent a check but can be fixed before apply.
fn unchecked(error: &BackendError) -> bool {
    matches!(error, BackendError::Missing { .. } | BackendError::Denied { .. })
}

/// Returns why a request's name is refused, independent of the queue.
async fn conflict(engine: &Engine, asked: &PlannedRequest<'_>, key: Option<&LockKey>) -> Option<EngineError> {
    // Boot configurations do not have a user-chosen name. An invocation continues or ends the
    // previous one.
    let named = asked.spec.kind != MaintenanceKind::BootConfiguration && asked.earlier.is_none();
    let id = asked.id.filter(|id| named && asked.replaces != Some(*id))?;
    engine.name_conflict(id, asked.spec, key).await
}

/// The server for a forecast, with its drives if apply releases another maintenance.
async fn seen_server(engine: &Engine, spec: &Spec, key: Option<&LockKey>, seen: PlanCheck) -> SeenServer {
    let PlanCheck { view, capabilities, .. } = seen;
    let mut server = SeenServer { machine: view, media: None, capabilities };
    if server.machine.is_none() {
        return server;
    }
    let locked = match key {
        Some(key) => engine.planned_view(key).await.ok(),
        None => None,
    };
    let overdue = locked.as_ref().and_then(|view| queue::reclaimable(&view.lock, &view.leases, view.now));
    if let (Some(prior), Ok(machine)) =
        (overdue.and_then(|overdue| overdue.prior.as_ref()), engine.machine(spec.server.shown()))
    {
        server.media = machine.media(&prior.media).await.ok();
    }
    server
}

async fn effects(
    diags: &mut Diagnostics,
    engine: &Engine,
    asked: &PlannedRequest<'_>,
    seen: PlanCheck,
) -> Option<LockKey> {
    let PlannedRequest { spec, id, .. } = *asked;
    if let Some(warning) = engine.store().reach_warning() {
        diags.add_warning(diagnostic("The lock covers this machine only", warning, AttributePath::root()));
    }
    if let Some(warning) = engine.store().loss_warning() {
        diags.add_warning(diagnostic("The coordination store can lose changes", warning, AttributePath::root()));
    }
    let key = match seen.key.clone() {
        Some(key) => Some(key),
        // The BMC did not answer; the lock key could be stored from an earlier run.
        None => engine.known_lock_key(spec.server.shown()).await,
    };
    match conflict(engine, asked, key.as_ref()).await {
        Some(error @ (EngineError::Store(_) | EngineError::Refused(Refusal::OtherSpec { .. }))) => {
            let text = of_engine(spec.server.shown(), &error);
            let detail = format!("{}: {}. {}", spec.server, text.summary, text.detail);
            let at = AttributePath::new("name");
            // Hosts repeat this plan during apply. Under create_before_destroy the predecessor
            // still has the name then, and a plan error would leave a deposed object in the state.
            if replaced::is_announced(engine, id).await {
                diags.add_warning(diagnostic(NAME_IN_USE, detail, at));
            } else {
                let summary = format!("{NAME_IN_USE} for {}", spec.server);
                bad(diags, at, &summary, detail);
            }
        }
        Some(error) => diags.add_error(of_engine(spec.server.shown(), &error)),
        None => {}
    }
    let start = starts::armed(spec, seen.view.as_ref());
    let seen = seen_server(engine, spec, key.as_ref(), seen).await;
    let prospect = Prospect::look(engine, asked, key.as_ref(), seen).await;
    for (summary, why) in prospect.refusals() {
        bad(diags, AttributePath::new("name"), &summary, why);
    }
    if let Some(why) = &prospect.others {
        diags.add_warning(diagnostic(others::RELEASED, why.clone(), AttributePath::root()));
    }
    if let Some(late) = &prospect.too_late {
        bad(
            diags,
            AttributePath::new("timeouts").attribute("create"),
            &format!("{} cannot be locked in time", spec.server),
            late.clone(),
        );
    }
    let summary = if prospect.effect.is_empty() { "Servers will be taken out of service" } else { SWITCHED };
    let mut lines = prospect.lines();
    let (mut obstacles, mut unasked) = (prospect.obstacles(), None);
    obstacles.extend(start);
    match engine.outlook(spec, id.map(ToString::to_string).as_deref()).await {
        Ok(more) => {
            let Some(shown) = outlook::sorted(diags, spec, more) else { return key };
            lines.extend(shown.lines);
            obstacles.extend(shown.obstacles);
            unasked = shown.unasked;
        }
        Err(error) => lines.push(format!("The external system's actions were not checked: {error}.")),
    }
    if spec.kind == MaintenanceKind::BootConfiguration {
        let own = engine.is_external(spec.server.shown()).then(|| "the external system".to_owned());
        let gates = engine.systems(spec).await.unwrap_or_default();
        let before = gates.iter().filter(|gate| gate.gate.is_some()).map(|gate| gate.shown().to_owned());
        let kept = own.into_iter().chain(before);
        lines.extend(kept.map(|system| {
            format!("The request to {system} stays: the server is locked as long as this resource exists.")
        }));
    }
    lines.extend(engine.node_outlook(spec).await);
    lines.push(format!("Store: {}.", engine.store().address()));
    let drain = Box::pin(engine.drain_outlook(spec)).await;
    let drained = drain.is_some();
    lines.extend(drain);
    diags.add_warning(diagnostic(summary, lines.join("\n"), AttributePath::root()));
    if let Some(consumer) = unasked {
        outlook::warn_unasked(diags, spec.server.shown(), consumer, drained);
    }
    for (summary, detail) in obstacles {
        diags.add_warning(diagnostic(summary, detail, AttributePath::root()));
    }
    key
}
