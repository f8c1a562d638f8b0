//! Invariants of a store's contents.

use std::collections::{HashMap, HashSet};

use super::{
    aliases::Alias,
    ids::{LockKey, Uid},
    model::lock::ServerLock,
    state::{Maintenance, Phase},
};

/// Returns the violations as sentences; empty if all invariants are met.
#[must_use]
pub fn violations(locks: &[ServerLock], history: &[Maintenance]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut names = HashMap::new();
    let mut uids = HashSet::new();
    for lock in locks {
        of_lock(lock, &mut wrong);
        for record in &lock.active {
            if let Some(other) = names.insert(&record.id, &lock.key) {
                wrong.push(format!("{} is active twice: for {other} and for {}", record.id, lock.key));
            }
            if !uids.insert(&record.uid) {
                wrong.push(format!("the incarnation {} exists twice", record.uid));
            }
        }
    }
    for record in history {
        if !uids.insert(&record.uid) {
            wrong.push(format!("the incarnation {} exists twice", record.uid));
        }
        if !record.phase.is_over() {
            wrong.push(format!("{} ({}) is history, but {}", record.id, record.uid, record.phase.name()));
        }
        if record.attachment.is_some() {
            wrong.push(format!("{} ({}) is history, but a process is attached", record.id, record.uid));
        }
    }
    wrong
}

/// Half of the smallest store's integer range.
const LARGEST: u64 = 1 << 62;

/// Returns violations of identifier rules: one spelling per identifier, and each move leads to a
/// different lock.
#[must_use]
pub fn alias_violations(locks: &[ServerLock], bindings: &[(String, LockKey)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, _) in bindings {
        let alias = Alias::of_stored(name);
        if alias.is_hardware() && Alias::read(&alias.to_string()).as_ref() != Some(&alias) {
            wrong.push(format!("{alias} is not in its canonical form, so two locks can contain it"));
        }
    }
    for lock in locks {
        for (alias, moved) in &lock.extension.moved {
            if moved.version == 0 || moved.to.as_ref() == Some(&lock.key) {
                wrong.push(format!("{alias} was moved from {} to nowhere", lock.key));
            }
        }
    }
    wrong
}

fn of_lock(lock: &ServerLock, wrong: &mut Vec<String>) {
    for (what, number) in [("generation", lock.generation), ("ticket number", lock.last_ticket)] {
        if number > LARGEST {
            wrong.push(format!("the {what} of {} is {number}, which cannot grow any more", lock.key));
        }
    }
    let key = &lock.key;
    wrong.extend(lock.unreadable.iter().map(|record| {
        let name = record.id.as_ref().map_or_else(|| "a maintenance".to_owned(), ToString::to_string);
        format!("{name} of {key} cannot be read: {}", record.why)
    }));
    let read = |uid: &Uid| lock.unreadable.iter().all(|record| record.uid != *uid);
    if let Some(slot) = lock.slot.as_ref().filter(|slot| read(&slot.uid)) {
        match lock.get(&slot.uid) {
            None => wrong.push(format!("{key} is held by {}, which is not active", slot.uid)),
            Some(holder) => {
                if holder.phase == Phase::Pending {
                    wrong.push(format!("{key} is held by {}, which has not started", holder.id));
                }
                if holder.spec.parent.is_some() {
                    wrong.push(format!("{key} is held by {}, which acts under another lock", holder.id));
                }
            }
        }
        if let Some(acting) = &slot.acting
            && lock.get(acting).is_none_or(|record| record.spec.parent.as_ref() != Some(&slot.uid))
        {
            wrong.push(format!("under the lock {key} acts {acting}, which does not belong to it"));
        }
    }
    let mut tickets = HashMap::new();
    for record in &lock.active {
        of_record(lock, record, wrong);
        if let Some(other) = tickets.insert(record.ticket_number, &record.id) {
            wrong.push(format!("{} and {other} have the same number in the queue of {key}", record.id));
        }
    }
    if lock.ownership.claim.is_none() && !lock.ownership.approvals.is_empty() {
        wrong.push(format!("{key} has approvals, but no owner"));
    }
}

fn of_record(lock: &ServerLock, record: &Maintenance, wrong: &mut Vec<String>) {
    let key = &lock.key;
    if record.lock_key != *key {
        wrong.push(format!("{} is for {}, but in the queue of {key}", record.id, record.lock_key));
    }
    if record.phase.is_over() {
        wrong.push(format!("{} is {}, but still active", record.id, record.phase.name()));
    }
    if record.generation > lock.generation {
        let (theirs, last) = (record.generation, lock.generation);
        wrong.push(format!("{} has generation {theirs}, but the last generation of {key} is {last}", record.id));
    }
    if record.ticket_number == 0 || record.ticket_number > lock.last_ticket {
        let (theirs, last) = (record.ticket_number, lock.last_ticket);
        wrong.push(format!("{} has number {theirs}, but the last number of {key} is {last}", record.id));
    }
    if let Some(attachment) = &record.attachment
        && attachment.generation != record.generation
    {
        let (theirs, current) = (attachment.generation, record.generation);
        wrong.push(format!(
            "a process works on {} with generation {theirs}, but the current generation is {current}",
            record.id
        ));
    }
    let acts = matches!(record.phase, Phase::Preparing(_) | Phase::Releasing { .. })
        || (record.keeps_server() && matches!(record.phase, Phase::InMaintenance { .. }));
    if acts && !lock.has_slot(record) {
        wrong.push(format!("{} is {}, but does not hold {key}", record.id, record.phase.name()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::lock::LockHolder;

    #[test]
    fn an_identifier_in_another_spelling_is_found() {
        let bound = |name: &str| [(name.to_owned(), LockKey::new("uuid"))];
        assert_eq!(alias_violations(&[], &bound("uuid:4C4C4544-0037-3010-8052-B4C04F4D3332")).len(), 1);
        for canonical in [Alias::serial("maker", "A42", None).unwrap().stored(), "team/node".to_owned()] {
            assert_eq!(alias_violations(&[], &bound(&canonical)), Vec::<String>::new());
        }
    }

    #[test]
    fn a_slot_of_nobody_is_found_and_an_empty_lock_is_well() {
        let mut lock = ServerLock::new(LockKey::new("k"));
        assert_eq!(violations(&[lock.clone()], &[]), Vec::<String>::new());
        lock.slot = Some(LockHolder { uid: Uid::new("u"), since: jiff::Timestamp::UNIX_EPOCH, acting: None });
        assert_eq!(violations(&[lock], &[]), ["k is held by u, which is not active"]);
    }
}
