//! What a plan tells its reviewer: only reads, and works with the store, the BMC or both down.

use std::time::Duration;

use tf_provider::{AttributePath, Diagnostics};

use crate::{
    engine::Engine,
    maintenance::{
        approval::{Scope, Standing},
        ids::{MaintenanceId, Uid},
        machine::MachineView,
        operate::Proof,
        prepare::missing_capabilities,
        queue::{self, Ahead},
        spec::{Kind, Policy, Spec},
        window::Start,
    },
    plugin::diagnostic,
    store::LockView,
};

use super::{
    diagnostics::{of_engine, of_machine},
    values::{bad, shown_duration},
};

/// Reviews a hold that is about to be asked for.
///
/// `patience` is how long create waits; `None` when it only takes a place in the queue.
pub(super) async fn maintenance(
    diags: &mut Diagnostics,
    engine: &Engine,
    spec: &Spec,
    id: Option<&MaintenanceId>,
    patience: Option<Duration>,
) {
    let boot_at = AttributePath::new("boot_configuration");
    let Some(now) = server(diags, engine, spec, Some(&boot_at)).await else { return };
    effects(diags, engine, spec, now, id, patience).await;
}

/// Reviews a boot configuration that is about to be made.
pub(super) async fn boot_configuration(diags: &mut Diagnostics, engine: &Engine, spec: &Spec) {
    let Some(now) = server(diags, engine, spec, None).await else { return };
    effects(diags, engine, spec, now, None, None).await;
}

/// Reviews an operation that is about to be made, in its own turn or under the hold that is named.
pub(super) async fn operation(
    diags: &mut Diagnostics,
    engine: &Engine,
    spec: &Spec,
    id: Option<&MaintenanceId>,
    patience: Duration,
    hold: Option<&str>,
) {
    let Some(now) = server(diags, engine, spec, None).await else { return };
    let wants_boot = spec.operation.as_ref().is_some_and(|operation| operation.proof == Proof::Boot);
    if wants_boot && now.as_ref().is_some_and(|now| now.boot_progress.is_none()) {
        bad(
            diags,
            AttributePath::new("proof"),
            &format!("{} cannot do what is asked", spec.server),
            "The BMC shows no boot progress. Say proof = \"power\".",
        );
        return;
    }
    match hold {
        None => effects(diags, engine, spec, now, id, Some(patience)).await,
        Some(hold) => diags.add_warning(diagnostic(
            "Servers will be switched or booted",
            format!("{} {} It happens under {hold}.", spec.server, spec.effect()),
            AttributePath::root(),
        )),
    }
}

