//! Forced release: fencing the process that controls a record.

use jiff::Timestamp;

use super::{
    ids::{Attachment, Fence, Generation, Runner, Token, Uid},
    model::lock::{Leases, Refusal, ServerLock},
};

impl ServerLock {
    /// Fences the attached process, so that the caller can release the server. Raises the
    /// generation. `seen` is the generation that the person specified.
    ///
    /// The fenced process can still be inside a call that it checked earlier. A call is shorter
    /// than a lease, so no process changes the machine until the returned predecessors' leases end
    /// ([`ServerLock::in_flight_until`]). The lock stores that time, because the caller can end
    /// before it.
    pub fn fence_holder(
        &mut self,
        uid: &Uid,
        seen: Generation,
        runner: Runner,
        token: Token,
        leases: &Leases,
        now: Timestamp,
    ) -> Result<(Fence, Vec<Attachment>), Refusal> {
        let record = self.get(uid).ok_or(Refusal::Gone)?;
        let has_slot = self.has_slot(record);
        if record.generation != seen {
            return Err(Refusal::OtherGeneration { named: seen, current: record.generation });
        }
        self.generation = self.generation.checked_add(1).ok_or(Refusal::NoNumberLeft("generation"))?;
        let generation = self.generation;
        let mut predecessors = Vec::new();
        // Work under the lock is fenced as well.
        for child in self.active.iter_mut().filter(|child| child.spec.parent.as_ref() == Some(uid)) {
            if let Some(attachment) = child.attachment.take() {
                child.detached_at = Some(now);
                predecessors.push(attachment);
            }
        }
        if let Some(slot) = self.slot.as_mut().filter(|slot| slot.uid == *uid) {
            slot.acting = None;
        }
        let record = self.get_mut(uid)?;
        predecessors.extend(record.attachment.take());
        if has_slot {
            let until = predecessors.iter().filter_map(|attachment| leases.until(attachment)).max();
            record.calls_until = record.calls_until.max(until);
        }
        record.generation = generation;
        let by = runner.to_string();
        record.attachment = Some(Attachment { runner, generation, token, since: now });
        record.detached_at = None;
        let record = record.clone();
        // A person who forces a release has inspected the server.
        self.extension.inspections.retain(|inspection| inspection.uid != *uid);
        self.audit(now, &record, &by, "seized", format!("generation {seen} → {generation}"));
        Ok((Fence { generation, token }, predecessors))
    }
}
