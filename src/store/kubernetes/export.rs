//! The audit log in commit order.
//!
//! Locks and journals contain the log. These are two lists with different revisions, so a commit
//! that is newer than the newest listed lock can be missing. The next read returns it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;

use super::{
    KubernetesStore, journal,
    link::{self, StoreClient},
    objects,
};
use crate::store::{AuditLine, AuditPosition, AuditStart, StoreError, forgotten_before, history};

/// Reads the next lines.
pub(super) async fn read(store: &KubernetesStore, start: &AuditStart) -> Result<Vec<AuditLine>, StoreError> {
    let store_link = &store.link;
    // Locks first: an entry that moves to a journal in between is in both.
    let mut maps = store_link.list(&objects::all("lock")).await?;
    let mut newest = 0;
    for map in &maps {
        newest = newest.max(link::revision(&map.metadata, &store_link.faults)?);
    }
    maps.extend(journals(store_link, start).await?);
    let (mut entries, unreadable) = journal::readable(&maps, &store_link.faults)?;
    entries.retain(|entry| entry.order.is_none_or(|order| order <= newest));
    // One damaged object must not hide the lines of all other servers. Its own line follows those
    // that could be in it.
    let mut lines: Vec<AuditLine> = Vec::new();
    for (map, cause) in unreadable {
        let commit = map.metadata.name.clone().unwrap_or_default();
        let order = match objects::kind(&map.metadata) {
            Some("lock") => link::revision(&map.metadata, &store_link.faults)?,
            // A name can be forged: a later revision would hide later lines.
            _ => revision_of(&commit).unwrap_or_default().min(newest),
        };
        let id = format!("{commit}-{order}");
        lines.push(AuditLine {
            id,
            position: AuditPosition { order, commit, number: 0 },
            event: Err(cause),
            stamp: None,
        });
    }
    lines.extend(history::lines(entries));
    let since = match start {
        AuditStart::Age(age) => forgotten_before(store.now().await?, *age),
        _ => Timestamp::MIN,
    };
    history::from(lines, start, since, &store_link.faults)
}

/// Returns the revision in a journal's name.
fn revision_of(name: &str) -> Option<i64> {
    name.rsplit('-').next().and_then(|number| number.parse().ok())
}

/// Reads the journals that can contain lines after this start. The revision in a journal's name is
/// not older than its entries.
async fn journals(link: &StoreClient, start: &AuditStart) -> Result<Vec<ConfigMap>, StoreError> {
    let journals = objects::all("journal");
    let AuditStart::After(position) = start else { return link.list(&journals).await };
    let mut found = Vec::new();
    for metadata in link.list_metadata(&journals).await? {
        let name = metadata.name.unwrap_or_default();
        if revision_of(&name).is_some_and(|revision| revision >= position.order) {
            found.extend(link.get(&name).await?);
        }
    }
    Ok(found)
}
