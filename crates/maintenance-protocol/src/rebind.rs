//! Identifiers that a lock gives up, because a person says that they name another server now.
//!
//! Where an identifier was claimed first is written once and for ever. Where it went from there is
//! written into the lock that gives it up, in one transaction that also sees that nothing is active
//! under that lock. So whoever read the old place fails in its own transaction on that lock, and no
//! store needs a transaction over several locks. Each move has a higher number than the one before,
//! also when an identifier comes back, so that the trail of moves has one end, wherever it is
//! entered.

pub use super::model::alias_moves::{AliasMove, AliasMoves};

use jiff::Timestamp;

use super::{
    aliases::Alias,
    identity::{AliasClaim, AliasTarget},
    ids::{LockKey, MaintenanceId, Uid},
    model::lock::{AuditEvent, Refusal, ServerLock},
};

/// A move that a person asked for.
#[derive(Clone, Debug)]
pub struct Rebind<'a> {
    /// The lock that gets the identifiers; `None`: they lead nowhere from now on.
    pub to: Option<&'a LockKey>,
    /// Who asks.
    pub by: &'a str,
    /// The reason, for people.
    pub reason: &'a str,
}

impl ServerLock {
    /// Where an identifier leads that led here after `version` moves; `None`: still here.
    #[must_use]
    pub fn moved_on(&self, alias: &Alias, version: u64) -> Option<AliasTarget> {
        let moved = self.extension.moved.get(alias).filter(|moved| moved.version > version)?;
        Some(match &moved.to {
            Some(key) => AliasTarget::At { key: key.clone(), version: moved.version },
            None => AliasTarget::Shared,
        })
    }

    /// Refuses when an identifier that led here was moved since it was read.
    pub fn keeps(&self, claims: &[AliasClaim]) -> Result<(), Refusal> {
        match claims.iter().find(|claim| self.moved_on(&claim.alias, claim.version).is_some()) {
            Some(claim) => Err(Refusal::AliasMoved { alias: claim.alias.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses while something is active under this lock, or its last calls may still have effects.
    pub fn refuse_in_use(&self, now: Timestamp) -> Result<(), Refusal> {
        if let Some(record) = self.active.first() {
            return Err(Refusal::LockInUse { key: self.key.clone(), by: record.id.to_string() });
        }
        if let Some(record) = self.unreadable.first() {
            return Err(Refusal::LockInUse { key: self.key.clone(), by: record.why.clone() });
        }
        match self.extension.effects.iter().map(|effect| effect.until).max() {
            Some(until) if until > now => {
                let by = format!("a call whose effect may come until {until}");
                Err(Refusal::LockInUse { key: self.key.clone(), by })
            }
            _ => Ok(()),
        }
    }

    /// Gives up identifiers that lead here.
    ///
    /// Refused while something is active under this lock, or its owner has claimed it: the claim
    /// would not follow.
    pub fn give_up(&mut self, claims: &[AliasClaim], rebind: &Rebind<'_>, now: Timestamp) -> Result<(), Refusal> {
        self.keeps(claims)?;
        // What leads nowhere from now on takes nothing from whoever holds the lock.
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

    /// Notes in the audit log that identifiers came here.
    pub fn note_rebind(&mut self, claims: &[AliasClaim], what: &str, rebind: &Rebind<'_>, now: Timestamp) {
        let aliases: Vec<String> = claims.iter().map(|claim| claim.alias.to_string()).collect();
        let Some(id) = audit_id(&self.key) else { return };
        self.events.push(AuditEvent {
            at: now,
            id,
            uid: Uid(self.key.0.clone()),
            generation: self.generation,
            by: rebind.by.to_owned(),
            what: "rebound".to_owned(),
            detail: format!("{} {what}: {}", aliases.join(", "), rebind.reason),
        });
    }
}

/// The name under which the audit log keeps what happened to a lock and not to a maintenance;
/// `None` for a key without a letter or digit.
#[must_use]
pub fn audit_id(key: &LockKey) -> Option<MaintenanceId> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = key.0.chars().map(plain).take(200).collect();
    MaintenanceId::new("locks", name.trim_matches('-')).ok()
}

#[cfg(test)]
mod tests;
