//! Plan texts about in-place changes and renames.

use std::time::Duration;

use tf_provider::{AttributePath, Diagnostics};

use crate::{
    engine::Engine,
    maintenance::{
        forecast::SeenServer,
        ids::Uid,
        spec::{Spec, WaitFor},
    },
    plugin::diagnostic,
};

use crate::provider::{
    maintenance::model::MaintenanceModel,
    shared::effect,
    shared::ended::is_over,
    shared::prospect::Prospect,
    shared::review::{SWITCHED, server},
    shared::starts,
    shared::values::{bad, given},
};

/// Summary of a warning: a maintenance on the same server gets another name.
const RENAMED: &str = "A renamed maintenance follows its predecessor";
/// Summary of a warning: apply does not wait for the server.
const NOT_WAITED_FOR: &str = "Dependents can run before the server is locked";

/// Reviews an in-place change of the record `uid`: missing capabilities and, with `effect`, the
/// consequences for the server.
pub(in crate::provider) async fn changed(
    diags: &mut Diagnostics,
    engine: &Engine,
    spec: &Spec,
    boot_at: Option<&AttributePath>,
    effect: Option<&str>,
    uid: Option<&Uid>,
    patience: Duration,
) {
    let Some(seen) = Box::pin(server(diags, engine, spec, boot_at, true)).await else { return };
    let Some(effect) = effect else { return };
    if let Some((summary, start)) = starts::armed(spec, seen.view.as_ref()) {
        diags.add_warning(diagnostic(summary, start, AttributePath::root()));
    }
    let power = seen.view.as_ref().map(|view| view.power);
    let shown = power.map_or("unknown".to_owned(), |power| power.to_string());
    let mut lines = vec![format!("{}.", effect::on(spec, effect, power)), format!("Now: {shown}.")];
    let seen = SeenServer { machine: seen.view, media: None, capabilities: seen.capabilities };
    let prospect = match uid {
        Some(uid) => Box::pin(of_record(engine, spec, uid, seen, patience)).await,
        None => None,
    };
    lines.extend(prospect.iter().flat_map(Prospect::consent_lines));
    if let Some(uid) = uid {
        lines.extend(Box::pin(engine.drain_outlook_of_change(spec, uid)).await);
    }
    diags.add_warning(diagnostic(SWITCHED, lines.join("\n"), AttributePath::root()));
    let Some(prospect) = prospect else { return };
    if let Some(late) = &prospect.too_late {
        let at = AttributePath::new("timeouts").attribute("update");
        bad(diags, at, &format!("{} cannot be changed in time", spec.server), late.clone());
    }
    for (summary, detail) in prospect.obstacles() {
        diags.add_warning(diagnostic(summary, detail, AttributePath::root()));
    }
}

/// Looks up an in-place change; `None`: the store did not answer.
async fn of_record(engine: &Engine, spec: &Spec, uid: &Uid, seen: SeenServer, patience: Duration) -> Option<Prospect> {
    let held = engine.held(uid).await.ok().flatten().filter(|held| held.active)?;
    let view = engine.planned_view(&held.record.lock_key).await.ok()?;
    view.lock.get(uid)?;
    let spec = Spec { parent: held.record.spec.parent.clone(), ..spec.clone() };
    Some(Prospect::of_change(engine, &spec, uid, &view, seen, patience))
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

/// Warns that apply can end before the server is held.
pub(in crate::provider) fn not_waited_for(diags: &mut Diagnostics, model: &MaintenanceModel) {
    if model.wait_for() != WaitFor::Enqueued {
        return;
    }
    diags.add_warning(diagnostic(
        NOT_WAITED_FOR,
        format!(
            "{}: with wait_for = \"Enqueued\" apply returns with a queue position. Dependents of this resource then \
             run although the server is not locked, unless a postcondition stops them: lifecycle {{ postcondition {{ \
             condition = self.state == \"InMaintenance\" }} }}.",
            given(&model.server).unwrap_or("The server")
        ),
        AttributePath::new("wait_for"),
    ));
}
