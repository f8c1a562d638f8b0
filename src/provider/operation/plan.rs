//! What a plan tells of an operation, that of a resource and that of an action.

use std::time::Duration;

use tf_provider::Diagnostics;

use crate::provider::{
    operation::model::OperationModel, operation::service_model, shared::cell::Cell, shared::own_turn::hold_named,
    shared::review, shared::values::given,
};

/// Tells a reviewer what an operation would do, that of a resource and that of an action.
pub(in crate::provider) async fn review_operation(
    diags: &mut Diagnostics,
    cell: &Cell,
    model: &OperationModel,
    patience: Duration,
) {
    let engine = cell.engine_if_ready();
    let spec = model.check(diags, engine.as_deref());
    if engine.is_none() {
        review::not_checked(diags, &model.effect);
    }
    if let (Some(engine), Some(spec)) = (engine, spec) {
        let (id, hold) = (model.name_id(), hold_named(diags, &model.maintenance_id));
        let asked = review::may_act_under(diags, &engine, hold.as_ref(), &spec.server);
        cell.unless_stopped(asked).await;
        let own_turn = model.maintenance_id.is_null();
        if own_turn && cell.unless_stopped(review::lasts(diags, &engine, &spec)).await == Some(false) {
            return;
        }
        let serviced = service_model::review(diags, &engine, &spec, given(&model.maintenance_id));
        if cell.unless_stopped(serviced).await == Some(false) {
            return;
        }
        let reviewed = review::operation(diags, &engine, &spec, id.as_ref(), patience, given(&model.maintenance_id));
        cell.unless_stopped(reviewed).await;
    }
}
