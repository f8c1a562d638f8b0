//! Approvals in the servers' external system: the owner's key on the ServerClaim or on its Node.

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, value::Value};
use uuid::Uuid;

use crate::{
    backend::{ApprovalMarkRef, BackendError, ExternalClaimView, ExternalOwnership, OwnershipTexts},
    engine::{ApprovalWish, Engine, EngineError},
    maintenance::{approval::PendingMaintenance, lock::Refusal},
    plugin::diagnostic,
};

use crate::provider::{
    approval::lifecycle::{ApprovalLifecycle, ListedApproval, shown},
    approval::model::ApprovalModel,
    shared::diagnostics::{of_engine, value_or_error},
    shared::private::Owned,
    shared::values::{bad, given},
};

/// A cluster's approvals.
pub(super) struct ClusterApprovals<'a> {
    pub(super) engine: &'a Engine,
    pub(super) there: &'a dyn ExternalOwnership,
}

/// Explains how one approval on a claim counts.
fn counts(texts: &OwnershipTexts) -> String {
    format!("One approval on a {} {}", texts.claim, texts.counts)
}

/// Rejects attributes that these approvals do not support.
fn check(diags: &mut Diagnostics, model: &ApprovalModel, texts: &OwnershipTexts) {
    for (name, value) in [("digest", &model.digest), ("not_before", &model.not_before), ("expires", &model.expires)] {
        if given(value).is_some() {
            let detail = format!("{}. {}", texts.limits, counts(texts));
            bad(diags, AttributePath::new(name), "Not supported for cluster approvals", detail);
        }
    }
}

/// Returns true if a plan can continue without the missing answer.
fn can_wait(error: &EngineError) -> bool {
    match error {
        EngineError::Machine(error) => error.is_transient() || matches!(error, BackendError::Denied { .. }),
        EngineError::Store(_) => true,
        _ => false,
    }
}

/// Explains why the named maintenance cannot be approved now.
fn not_asked(wish: &ApprovalWish, asked: &[PendingMaintenance], server: &str) -> Option<String> {
    let id = wish.maintenance.as_ref()?;
    if asked.iter().any(|asked| asked.id == *id) {
        return None;
    }
    Some(format!("{id} is not pending on {server}, or has already started. Nothing was approved."))
}

fn word(uid: String, model: &ApprovalModel, claim: &ExternalClaimView) -> ApprovalMarkRef {
    let node = given(&model.node).map(str::to_owned);
    ApprovalMarkRef { uid, claim: claim.id.clone(), claim_uid: Some(claim.uid.clone()), node }
}

/// Returns a state's approval mark.
fn remembered(model: &ApprovalModel, private: &Value<Owned>) -> Option<ApprovalMarkRef> {
    let claim_uid = match private {
        Value::Value(owned) => Some(owned.claim.clone()).filter(|uid| !uid.is_empty()),
        _ => None,
    };
    let own = |text: &crate::provider::shared::values::Text| given(text).map(str::to_owned);
    Some(ApprovalMarkRef { uid: own(&model.id)?, claim: own(&model.claim)?, claim_uid, node: own(&model.node) })
}

