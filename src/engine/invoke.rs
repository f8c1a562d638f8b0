//! Invoked operations, which leave no state: matches an invocation with an earlier record.

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

/// Result of an invocation.
#[derive(Clone, Debug)]
pub enum Invoked {
    /// An earlier run completed it; nothing is sent.
    MadeBefore(Maintenance),
    /// Another invocation with this name has not ended.
    NotEnded(ReconcileResult),
    /// It was driven now.
    Driven(ReconcileResult),
}

/// An earlier operation with the same name and owner that has not ended.
#[derive(Clone, Debug)]
pub enum EarlierInvocation {
    /// It is complete; nothing is sent.
    Made(Box<Maintenance>),
    /// It is continued.
    Unfinished(Box<Maintenance>),
    /// It has different content and is ended first.
    Other(Box<Maintenance>),
}

impl Engine {
    /// Returns the earlier invocation for a plan, read like [`Engine::name_conflict`].
    pub async fn earlier_invocation(&self, id: &MaintenanceId, spec: &Spec) -> Option<EarlierInvocation> {
        self.planned_record(id).await.ok()??;
        self.earlier(self.active(id).await.ok()?, spec)
    }

    /// Returns the completed operation that a new resource with this name and specification adopts.
    /// Records that this run's states manage are excluded, because they are replaced.
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

    /// Performs an operation once per name, `triggers` and content. A completed operation is not
    /// repeated, an unfinished operation is continued, and a record with other content is ended
    /// first.
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

    /// Ends a completed operation's record, so that the next invocation performs it again.
    pub async fn forget_made(&self, record: &Maintenance, control: &Control) -> Result<(), EngineError> {
        self.release(&record.uid, record.server(), Ending::Completed, control).await?;
        Ok(())
    }
}

/// Returns true if both specifications request the same operation, regardless of queue settings.
fn is_same(one: &Spec, other: &Spec) -> bool {
    one.server == other.server
        && one.operation == other.operation
        && one.service == other.service
        && one.triggers == other.triggers
}
