//! Claims in the servers' external system: created, bound, read and deleted there.

use std::time::Duration;

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, value::Value};

use crate::{
    backend::{Binding, ExternalClaimView, ExternalOwnership},
    engine::{Claimed, Control, Engine, EngineError},
    maintenance::{
        approval::PendingMaintenance,
        ids::{LockKey, Uid},
        machine::Ignition,
    },
    plugin::diagnostic,
};

use crate::provider::{
    claim::cluster_wish::{ignition, wanted},
    claim::data_source::ClaimLook,
    claim::lifecycle::{ClaimLifecycle, ListedClaim},
    claim::model::{AskedModel, ClaimModel, tell},
    shared::cell::Cell,
    shared::diagnostics::of_engine,
    shared::private::Owned,
    shared::toleration,
    shared::values::{Text, bad, given, known, shown_duration, time_limit},
};

/// Default time limits.
const LIMIT: Duration = Duration::from_mins(30);

/// A cluster's claims.
pub(super) struct ClusterClaims<'a> {
    pub(super) engine: &'a Engine,
    pub(super) there: &'a dyn ExternalOwnership,
    pub(super) cell: &'a Cell,
}

impl ClusterClaims<'_> {
    fn control(&self, model: &ClaimModel, create: bool) -> Control {
        let timeout = time_limit(&model.timeouts, |t| if create { &t.create } else { &t.delete }, LIMIT);
        Control { stop: self.cell.stop.clone(), timeout, release_timeout: LIMIT }
    }

    /// Reports missing and unsupported attributes. Only reads.
    async fn check(&self, diags: &mut Diagnostics, model: &ClaimModel) {
        wanted(diags, self.engine, model);
        if let Err(error) = self.tolerable(diags, model).await {
            let server = given(&model.server).unwrap_or_default();
            let detail = format!("{server}: {}", of_engine(server, &error).detail);
            diags.add_warning(diagnostic("The cluster did not answer", detail, AttributePath::new("tolerations")));
        }
    }

    /// Returns true if the cluster's claims support the configured tolerations; reports it
    /// otherwise.
    async fn tolerable(&self, diags: &mut Diagnostics, model: &ClaimModel) -> Result<bool, EngineError> {
        if !toleration::are_wanted(&model.tolerations) {
            return Ok(true);
        }
        let known = self.there.tolerates().await?;
        if let Err(why) = &known {
            let server = given(&model.server).unwrap_or_default();
            let detail = format!("{server}: {why}. Remove the server from the configuration, or remove its taint.");
            bad(diags, AttributePath::new("tolerations"), "Not in this cluster", detail);
        }
        Ok(known.is_ok())
    }

    /// Returns the configured ignition's Secret, for a plan.
    fn planned_secret(&self, model: &ClaimModel) -> Text {
        match (ignition(self.engine, model), given(&model.name)) {
            (Some(None), _) => Value::Null,
            (Some(Some(Ignition::Secret(name))), _) => Value::Value(name),
            (Some(Some(Ignition::Content(sha256))), Some(name)) => {
                Value::Value(self.there.ignition_secret(name, &sha256))
            }
            _ => Value::Unknown,
        }
    }

    /// Fills in the computed attributes. Returns the claim's pending requests.
    async fn show(
        &self,
        model: &mut ClaimModel,
        claim: &ExternalClaimView,
        key: Option<&LockKey>,
    ) -> Vec<PendingMaintenance> {
        let server = given(&model.server).unwrap_or_default();
        let asked = self.engine.asked_there(self.there, server, key, claim.approved).await.unwrap_or_default();
        model.show_gates(claim, &asked, key);
        asked
    }
}

