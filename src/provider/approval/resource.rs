//! `metal_maintenance_approval`: the word of a server's owner.

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, Resource, schema::Schema, value::Value};
use uuid::Uuid;

use crate::{
    engine::{ApprovalWish, Engine, EngineError},
    maintenance::{
        approval::{self, Asked},
        ids::{LockKey, MaintenanceId, Uid},
        lock::Refusal,
        queue::shown_time,
    },
    plugin::diagnostic,
    store::{Found, LockView},
};

use crate::provider::{
    approval::cluster as cluster_approval,
    approval::model::{ApprovalModel, approval_schema},
    shared::cell::Cell,
    shared::diagnostics::{kept, of_engine},
    shared::private::Owned,
    shared::values::{bad, given},
};

/// The resource type.
#[derive(Debug)]
pub(in crate::provider) struct MaintenanceApproval {
    pub(in crate::provider) cell: Cell,
}

/// Refuses what could not be given, and tells the reviewer what would be allowed. Only reads.
async fn review(diags: &mut Diagnostics, engine: &Engine, server: &str, wish: &ApprovalWish) {
    let Some(key) = engine.known_lock_key(server).await else {
        if let Err(error) = engine.machine(server) {
            diags.add_error(of_engine(server, &error));
        }
        return;
    };
    let Ok(view) = engine.view(&key).await else {
        diags.add_warning(diagnostic(
            "The coordination store did not answer",
            format!("{server}: what would be approved was not looked at."),
            AttributePath::root(),
        ));
        return;
    };
    match &view.lock.ownership.claim {
        // The claim may be made by this very apply.
        None => diags.add_warning(diagnostic(
            "An approval for an unclaimed server",
            format!("{server} has to be claimed by {:?} before this can be applied.", engine.owner()),
            AttributePath::new("server"),
        )),
        Some(claim) if claim.owner != engine.owner() => {
            let refusal = Refusal::NotTheOwner { claim: Box::new(claim.clone()), asked: engine.owner().to_owned() };
            diags.add_error(of_engine(server, &refusal.into()));
            return;
        }
        Some(_) => {}
    }
    let asked = approval::asked(&view.lock, view.now);
    match &wish.maintenance {
        None => approves_all(diags, server, &asked),
        Some(id) => approves_one(diags, engine, server, &key, id, wish, &view, &asked).await,
    }
}

/// Refuses what only a cluster has.
fn not_here(diags: &mut Diagnostics, model: &ApprovalModel) -> Option<()> {
    if given(&model.node).is_none() {
        return Some(());
    }
    let detail = "Nodes are a cluster's; this provider configuration has no metal_operator.";
    bad(diags, AttributePath::new("node"), "Only with metal_operator", detail);
    None
}

fn approves_all(diags: &mut Diagnostics, server: &str, asked: &[Asked]) {
    let now = if asked.is_empty() {
        "Nothing is asked at the moment.".to_owned()
    } else {
        let names: Vec<String> = asked.iter().map(shown).collect();
        format!("Asked now: {}.", names.join("; "))
    };
    diags.add_warning(diagnostic(
        "Everything that is asked of a server will be approved",
        format!("{server}: all = true approves all present and future maintenance of this claim unreviewed. {now}"),
        AttributePath::new("all"),
    ));
}

