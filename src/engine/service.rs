//! Work by an external system: start and progress.

use crate::{
    backend::{BackendError, Machine},
    maintenance::service::stamp_before,
};

use super::{act::LookError, drive::Reconciler};

/// Returns the error for a server without an external service.
fn unsupported(machine: &dyn Machine) -> BackendError {
    BackendError::Unsupported {
        address: machine.address().into(),
        what: "its backend does not support services".into(),
    }
}

impl Reconciler<'_> {
    /// Reads the requested work's progress.
    pub(super) async fn look_service(&mut self) -> Result<(), LookError> {
        let Some(record) = self.record() else { return Ok(()) };
        let Some(service) = record.spec.service.clone() else { return Ok(()) };
        let before = stamp_before(record);
        let machine = self.machine()?;
        let control = machine.service().ok_or_else(|| unsupported(machine.as_ref()))?;
        self.facts.service = Some(Box::new(control.look(&service, before.as_deref()).await?));
        Ok(())
    }

    /// Starts the work.
    pub(super) async fn begin_service(&self, machine: &dyn Machine, stamp: &str) -> Result<(), BackendError> {
        let Some(service) = self.record().and_then(|record| record.spec.service.as_deref()) else { return Ok(()) };
        machine.service().ok_or_else(|| unsupported(machine))?.begin(service, stamp).await
    }
}
