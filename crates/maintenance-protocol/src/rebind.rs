//! Moving identifiers to another lock, after a person declares that they name another server.
//!
//! The first claim of an identifier is written once and never changed. A move is written to the
//! previous lock, in a transaction that also checks that this lock is idle. A process that read the
//! old location therefore fails in its own transaction, and stores do not need transactions over
//! several locks. Each move increments the version, even if an identifier returns to an earlier
//! lock. Every chain of moves therefore has one end, whatever its start.

pub use super::model::alias_moves::{AliasMove, AliasMoves};

use jiff::Timestamp;

use super::{
    aliases::Alias,
    identity::{AliasClaim, AliasTarget},
    ids::{LockKey, MaintenanceId, Uid},
    model::lock::{AuditEvent, Refusal, ServerLock},
};

/// A person's move of identifiers.
#[derive(Clone, Debug)]
pub struct Rebind<'a> {
    /// The new lock; `None` if the identifiers no longer lead to a lock.
    pub to: Option<&'a LockKey>,
    /// Author of the move.
    pub by: &'a str,
    /// The reason, for people.
    pub reason: &'a str,
}

impl ServerLock {
    /// Returns the identifier's new location if it moved after `version` moves; `None` if it
    /// stayed.
    #[must_use]
    pub fn moved_on(&self, alias: &Alias, version: u64) -> Option<AliasTarget> {
        let moved = self.extension.moved.get(alias).filter(|moved| moved.version > version)?;
        Some(match &moved.to {
            Some(key) => AliasTarget::At { key: key.clone(), version: moved.version },
            None => AliasTarget::Shared,
        })
    }

    /// Fails if one of the identifiers moved after it was read.
    pub fn keeps(&self, claims: &[AliasClaim]) -> Result<(), Refusal> {
        match claims.iter().find(|claim| self.moved_on(&claim.alias, claim.version).is_some()) {
            Some(claim) => Err(Refusal::AliasMoved { alias: claim.alias.clone() }),
            None => Ok(()),
        }
    }

    /// Fails if the lock has active records, or if its last calls can still change the server.
    pub fn refuse_in_use(&self, now: Timestamp) -> Result<(), Refusal> {
        if let Some(record) = self.active.first() {
            return Err(Refusal::LockInUse { key: self.key.clone(), by: record.id.to_string() });
        }
        if let Some(record) = self.unreadable.first() {
            return Err(Refusal::LockInUse { key: self.key.clone(), by: record.why.to_string() });
        }
        match self.extension.effects.iter().map(|effect| effect.until).max() {
            Some(until) if until > now => {
                let by = format!("a call that can take effect until {until}");
                Err(Refusal::LockInUse { key: self.key.clone(), by })
            }
            _ => Ok(()),
        }
    }

    /// Moves identifiers to another lock.
    ///
    /// Fails if the lock is in use or claimed, because the claim would not move along.
    pub fn give_up(&mut self, claims: &[AliasClaim], rebind: &Rebind<'_>, now: Timestamp) -> Result<(), Refusal> {
        self.keeps(claims)?;
        // Without a new lock, the move does not affect this lock's holder.
        if rebind.to.is_some() {
            self.refuse_in_use(now)?;
            if let Some(claim) = &self.ownership.claim {
                return Err(Refusal::LockInUse { key: self.key.clone(), by: format!("the claim {}", claim.id) });
            }
        }
        for AliasClaim { alias, version } in claims {
            let moved = AliasMove { to: rebind.to.cloned(), version: version + 1 };
            self.extension.moved.insert(alias.clone(), moved);
        }
        let to = rebind.to.map_or_else(|| "no lock".to_owned(), ToString::to_string);
        self.note_rebind(claims, &format!("to {to}"), rebind, now);
        Ok(())
    }

    /// Adds an audit event for identifiers that moved here.
    pub fn note_rebind(&mut self, claims: &[AliasClaim], what: &str, rebind: &Rebind<'_>, now: Timestamp) {
        let aliases: Vec<String> = claims.iter().map(|claim| claim.alias.to_string()).collect();
        let Some(id) = audit_id(&self.key) else { return };
        self.events.push(AuditEvent {
            at: now,
            id,
            uid: Uid::new(self.key.raw().to_owned()),
            generation: self.generation,
            by: rebind.by.into(),
            what: "rebound".into(),
            detail: format!("{} {what}: {}", aliases.join(", "), rebind.reason).into(),
        });
    }
}

/// Returns the audit log name for events of a lock that do not belong to a maintenance. `None` for
/// a key without letters and digits.
#[must_use]
pub fn audit_id(key: &LockKey) -> Option<MaintenanceId> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = key.raw().chars().map(plain).take(200).collect();
    MaintenanceId::new("locks", name.trim_matches('-')).ok()
}

#[cfg(test)]
mod tests;
