//! Several provider versions on one store: what a person sees before a migration, and the
//! migration.

use crate::{
    maintenance::{
        ids::{LockKey, MaintenanceId, Uid},
        lock::AuditEvent,
    },
    store::{ChainEnds, Usage, VERSION},
};

use super::{Engine, EngineError};

/// How many migrations are shown.
const SHOWN: usize = 20;

/// What became of a migration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Migrated {
    /// The schema before.
    pub from: i64,
    /// The schema now.
    pub to: i64,
}

/// The lock key and the name under which the audit log keeps migrations. No server has this key:
/// hardware identities are UUIDs, serial numbers and addresses.
fn place() -> Option<(LockKey, MaintenanceId)> {
    MaintenanceId::new("store", "migrations").ok().map(|id| (LockKey("store:migrations".to_owned()), id))
}

impl Engine {
    /// Reads the schema of the store and which provider versions use it.
    pub async fn store_usage(&self) -> Result<Usage, EngineError> {
        Ok(self.store().usage().await?)
    }

    /// Counts the maintenances that are active. Their next run needs a version that reads the new
    /// schema.
    pub async fn active_maintenances(&self) -> Result<usize, EngineError> {
        let views = self.store().view_all().await?;
        Ok(views.iter().map(|view| view.lock.active.len() + view.lock.unreadable.len()).sum())
    }

    /// Brings the store to the newest schema of this version, and writes that to the audit log.
    pub async fn migrate_store(&self, before: &Usage) -> Result<Migrated, EngineError> {
        let is_chained =
            async || Ok::<_, EngineError>(self.store().verify_audit(&ChainEnds::new()).await?.is_chained());
        let chained_before = is_chained().await?;
        self.store().migrate().await?;
        let begins = !chained_before && is_chained().await?;
        let chained = if begins { "; the lines before are chained as they were found" } else { "" };
        let migrated = Migrated { from: before.schema, to: self.store().usage().await?.schema };
        let Some((key, id)) = place() else { return Ok(migrated) };
        let too_old: Vec<String> = before.too_old().map(|process| process.by.clone()).collect();
        let alive = if too_old.is_empty() { "none".to_owned() } else { too_old.join(", ") };
        let detail = format!(
            "from schema {} to {} by provider version {VERSION}; older versions alive: {alive}{chained}",
            migrated.from, migrated.to
        );
        let by = self.runner().to_string();
        let uid = Uid(format!("schema-{}", migrated.to));
        self.store()
            .transact(&key, &mut |lock, _, now| {
                lock.events.push(AuditEvent {
                    at: now,
                    id: id.clone(),
                    uid: uid.clone(),
                    generation: lock.generation,
                    by: by.clone(),
                    what: "migrated".to_owned(),
                    detail: detail.clone(),
                });
                Ok(())
            })
            .await?;
        Ok(migrated)
    }

    /// The migrations of the store, oldest first.
    pub async fn migrations(&self) -> Result<Vec<AuditEvent>, EngineError> {
        match place() {
            Some((_, id)) => Ok(self.store().audit(&id, SHOWN).await?),
            None => Ok(Vec::new()),
        }
    }
}
