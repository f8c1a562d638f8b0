//! Attachments that their own process does not use any more.

use jiff::Timestamp;

use super::{
    ids::{MaintenanceId, RunnerId, Token, Uid},
    model::lock::ServerLock,
};

impl ServerLock {
    /// Detaches `runner` from every record that it does not drive: `driven` names the attachments
    /// that it does. Only the process itself can know. Record, slot and place stay as after every
    /// detach. Which records these were.
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
