//! Claims in the coordination store, which do not affect the server.

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, value::Value};

use crate::{
    engine::{Engine, EngineError},
    maintenance::{approval, ids::LockKey},
    plugin::diagnostic,
    store::LockView,
};

use crate::provider::{
    claim::data_source::ClaimLook,
    claim::lifecycle::{ClaimLifecycle, ListedClaim},
    claim::model::{AskedModel, ClaimModel, tell},
    shared::diagnostics::{kept, of_engine, value_or_error},
    shared::private::Owned,
    shared::values::{given, known},
};

/// A store's claims.
pub(super) struct StoreClaims<'a> {
    pub(super) engine: &'a Engine,
}

#[async_trait]
impl ClaimLifecycle for StoreClaims<'_> {
    fn place(&self) -> String {
        self.engine.store().address()
    }

    async fn review(&self, diags: &mut Diagnostics, model: &ClaimModel) {
        model.only_told(diags);
    }

    async fn review_change(&self, diags: &mut Diagnostics, _prior: &ClaimModel, model: &mut ClaimModel) {
        model.only_told(diags);
    }

    async fn farewell(&self, diags: &mut Diagnostics, model: &ClaimModel, private: &Value<Owned>) {
        let Value::Value(owned) = private else { return };
        let Ok(view) = self.engine.view(&owned.key()).await else { return };
        let asked = approval::asked(&view.lock, view.now).into_iter().filter(|asked| !asked.allowed);
        let waiting: Vec<String> = asked.map(|asked| asked.id.to_string()).collect();
        if waiting.is_empty() {
            return;
        }
        let server = given(&model.server).unwrap_or_default();
        diags.add_warning(diagnostic(
            "Deleting a claim starts maintenance that waits for approval",
            format!("{server}: without the claim, {} can start without approval.", waiting.join(", ")),
            AttributePath::root(),
        ));
    }

    async fn create(&self, diags: &mut Diagnostics, mut model: ClaimModel) -> Option<(ClaimModel, Owned)> {
        let wish = model.wish()?;
        let claimed = async {
            let (key, claim) = self.engine.claim(&wish).await?;
            let view = self.engine.view(&key).await?;
            Ok((key, claim, view))
        };
        match claimed.await {
            Ok((key, claim, view)) => {
                model.show(&claim, &view);
                Some((model, Owned::new(self.engine, &key, &claim.uid)))
            }
            Err(error) => {
                diags.add_error(of_engine(&wish.server, &error));
                None
            }
        }
    }

    async fn update(
        &self,
        diags: &mut Diagnostics,
        planned: ClaimModel,
        _private: &Value<Owned>,
    ) -> Option<(ClaimModel, Value<Owned>)> {
        // Planned values must match; the next refresh finds later changes.
        let promised = (planned.maintenance_needed, planned.pending.clone());
        let (mut model, owned) = self.create(diags, planned).await?;
        (model.maintenance_needed, model.pending) = promised;
        Some((model, Value::Value(owned)))
    }

    async fn destroy(&self, diags: &mut Diagnostics, model: &ClaimModel, private: &Value<Owned>) -> Option<()> {
        let server = given(&model.server).unwrap_or_default().to_owned();
        let owned = Owned::here(diags, self.engine, private, &format!("The claim on {server}"))?;
        value_or_error(diags, &server, self.engine.unclaim(&owned.key(), &owned.own_uid()).await).map(drop)
    }

    async fn recover(&self, model: &ClaimModel) -> Option<Owned> {
        let key = LockKey::new(given(&model.lock_key)?.to_owned());
        let view = self.engine.view(&key).await.ok()?;
        let claim = view.lock.ownership.claim.as_ref();
        let same = claim.filter(|claim| Some(claim.since.to_string().as_str()) == given(&model.claimed_at));
        Owned::found(self.engine, &view, same.map(|claim| &claim.uid))
    }

    async fn read(&self, diags: &mut Diagnostics, mut model: ClaimModel, private: &Value<Owned>) -> Option<ClaimModel> {
        let server = given(&model.server).unwrap_or_default().to_owned();
        let Some(owned) = Owned::here(diags, self.engine, private, &format!("The claim on {server}")) else {
            return Some(model);
        };
        let view = match self.engine.view(&owned.key()).await {
            Ok(view) => view,
            Err(error) => {
                diags.add_warning(kept(&server, &error));
                return Some(model);
            }
        };
        let claim = view.lock.ownership.claim.as_ref().filter(|claim| claim.uid == owned.own_uid())?;
        tell(diags, claim.server.shown(), &approval::asked(&view.lock, view.now), None, claim.owner.shown());
        model.contact = known(claim.contact.as_ref().map(|contact| contact.raw().to_owned()));
        model.show(claim, &view);
        Some(model)
    }

    async fn import(&self, diags: &mut Diagnostics, id: &str) -> Option<(ClaimModel, Owned)> {
        for view in &value_or_error(diags, id, self.engine.views().await)? {
            let Some(claim) = view.lock.ownership.claim.as_ref().filter(|claim| claim.id.to_string() == id) else {
                continue;
            };
            if let Err(refusal) = claim.allows_owner(self.engine.owner()) {
                diags.add_error(of_engine(claim.server.shown(), &EngineError::Refused(refusal)));
                return None;
            }
            let owned = Owned::new(self.engine, &view.lock.key, &claim.uid);
            return Some((ClaimModel::imported(claim, view), owned));
        }
        diags.add_error(diagnostic(
            format!("No claim is called {id}"),
            format!("{} does not contain a claim with that name (NAMESPACE/NAME).", self.place()),
            AttributePath::root(),
        ));
        None
    }

    async fn look(&self, id: &str) -> Result<Option<ClaimLook>, EngineError> {
        for view in self.engine.views().await? {
            let Some(claim) = view.lock.ownership.claim.as_ref().filter(|claim| claim.id.to_string() == id) else {
                continue;
            };
            let asked = approval::asked(&view.lock, view.now);
            return Ok(Some(ClaimLook {
                id: Value::Value(id.to_owned()),
                server: Value::Value(claim.server.to_string()),
                owner: Value::Value(claim.owner.to_string()),
                contact: known(claim.contact.as_ref().map(|contact| contact.raw().to_owned())),
                claimed_at: Value::Value(claim.since.to_string()),
                maintenance_needed: Value::Value(!asked.is_empty()),
                approved: Value::Value(asked.iter().all(|asked| asked.allowed)),
                pending: Value::Value(asked.into_iter().map(AskedModel::from).collect()),
                ..ClaimLook::default()
            }));
        }
        Ok(None)
    }

    async fn all(&self) -> Result<Vec<ListedClaim>, EngineError> {
        let views = self.engine.views().await?;
        let mut all: Vec<ListedClaim> = views.iter().filter_map(of_view).collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }
}

fn of_view(view: &LockView) -> Option<ListedClaim> {
    let claim = view.lock.ownership.claim.as_ref()?;
    Some(ListedClaim {
        id: claim.id.to_string(),
        server: claim.server.to_string(),
        owner: Some(claim.owner.to_string()),
        model: Some(ClaimModel::imported(claim, view)),
    })
}
