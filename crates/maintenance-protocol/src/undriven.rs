//! Attachments that their own process no longer uses.

use jiff::Timestamp;

use super::{
    ids::{MaintenanceId, RunnerId, Token, Uid},
    model::lock::ServerLock,
};

impl ServerLock {
    /// Detaches `runner` from every record that it does not drive. `driven` contains the tokens of
    /// its used attachments; only the process itself has them. Record, lock and queue position
    /// stay. Returns the affected maintenances.
    pub fn detach_undriven(&mut self, runner: &RunnerId, driven: &[Token], now: Timestamp) -> Vec<MaintenanceId> {
        let idle: Vec<(Uid, _)> = self
            .active
            .iter()
            .filter_map(|record| {
                let attachment = record.attachment.as_ref().filter(|attachment| attachment.runner.id == *runner)?;
                Some((record.uid.clone(), attachment.fence()))
            })
            .filter(|(_, fence)| !driven.contains(&fence.token))
            .collect();
        let mut let_go = Vec::new();
        for (uid, fence) in idle {
            if self.detach(&uid, fence, now).is_ok() {
                let_go.extend(self.get(&uid).map(|record| record.id.clone()));
            }
        }
        let_go
    }
}
