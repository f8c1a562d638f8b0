//! Plan checks and warnings for `metal_server_maintenance`.

use tf_provider::{AttributePath, Diagnostics, value::Value};

use crate::{
    engine::{Control, Engine, Lasting, PlannedName},
    maintenance::{
        ids::{LockKey, MaintenanceId, Uid},
        spec::{Spec, WaitFor},
        state::Ending,
    },
};

use crate::provider::{
    maintenance::end::{over_already, released},
    maintenance::model::MaintenanceModel,
    maintenance::outcome::show,
    maintenance::resource::ServerMaintenance,
    shared::diagnostics::of_engine,
    shared::effect,
    shared::ended,
    shared::moved,
    shared::private::Private,
    shared::prospect::PlannedRequest,
    shared::review,
    shared::review_change,
    shared::review_release,
    shared::takeover,
    shared::together,
    shared::values::given,
};

impl ServerMaintenance {
    /// Plans an update: fills in planned values and returns the attributes that force a
    /// replacement. Returns `None` after an error.
    pub(in crate::provider) async fn plan_change(
        &self,
        diags: &mut Diagnostics,
        prior: &MaintenanceModel,
        model: &mut MaintenanceModel,
        private: &Value<Private>,
    ) -> Option<Vec<AttributePath>> {
        let spec = model.check(diags, self.cell.engine_if_ready().as_deref());
        let mut replaced = model.replacing(prior);
        replaced.extend(ended::replaced(prior, model).filter(|_| replaced.is_empty()));
        let over = ended::is_over(&prior.state) || ended::is_revoked(&prior.state);
        if replaced.is_empty() && over && !ended::may_change(diags, prior, model, None) {
            return None;
        }
        // An apply plans again in another process, without a refresh.
        if let (Some(uid), Some(engine)) = (Private::uid(private), self.cell.engine_if_ready()) {
            engine.note_managed(&uid);
            let successor = model.name_id().filter(|id| !replaced.is_empty() && Some(id) != prior.name_id().as_ref());
            engine.announce(&uid, successor.as_ref().filter(|_| prior.server == model.server));
        }
        if !replaced.is_empty() {
            review_change::renamed(diags, prior, model);
            // Here, because the host drops the warnings of the creation that it plans next.
            self.cell.unless_stopped(self.release_warning(diags, prior, private)).await;
            if let (Some(spec), Some(engine)) = (&spec, self.cell.engine_if_ready()) {
                self.cell.unless_stopped(self.review(diags, &engine, model, spec, prior.name_id().as_ref())).await;
            }
            model.unknown_outputs();
            return Some(replaced);
        }
        if ended::ends_revoked(prior, model) {
            self.cell.unless_stopped(self.release_warning(diags, prior, private)).await;
            model.effect = effect::of_revoked(model);
            model.unknown_after_update();
            return Some(Vec::new());
        }
        if let (Some(spec), Some(engine)) = (&spec, self.cell.engine_if_ready()) {
            self.stays(diags, &engine, model, spec, prior);
        }
        let goes_on = goes_on(prior, model.wait_for());
        if given(&prior.state) == Some("Pending") && !goes_on {
            review_change::not_waited_for(diags, model);
        }
        let drifted = effect::drifted(prior, model).is_some();
        let takes_over = prior.managed_by.is_null() && !ended::is_over(&prior.state);
        if *model != *prior || goes_on || drifted || takes_over {
            model.effect = effect::of_update(prior, model, goes_on);
            let engine = self.cell.engine_if_ready();
            let touches = goes_on || drifted || effect::acts(prior, model);
            match (&spec, &engine) {
                (Some(spec), Some(engine)) if goes_on && given(&prior.state) == Some("Pending") => {
                    self.cell.unless_stopped(self.review(diags, engine, model, spec, None)).await;
                }
                (Some(spec), Some(engine)) => {
                    let at = AttributePath::new("boot_configuration");
                    let effect = given(&model.effect).filter(|_| touches);
                    let uid = Private::uid(private);
                    let patience = self.control(model, false).timeout;
                    let changed =
                        review_change::changed(diags, engine, spec, Some(&at), effect, uid.as_ref(), patience);
                    self.cell.unless_stopped(Box::pin(changed)).await;
                }
                (_, None) if touches => review::not_checked(diags, &model.effect),
                _ => {}
            }
            if takes_over {
                self.cell.unless_stopped(takeover::planned(diags, engine.as_deref(), private)).await;
                model.managed_by = Value::Unknown;
            }
            if !effect::is_quiet(prior, model) {
                model.unknown_after_update();
            }
        }
        Some(Vec::new())
    }

    /// Reviews a request's queue and preconditions.
    pub(in crate::provider) async fn review(
        &self,
        diags: &mut Diagnostics,
        engine: &Engine,
        model: &MaintenanceModel,
        spec: &Spec,
        replaces: Option<&MaintenanceId>,
    ) {
        let begun = engine.planned().begin();
        let id = model.name_id();
        let asked = PlannedRequest {
            replaces,
            adopt: model.adopts(),
            wait_for: model.wait_for(),
            ..PlannedRequest::new(spec, id.as_ref(), self.patience(model))
        };
        let key = review::maintenance(diags, engine, &asked).await;
        if model.wait_for() == WaitFor::InMaintenance {
            together::lasting(diags, engine, key.as_ref(), spec, self.lasting(model, spec, false), begun);
        }
    }

