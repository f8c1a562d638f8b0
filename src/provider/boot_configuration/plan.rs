//! Plan checks and warnings for `metal_server_boot_configuration`.

use std::time::Duration;

use tf_provider::{Diagnostics, value::Value};

use crate::engine::Engine;

use crate::provider::{
    boot_configuration::model::BootConfigurationModel,
    boot_configuration::resource::ServerBootConfiguration,
    shared::own_turn::{hold_named, under},
    shared::private::Private,
    shared::prospect::PlannedRequest,
    shared::review,
    shared::review_change,
    shared::review_release,
    shared::values::given,
};

impl ServerBootConfiguration {
    /// Reviews the queue ahead of a new boot configuration. `patience` is its time limit.
    pub(in crate::provider) async fn review(
        &self,
        diags: &mut Diagnostics,
        model: &BootConfigurationModel,
        patience: Option<Duration>,
    ) {
        let engine = self.cell.engine_if_ready();
        let spec = model.check(diags, engine.as_deref());
        let Some(engine) = engine else { return review::not_checked(diags, &model.effect) };
        let Some(spec) = spec else { return };
        let hold = hold_named(diags, &model.maintenance_id);
        self.cell.unless_stopped(review::may_act_under(diags, &engine, hold.as_ref(), spec.server.shown())).await;
        let id = model.record_id(engine.owner());
        let asked = PlannedRequest::new(&spec, id.as_ref(), patience);
        self.cell
            .unless_stopped(review::boot_configuration(diags, &engine, &asked, under(&model.maintenance_id)))
            .await;
    }

    /// Reviews an update; an update that queues again is reviewed like a new boot configuration.
    pub(in crate::provider) async fn review_change(
        &self,
        diags: &mut Diagnostics,
        model: &BootConfigurationModel,
        touches: bool,
        private: &Value<Private>,
    ) {
        let engine = self.cell.engine_if_ready();
        // An external system boots a server only during a maintenance, which holds it then.
        let external = |engine: &Engine| engine.is_external(given(&model.server).unwrap_or_default());
        let held = |engine: &Engine| !model.maintenance_id.is_null() || external(engine);
        match &engine {
            Some(engine) if held(engine) || !touches => {
                if let Some(spec) = model.check(diags, Some(engine)) {
                    let effect = given(&model.effect).filter(|_| touches);
                    let uid = Private::uid(private);
                    let patience = self.control(model, false).timeout;
                    let changed = review_change::changed(diags, engine, &spec, None, effect, uid.as_ref(), patience);
                    self.cell.unless_stopped(Box::pin(changed)).await;
                }
            }
            None if !touches => drop(model.check(diags, None)),
            _ => self.review(diags, model, None).await,
        }
    }

    /// Warns of the restore during a destroy or a replacement.
    pub(in crate::provider) async fn release_warning(
        &self,
        diags: &mut Diagnostics,
        prior: &BootConfigurationModel,
        private: &Value<Private>,
    ) {
        let uid = Private::uid(private);
        let engine = self.cell.engine_if_ready();
        Box::pin(review_release::release(
            diags,
            engine.as_deref(),
            given(&prior.server).unwrap_or_default(),
            uid.as_ref(),
        ))
        .await;
    }
}
