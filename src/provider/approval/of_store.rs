//! Approvals in the coordination store.

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, value::Value};
use uuid::Uuid;

use crate::{
    backend::plug::with_own_claims,
    engine::{ApprovalWish, Engine, EngineError},
    maintenance::{
        approval::{self, Approval, PendingMaintenance},
        ids::{LockKey, MaintenanceId, Uid},
        lock::Refusal,
    },
    plugin::diagnostic,
    shown::OneLine,
    store::{LockView, RecordLookup},
};

use crate::provider::{
    approval::lifecycle::{ApprovalLifecycle, ListedApproval, shown},
    approval::model::ApprovalModel,
    shared::diagnostics::{kept, of_engine, value_or_error},
    shared::list_filter::not_listed,
    shared::private::Owned,
    shared::values::{bad, given},
};

/// A store's approvals.
pub(super) struct StoreApprovals<'a> {
    pub(super) engine: &'a Engine,
}

/// Rejects attributes that require a cluster.
fn not_here(diags: &mut Diagnostics, model: &ApprovalModel) -> Option<()> {
    if given(&model.node).is_none() {
        return Some(());
    }
    let detail = format!(
        "This provider configuration keeps its claims in the coordination store, where node has no effect. Remove \
         node. Only {} supports it.",
        with_own_claims()
    );
    bad(diags, AttributePath::new("node"), "Not for an approval in the coordination store", detail);
    None
}

fn approves_all(diags: &mut Diagnostics, server: &str, asked: &[PendingMaintenance]) {
    let now = if asked.is_empty() {
        "No maintenance is pending.".to_owned()
    } else {
        let names: Vec<String> = asked.iter().map(shown).collect();
        format!("Pending now: {}.", names.join("; "))
    };
    diags.add_warning(diagnostic(
        "All maintenance of a claim will be approved",
        format!("{server}: all = true approves all present and future maintenance of this claim unreviewed. {now}"),
        AttributePath::new("all"),
    ));
}

#[allow(clippy::too_many_arguments, reason = "all arguments describe one review")]
async fn approves_one(
    diags: &mut Diagnostics,
    engine: &Engine,
    server: &str,
    key: &LockKey,
    id: &MaintenanceId,
    wish: &ApprovalWish,
    view: &LockView,
    asked: &[PendingMaintenance],
) {
    let at = || AttributePath::new("maintenance");
    if let Some(asked) = asked.iter().find(|asked| asked.id == *id) {
        if let Some(digest) = wish.digest.as_ref().filter(|digest| **digest != asked.digest) {
            let detail = format!(
                "The digest of {id} is {}, not {digest}: {}. The approval would be void.",
                asked.digest,
                shown(asked)
            );
            bad(diags, AttributePath::new("digest"), "Digest does not match", detail);
            return;
        }
        diags.add_warning(diagnostic(
            "Maintenance will be approved",
            format!("{server}: {}", shown(asked)),
            AttributePath::root(),
        ));
        return;
    }
    // Started, requested for another server, ended, or unknown. A digest approves a change in
    // advance.
    let begun = |digest: &OneLine| wish.digest.as_ref().is_none_or(|approved| approved == digest);
    if let Some(record) = view.lock.active.iter().find(|record| record.id == *id && begun(&record.digest)) {
        let detail = format!(
            "{id} is already {}. An approval covers only actions that have not started. To approve a change in \
             advance, set digest to the value in that change's plan.",
            record.phase.name()
        );
        bad(diags, at(), "Maintenance has already started", detail);
        return;
    }
    let detail = match engine.known(id).await {
        Ok(Some(RecordLookup::Active(record))) if record.lock_key != *key => {
            format!("{id} is requested for {}, not for {server}.", record.server())
        }
        _ if wish.digest.is_some() => return,
        Ok(Some(found)) => format!(
            "{id} has ended ({}). To approve its next run in advance, set digest to that of the next request.",
            found.record().phase.name()
        ),
        Ok(None) => {
            format!("{id} is not pending. To approve it in advance, set digest to the value in the maintenance's plan.")
        }
        Err(_) => return,
    };
    bad(diags, at(), "Maintenance is not pending", detail);
}

