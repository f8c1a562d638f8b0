//! The next waiter releases an overdue holder.

use std::time::Duration;

use crate::{
    maintenance::{
        decide::{Finish, Goal},
        ids::Uid,
        state::Ending,
    },
    store::RecordLookup,
};

use super::{Control, EngineError, drive::Reconciler, status::SAY_AGAIN};

impl Reconciler<'_> {
    /// Releases an overdue holder to which no process is attached, under a new generation.
    pub(super) async fn reclaim(
        &mut self,
        uid: &Uid,
        deadline: Duration,
        control: &Control,
    ) -> Result<(), EngineError> {
        let clock = &self.engine.parts.clock;
        if clock.monotonic() < self.reclaim_after || control.stop.is_cancelled() || clock.monotonic() >= deadline {
            let pause = self.reclaim_after.saturating_sub(clock.monotonic());
            self.log_status("waiting for an overdue maintenance whose release failed; the release is retried");
            self.wait(false, Some(pause), deadline, control).await;
            return Ok(());
        }
        let Some(RecordLookup::Active(overdue)) = self.engine.store().find_uid(uid).await? else { return Ok(()) };
        if let Err(error) = self.engine.reaches(&overdue).await {
            tracing::warn!(%error, "{} is overdue and cannot be released from here", overdue.id);
            self.reclaim_after = self.engine.parts.clock.monotonic() + SAY_AGAIN;
            return Ok(());
        }
        self.log_status(&format!("{} is overdue, and no process is attached to it: releasing it", overdue.id));
        let (fence, driving) = match self.engine.attach_overdue(&overdue).await {
            Ok(attached) => attached,
            // Another process was faster.
            Err(EngineError::Refused(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut drive = Reconciler::new(self.engine, &self.key, &self.server, uid, fence, driving);
        let within = Control { timeout: control.release_timeout, ..control.clone() };
        match Box::pin(drive.run(Goal::Release(Ending::Expired), &within)).await {
            Ok(driven) if driven.finish == Finish::Over => return Ok(()),
            Ok(_) => {}
            // The overdue maintenance failed; this waiter continues.
            Err(error) => tracing::warn!(%error, "releasing {} failed", overdue.id),
        }
        self.reclaim_after = self.engine.parts.clock.monotonic() + SAY_AGAIN;
        Ok(())
    }
}
