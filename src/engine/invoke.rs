//! An operation that is invoked, and leaves nothing in a state: which invocation an earlier record
//! stands for.

use crate::{
    maintenance::{
        decide::Finish,
        spec::{MaintenanceKind, Spec},
        state::{Ending, Maintenance, Phase},
    },
    store::RecordLookup,
};

use super::{Control, Engine, EngineError, MaintenanceRequest, ReconcileResult};

/// What became of an invocation.
#[derive(Clone, Debug)]
pub enum Invoked {
    /// An earlier run made it: nothing is sent.
    MadeBefore(Maintenance),
    /// An earlier invocation of this name, for something else, has not ended.
    NotEnded(ReconcileResult),
    /// It was driven now.
    Driven(ReconcileResult),
}

impl Engine {
    /// Makes an operation once per name, `triggers` and content: what an earlier run of the same
    /// made is not made again, what it left unfinished is continued, and a record of other content
    /// is ended first.
    pub async fn invoke(&self, wish: &MaintenanceRequest, control: &Control) -> Result<Invoked, EngineError> {
        if let Some(RecordLookup::Active(record)) = self.store().find(&wish.id).await?
            && record.spec.kind == MaintenanceKind::Operation
            && record.owner == self.owner()
        {
            let ends = matches!(record.phase, Phase::Releasing { .. });
            let same = !ends && is_same(&record.spec, &self.as_asked_here(&wish.spec));
            if same && matches!(record.phase, Phase::InMaintenance { .. }) {
                return Ok(Invoked::MadeBefore(*record));
            }
            if same {
                if let Some(driven) = Box::pin(self.resume(&record.uid, wish, control)).await? {
                    return Ok(Invoked::Driven(driven));
                }
            } else if let Some(driven) = self.release(&record.uid, record.server(), Ending::Completed, control).await?
                && driven.finish != Finish::Over
                && driven.finish != Finish::Withdrawn
            {
                return Ok(Invoked::NotEnded(driven));
            }
        }
        Ok(Invoked::Driven(Box::pin(self.hold(wish, control)).await?))
    }

    /// Ends the record of an operation that was made, so that the next invocation makes it again.
    pub async fn forget_made(&self, record: &Maintenance, control: &Control) -> Result<(), EngineError> {
        self.release(&record.uid, record.server(), Ending::Completed, control).await?;
        Ok(())
    }
}

/// Whether two specifications ask for the same operation; how it queues does not matter.
fn is_same(one: &Spec, other: &Spec) -> bool {
    one.server == other.server
        && one.operation == other.operation
        && one.service == other.service
        && one.triggers == other.triggers
}