/// The incarnation of the hold that is named, if one is. The error was reported.
pub(super) async fn hold(
    diags: &mut Diagnostics,
    engine: &Engine,
    hold: Option<&MaintenanceId>,
    server: &str,
) -> Result<Option<Uid>, ()> {
    let Some(id) = hold else { return Ok(None) };
    let at = || AttributePath::new("maintenance_id");
    match engine.active(id).await {
        Ok(hold) if hold.spec.kind == Kind::Maintenance => Ok(Some(hold.uid)),
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
    patience: Option<Duration>,
) {
    let mut lines = Vec::new();
    if let Some(warning) = engine.store().reach_warning() {
        diags.add_warning(diagnostic("The lock covers this machine only", warning, AttributePath::root()));
    }
    let power = now.as_ref().map_or("unknown".to_owned(), |now| now.power.to_string());
    let will = spec.effect();
    if !will.is_empty() {
        lines.push(format!("{} {will}", spec.server));
    }
    lines.push(format!("Now: {power}."));
    match view(engine, spec).await {
        None => lines.push("Queue: not known, the coordination store or the BMC did not answer.".to_owned()),
        Some(view) => {
            lines.extend(owner(engine, spec, id, &view));
            let ahead = ahead(engine, spec, id, &view);
            let names: Vec<String> = ahead.iter().map(ToString::to_string).collect();
            lines.push(match ahead.len() {
                0 => "Queue: free.".to_owned(),
                n => format!("Queue: {n} ahead: {}.", names.join(", ")),
            });
        }
    }
    lines.extend(window(diags, engine, spec, patience));
    let summary =
        if will.is_empty() { "Servers will be taken out of service" } else { "Servers will be switched or booted" };
    diags.add_warning(diagnostic(summary, lines.join("\n"), AttributePath::root()));
}

/// When it may start. A window that opens too late for this apply is an error.
fn window(diags: &mut Diagnostics, engine: &Engine, spec: &Spec, patience: Option<Duration>) -> Option<String> {
    let asked = spec.window.as_ref()?;
    let window = asked.compile().ok()?;
    let now = engine.now();
    let next = match window.may_start(now) {
        Start::Now(opening) => return Some(format!("Window: open until {}.", window.shown(opening.end))),
        Start::At(next) => next,
        Start::Never => return Some("Window: it never opens again.".to_owned()),
    };
    let until = next.start.duration_since(now).unsigned_abs();
    // Seconds help nobody who plans a night.
    let until = shown_duration(Duration::from_secs(until.as_secs().div_ceil(60) * 60));
    let lasts = next.end.duration_since(next.start).unsigned_abs();
    let opens = format!("opens {} (in {until}) for {}", window.shown(next.start), shown_duration(lasts));
    if let Some(patience) = patience
        && next.start.duration_since(now).unsigned_abs() > patience
    {
        bad(
            diags,
            AttributePath::new("timeouts").attribute("create"),
            &format!("{} cannot be taken in time", spec.server),
            format!(
                "Its window {opens}; timeouts.create = {} ends before that. Raise it, apply nearer to the window, or take a \
                 place in the queue with wait_for = \"Enqueued\" and apply again in the window.",
                shown_duration(patience)
            ),
        );
    }
    Some(format!("Window: {opens}."))
}

/// What the store knows of the server.
async fn view(engine: &Engine, spec: &Spec) -> Option<LockView> {
    let key = engine.known_lock_key(&spec.server).await?;
    engine.store().view(&key).await.ok()
}

/// Whether the server's owner is asked, and has answered.
fn owner(engine: &Engine, spec: &Spec, id: Option<&MaintenanceId>, view: &LockView) -> Option<String> {
    let claim = view.lock.ownership.claim.as_ref();
    if spec.policy == Policy::Enforced {
        return claim.map(|claim| format!("Owner: {claim}; is told but not asked (Enforced)."));
    }
    if engine.always_performs() {
        let whom = claim.map_or_else(|| "nobody claimed it".to_owned(), ToString::to_string);
        return Some(format!("Owner: {whom}; is not asked (the provider's always_perform_maintenance)."));
    }
    let Some(claim) = claim else {
        return Some(if spec.require_claim {
            "Owner: nobody has claimed it, and require_claim waits until somebody does and approves.".to_owned()
        } else {
            "Owner: Nobody has claimed it: no approval is needed.".to_owned()
        });
    };
    let digest = engine.as_asked_here(spec).digest();
    let name = id.map_or_else(|| "NAMESPACE/NAME".to_owned(), ToString::to_string);
    let approved = view.lock.ownership.approvals.iter().any(|approval| {
        approval.used_by.is_none()
            && approval.in_time(view.now) == Standing::InForce
            && match &approval.scope {
                Scope::All => true,
                Scope::Maintenance { id: about, digest: bound } => Some(about) == id && *bound == digest,
            }
    });
    let mut line = if approved {
        format!("Owner: {claim} has approved it.")
    } else {
        format!("Owner: {claim}, no approval yet for {name} (digest {digest}).")
    };
    if !approved && let Some(after) = spec.escalate_after {
        line.push_str(&format!(" Without an answer it is taken {} after it was asked for.", shown_duration(after)));
    }
    Some(line)
}

/// Who would be before a new wish for this server.
fn ahead(engine: &Engine, spec: &Spec, id: Option<&MaintenanceId>, view: &LockView) -> Vec<Ahead> {
    let holder = view.lock.holder().into_iter();
    let waiting = queue::waiting(&view.lock, engine.tuning().aging, view.now);
    holder
        .chain(waiting.into_iter().filter(|entry| entry.spec.priority >= spec.priority))
        .filter(|entry| Some(&entry.id) != id)
        .map(|entry| queue::describe(&view.lock, entry, &view.leases, view.now))
        .collect()
}
