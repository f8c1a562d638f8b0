//! What a plan tells its reviewer: only reads, and works with the store, the BMC or both down.

use tf_provider::{AttributePath, Diagnostics};

use crate::{
    backend::{BackendError, BmcInspection},
    engine::{Engine, EngineError},
    maintenance::{
        identity::IdentityError,
        ids::{LockKey, MaintenanceId, Uid},
        lock::Refusal,
        machine::MachineView,
        media::missing_drive,
        operate::CompletionProof,
        power,
        prepare::missing_capabilities,
        prior,
        spec::{BootMethod, MaintenanceKind, Spec, WaitFor},
    },
    plugin::diagnostic,
};

use crate::provider::{
    maintenance::model::MaintenanceModel,
    shared::diagnostics::{of_engine, of_machine, silent, value_or_error},
    shared::effect,
    shared::ended::is_over,
    shared::outlook,
    shared::prospect::{PlannedRequest, Prospect},
    shared::standing::becomes_of,
    shared::starts,
    shared::values::{Text, bad, given},
};

/// Summary of a warning: apply changes power or boot.
const SWITCHED: &str = "Servers will be switched or booted";
/// Summary of a warning: create will refuse the name.
const NAME_IN_USE: &str = "A name is in use";
/// Summary of a warning: a maintenance on the same server gets another name.
const RENAMED: &str = "A renamed maintenance follows its predecessor";
/// Summary of a warning: apply does not wait for the server.
const NOT_WAITED_FOR: &str = "Dependents may run before a server is held";
/// Summary of a warning: an answer of a BMC was repaired.
const INVALID_JSON: &str = "A BMC sends invalid JSON";
/// Summary of a warning: what a server is and can do was not read.
const NOT_CHECKED: &str = "A BMC was not checked";

/// Reviews a hold that is about to be asked for.
pub(in crate::provider) async fn maintenance(diags: &mut Diagnostics, engine: &Engine, asked: &PlannedRequest<'_>) {
    let boot_at = AttributePath::new("boot_configuration");
    let Some(seen) = server(diags, engine, asked.spec, Some(&boot_at)).await else { return };
    effects(diags, engine, asked, seen).await;
}

/// Reviews a boot configuration that is about to be made.
pub(in crate::provider) async fn boot_configuration(
    diags: &mut Diagnostics,
    engine: &Engine,
    asked: &PlannedRequest<'_>,
    hold: Option<&str>,
) {
    let Some(seen) = server(diags, engine, asked.spec, None).await else { return };
    match hold {
        None => effects(diags, engine, asked, seen).await,
        Some(hold) => under(diags, engine, asked, hold, seen.view.as_ref()).await,
    }
}

/// Tells what is done under a maintenance, which has the server.
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

/// Reviews an operation that is about to be made, in its own turn or under the hold that is named.
pub(in crate::provider) async fn operation(
    diags: &mut Diagnostics,
    engine: &Engine,
    asked: &PlannedRequest<'_>,
    hold: Option<&str>,
) {
    let spec = asked.spec;
    let Some(seen) = server(diags, engine, spec, None).await else { return };
    let wants_boot = spec.operation.as_ref().is_some_and(|operation| operation.proof == CompletionProof::Boot);
    if wants_boot && seen.view.as_ref().is_some_and(|view| view.boot_progress.is_none()) {
        bad(
            diags,
            AttributePath::new("proof"),
            &format!("{} does not support this request", spec.server),
            "The BMC shows no boot progress. Say proof = \"power\".",
        );
        return;
    }
    match hold {
        None => effects(diags, engine, asked, seen).await,
        Some(hold) => under(diags, engine, asked, hold, seen.view.as_ref()).await,
    }
}

