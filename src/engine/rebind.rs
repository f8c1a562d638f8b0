//! Moves server identifiers between locks on a person's command.

use std::collections::BTreeMap;

use crate::maintenance::{
    aliases::{Alias, SystemUuid},
    identity::{AliasClaim, AliasTarget},
    ids::LockKey,
    lock::ServerLock,
    rebind::Rebind,
};

use super::{Engine, EngineError};

/// Moved identifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebound {
    /// The identifiers, each with its former lock.
    pub moved: Vec<(Alias, LockKey)>,
    /// Their current lock; `None`: they identify no server.
    pub to: Option<LockKey>,
}

impl Engine {
    /// Moves stored identifiers to another lock, or declares that several servers share them (`key`
    /// is `None`).
    ///
    /// Rejected while either lock has an active maintenance. Identifiers that already belong to the
    /// lock stay. After a crash, repeating the command moves the rest.
    pub async fn rebind(
        &self,
        identifiers: &[String],
        key: Option<&str>,
        reason: &str,
    ) -> Result<Rebound, EngineError> {
        let to = key
            .map(|key| SystemUuid::read(key).map_or_else(|| LockKey::new(key.trim().to_owned()), SystemUuid::lock_key));
        let aliases: Vec<Alias> =
            identifiers.iter().map(|text| Alias::read(text).unwrap_or_else(|| Alias::name(text))).collect();
        let mut places = self.places(&aliases).await?;
        self.follow(&mut places).await?;
        let mut from: BTreeMap<LockKey, Vec<AliasClaim>> = BTreeMap::new();
        for (alias, text) in aliases.iter().zip(identifiers) {
            match places.get(alias) {
                Some(AliasTarget::At { key, .. }) if Some(key) == to.as_ref() => {}
                Some(AliasTarget::At { key, version }) => {
                    let claim = AliasClaim { alias: alias.clone(), version: *version };
                    from.entry(key.clone()).or_default().push(claim);
                }
                Some(AliasTarget::Shared) if to.is_none() => {}
                Some(AliasTarget::Shared) | None => {
                    let store = self.store().address();
                    return Err(EngineError::UnknownIdentifier { text: text.clone(), store });
                }
            }
        }
        let by = self.runner().to_string();
        let rebind = Rebind { to: to.as_ref(), by: &by, reason };
        if let Some(to) = &to {
            self.store().transact(to, &mut |lock, _, now| lock.refuse_in_use(now)).await?;
        }
        // Check all locks before the first move.
        for (key, claims) in &from {
            let asked = |lock: &mut ServerLock, now| lock.clone().give_up(claims, &rebind, now);
            self.store().transact(key, &mut |lock, _, now| asked(lock, now)).await?;
        }
        if let Some(to) = &to
            && let Some(uuid) = SystemUuid::read(to.raw())
        {
            let alias = uuid.alias();
            if self.places(std::slice::from_ref(&alias)).await?.is_empty() {
                self.store().bind(&alias.stored(), to, false).await?;
            }
        }
        let mut moved = Vec::new();
        for (key, claims) in from {
            self.store().transact(&key, &mut |lock, _, now| lock.give_up(&claims, &rebind, now)).await?;
            let Some(to) = &to else {
                moved.extend(claims.into_iter().map(|claim| (claim.alias, key.clone())));
                continue;
            };
            self.store()
                .transact(to, &mut |lock, _, now| {
                    lock.note_rebind(&claims, &format!("from {key}"), &rebind, now);
                    Ok(())
                })
                .await?;
            moved.extend(claims.into_iter().map(|claim| (claim.alias, key.clone())));
        }
        Ok(Rebound { moved, to })
    }
}