#[async_trait]
impl ApprovalLifecycle for StoreApprovals<'_> {
    async fn review(&self, diags: &mut Diagnostics, model: &ApprovalModel, wish: &ApprovalWish) {
        let (Some(()), Some(server)) = (not_here(diags, model), given(&model.server)) else { return };
        let Some(key) = self.engine.known_lock_key(server).await else {
            if let Err(error) = self.engine.machine(server) {
                diags.add_error(of_engine(server, &error));
            }
            return;
        };
        let Ok(view) = self.engine.view(&key).await else {
            diags.add_warning(diagnostic(
                "The coordination store did not answer",
                format!("{server}: the plan did not check which maintenance this approves."),
                AttributePath::root(),
            ));
            return;
        };
        match &view.lock.ownership.claim {
            // The same apply can create the claim.
            None => diags.add_warning(diagnostic(
                "An approval for an unclaimed server",
                format!(
                    "{server} must be claimed by {owner:?} before this can be applied.",
                    owner = self.engine.owner()
                ),
                AttributePath::new("server"),
            )),
            Some(claim) if claim.owner != self.engine.owner() => {
                let refusal =
                    Refusal::NotTheOwner { claim: Box::new(claim.clone()), asked: self.engine.owner().to_owned() };
                diags.add_error(of_engine(server, &refusal.into()));
                return;
            }
            Some(_) => {}
        }
        let asked = approval::asked(&view.lock, view.now);
        match &wish.maintenance {
            None => approves_all(diags, server, &asked),
            Some(id) => approves_one(diags, self.engine, server, &key, id, wish, &view, &asked).await,
        }
    }

    async fn create(
        &self,
        diags: &mut Diagnostics,
        mut model: ApprovalModel,
        wish: &ApprovalWish,
    ) -> Option<(ApprovalModel, Owned)> {
        not_here(diags, &model)?;
        let server = given(&model.server)?.to_owned();
        let uid = Uid::new(Uuid::now_v7().to_string());
        let approved = async {
            let key = self.engine.lock_key(&server).await?;
            let approval = self.engine.approve(&key, &uid, wish).await?;
            Ok((self.engine.view(&key).await?, approval))
        };
        match approved.await {
            Ok((view, approval)) => {
                model.show(&approval, &view);
                Some((model, Owned::new(self.engine, &view.lock.key, &uid)))
            }
            Err(EngineError::Refused(Refusal::Gone)) => {
                let name = given(&model.maintenance).unwrap_or_default();
                bad(
                    diags,
                    AttributePath::new("maintenance"),
                    "Maintenance is not pending",
                    format!("{name} is not pending on {server} (any more). Nothing was approved."),
                );
                None
            }
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                None
            }
        }
    }

    async fn recover(&self, model: &ApprovalModel) -> Option<Owned> {
        let view = self.engine.view(&LockKey::new(given(&model.lock_key)?.to_owned())).await.ok()?;
        Owned::found(self.engine, &view, Some(&Uid::new(given(&model.id)?.to_owned())))
    }

    async fn read(
        &self,
        diags: &mut Diagnostics,
        mut model: ApprovalModel,
        private: &Value<Owned>,
    ) -> Option<ApprovalModel> {
        let server = given(&model.server).unwrap_or_default().to_owned();
        let Some(owned) = Owned::here(diags, self.engine, private, &format!("The approval on {server}")) else {
            return Some(model);
        };
        match self.engine.view(&owned.key()).await {
            Ok(view) => {
                let approval = view.lock.ownership.approval(&owned.own_uid())?;
                model.show(approval, &view);
                if given(&model.state) == Some("Void") {
                    let name = given(&model.maintenance).unwrap_or_default();
                    diags.add_warning(diagnostic(
                        "An approval is void",
                        format!(
                            "{server}: the request of {name} changed after it was approved, so that it does not start. \
                             Review it in the claim's pending, and approve it again by replacing this resource \
                             (-replace)."
                        ),
                        AttributePath::root(),
                    ));
                }
                Some(model)
            }
            Err(error) => {
                diags.add_warning(kept(&server, &error));
                Some(model)
            }
        }
    }

    async fn destroy(&self, diags: &mut Diagnostics, model: &ApprovalModel, private: &Value<Owned>) -> Option<()> {
        let server = given(&model.server).unwrap_or_default().to_owned();
        let owned = Owned::here(diags, self.engine, private, &format!("The approval on {server}"))?;
        value_or_error(diags, &server, self.engine.withdraw_approval(&owned.key(), &owned.own_uid()).await).map(drop)
    }

    async fn import(&self, diags: &mut Diagnostics, id: &str) -> Option<(ApprovalModel, Owned)> {
        for view in &value_or_error(diags, id, self.engine.views().await)? {
            let Some(approval) = view.lock.ownership.approval(&Uid::new(id)) else { continue };
            let refused =
                view.lock.ownership.claim.as_ref().and_then(|claim| claim.allows_owner(self.engine.owner()).err());
            if let Some(refusal) = refused {
                diags.add_error(of_engine(id, &EngineError::Refused(refusal)));
                return None;
            }
            let server = view.lock.ownership.claim.as_ref().map(|claim| claim.server.clone()).unwrap_or_default();
            let mut model = ApprovalModel::of(approval, server.raw());
            model.show(approval, view);
            return Some((model, Owned::new(self.engine, &view.lock.key, &approval.uid)));
        }
        diags.add_error(diagnostic(
            format!("Approval {id} was not found"),
            format!(
                "{} does not contain an approval with this id. To list approvals, run: terraform-provider-metal \
                     claims --json",
                self.engine.store().address()
            ),
            AttributePath::root(),
        ));
        None
    }

    async fn all(&self, diags: &mut Diagnostics) -> Option<Vec<ListedApproval>> {
        let views = match self.engine.views().await {
            Ok(views) => views,
            Err(error) => {
                diags.add_error(not_listed(&error));
                return None;
            }
        };
        let given = views.iter().flat_map(|view| view.lock.ownership.approvals.iter().map(move |one| (one, view)));
        let mut given: Vec<_> = given.collect();
        given.sort_by_key(|(approval, _)| approval.at);
        Some(given.into_iter().map(|(approval, view)| listed(approval, view)).collect())
    }
}

fn listed(approval: &Approval, view: &LockView) -> ListedApproval {
    let claim = view.lock.ownership.claim.as_ref();
    let server = claim.map(|claim| claim.server.to_string()).unwrap_or_default();
    let mut model = ApprovalModel::of(approval, &server);
    model.show(approval, view);
    ListedApproval { server, owner: claim.map(|claim| claim.owner.to_string()), model }
}
