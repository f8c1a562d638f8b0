//! What the roles of a cluster may do that none of them should.

use etcd_client::{Permission, PermissionType};

use super::EtcdStore;
use crate::store::StoreError;

/// Tells roles that may write the owners' words and anything else than the marks of their use and
/// their lines of the audit. The cluster's root sees all roles, every other user its own ones;
/// without users there is nothing to see.
pub(super) async fn wide(store: &EtcdStore) -> Result<Vec<String>, StoreError> {
    let keys = &store.link.keys;
    let mut odd = Vec::new();
    for (role, permissions) in store.link.roles().await? {
        if role == "root" {
            continue;
        }
        let writes = |kind: &str| permissions.iter().any(|permission| may_write(permission, &keys.all(kind)));
        if !writes("approvals") {
            continue;
        }
        let more = ["lock", "active", "name", "uid", "past", "audit", "alive", "seen", "bound", "old"];
        let more: Vec<String> = more.into_iter().filter(|kind| writes(kind)).map(|kind| keys.all(kind)).collect();
        if !more.is_empty() {
            odd.push(format!(
                "the role {role} may write approvals and {}: more than an approver of the guide (see `store roles etcd`)",
                more.join(", ")
            ));
        }
    }
    Ok(odd)
}

/// Whether a permission lets something be written below a prefix.
fn may_write(permission: &Permission, prefix: &str) -> bool {
    let writes =
        [PermissionType::Write, PermissionType::Readwrite].map(|kind| kind as i32).contains(&permission.get_type());
    let (from, to) = (permission.key(), permission.range_end());
    let end = format!("{}0", prefix.trim_end_matches('/'));
    let touches = match to {
        [] => from.starts_with(prefix.as_bytes()),
        // Everything from a key on.
        [0] => from < end.as_bytes(),
        to => from < end.as_bytes() && to > prefix.as_bytes(),
    };
    writes && touches
}
