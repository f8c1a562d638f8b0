//! Locks in a store that was restored from a backup.
//!
//! The last commits are lost: in the meantime the server can have changed, and another process can
//! have been admitted. No rule can detect that. Every generation is therefore raised above all
//! generations possibly issued, which fences every process. Each maintenance then waits until a
//! person has inspected its server.

pub use super::model::inspection::Inspection;

use jiff::Timestamp;

use super::{
    ids::{Generation, Uid},
    model::lock::{AuditEvent, Leases, Refusal, ServerLock},
    state::Maintenance,
};

impl ServerLock {
    /// Returns the inspection for which this maintenance or its parent waits.
    #[must_use]
    pub fn awaits_inspection(&self, record: &Maintenance) -> Option<&Inspection> {
        let root = record.spec.parent.as_ref().unwrap_or(&record.uid);
        self.extension.inspections.iter().find(|inspection| inspection.uid == *root || inspection.uid == record.uid)
    }

    /// Fails if the record waits for an inspection, so that no process attaches.
    pub(super) fn refuse_before_inspection(&self, uid: &Uid) -> Result<(), Refusal> {
        let record = self.get(uid).ok_or(Refusal::Gone)?;
        match self.awaits_inspection(record) {
            None => Ok(()),
            Some(inspection) => Err(Refusal::ToBeInspected {
                id: record.id.clone(),
                since: inspection.since,
                reason: inspection.reason.clone(),
            }),
        }
    }

    /// Removes inspections of inactive records.
    pub(super) fn forget_inspections(&mut self) {
        let active = &self.active;
        self.extension.inspections.retain(|inspection| active.iter().any(|record| record.uid == inspection.uid));
    }

    /// Handles a store's restore. Raises the generation to `floor`, or by one if it is already
    /// higher. Fences every process, and marks every maintenance for inspection.
    ///
    /// An attached process can still be inside a call, so its lease must end first.
    pub fn restored(&mut self, floor: Generation, by: &str, reason: &str, leases: &Leases, now: Timestamp) {
        self.generation = self.generation.saturating_add(1).max(floor);
        let generation = self.generation;
        if let Some(slot) = &mut self.slot {
            slot.acting = None;
        }
        for record in &mut self.active {
            if let Some(attachment) = record.attachment.take() {
                record.detached_at = Some(now);
                record.calls_until = record.calls_until.max(leases.until(&attachment));
            }
            let was = record.generation;
            record.generation = generation;
            self.extension.inspections.retain(|inspection| inspection.uid != record.uid);
            self.extension.inspections.push(Inspection {
                uid: record.uid.clone(),
                since: now,
                by: by.into(),
                reason: reason.into(),
            });
            self.events.push(AuditEvent {
                at: now,
                id: record.id.clone(),
                uid: record.uid.clone(),
                generation,
                by: by.into(),
                what: "restored".into(),
                detail: format!("{reason}; generation {was} → {generation}").into(),
            });
        }
    }

    /// Records a person's inspection and allows processes to act again. Returns `false` if the
    /// record did not wait for an inspection.
    pub fn inspected(&mut self, uid: &Uid, by: &str, reason: &str, now: Timestamp) -> Result<bool, Refusal> {
        let record = self.get(uid).ok_or(Refusal::Gone)?;
        let event = AuditEvent {
            at: now,
            id: record.id.clone(),
            uid: uid.clone(),
            generation: record.generation,
            by: by.into(),
            what: "inspected".into(),
            detail: reason.into(),
        };
        let before = self.extension.inspections.len();
        let parent = |uid: &Uid| self.active.iter().find(|record| record.uid == *uid)?.spec.parent.as_ref();
        let (inspections, about) = (&self.extension.inspections, |of: &Uid| of == uid || parent(of) == Some(uid));
        self.extension.inspections = inspections.iter().filter(|left| !about(&left.uid)).cloned().collect();
        let waited = self.extension.inspections.len() < before;
        if waited {
            self.events.push(event);
        }
        Ok(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{LockKey, MaintenanceId, Runner},
        model::lock::{AskingState, EnqueueRequest},
        spec::{MaintenanceKind, Spec},
    };

    fn runner(name: &str) -> Runner {
        Runner::new(name, name, "desk", 1)
    }

    fn request(name: &str) -> EnqueueRequest {
        EnqueueRequest {
            uid: Uid::new(name),
            id: MaintenanceId::new("ops", name).unwrap(),
            owner: "team".to_owned(),
            spec: Spec::new(MaintenanceKind::Maintenance, "node-1"),
            gates: Vec::new(),
            runner: runner(name),
            keeps_place: false,
            location: None,
            asking: AskingState::default(),
        }
    }

    #[test]
    fn after_a_restore_nobody_attaches_before_a_person_has_looked() {
        let (now, leases) = (Timestamp::UNIX_EPOCH, Leases::default());
        let mut lock = ServerLock::new(LockKey::new("k"));
        let uid = lock.enqueue(request("a"), &leases, now).unwrap().uid().clone();
        lock.enqueue(request("b"), &leases, now).unwrap();
        lock.restored(1000, "ada", "disk", &leases, now);
        assert_eq!(lock.generation, 1000);
        for record in &lock.active {
            assert_eq!((record.generation, record.attachment.as_ref()), (1000, None));
            assert!(lock.awaits_inspection(record).is_some());
            assert!(matches!(lock.refuse_before_inspection(&record.uid), Err(Refusal::ToBeInspected { .. })));
        }
        // A second restore continues from the current generation and never reissues a number.
        lock.restored(1000, "ada", "again", &leases, now);
        assert_eq!((lock.generation, lock.extension.inspections.len()), (1001, 2));
        assert_eq!(lock.inspected(&uid, "ada", "fine", now), Ok(true));
        assert_eq!(lock.inspected(&uid, "ada", "fine", now), Ok(false));
        assert_eq!(lock.refuse_before_inspection(&uid), Ok(()));
        assert!(lock.refuse_before_inspection(&Uid::new("b")).is_err());
        lock.active.clear();
        lock.forget_inspections();
        assert!(lock.extension.is_empty());
    }
}
