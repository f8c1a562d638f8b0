//! Plan warnings for an operation, as a resource and as an action.

use std::time::Duration;

use tf_provider::{AttributePath, Diagnostics};

use crate::{
    engine::{EarlierInvocation, Engine},
    maintenance::{ids::MaintenanceId, spec::Spec, state::Maintenance},
    plugin::diagnostic,
};

use crate::provider::{
    operation::model::OperationModel, operation::service_model, shared::cell::Cell, shared::own_turn::hold_named,
    shared::prospect::PlannedRequest, shared::review, shared::values::given,
};

/// The planned type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider) enum Plans {
    /// A resource. It adopts an existing operation with the same specification; a different
    /// specification is refused.
    Resource,
    /// An action. It ends an earlier invocation with a different specification.
    Action,
}

/// Describes an operation to the reviewer.
pub(in crate::provider) async fn review_operation(
    diags: &mut Diagnostics,
    cell: &Cell,
    model: &OperationModel,
    plans: Plans,
    patience: Duration,
) {
    let engine = cell.engine_if_ready();
    let spec = model.check(diags, engine.as_deref());
    if engine.is_none() {
        review::not_checked(diags, &model.effect);
    }
    if let (Some(engine), Some(spec)) = (engine, spec) {
        let (id, hold) = (model.name_id(), hold_named(diags, &model.maintenance_id));
        let asked = review::may_act_under(diags, &engine, hold.as_ref(), spec.server.shown());
        cell.unless_stopped(asked).await;
        let earlier = cell.unless_stopped(earlier(&engine, id.as_ref(), &spec, plans)).await.flatten();
        if let Some(EarlierInvocation::Made(record)) = &earlier {
            diags.add_warning(made_before(record, plans));
            return;
        }
        let own_turn = model.maintenance_id.is_null();
        if own_turn && cell.unless_stopped(review::lasts(diags, &engine, &spec)).await == Some(false) {
            return;
        }
        let serviced = service_model::review(diags, &engine, &spec, given(&model.maintenance_id));
        if cell.unless_stopped(serviced).await == Some(false) {
            return;
        }
        let asked =
            PlannedRequest { earlier: earlier.as_ref(), ..PlannedRequest::new(&spec, id.as_ref(), Some(patience)) };
        let reviewed = review::operation(diags, &engine, &asked, model.under());
        cell.unless_stopped(Box::pin(reviewed)).await;
    }
}

/// Returns the existing record with that name, if it affects the apply.
async fn earlier(engine: &Engine, id: Option<&MaintenanceId>, spec: &Spec, plans: Plans) -> Option<EarlierInvocation> {
    match plans {
        Plans::Action => engine.earlier_invocation(id?, spec).await,
        Plans::Resource => engine.made_before(id?, spec).await.map(|record| EarlierInvocation::Made(Box::new(record))),
    }
}

/// Warns that apply sends no request.
fn made_before(record: &Maintenance, plans: Plans) -> tf_provider::Diagnostic {
    let why = match plans {
        Plans::Resource => "apply adds its existing record to this state. Change triggers to run the operation again.",
        Plans::Action if record.spec.triggers.is_empty() => {
            "the run that invoked it was killed before it could report. This invocation reports it, and the next \
             invocation runs the operation again."
        }
        Plans::Action => "an earlier invocation had the same triggers. Change triggers to run the operation again.",
    };
    diagnostic(
        "An operation has already run",
        format!("{}: {} already ran {}. Nothing will be sent: {why}", record.server(), record.id, record.made()),
        AttributePath::root(),
    )
}
