//! Where everything is kept. All names are made here.
//!
//! | key below the prefix | holds |
//! |---|---|
//! | `meta` | the store's id and schema |
//! | `lock/<server>` | generation, tickets, slot and claim; grows with every change of what is known about the server |
//! | `active/<server>/<uid>` | a record that is not over |
//! | `approvals/<server>` | the words of the claim's owner; nobody else needs to write there |
//! | `used/<server>/<approval>` | the mark of an approval of one maintenance: whether a run started with it, and which |
//! | `name/<namespace>/<name>` | which active record has the name |
//! | `uid/<uid>` | where that record is |
//! | `past/<namespace>/<name>/<uid>` | a record that is over |
//! | `audit/<namespace>/<name>/<commit>` | what one change did |
//! | `told/<namespace>/<name>/<commit>` | what one change of the owner's words did: the only lines that an approver writes |
//! | `alive/<runner>` | there as long as the lease of the process; how long that lasts without a keep-alive |
//! | `seen/<runner>` | when a process without a lease was first missed, or ended: its absence counts from there |
//! | `bound/<name>` | the machine behind a server's name |
//! | `old/<time>/<commit>` | where to look for what may be forgotten, by the time it became history; the keys there decide |
//! | `old/pruned/<chain>` | the last line of a chain of the audit that was pruned: its number and hash |
//! | `old/sweeper` | until when one process has the right to forget it |

use jiff::Timestamp;

use crate::maintenance::ids::{LockKey, MaintenanceId, RunnerId, Uid};

/// A text as one part of a key: what is not a letter, a digit, `-`, `_` or `.` as `%` and its code
/// in hexadecimal, so that nothing that somebody is called leads out of its place.
pub(super) fn part(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            safe.push(char::from(byte));
        } else {
            safe.push_str(&format!("%{byte:02X}"));
        }
    }
    safe
}

/// The reverse of [`part`].
pub(super) fn text(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).ok()
}

/// The keys of one store.
#[derive(Clone, Debug)]
pub(super) struct Keys(String);

impl Keys {
    /// Those below a prefix, which ends with `/`.
    pub(super) fn below(prefix: &str) -> Self {
        Self(format!("{}/", prefix.trim_end_matches('/')))
    }

    pub(super) fn meta(&self) -> String {
        format!("{}meta", self.0)
    }

    /// All of one kind; ends with `/`.
    pub(super) fn all(&self, kind: &str) -> String {
        format!("{}{kind}/", self.0)
    }

    pub(super) fn lock(&self, key: &LockKey) -> String {
        format!("{}lock/{}", self.0, part(&key.0))
    }

    pub(super) fn approvals(&self, key: &LockKey) -> String {
        format!("{}approvals/{}", self.0, part(&key.0))
    }

    pub(super) fn used_all(&self, key: &LockKey) -> String {
        format!("{}used/{}/", self.0, part(&key.0))
    }

    pub(super) fn used(&self, key: &LockKey, approval: &Uid) -> String {
        format!("{}{}", self.used_all(key), part(&approval.0))
    }

    pub(super) fn active_all(&self, key: &LockKey) -> String {
        format!("{}active/{}/", self.0, part(&key.0))
    }

    pub(super) fn active(&self, key: &LockKey, uid: &Uid) -> String {
        format!("{}{}", self.active_all(key), part(&uid.0))
    }

    pub(super) fn name(&self, id: &MaintenanceId) -> String {
        format!("{}name/{}/{}", self.0, part(id.namespace()), part(id.name()))
    }

    pub(super) fn uid(&self, uid: &Uid) -> String {
        format!("{}uid/{}", self.0, part(&uid.0))
    }

    pub(super) fn past_all(&self, id: &MaintenanceId) -> String {
        format!("{}past/{}/{}/", self.0, part(id.namespace()), part(id.name()))
    }

    pub(super) fn past(&self, id: &MaintenanceId, uid: &Uid) -> String {
        format!("{}{}", self.past_all(id), part(&uid.0))
    }

    pub(super) fn audit_all(&self, id: &MaintenanceId) -> String {
        format!("{}audit/{}/{}/", self.0, part(id.namespace()), part(id.name()))
    }

    pub(super) fn told_all(&self, id: &MaintenanceId) -> String {
        format!("{}told/{}/{}/", self.0, part(id.namespace()), part(id.name()))
    }

    pub(super) fn alive(&self, runner: &RunnerId) -> String {
        format!("{}alive/{}", self.0, part(&runner.0))
    }

    pub(super) fn seen(&self, runner: &RunnerId) -> String {
        format!("{}seen/{}", self.0, part(&runner.0))
    }

    pub(super) fn bound(&self, server: &str) -> String {
        format!("{}bound/{}", self.0, part(server))
    }

    /// Until when one process forgets what is old; behind all that is.
    pub(super) fn sweeper(&self) -> String {
        format!("{}old/sweeper", self.0)
    }

    /// Sorted by time.
    pub(super) fn old(&self, at: Timestamp, commit: &str) -> String {
        format!("{}{commit}", self.old_before(at))
    }

    /// What every [`Keys::old`] of an earlier time is smaller than.
    pub(super) fn old_before(&self, at: Timestamp) -> String {
        format!("{}old/{:020}/", self.0, at.as_microsecond().max(0))
    }

    /// Whether a key is one of history, by its form: a record that is over, or lines of the audit.
    pub(super) fn is_history(&self, key: &str) -> bool {
        let below = |kind: &str| key.strip_prefix(&self.all(kind));
        let parts = |rest: &str| {
            let parts: Vec<&str> = rest.split('/').collect();
            parts.len() == 3 && parts.iter().all(|one| text(one).is_some_and(|plain| part(&plain) == **one))
        };
        ["past", "audit"].into_iter().filter_map(below).any(parts)
    }

    /// Whether a key is the pointer to a record.
    pub(super) fn is_pointer(&self, key: &str) -> bool {
        let rest = key.strip_prefix(&self.all("uid"));
        rest.and_then(|rest| Some(part(&text(rest)?) == rest)).unwrap_or_default()
    }

    /// The last part of a key.
    pub(super) fn last(key: &[u8]) -> Option<String> {
        text(std::str::from_utf8(key).ok()?.rsplit('/').next()?)
    }

    /// The server of `active/<server>/<uid>` or `used/<server>/<approval>`.
    pub(super) fn server(key: &[u8]) -> Option<LockKey> {
        text(std::str::from_utf8(key).ok()?.rsplit('/').nth(1)?).map(LockKey)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_name_leads_out_of_its_place(name: String, other: String) {
            let safe = part(&name);
            prop_assert!(!safe.contains(['/', '\0']));
            prop_assert_eq!(text(&safe), Some(name.clone()));
            prop_assert_eq!(safe == part(&other), name == other);
        }
    }
}