#[allow(clippy::too_many_arguments, reason = "each is one fact of one review")]
async fn approves_one(
    diags: &mut Diagnostics,
    engine: &Engine,
    server: &str,
    key: &LockKey,
    id: &MaintenanceId,
    wish: &ApprovalWish,
    view: &LockView,
    asked: &[Asked],
) {
    let at = || AttributePath::new("maintenance");
    if let Some(asked) = asked.iter().find(|asked| asked.id == *id) {
        if let Some(digest) = wish.digest.as_ref().filter(|digest| **digest != asked.digest) {
            let detail = format!(
                "{id} is asked for with the digest {}, not {digest}: {}. The approval would be void.",
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
    // It has started, or is asked of another server, or is over, or was never asked for.
    if let Some(record) = view.lock.active.iter().find(|record| record.id == *id) {
        let detail = format!("{id} is {} already. An approval counts at the start only.", record.phase.name());
        bad(diags, at(), "It has started", detail);
        return;
    }
    let detail = match engine.known(id).await {
        Ok(Some(Found::Active(record))) if record.lock_key != *key => {
            format!("{id} is asked for {}, not for {server}.", record.server())
        }
        _ if wish.digest.is_some() => return,
        Ok(Some(found)) => format!(
            "{id} is over ({}). To approve its next run before it is asked for, give the digest of what it will ask.",
            found.record().phase.name()
        ),
        Ok(None) => format!(
            "{id} is not pending. To approve it before it is asked for, give the digest of what it will ask; its \
             own plan shows it."
        ),
        Err(_) => return,
    };
    bad(diags, at(), "Maintenance is not pending", detail);
}

/// A request, for people.
pub(in crate::provider) fn shown(asked: &Asked) -> String {
    let mut text = asked.id.to_string();
    if let Some(reason) = &asked.reason {
        text.push_str(&format!(", {reason:?}"));
    }
    if let Some(ticket) = &asked.ticket {
        text.push_str(&format!(", {ticket}"));
    }
    text.push_str(&format!(", asked by {} at {}", asked.by, shown_time(asked.requested_at)));
    if let Some(window) = &asked.window {
        text.push_str(&format!(", starts only in {window}"));
    }
    if !asked.effect.is_empty() {
        text.push_str(&format!("; the server {}", asked.effect.trim_end_matches('.')));
    }
    text
}

#[async_trait]
impl Resource for MaintenanceApproval {
    type State<'a> = Value<ApprovalModel>;
    type PrivateState<'a> = Value<Owned>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(approval_schema())
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(model) = config {
            model.check(diags, None);
        }
        Some(())
    }

    async fn plan_create<'a>(
        &self,
        diags: &mut Diagnostics,
        _proposed: Self::State<'a>,
        config: Self::State<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let Value::Value(model) = config else { return None };
        Some((Value::Value(self.planned(diags, model).await), Value::Null))
    }

    async fn plan_update<'a>(
        &self,
        diags: &mut Diagnostics,
        prior: Self::State<'a>,
        _proposed: Self::State<'a>,
        config: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>, Vec<AttributePath>)> {
        let (Value::Value(prior), Value::Value(config)) = (prior, config) else { return None };
        let mut replaced = Vec::new();
        for (name, now, before) in [
            ("server", &config.server, &prior.server),
            ("maintenance", &config.maintenance, &prior.maintenance),
            ("not_before", &config.not_before, &prior.not_before),
            ("expires", &config.expires, &prior.expires),
            ("node", &config.node, &prior.node),
        ] {
            if now != before {
                replaced.push(AttributePath::new(name));
            }
        }
        if config.all != prior.all {
            replaced.push(AttributePath::new("all"));
        }
        if !config.digest.is_null() && config.digest != prior.digest {
            replaced.push(AttributePath::new("digest"));
        }
        if replaced.is_empty() {
            return Some((Value::Value(prior), private, replaced));
        }
        Some((Value::Value(self.planned(diags, config).await), private, replaced))
    }

    async fn plan_destroy<'a>(
        &self,
        _diags: &mut Diagnostics,
        _prior: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<Self::PrivateState<'a>> {
        Some(private)
    }

    async fn create<'a>(
        &self,
        diags: &mut Diagnostics,
        planned: Self::State<'a>,
        config: Self::State<'a>,
        _private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let (Value::Value(mut model), Value::Value(config)) = (planned, config) else { return None };
        let engine = self.cell.engine(diags)?;
        let wish = config.check(diags, Some(engine.now()))?;
        if let Some(there) = engine.ownership() {
            return cluster_approval::create(diags, &engine, there, model, &wish).await;
        }
        not_here(diags, &model)?;
        let server = given(&model.server)?.to_owned();
        let uid = Uid(Uuid::now_v7().to_string());
        let approved = async {
            let key = engine.lock_key(&server).await?;
            let approval = engine.approve(&key, &uid, &wish).await?;
            Ok((engine.view(&key).await?, approval))
        };
        match approved.await {
            Ok((view, approval)) => {
                model.show(&approval, &view);
                Some((Value::Value(model), Value::Value(Owned::new(&engine, &view.lock.key, &uid))))
            }
            Err(EngineError::Refused(Refusal::Gone)) => {
                let name = given(&model.maintenance).unwrap_or_default();
                bad(
                    diags,
                    AttributePath::new("maintenance"),
                    "Maintenance is not pending",
                    format!("{name} is not asked for {server} (any more). Nothing was approved."),
                );
                None
            }
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                None
            }
        }
    }

    async fn update<'a>(
        &self,
        _diags: &mut Diagnostics,
        _prior: Self::State<'a>,
        planned: Self::State<'a>,
        _config: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        // Every change replaces.
        Some((planned, private))
    }

    async fn destroy<'a>(
        &self,
        diags: &mut Diagnostics,
        prior: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<()> {
        let Value::Value(model) = prior else { return Some(()) };
        let engine = self.cell.engine(diags)?;
        if let Some(there) = engine.ownership() {
            return cluster_approval::destroy(diags, &engine, there, &model, &private).await;
        }
        let server = given(&model.server).unwrap_or_default().to_owned();
        let uid = given(&model.id).map(|id| Uid(id.to_owned()));
        let private = Owned::of_destroyed(&engine, private, uid, &model.lock_key);
        let owned = Owned::here(diags, &engine, &private, &format!("The approval on {server}"))?;
        match engine.withdraw_approval(&owned.key(), &owned.own_uid()).await {
            Ok(_) => Some(()),
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                None
            }
        }
    }

    async fn read<'a>(
        &self,
        diags: &mut Diagnostics,
        state: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let Value::Value(mut model) = state else { return Some((Value::Null, private)) };
        let Some(engine) = self.cell.engine_if_ready() else { return Some((Value::Value(model), private)) };
        if let Some(there) = engine.ownership() {
            self.cell.unless_stopped(cluster_approval::read(diags, &engine, there, &mut model, &private)).await;
            return Some((Value::Value(model), private));
        }
        let server = given(&model.server).unwrap_or_default().to_owned();
        let Some(owned) = Owned::here(diags, &engine, &private, &format!("The approval on {server}")) else {
            return Some((Value::Value(model), private));
        };
        match engine.view(&owned.key()).await {
            Ok(view) => {
                let Some(approval) = view.lock.ownership.approval(&owned.own_uid()) else {
                    return Some((Value::Null, private));
                };
                model.show(approval, &view);
                if given(&model.state) == Some("Void") {
                    let name = given(&model.maintenance).unwrap_or_default();
                    diags.add_warning(diagnostic(
                        "An approval is void",
                        format!(
                            "{server}: what {name} asks was changed after it was approved, so that it does not start. Look at \
                             it in the claim's pending, and approve it again by replacing this resource (-replace)."
                        ),
                        AttributePath::root(),
                    ));
                }
                Some((Value::Value(model), private))
            }
            Err(error) => {
                diags.add_warning(kept(&server, &error));
                Some((Value::Value(model), private))
            }
        }
    }

    async fn import<'a>(
        &self,
        diags: &mut Diagnostics,
        id: String,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let engine = self.cell.engine(diags)?;
        if engine.ownership().is_some() {
            diags.add_error(diagnostic(
                format!("The approval {id} cannot be imported"),
                "A key on a ServerClaim does not tell whose word it is. Write the resource: applying it changes nothing where \
                 there is an approval already.",
                AttributePath::root(),
            ));
            return None;
        }
        let views = match engine.views().await {
            Ok(views) => views,
            Err(error) => {
                diags.add_error(of_engine(&id, &error));
                return None;
            }
        };
        for view in &views {
            let Some(approval) = view.lock.ownership.approval(&Uid(id.clone())) else { continue };
            let refused = view.lock.ownership.claim.as_ref().and_then(|claim| claim.allows_owner(engine.owner()).err());
            if let Some(refusal) = refused {
                diags.add_error(of_engine(&id, &EngineError::Refused(refusal)));
                return None;
            }
            let server = view.lock.ownership.claim.as_ref().map(|claim| claim.server.clone()).unwrap_or_default();
            let mut model = ApprovalModel::of(approval, &server);
            model.show(approval, view);
            return Some((Value::Value(model), Value::Value(Owned::new(&engine, &view.lock.key, &approval.uid))));
        }
        diags.add_error(diagnostic(
            format!("There is no approval {id}"),
            format!("{} knows none with this id; `claims --json` shows them.", engine.store().address()),
            AttributePath::root(),
        ));
        None
    }
}

impl MaintenanceApproval {
    async fn planned(&self, diags: &mut Diagnostics, mut model: ApprovalModel) -> ApprovalModel {
        let engine = self.cell.engine_if_ready();
        let wish = model.check(diags, engine.as_ref().map(|engine| engine.now()));
        if let (Some(engine), Some(wish), Some(server)) = (engine, wish, given(&model.server)) {
            if let Some(there) = engine.ownership() {
                self.cell.unless_stopped(cluster_approval::review(diags, &engine, there, &model, &wish)).await;
            } else if not_here(diags, &model).is_some() {
                self.cell.unless_stopped(review(diags, &engine, server, &wish)).await;
            }
        }
        model.unknown_outputs();
        model
    }
}
