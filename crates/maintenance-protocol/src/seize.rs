//! Taking a hold from the process that has it, against its will.

use jiff::Timestamp;

use super::{
    ids::{Attachment, Fence, Generation, Runner, Token, Uid},
    model::lock::{Leases, Refusal, ServerLock},
};

impl ServerLock {
    /// Takes a hold away from its holder so that the caller can give the server back: raises the
    /// generation, which fences whoever is attached. `seen` is the generation that the person saw.
    ///
    /// Whoever was attached may still be in the middle of a call that it checked before this
    /// moment. A call is shorter than a lease, so nobody touches the machine before the leases are
    /// over that the returned predecessors have now: [`ServerLock::in_flight_until`]. That is
    /// recorded, because the caller may end before it has waited for it.
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
        // What acts under the hold is fenced with it.
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
        // Who takes a server from its holder has looked at it.
        self.extension.inspections.retain(|inspection| inspection.uid != *uid);
        self.audit(now, &record, &by, "seized", format!("generation {seen} → {generation}"));
        Ok((Fence { generation, token }, predecessors))
    }
}
