//! An operation that is invoked, and leaves nothing in a state: which invocation an earlier record
//! stands for.

use crate::{
    maintenance::{
        decide::Finish,
        ids::MaintenanceId,
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

/// What an invocation meets under its name: an operation of the same owner that is not over.
#[derive(Clone, Debug)]
pub enum EarlierInvocation {
    /// It was made: nothing is sent.
    Made(Box<Maintenance>),
    /// It is continued.
    Unfinished(Box<Maintenance>),
    /// It was for something else, and is ended first.
    Other(Box<Maintenance>),
}

impl Engine {
    /// What an invocation would meet, for a plan: read like [`Engine::name_conflict`].
    pub async fn earlier_invocation(&self, id: &MaintenanceId, spec: &Spec) -> Option<EarlierInvocation> {
        self.planned_record(id).await.ok()??;
        self.earlier(self.active(id).await.ok()?, spec)
    }

    /// The record of an operation that a resource of this name and specification takes over as it
    /// is, because it was made. One of a state of this run is replaced, and does not count.
    pub async fn made_before(&self, id: &MaintenanceId, spec: &Spec) -> Option<Maintenance> {
        let takes = |record: &Maintenance| {
            let same = record.refuses_request(self.owner(), &self.as_asked_here(spec)).is_none();
            record.is_made() && same && !self.manages(&record.uid)
        };
        self.planned_record(id).await.ok()?.filter(takes)?;
        self.active(id).await.ok().filter(takes)
    }

    fn earlier(&self, record: Maintenance, spec: &Spec) -> Option<EarlierInvocation> {
        if record.spec.kind != MaintenanceKind::Operation || record.owner != self.owner() {
            return None;
        }
        let ends = matches!(record.phase, Phase::Releasing { .. });
        let same = !ends && is_same(&record.spec, &self.as_asked_here(spec));
        let record = Box::new(record);
        Some(match (same, record.is_made()) {
            (true, true) => EarlierInvocation::Made(record),
            (true, false) => EarlierInvocation::Unfinished(record),
            (false, _) => EarlierInvocation::Other(record),
        })
    }

    /// Makes an operation once per name, `triggers` and content: what an earlier run of the same
    /// made is not made again, what it left unfinished is continued, and a record of other content
    /// is ended first.
    pub async fn invoke(&self, wish: &MaintenanceRequest, control: &Control) -> Result<Invoked, EngineError> {
        let earlier = match self.store().find(&wish.id).await? {
            Some(RecordLookup::Active(record)) => self.earlier(*record, &wish.spec),
            _ => None,
        };
        match earlier {
            Some(EarlierInvocation::Made(record)) => return Ok(Invoked::MadeBefore(*record)),
            Some(EarlierInvocation::Unfinished(record)) => {
                if let Some(driven) = Box::pin(self.resume(&record.uid, wish, control)).await? {
                    return Ok(Invoked::Driven(driven));
                }
            }
            Some(EarlierInvocation::Other(record)) => {
                if let Some(driven) = self.release(&record.uid, record.server(), Ending::Completed, control).await?
                    && driven.finish != Finish::Over
                    && driven.finish != Finish::Withdrawn
                {
                    return Ok(Invoked::NotEnded(driven));
                }
            }
            None => {}
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
