//! Object names and labels. All names are generated here.
//!
//! | object | contents |
//! |---|---|
//! | ConfigMap `metal-store` | the store's id and schema |
//! | ConfigMap `metal-lock-<server>` | everything about a server: its update commits every change |
//! | ConfigMap `metal-journal-<server>-<revision>` | ended records and audit lines that moved out of the lock |
//! | ConfigMap `metal-name-<name>` | the server for which a maintenance name is taken |
//! | ConfigMap `metal-uid-<uid>` | an active record's server |
//! | ConfigMap `metal-bound-<name>` | the lock key bound to a server's name |
//! | Lease `metal-runner-<runner>` | a living process |
//! | Lease `metal-sweeper` | the process that prunes history |
//!
//! Names come from untrusted text, so object names and labels contain digests. The text itself is
//! in the data.

use kube::core::ObjectMeta;

use crate::{
    maintenance::ids::{LockKey, MaintenanceId, RunnerId, Uid},
    store::digest,
};

/// The label with an object's kind.
pub(super) const KIND: &str = "terraform-provider-metal/kind";

/// The label of locks that have a record or an owner.
pub(super) const BUSY: &str = "terraform-provider-metal/busy";

/// Annotation for pruning: when an object's oldest history ended.
pub(super) const OLDEST: &str = "terraform-provider-metal/oldest";

/// Annotation for locks that were written only to fail commits based on an earlier read.
pub(super) const FENCED: &str = "terraform-provider-metal/fenced";

/// Annotations of a Lease: its process, its end, and whether it was ended on purpose.
pub(super) const RUNNER: &str = "terraform-provider-metal/runner";
pub(super) const UNTIL: &str = "terraform-provider-metal/until";
pub(super) const OVER: &str = "terraform-provider-metal/over";

/// Our field manager on the API server.
pub(super) const MANAGER: &str = "terraform-provider-metal";

pub(super) const STORE: &str = "metal-store";

/// The Lease of the process that prunes history.
pub(super) const SWEEPER: &str = "metal-sweeper";

pub(super) fn lock(key: &LockKey) -> String {
    format!("metal-lock-{}", digest(key.raw()))
}

pub(super) fn journal(key: &LockKey, revision: i64) -> String {
    format!("metal-journal-{}-{revision}", digest(key.raw()))
}

pub(super) fn name(id: &MaintenanceId) -> String {
    format!("metal-name-{}", digest(&id.to_string()))
}

pub(super) fn uid(uid: &Uid) -> String {
    format!("metal-uid-{}", digest(uid.raw()))
}

pub(super) fn bound(server: &str) -> String {
    format!("metal-bound-{}", digest(server))
}

pub(super) fn runner(runner: &RunnerId) -> String {
    format!("metal-runner-{}", digest(runner.raw()))
}

/// Returns the label of objects with history of this maintenance name.
pub(super) fn about_name(id: &MaintenanceId) -> String {
    format!("name.terraform-provider-metal/{}", digest(&id.to_string()))
}

/// Returns the label of objects with an ended record of this uid.
pub(super) fn about_uid(uid: &Uid) -> String {
    format!("uid.terraform-provider-metal/{}", digest(uid.raw()))
}

/// Returns an object's kind if its label and its name agree. Readers search by either, so an
/// ambiguous object would be read as both kinds.
pub(super) fn kind(metadata: &ObjectMeta) -> Option<&str> {
    let label = metadata.labels.as_ref()?.get(KIND)?;
    let named = metadata.name.as_deref()?.strip_prefix("metal-")?.strip_prefix(label.as_str())?;
    (named.starts_with('-') || named.is_empty()).then_some(label)
}

/// Selects all objects of one kind.
pub(super) fn all(kind: &str) -> String {
    format!("{KIND}={kind}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns true for a valid object name (RFC 1123), which is also valid as a label suffix.
    fn is_plain(name: &str) -> bool {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        (1..=63).contains(&name.len()) && name.chars().all(inner) && !name.starts_with('-') && !name.ends_with('-')
    }

    proptest! {
        #[test]
        fn whatever_somebody_is_called_its_object_has_a_plain_name_of_its_own(one in any::<String>(), other in any::<String>()) {
            let key = |text: &str| LockKey::new(text);
            let names = |text: &str| {
                [lock(&key(text)), uid(&Uid::new(text)), bound(text), runner(&RunnerId::new(text))]
            };
            for name in names(&one) {
                prop_assert!(is_plain(&name), "{name}");
            }
            prop_assert!(journal(&key(&one), i64::MAX).len() <= 253);
            let label = about_uid(&Uid::new(one.clone()));
            prop_assert!(label.split_once('/').is_some_and(|(_, name)| is_plain(name)), "{label}");
            for (name, another) in names(&one).iter().zip(names(&other)) {
                prop_assert_eq!(*name == another, one == other);
            }
        }
    }
}
