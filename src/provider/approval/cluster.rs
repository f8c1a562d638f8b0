//! `metal_maintenance_approval` where claims are a cluster's: the owner's key on the ServerClaim, or on its Node.

use tf_provider::{AttributePath, Diagnostics, value::Value};
use uuid::Uuid;

use crate::{
    backend::{ApprovalMark, BackendError, ExternalClaimView, ExternalOwnership},
    engine::{ApprovalWish, Engine, EngineError},
    maintenance::{approval::Asked, lock::Refusal},
    plugin::diagnostic,
};

use crate::provider::{
    approval::model::ApprovalModel,
    approval::resource::shown,
    shared::diagnostics::of_engine,
    shared::private::Owned,
    shared::values::{bad, given},
};

/// What one yes on a claim means there.
const COUNTS: &str = "One approval on a ServerClaim counts for everything that is asked of its server until the last of it has \
                      ended, also for what is asked later.";

/// What this kind of approval does not know.
fn check(diags: &mut Diagnostics, model: &ApprovalModel) {
    for (name, value) in [("digest", &model.digest), ("not_before", &model.not_before), ("expires", &model.expires)] {
        if given(value).is_some() {
            let detail = format!("metal-operator knows only whether there is an approval. {COUNTS}");
            bad(diags, AttributePath::new(name), "Not with metal_operator", detail);
        }
    }
}

/// Tells the reviewer what would be allowed. Only reads.
pub(in crate::provider) async fn review(
    diags: &mut Diagnostics,
    engine: &Engine,
    there: &dyn ExternalOwnership,
    model: &ApprovalModel,
    wish: &ApprovalWish,
) {
    check(diags, model);
    let Some(server) = given(&model.server) else { return };
    let found = async {
        let claim = engine.claim_on(there, server).await?;
        let key = engine.known_lock_key(server).await;
        let asked = engine.asked_there(there, server, key.as_ref(), claim.approved).await?;
        Ok((claim, asked))
    };
    let (claim, asked) = match found.await {
        Ok(found) => found,
        // The claim may be made by this very apply.
        Err(EngineError::Refused(Refusal::NotClaimed)) => {
            diags.add_warning(diagnostic(
                "An approval for an unclaimed server",
                format!("{server} has to be bound to a ServerClaim before this can be applied."),
                AttributePath::new("server"),
            ));
            return;
        }
        Err(error) if can_wait(&error) => {
            diags.add_warning(diagnostic(
                "The cluster did not answer",
                format!("{server}: {}. What would be approved was not looked at.", of_engine(server, &error).detail),
                AttributePath::root(),
            ));
            return;
        }
        Err(error) => {
            diags.add_error(of_engine(server, &error));
            return;
        }
    };
    if let Some(problem) = not_asked(wish, &asked, server) {
        bad(diags, AttributePath::new("maintenance"), "Maintenance is not pending", problem);
        return;
    }
    let names: Vec<String> = asked.iter().map(shown).collect();
    let now = if names.is_empty() { "Nothing is asked at the moment.".to_owned() } else { names.join("; ") };
    let place = match given(&model.node) {
        Some(node) => {
            format!("Node {node} is labelled, for a controller that copies the label to ServerClaim {}", claim.id)
        }
        None => format!("ServerClaim {}", claim.id),
    };
    let (summary, at) = if wish.maintenance.is_none() {
        ("Everything that is asked of a server will be approved", AttributePath::new("all"))
    } else {
        ("Maintenance will be approved", AttributePath::root())
    };
    diags.add_warning(diagnostic(summary, format!("{server} ({place}). {COUNTS} Asked now: {now}"), at));
}

/// Whether a plan can go on without what was not told.
fn can_wait(error: &EngineError) -> bool {
    match error {
        EngineError::Machine(error) => error.is_transient() || matches!(error, BackendError::Denied { .. }),
        EngineError::Store(_) => true,
        _ => false,
    }
}

/// Why the one maintenance that is named is not there to be approved.
fn not_asked(wish: &ApprovalWish, asked: &[Asked], server: &str) -> Option<String> {
    let id = wish.maintenance.as_ref()?;
    if asked.iter().any(|asked| asked.id == *id) {
        return None;
    }
    Some(format!("{id} is not asked for {server}, or has started already. Nothing was approved."))
}