#[async_trait]
impl ClaimLifecycle for ClusterClaims<'_> {
    fn place(&self) -> String {
        self.there.address()
    }

    async fn review(&self, diags: &mut Diagnostics, model: &ClaimModel) {
        // If the cluster does not answer, the next request reports it.
        if matches!(self.tolerable(diags, model).await, Ok(false)) {
            return;
        }
        let Some(wanted) = wanted(diags, self.engine, model) else { return };
        let (id, server) = (wanted.id(), &wanted.server);
        let found = async {
            let there = self.there.claim_view(&id, true).await?;
            Ok::<_, EngineError>((there, self.there.binding(&id, server, &wanted.tolerations).await?))
        };
        let warning = match found.await {
            Ok((Some(claim), _)) if claim.owner.as_ref().is_none_or(|owner| *owner != *self.engine.owner()) => {
                let whose = claim.owner.map_or_else(|| "another owner".to_owned(), |owner| format!("{owner:?}"));
                let detail = format!(
                    "ServerClaim {id} already exists and belongs to {whose}. Choose another name, import the claim \
                     to manage it, or read it with the data source metal_server_claim."
                );
                return bad(diags, AttributePath::new("name"), "ServerClaim already exists", detail);
            }
            Ok((_, Binding::Impossible(why))) => ("A server cannot be claimed now", format!("{server}: {why}.")),
            Ok((_, Binding::Waiting(why))) => {
                ("A server will be claimed", format!("{server}: the claim waits for {why}."))
            }
            Ok((_, Binding::Bound)) => return,
            Err(error) => ("The cluster did not answer", format!("{server}: {}", of_engine(server, &error).detail)),
        };
        diags.add_warning(diagnostic(warning.0, warning.1, AttributePath::new("server")));
    }

    async fn review_change(&self, diags: &mut Diagnostics, prior: &ClaimModel, model: &mut ClaimModel) {
        self.check(diags, model).await;
        model.ignition_secret = match model.ignition_wo.is_absent() {
            true => self.planned_secret(model),
            false if model.keeps_ignition(prior) => prior.ignition_secret.clone(),
            // Ephemeral content can differ at apply.
            false => Value::Unknown,
        };
        // An imported claim gets our owner with its first change.
        if *model != *prior && model.owner.is_null() {
            model.owner = Value::Unknown;
        }
    }

    async fn farewell(&self, diags: &mut Diagnostics, model: &ClaimModel, _private: &Value<Owned>) {
        self.tell_end(diags, model).await;
    }

    async fn create(&self, diags: &mut Diagnostics, mut model: ClaimModel) -> Option<(ClaimModel, Owned)> {
        let wanted = wanted(diags, self.engine, &model)?;
        if matches!(self.tolerable(diags, &model).await, Ok(false)) {
            return None;
        }
        let control = self.control(&model, true);
        let server = wanted.server.clone();
        let brought = async {
            let key = self.engine.lock_key(&server).await?;
            Ok((key, self.engine.bring_claim(self.there, &wanted, &control).await?))
        };
        let (summary, detail) = match brought.await {
            Ok((key, Claimed::Bound(view))) => {
                self.show(&mut model, &view, Some(&key)).await;
                let owned = Owned::in_cluster(self.there, &key, &view.uid, "");
                return Some((model, owned));
            }
            Ok((_, Claimed::Refused(why))) => (format!("{server} cannot be claimed"), why),
            Ok((_, Claimed::TimedOut(why))) => (
                format!("{server} was not bound in time"),
                format!("It waited for {why}. Waited {} (timeouts.create).", shown_duration(control.timeout)),
            ),
            Ok((_, Claimed::Interrupted)) => (format!("Waiting for {server} was interrupted"), String::new()),
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                return None;
            }
        };
        let detail = format!("{detail}\nServerClaim {} was deleted.", wanted.id());
        diags.add_error(diagnostic(summary, detail.trim().to_owned(), AttributePath::new("server")));
        None
    }

    async fn update(
        &self,
        diags: &mut Diagnostics,
        planned: ClaimModel,
        private: &Value<Owned>,
    ) -> Option<(ClaimModel, Value<Owned>)> {
        let wanted = wanted(diags, self.engine, &planned)?;
        let Value::Value(owned) = private else { return None };
        if matches!(self.tolerable(diags, &planned).await, Ok(false)) {
            return None;
        }
        match self.engine.change_claim(self.there, &wanted, &owned.own_uid()).await {
            Ok(view) => {
                let mut model = planned.clone();
                if let Some(view) = view {
                    self.show(&mut model, &view, Some(&owned.key())).await;
                }
                // Planned values must match; the next refresh finds later changes.
                Some((model.with_planned(&planned), private.clone()))
            }
            Err(error) => {
                diags.add_error(of_engine(&wanted.server, &error));
                None
            }
        }
    }

    async fn destroy(&self, diags: &mut Diagnostics, model: &ClaimModel, private: &Value<Owned>) -> Option<()> {
        let (id, server) = (given(&model.id)?.to_owned(), given(&model.server)?.to_owned());
        let control = self.control(model, false);
        let given_up = async {
            let uid = match private {
                Value::Value(owned) => Some(owned.own_uid()),
                // The claim was deleted, unless the cluster does not answer.
                _ => self
                    .there
                    .claim_view(&id, true)
                    .await?
                    .filter(|claim| same(claim, model))
                    .map(|it| Uid::new(it.uid)),
            };
            match uid {
                Some(uid) => self.engine.give_up_claim(self.there, &id, &uid, &server, &control).await,
                None => Ok(None),
            }
        };
        match given_up.await {
            Ok(None) => Some(()),
            Ok(Some(why)) => {
                let detail = format!(
                    "The deletion of ServerClaim {id} was requested and waits for {why}. Waited {} (timeouts.delete); destroy \
                     again to continue waiting.",
                    shown_duration(control.timeout)
                );
                diags.add_error(diagnostic(format!("{server} is not free yet"), detail, AttributePath::root()));
                None
            }
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                None
            }
        }
    }

    async fn recover(&self, model: &ClaimModel) -> Option<Owned> {
        let claim = self.there.claim_view(given(&model.id)?, true).await.ok()??;
        let key = LockKey::new(given(&model.lock_key)?.to_owned());
        same(&claim, model).then(|| Owned::in_cluster(self.there, &key, &claim.uid, ""))
    }

    async fn read(&self, diags: &mut Diagnostics, mut model: ClaimModel, private: &Value<Owned>) -> Option<ClaimModel> {
        let id = given(&model.id).unwrap_or_default().to_owned();
        let server = given(&model.server).unwrap_or_default().to_owned();
        let claim = match self.there.claim_view(&id, false).await {
            Ok(claim) => claim,
            Err(error) => {
                diags.add_warning(diagnostic(
                    "The cluster did not answer",
                    format!("{server}: {error}. The last known values of its claim are kept."),
                    AttributePath::root(),
                ));
                return Some(model);
            }
        };
        let ours = claim.filter(|claim| matches!(private, Value::Value(owned) if owned.uid == claim.uid));
        let Some(claim) = ours else {
            let elsewhere = matches!(private, Value::Value(owned) if owned.store != self.there.address());
            if elsewhere {
                diags.add_error(diagnostic(
                    format!("The claim on {server} is in another cluster"),
                    format!(
                        "{} does not contain this ServerClaim. The state was written with another cluster.",
                        self.there.address()
                    ),
                    AttributePath::root(),
                ));
            }
            return elsewhere.then_some(model);
        };
        let key = given(&model.lock_key).map(LockKey::new);
        let asked = self.show(&mut model, &claim, key.as_ref()).await;
        model.contact = known(claim.contact.as_ref().map(|text| text.raw().to_owned()));
        model.take_over(&claim, self.there.ignition_secret(&claim_name(&claim), "").as_str());
        tell(diags, &server, &asked, Some(self.there.texts().flag), self.engine.owner());
        Some(model)
    }

    async fn import(&self, diags: &mut Diagnostics, id: &str) -> Option<(ClaimModel, Owned)> {
        let found = async {
            self.engine.owns_claim(self.there, id).await?;
            let Some(claim) = self.there.claim_view(id, true).await? else { return Ok(None) };
            let Some(server) = claim.server.clone() else { return Ok(None) };
            let key = self.engine.lock_key(&server).await?;
            Ok::<_, EngineError>(Some((claim, server, key)))
        };
        match (found.await, id.split_once('/')) {
            (Ok(Some((claim, server, key))), Some((namespace, name))) => {
                let mut model = ClaimModel {
                    server: Value::Value(server),
                    namespace: Value::Value(namespace.to_owned()),
                    name: Value::Value(name.to_owned()),
                    contact: known(claim.contact.as_ref().map(|text| text.raw().to_owned())),
                    ..ClaimModel::default()
                };
                model.take_over(&claim, "");
                self.show(&mut model, &claim, Some(&key)).await;
                Some((model, Owned::in_cluster(self.there, &key, &claim.uid, "")))
            }
            (Ok(_), _) => {
                diags.add_error(diagnostic(
                    format!("No claim is called {id}"),
                    format!(
                        "{} does not contain a ServerClaim with that name (NAMESPACE/NAME) that names a server.",
                        self.there.address()
                    ),
                    AttributePath::root(),
                ));
                None
            }
            (Err(error), _) => {
                diags.add_error(of_engine(id, &error));
                None
            }
        }
    }

    async fn look(&self, id: &str) -> Result<Option<ClaimLook>, EngineError> {
        let Some(claim) = self.there.claim_view(id, true).await? else { return Ok(None) };
        let asked = match &claim.server {
            Some(server) => {
                let key = self.engine.known_lock_key(server).await;
                self.engine.asked_there(self.there, server, key.as_ref(), claim.approved).await?
            }
            None => Vec::new(),
        };
        let ExternalClaimView { id, owner, contact, server, since, phase, image, ignition_secret, power, .. } = claim;
        Ok(Some(ClaimLook {
            id: Value::Value(id),
            server: known(server),
            owner: known(owner.as_ref().map(|text| text.raw().to_owned())),
            contact: known(contact.as_ref().map(|text| text.raw().to_owned())),
            claimed_at: known(since),
            phase: known(phase),
            image: known(image),
            server_power: known(power),
            ignition_secret: known(ignition_secret),
            maintenance_needed: Value::Value(claim.needed || !asked.is_empty()),
            approved: Value::Value(claim.approved || asked.iter().all(|asked| asked.allowed)),
            pending: Value::Value(asked.into_iter().map(AskedModel::from).collect()),
        }))
    }

    async fn all(&self) -> Result<Vec<ListedClaim>, EngineError> {
        let mut claims = self.there.claims().await?;
        claims.sort_by(|a, b| a.id.cmp(&b.id));
        let listed = claims.into_iter().filter(|claim| !claim.leaving).filter_map(|claim| {
            Some(ListedClaim {
                server: claim.server?,
                id: claim.id,
                owner: claim.owner.as_ref().map(|text| text.raw().to_owned()),
                model: None,
            })
        });
        Ok(listed.collect())
    }
}

/// Returns true if the claim is the state's claim.
fn same(claim: &ExternalClaimView, model: &ClaimModel) -> bool {
    given(&model.claimed_at).is_some_and(|since| claim.since.as_deref() == Some(since))
}

fn claim_name(claim: &ExternalClaimView) -> String {
    claim.id.split_once('/').map(|(_, name)| name).unwrap_or_default().to_owned()
}
