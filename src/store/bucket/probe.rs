//! Rejects a bucket that ignores a write's conditions. Its locks would not exclude anything.

use uuid::Uuid;

use super::link::{StoreClient, WriteResult};
use crate::store::StoreError;

/// Writes a new object with conditions that must hold and conditions that must fail.
pub(super) async fn probe(link: &StoreClient) -> Result<(), StoreError> {
    let name = format!("probe/{}.json", Uuid::new_v4().simple());
    let refused = |what: &str| {
        link.faults.untrusted(format!(
            "it ignores {what} on writes, so two processes could hold one lock. The guide \"Many runners\" lists tested \
             services"
        ))
    };
    let unreliable = || link.faults.unavailable("a new object's write failed its condition");
    let WriteResult::Done(first) = link.create(&name, "first").await? else { return Err(unreliable()) };
    if link.create(&name, "second").await? != WriteResult::Moved {
        return Err(refused("If-None-Match"));
    }
    let WriteResult::Done(_) = link.replace(&name, "third", &first).await? else { return Err(unreliable()) };
    if link.replace(&name, "fourth", &first).await? != WriteResult::Moved {
        return Err(refused("If-Match"));
    }
    let stored = link.read::<String>(&name).await?;
    if stored.is_none_or(|(stored, _)| stored != "third") {
        return Err(refused("conditions"));
    }
    link.delete(&name).await
}