/// Whether an operation in its own turn lasts: an error where the server's own system would undo it
/// at once.
pub(in crate::provider) async fn lasts(diags: &mut Diagnostics, engine: &Engine, spec: &Spec) -> bool {
    let Some(operation) = &spec.operation else { return true };
    let Ok(machine) = engine.machine(&spec.server) else { return true };
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

/// The incarnation of the hold that is named, if one is. The error was reported.
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
                format!("{id} holds nothing; use the id of a metal_server_maintenance."),
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

/// Whether this owner may act under the maintenance that is named, as far as that is known: a plan
/// may come before it.
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

/// Reviews a change of something that has the server, as the record `uid`: what it lacks and, with
/// `effect`, what happens to the server.
pub(in crate::provider) async fn changed(
    diags: &mut Diagnostics,
    engine: &Engine,
    spec: &Spec,
    boot_at: Option<&AttributePath>,
    effect: Option<&str>,
    uid: Option<&Uid>,
) {
    let Some(seen) = server(diags, engine, spec, boot_at).await else { return };
    let Some(effect) = effect else { return };
    if let Some((summary, start)) = starts::armed(spec, seen.view.as_ref()) {
        diags.add_warning(diagnostic(summary, start, AttributePath::root()));
    }
    let power = seen.view.map(|view| view.power);
    let shown = power.map_or("unknown".to_owned(), |power| power.to_string());
    let mut lines = vec![format!("{}.", effect::on(spec, effect, power)), format!("Now: {shown}.")];
    if let Some(uid) = uid {
        lines.extend(Box::pin(engine.drain_outlook_of_change(spec, uid)).await);
    }
    diags.add_warning(diagnostic(SWITCHED, lines.join("\n"), AttributePath::root()));
}

/// Warns that a successor on the same server can only follow its predecessor.
pub(in crate::provider) fn renamed(diags: &mut Diagnostics, prior: &MaintenanceModel, model: &MaintenanceModel) {
    let (Some(before), Some(after)) = (prior.name_id(), model.name_id()) else { return };
    if before == after || prior.server != model.server || is_over(&prior.state) {
        return;
    }
    diags.add_warning(diagnostic(
        RENAMED,
        format!(
            "{}: {before} is released, then {after} is requested. With create_before_destroy apply is refused, because {before} is \
             only released afterwards: remove create_before_destroy from the resource and from what depends on it.",
            given(&model.server).unwrap_or_default()
        ),
        AttributePath::new("name"),
    ));
}

/// Warns that apply may end before the server is held.
pub(in crate::provider) fn not_waited_for(diags: &mut Diagnostics, model: &MaintenanceModel) {
    if model.wait_for() != WaitFor::Enqueued {
        return;
    }
    diags.add_warning(diagnostic(
        NOT_WAITED_FOR,
        format!(
            "{}: with wait_for = \"Enqueued\" apply returns with a queue position. What depends on this resource runs although \
             the server is not held, unless a postcondition stops it: lifecycle {{ postcondition {{ condition = self.state == \
             \"InMaintenance\" }} }}.",
            given(&model.server).unwrap_or("The server")
        ),
        AttributePath::new("wait_for"),
    ));
}

/// Warns that nothing was checked, because the provider's configuration is not known before apply.
pub(in crate::provider) fn not_checked(diags: &mut Diagnostics, effect: &Text) {
    let effect = given(effect).unwrap_or("what happens to the server is not known yet");
    diags.add_warning(diagnostic(
        NOT_CHECKED,
        format!(
            "{effect} (not checked): the provider's configuration is only known during apply, so that neither BMC nor queue, \
             approval and window were read."
        ),
        AttributePath::root(),
    ));
}

/// A server as it answered; each is `None` where it did not.
struct PlanCheck {
    view: Option<MachineView>,
    key: Option<LockKey>,
}

/// Checks that the server exists and can do what is asked. Tells what it answered. `None`: an error
/// was reported.
async fn server(
    diags: &mut Diagnostics,
    engine: &Engine,
    spec: &Spec,
    boot_at: Option<&AttributePath>,
) -> Option<PlanCheck> {
    let machine = value_or_error(diags, &spec.server, engine.machine(&spec.server))?;
    let capabilities = match machine.capabilities().await {
        Ok(capabilities) => capabilities,
        Err(error) if error.is_transient() || unchecked(&error) => {
            diags.add_warning(diagnostic(
                match &error {
                    _ if unchecked(&error) => "A server could not be looked at",
                    BackendError::ClusterAway { .. } => silent(&error),
                    _ => NOT_CHECKED,
                },
                format!("{}: {error}. What the server can do was not checked.", spec.server),
                AttributePath::new("server"),
            ));
            return Some(PlanCheck { view: None, key: None });
        }
        Err(error) => {
            diags.add_error(of_machine(&spec.server, &error));
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
    let key = match engine.lock_key_now(&spec.server).await {
        Ok(key) => key,
        // The UUID may be hidden for a while only, after a reset of the BMC.
        Err(error @ EngineError::Identity(IdentityError::NoUuid { .. })) => {
            let text = of_engine(&spec.server, &error);
            let at = AttributePath::new("server");
            diags.add_warning(diagnostic("Server reports no system UUID", text.detail, at));
            None
        }
        Err(error @ (EngineError::Identity(_) | EngineError::Machine(BackendError::NoLockKey { .. }))) => {
            diags.add_error(of_engine(&spec.server, &error));
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
                "Its BMC shows {what}, without which the server could not be restored. Plan again once it shows that, or lock the \
                 server as it is, without server_power and boot configuration."
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
    Some(PlanCheck { view, key })
}

/// What keeps a plan from looking, and may be fixed before it is applied.
fn unchecked(error: &BackendError) -> bool {
    matches!(error, BackendError::Missing { .. } | BackendError::Denied { .. })
}

/// Why the name of a request is refused, whatever the queue says.
async fn conflict(engine: &Engine, asked: &PlannedRequest<'_>, key: Option<&LockKey>) -> Option<EngineError> {
    // A boot configuration has no name of its own that could be chosen, and an invocation continues
    // or ends the one that was before it.
    let named = asked.spec.kind != MaintenanceKind::BootConfiguration && asked.earlier.is_none();
    let id = asked.id.filter(|id| named && asked.replaces != Some(*id))?;
    engine.name_conflict(id, asked.spec, key).await
}

async fn effects(diags: &mut Diagnostics, engine: &Engine, asked: &PlannedRequest<'_>, seen: PlanCheck) {
    let PlannedRequest { spec, id, .. } = *asked;
    if let Some(warning) = engine.store().reach_warning() {
        diags.add_warning(diagnostic("The lock covers this machine only", warning, AttributePath::root()));
    }
    if let Some(warning) = engine.store().loss_warning() {
        diags.add_warning(diagnostic("The coordination store may lose changes", warning, AttributePath::root()));
    }
    let key = match seen.key {
        Some(key) => Some(key),
        // It did not answer; perhaps its name is known from before.
        None => engine.known_lock_key(&spec.server).await,
    };
    match conflict(engine, asked, key.as_ref()).await {
        // Not an error: hosts plan a creation again during apply, where this may be the own
        // predecessor. A plan that fails there leaves a deposed object in the state; a create that
        // fails does not.
        Some(error @ (EngineError::Store(_) | EngineError::Refused(Refusal::OtherSpec { .. }))) => {
            let text = of_engine(&spec.server, &error);
            let detail = format!("{}: {}. {}", spec.server, text.summary, text.detail);
            diags.add_warning(diagnostic(NAME_IN_USE, detail, AttributePath::root()));
        }
        Some(error) => diags.add_error(of_engine(&spec.server, &error)),
        None => {}
    }
    let start = starts::armed(spec, seen.view.as_ref());
    let power = seen.view.map(|view| view.power);
    let prospect = Prospect::look(engine, asked, key.as_ref(), power).await;
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
            let Some(shown) = outlook::sorted(diags, spec, more) else { return };
            lines.extend(shown.lines);
            obstacles.extend(shown.obstacles);
            unasked = shown.unasked;
        }
        Err(error) => lines.push(format!("What the external system would do was not checked: {error}.")),
    }
    if spec.kind == MaintenanceKind::BootConfiguration {
        let own = engine.is_external(&spec.server).then(|| "the external system".to_owned());
        let gates = engine.systems(spec).await.unwrap_or_default();
        let before = gates.iter().filter(|gate| gate.gate.is_some()).map(|gate| gate.shown().to_owned());
        let kept = own.into_iter().chain(before);
        lines.extend(kept.map(|system| {
            format!("The request to {system} stays: the server is held as long as this resource exists.")
        }));
    }
    lines.extend(engine.node_outlook(spec).await);
    lines.push(format!("Store: {}.", engine.store().address()));
    let drain = Box::pin(engine.drain_outlook(spec)).await;
    let drained = drain.is_some();
    lines.extend(drain);
    diags.add_warning(diagnostic(summary, lines.join("\n"), AttributePath::root()));
    if let Some(consumer) = unasked {
        outlook::warn_unasked(diags, &spec.server, consumer, drained);
    }
    for (summary, detail) in obstacles {
        diags.add_warning(diagnostic(summary, detail, AttributePath::root()));
    }
}
