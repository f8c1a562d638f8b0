//! What every object is called and how it is found. All names are made here.
//!
//! | object | holds |
//! |---|---|
//! | ConfigMap `metal-store` | the store's id and schema |
//! | ConfigMap `metal-lock-<server>` | all that is known of a server: its update is the commit of every change |
//! | ConfigMap `metal-journal-<server>-<revision>` | what is over: records and audit lines that moved out of the lock |
//! | ConfigMap `metal-name-<name>` | for which server a maintenance's name is taken |
//! | ConfigMap `metal-uid-<uid>` | for which server an active incarnation is |
//! | ConfigMap `metal-bound-<name>` | the machine behind a server's name |
//! | Lease `metal-runner-<runner>` | who is alive |
//! | Lease `metal-sweeper` | which process forgets what is old |
//!
//! What somebody is called is hostile text: names and labels hold digests of it, and the text
//! itself is in the data.

use kube::core::ObjectMeta;
use sha2::{Digest as _, Sha256};

use crate::maintenance::ids::{LockKey, MaintenanceId, RunnerId, Uid};

/// The label that says what an object is.
pub(super) const KIND: &str = "terraform-provider-metal/kind";

/// The label of locks that have a record or an owner.
pub(super) const BUSY: &str = "terraform-provider-metal/busy";

/// The annotation of what may be forgotten: when the oldest of it ended.
pub(super) const OLDEST: &str = "terraform-provider-metal/oldest";

/// The annotation of a lock that was written only to make commits fail that began before.
pub(super) const FENCED: &str = "terraform-provider-metal/fenced";

/// The annotations of a Lease: whose it is, until when, and whether it was ended on purpose.
pub(super) const RUNNER: &str = "terraform-provider-metal/runner";
pub(super) const UNTIL: &str = "terraform-provider-metal/until";
pub(super) const OVER: &str = "terraform-provider-metal/over";

/// Who writes, in the words of the API server's field managers.
pub(super) const MANAGER: &str = "terraform-provider-metal";

pub(super) const STORE: &str = "metal-store";

/// The Lease of the process that forgets what is old.
pub(super) const SWEEPER: &str = "metal-sweeper";

/// The first 160 bits of SHA-256: what fits into a label.
fn digest(text: &str) -> String {
    Sha256::digest(text)[..20].iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn lock(key: &LockKey) -> String {
    format!("metal-lock-{}", digest(&key.0))
}

pub(super) fn journal(key: &LockKey, revision: i64) -> String {
    format!("metal-journal-{}-{revision}", digest(&key.0))
}

pub(super) fn name(id: &MaintenanceId) -> String {
    format!("metal-name-{}", digest(&id.to_string()))
}

pub(super) fn uid(uid: &Uid) -> String {
    format!("metal-uid-{}", digest(&uid.0))
}

pub(super) fn bound(server: &str) -> String {
    format!("metal-bound-{}", digest(server))
}

pub(super) fn runner(runner: &RunnerId) -> String {
    format!("metal-runner-{}", digest(&runner.0))
}

/// The label of whatever holds something of this name that is over, or a line of its audit.
pub(super) fn about_name(id: &MaintenanceId) -> String {
    format!("name.terraform-provider-metal/{}", digest(&id.to_string()))
}

/// The label of whatever holds the end of this incarnation.
pub(super) fn about_uid(uid: &Uid) -> String {
    format!("uid.terraform-provider-metal/{}", digest(&uid.0))
}

/// What an object is, as its label and its name say; nothing where they differ. Readers find it by
/// one and by the other, so an object with two meanings would be read as both.
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

    /// What the API server takes for a name (RFC 1123) and for the second part of a label.
    fn is_plain(name: &str) -> bool {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        (1..=63).contains(&name.len()) && name.chars().all(inner) && !name.starts_with('-') && !name.ends_with('-')
    }

    proptest! {
        #[test]
        fn whatever_somebody_is_called_its_object_has_a_plain_name_of_its_own(one in any::<String>(), other in any::<String>()) {
            let key = |text: &str| LockKey(text.to_owned());
            let names = |text: &str| {
                [lock(&key(text)), uid(&Uid(text.to_owned())), bound(text), runner(&RunnerId(text.to_owned()))]
            };
            for name in names(&one) {
                prop_assert!(is_plain(&name), "{name}");
            }
            prop_assert!(journal(&key(&one), i64::MAX).len() <= 253);
            let label = about_uid(&Uid(one.clone()));
            prop_assert!(label.split_once('/').is_some_and(|(_, name)| is_plain(name)), "{label}");
            for (name, another) in names(&one).iter().zip(names(&other)) {
                prop_assert_eq!(*name == another, one == other);
            }
        }
    }
}