/// Gives the approval.
pub(in crate::provider) async fn create(
    diags: &mut Diagnostics,
    engine: &Engine,
    there: &dyn ExternalOwnership,
    mut model: ApprovalModel,
    wish: &ApprovalWish,
) -> Option<(Value<ApprovalModel>, Value<Owned>)> {
    check(diags, &model);
    if !diags.errors.is_empty() {
        return None;
    }
    let server = given(&model.server)?.to_owned();
    let given_now = async {
        let key = engine.lock_key(&server).await?;
        let claim = engine.claim_on(there, &server).await?;
        let asked = engine.asked_there(there, &server, Some(&key), claim.approved).await?;
        if let Some(problem) = not_asked(wish, &asked, &server) {
            return Ok(Err(problem));
        }
        let word = word(Uuid::now_v7().to_string(), &model, &claim);
        engine.give_word(there, &word).await?;
        let seen = there.word(&word).await?;
        Ok(Ok((key, word, seen)))
    };
    let (key, word, seen) = match given_now.await {
        Ok(Ok(given)) => given,
        Ok(Err(problem)) => {
            bad(diags, AttributePath::new("maintenance"), "Maintenance is not pending", problem);
            return None;
        }
        Err(error) => {
            diags.add_error(of_engine(&server, &error));
            return None;
        }
    };
    if seen.present && !seen.ours {
        diags.add_warning(diagnostic(
            "An approval was there already",
            format!("{server}: another author approved ({}). It stays when this resource is destroyed.", seen.place),
            AttributePath::root(),
        ));
    }
    model.id = Value::Value(word.uid.clone());
    model.digest = Value::Null;
    model.approved_by = Value::Value(format!("{} ({})", engine.owner(), engine.runner()));
    model.approved_at = Value::Value(engine.now().to_string());
    model.lock_key = Value::Value(key.0.clone());
    model.claim = Value::Value(word.claim.clone());
    model.state = Value::Value("InForce".to_owned());
    let owned = Owned::in_cluster(there, &key, &word.uid, &word.claim_uid.clone().unwrap_or_default());
    Some((Value::Value(model), Value::Value(owned)))
}

fn word(uid: String, model: &ApprovalModel, claim: &ExternalClaimView) -> ApprovalMark {
    let node = given(&model.node).map(str::to_owned);
    ApprovalMark { uid, claim: claim.id.clone(), claim_uid: Some(claim.uid.clone()), node }
}

/// The word of a state.
fn remembered(model: &ApprovalModel, private: &Value<Owned>) -> Option<ApprovalMark> {
    let claim_uid = match private {
        Value::Value(owned) => Some(owned.claim.clone()).filter(|uid| !uid.is_empty()),
        _ => None,
    };
    let own = |text: &crate::provider::shared::values::Text| given(text).map(str::to_owned);
    Some(ApprovalMark { uid: own(&model.id)?, claim: own(&model.claim)?, claim_uid, node: own(&model.node) })
}

/// Looks whether the key is still there. One that was used or taken away is no drift: giving it again is a decision.
pub(in crate::provider) async fn read(
    diags: &mut Diagnostics,
    engine: &Engine,
    there: &dyn ExternalOwnership,
    model: &mut ApprovalModel,
    private: &Value<Owned>,
) {
    let server = given(&model.server).unwrap_or_default().to_owned();
    let Some(word) = remembered(model, private) else { return };
    let seen = match there.word(&word).await {
        Ok(seen) => seen,
        Err(error) => {
            diags.add_warning(diagnostic(
                "The cluster did not answer",
                format!("{server}: {error}. The last known values of its approval are kept."),
                AttributePath::root(),
            ));
            return;
        }
    };
    model.state = Value::Value(if seen.present { "InForce" } else { "Used" }.to_owned());
    if seen.present {
        return;
    }
    let key = engine.known_lock_key(&server).await;
    let Ok(asked) = engine.asked_there(there, &server, key.as_ref(), false).await else { return };
    let waiting: Vec<String> = asked.iter().filter(|asked| !asked.allowed).map(shown).collect();
    if !waiting.is_empty() {
        diags.add_warning(diagnostic(
            "An approval is not in force any more",
            format!(
                "{server}: {} is gone. It was used, and taken away when the last request had ended, or somebody took it away. \
                 Not approved now: {}. Approve again by replacing this resource (-replace).",
                seen.place,
                waiting.join("; ")
            ),
            AttributePath::root(),
        ));
    }
}

/// Takes the approval back. `None`: it could not be.
pub(in crate::provider) async fn destroy(
    diags: &mut Diagnostics,
    engine: &Engine,
    there: &dyn ExternalOwnership,
    model: &ApprovalModel,
    private: &Value<Owned>,
) -> Option<()> {
    let Some(word) = remembered(model, private) else { return Some(()) };
    match engine.take_word(there, &word).await {
        Ok(()) => Some(()),
        Err(error) => {
            diags.add_error(of_engine(given(&model.server).unwrap_or_default(), &error));
            None
        }
    }
}