    /// Notes that an existing maintenance keeps its server.
    fn stays(
        &self,
        diags: &mut Diagnostics,
        engine: &Engine,
        model: &MaintenanceModel,
        spec: &Spec,
        prior: &MaintenanceModel,
    ) {
        if !matches!(given(&prior.state), Some("Preparing" | "InMaintenance")) {
            return;
        }
        let key = given(&prior.lock_key).map(LockKey::new);
        let begun = engine.planned().begin();
        together::lasting(diags, engine, key.as_ref(), spec, self.lasting(model, spec, true), begun);
    }

    fn lasting(&self, model: &MaintenanceModel, spec: &Spec, holds: bool) -> Lasting {
        Lasting {
            name: PlannedName { id: model.name_id(), server: spec.server.to_string() },
            holds,
            expires_after: spec.expires_after,
            patience: self.patience(model),
        }
    }

    /// Returns the state after an update that found the maintenance ended since the plan.
    pub(in crate::provider) async fn ended_since(
        &self,
        diags: &mut Diagnostics,
        engine: &Engine,
        mut prior: MaintenanceModel,
        mut model: MaintenanceModel,
        uid: &Uid,
    ) -> MaintenanceModel {
        let held = engine.held(uid).await.ok().flatten();
        let record = held.as_ref().map(|held| &held.record);
        let mut accepted = ended::may_change(diags, &prior, &model, record);
        if let Some(record) = record {
            show(&mut prior, record, None, None);
            if let Some(error) = ended::ended_meanwhile(record, &model).filter(|_| accepted) {
                diags.add_error(error);
                accepted = false;
            }
            show(&mut model, record, None, None);
        }
        if accepted { model } else { prior }
    }

    /// Ends a revoked maintenance that the configuration keeps: restores our remaining changes and
    /// frees the lock.
    pub(in crate::provider) async fn end_revoked(
        &self,
        diags: &mut Diagnostics,
        engine: &Engine,
        uid: &Uid,
        states: (MaintenanceModel, MaintenanceModel),
        private: &Value<Private>,
        control: &Control,
    ) -> MaintenanceModel {
        let (prior, mut model) = states;
        let server = given(&prior.server).unwrap_or_default().to_owned();
        let control = Control { timeout: control.release_timeout, ..control.clone() };
        let state = Private::state(private);
        let ended = match Box::pin(engine.release_for(state, uid, &server, Ending::Completed, &control)).await {
            Ok(Some(driven)) => released(diags, engine, &server, &driven).await,
            Ok(None) => over_already(diags, engine, &server, uid, private).await,
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                None
            }
        };
        match (ended, engine.held(uid).await) {
            (Some(()), Ok(Some(held))) => {
                show(&mut model, &held.record, None, None);
                model
            }
            _ => prior,
        }
    }

    /// Warns of the release during a destroy or a replacement.
    pub(in crate::provider) async fn release_warning(
        &self,
        diags: &mut Diagnostics,
        prior: &MaintenanceModel,
        private: &Value<Private>,
    ) {
        if moved::is_moved(prior) {
            return;
        }
        let holds = !matches!(given(&prior.state), Some("Pending" | "Completed" | "Failed"));
        let uid = Private::uid(private);
        let engine = self.cell.engine_if_ready();
        if prior.managed_by.is_null() {
            takeover::refuse_release(diags, engine.as_deref(), private).await;
        }
        if !holds {
            return;
        }
        let server = given(&prior.server).unwrap_or_default();
        Box::pin(review_release::release(diags, engine.as_deref(), server, uid.as_ref())).await;
    }

    /// Warns of the release if the host plans a replacement as a create only, as after a taint.
    pub(in crate::provider) async fn release_of_replaced(
        &self,
        diags: &mut Diagnostics,
        engine: &Engine,
        model: &MaintenanceModel,
    ) {
        let Some(id) = model.name_id() else { return };
        if let Ok(Some(record)) = engine.planned_record(&id).await
            && engine.manages(&record.uid)
        {
            Box::pin(review_release::release(diags, Some(engine), record.server(), Some(&record.uid))).await;
        }
    }
}

/// Returns true if the last run ended before its goal, so apply must continue.
fn goes_on(prior: &MaintenanceModel, wait_for: WaitFor) -> bool {
    match given(&prior.state) {
        Some("Preparing" | "Releasing") => true,
        // It is next in the queue, and its process is disconnected.
        Some("Pending") => wait_for != WaitFor::Enqueued || prior.queue_position == Value::Value(0),
        Some("InMaintenance" | ended::REVOKED) => wait_for == WaitFor::Completed,
        _ => false,
    }
}