#[async_trait]
impl ApprovalLifecycle for ClusterApprovals<'_> {
    async fn review(&self, diags: &mut Diagnostics, model: &ApprovalModel, wish: &ApprovalWish) {
        check(diags, model, &self.there.texts());
        let Some(server) = given(&model.server) else { return };
        let found = async {
            let claim = self.engine.claim_on(self.there, server).await?;
            let key = self.engine.known_lock_key(server).await;
            let asked = self.engine.asked_there(self.there, server, key.as_ref(), claim.approved).await?;
            Ok((claim, asked))
        };
        let (claim, asked) = match found.await {
            Ok(found) => found,
            // The same apply can create the claim.
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
                    format!(
                        "{server}: {}. The plan did not check which maintenance this approves.",
                        of_engine(server, &error).detail
                    ),
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
        let now = if names.is_empty() { "No maintenance is pending.".to_owned() } else { names.join("; ") };
        let place = match given(&model.node) {
            Some(node) => {
                format!("Node {node} is labelled, for a controller that copies the label to ServerClaim {}", claim.id)
            }
            None => format!("ServerClaim {}", claim.id),
        };
        let (summary, at) = if wish.maintenance.is_none() {
            ("All maintenance of a claim will be approved", AttributePath::new("all"))
        } else {
            ("Maintenance will be approved", AttributePath::root())
        };
        let counts = counts(&self.there.texts());
        diags.add_warning(diagnostic(summary, format!("{server} ({place}). {counts} Pending now: {now}"), at));
    }

    async fn create(
        &self,
        diags: &mut Diagnostics,
        mut model: ApprovalModel,
        wish: &ApprovalWish,
    ) -> Option<(ApprovalModel, Owned)> {
        check(diags, &model, &self.there.texts());
        if !diags.errors.is_empty() {
            return None;
        }
        let server = given(&model.server)?.to_owned();
        let given_now = async {
            let key = self.engine.lock_key(&server).await?;
            let claim = self.engine.claim_on(self.there, &server).await?;
            let asked = self.engine.asked_there(self.there, &server, Some(&key), claim.approved).await?;
            if let Some(problem) = not_asked(wish, &asked, &server) {
                return Ok(Err(problem));
            }
            let word = word(Uuid::now_v7().to_string(), &model, &claim);
            self.engine.write_approval(self.there, &word).await?;
            let seen = self.there.word(&word).await?;
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
                "An approval already exists",
                format!(
                    "{server}: another author approved ({}). Destroying this resource does not remove that approval.",
                    seen.place
                ),
                AttributePath::root(),
            ));
        }
        model.id = Value::Value(word.uid.clone());
        model.digest = Value::Null;
        model.approved_by = Value::Value(format!("{} ({})", self.engine.owner(), self.engine.runner()));
        model.approved_at = Value::Value(self.engine.now().to_string());
        model.lock_key = Value::Value(key.raw().to_owned());
        model.claim = Value::Value(word.claim.clone());
        model.state = Value::Value("InForce".to_owned());
        let owned = Owned::in_cluster(self.there, &key, &word.uid, &word.claim_uid.clone().unwrap_or_default());
        Some((model, owned))
    }

    /// An approval mark is identified by its attributes alone.
    async fn recover(&self, _model: &ApprovalModel) -> Option<Owned> {
        None
    }

    /// Reports a used or removed approval, but not as drift: approving again is a decision.
    async fn read(
        &self,
        diags: &mut Diagnostics,
        mut model: ApprovalModel,
        private: &Value<Owned>,
    ) -> Option<ApprovalModel> {
        let server = given(&model.server).unwrap_or_default().to_owned();
        let Some(word) = remembered(&model, private) else { return Some(model) };
        let seen = match self.there.word(&word).await {
            Ok(seen) => seen,
            Err(error) => {
                diags.add_warning(diagnostic(
                    "The cluster did not answer",
                    format!("{server}: {error}. The last known values of its approval are kept."),
                    AttributePath::root(),
                ));
                return Some(model);
            }
        };
        model.state = Value::Value(if seen.present { "InForce" } else { "Used" }.to_owned());
        if seen.present {
            return Some(model);
        }
        let key = self.engine.known_lock_key(&server).await;
        let Ok(asked) = self.engine.asked_there(self.there, &server, key.as_ref(), false).await else {
            return Some(model);
        };
        let waiting: Vec<String> = asked.iter().filter(|asked| !asked.allowed).map(shown).collect();
        if !waiting.is_empty() {
            diags.add_warning(diagnostic(
                "An approval was removed",
                format!(
                    "{server}: {} does not exist any more. The operator removed it after the last external request \
                     ended, or a person did. Not approved now: {}. To approve again, replace this resource \
                     (-replace).",
                    seen.place,
                    waiting.join("; ")
                ),
                AttributePath::root(),
            ));
        }
        Some(model)
    }

    async fn destroy(&self, diags: &mut Diagnostics, model: &ApprovalModel, private: &Value<Owned>) -> Option<()> {
        let Some(word) = remembered(model, private) else { return Some(()) };
        value_or_error(
            diags,
            given(&model.server).unwrap_or_default(),
            self.engine.remove_approval(self.there, &word).await,
        )
        .map(drop)
    }

    async fn import(&self, diags: &mut Diagnostics, id: &str) -> Option<(ApprovalModel, Owned)> {
        diags.add_error(diagnostic(
            format!("The approval {id} cannot be imported"),
            "An approval mark on a ServerClaim does not name its author. Add the resource to the configuration \
             instead: if the approval exists, apply changes nothing.",
            AttributePath::root(),
        ));
        None
    }

    async fn all(&self, diags: &mut Diagnostics) -> Option<Vec<ListedApproval>> {
        diags.add_warning(diagnostic(
            "Cluster approvals cannot be listed",
            "An approval mark on a ServerClaim does not name its author. Add the resource to the configuration \
             instead: if the approval exists, apply changes nothing.",
            AttributePath::root(),
        ));
        None
    }
}
