//! Plan warnings about releasing a held server.
//!
//! A destroy cannot show an `effect`, because it lacks a planned state.

use tf_provider::{AttributePath, Diagnostic, Diagnostics};

use crate::{
    engine::{Engine, EngineError, GatesSeen},
    maintenance::{gate, ids::Uid, prepare::Facts, restore, state::Maintenance},
    plugin::diagnostic,
};

use crate::provider::shared::diagnostics::of_engine;

/// Summary of a warning: destroy changes power or boot.
const RELEASED: &str = "Servers will be switched or booted to restore them";
/// Summary of a warning: the power after a destroy is not the power from before the maintenance.
const NOT_PAUSED: &str = "Servers that were Paused end On";
/// Summary of a warning: an external system ended the maintenance.
pub(in crate::provider) const REVOKED: &str = "External maintenance system revoked the server";
/// Summary of a warning: the external system ends the server's use.
pub(in crate::provider) const DELETED: &str = "A held server is being deleted";

/// Warns if releasing a server changes power or boot, cannot restore its state, or ends its use in
/// its external system.
pub(in crate::provider) async fn release(
    diags: &mut Diagnostics,
    engine: Option<&Engine>,
    server: &str,
    uid: Option<&Uid>,
) {
    let mut warn = |summary: &'static str, detail: String| {
        diags.add_warning(diagnostic(summary, detail, AttributePath::root()));
    };
    let (Some(engine), Some(uid)) = (engine, uid) else {
        let effect = "is restored to its prior state (not checked: the provider is not configured).";
        return warn(RELEASED, format!("{server} {effect}"));
    };
    let held = match engine.held(uid).await {
        Ok(Some(held)) if held.active => held,
        Ok(_) => return,
        Err(error) => {
            return warn(RELEASED, format!("{server} is restored to its prior state (not checked: {error})."));
        }
    };
    let mut seen = None;
    let effect = if let Some(next) = engine.successor(&held.record).await {
        Some(format!("is handed over to {next} unchanged (hand_over = \"direct\")."))
    } else {
        // Another cluster does not have the request and would report it as deleted.
        let now = match engine.reaches(&held.record).await {
            Ok(()) => engine.gates_seen(&held.record).await,
            Err(_) => GatesSeen { record: held.record.clone(), revoked: None, deletion: None },
        };
        let seen = seen.insert(now);
        effect(engine, &seen.record).await
    };
    if let Some(why) = seen.as_ref().and_then(|seen| gate::lost(&seen.record)) {
        warn(
            REVOKED,
            format!(
                "{server}: {why}. Destroy deletes the external request and changes neither power nor boot, because an external \
                 system has the server now."
            ),
        );
    }
    if let Some(effect) = effect {
        warn(RELEASED, format!("{server} {effect}"));
    }
    if let Some(note) = seen.as_ref().and_then(|seen| restore::ends_on(&seen.record)) {
        warn(NOT_PAUSED, format!("{server} {note}"));
    }
    if let Some(refusal) = held.record.refuses_owner(engine.owner()) {
        diags.add_error(of_engine(server, &EngineError::Refused(refusal)));
    }
    if let Some(deletion) = seen.and_then(|seen| deletion(server, &seen)) {
        diags.add_warning(deletion);
    }
}

/// Describes the calls that the release steps would send to the server now.
async fn effect(engine: &Engine, record: &Maintenance) -> Option<String> {
    if !restore::verifies(record) {
        return restore::effect(record, &Facts::default(), &engine.tuning().limits, engine.now());
    }
    let (facts, unread) = engine.release_facts(record).await;
    let effect = restore::effect(record, &facts, &engine.tuning().limits, engine.now())?;
    Some(match unread {
        Some(error) => format!("{effect} The server was not read ({error}): this follows from its record."),
        None => effect,
    })
}

/// Warns if the server's external system ends its use after the release.
pub(in crate::provider) fn deletion(server: &str, seen: &GatesSeen) -> Option<Diagnostic> {
    seen.deletion.as_ref().map(|why| diagnostic(DELETED, deleted(server, why), AttributePath::root()))
}

/// Returns the warning's detail.
pub(in crate::provider) fn deleted(server: &str, why: &str) -> String {
    format!(
        "{server}: {why}. It stays locked until then. Destroy restores its boot configuration and media, and does \
         not switch it on."
    )
}
