//! A BMC's open sessions.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use super::accounts::Caller;
use crate::personality::SessionRules;

#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) user_name: String,
    pub(crate) account: String,
    pub(crate) created: Timestamp,
    last_used: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    by_token: HashMap<String, Session>,
    last: u64,
    most: usize,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session and returns its token, or `None` at the limit.
    pub(crate) fn open(&self, caller: &Caller, rules: &SessionRules) -> Option<(String, Session)> {
        let mut open = self.lock();
        open.expire(rules);
        if open.by_token.len() >= rules.limit {
            return None;
        }
        open.last += 1;
        let session = Session {
            id: open.last.to_string(),
            user_name: caller.user_name.clone(),
            account: caller.account.clone(),
            created: Timestamp::now(),
            last_used: Instant::now(),
        };
        let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        open.by_token.insert(token.clone(), session.clone());
        open.most = open.most.max(open.by_token.len());
        Some((token, session))
    }

    /// Returns a token's account and extends its session.
    pub(crate) fn account_of(&self, token: &str, rules: &SessionRules) -> Option<String> {
        let mut open = self.lock();
        let now = Instant::now();
        let session = open.by_token.get_mut(token)?;
        if now.duration_since(session.last_used) > rules.timeout {
            open.by_token.remove(token);
            return None;
        }
        session.last_used = now;
        Some(session.account.clone())
    }

    /// Returns the open sessions, oldest first.
    pub(crate) fn list(&self, rules: &SessionRules) -> Vec<Session> {
        let mut open = self.lock();
        open.expire(rules);
        let mut sessions: Vec<_> = open.by_token.values().cloned().collect();
        sessions.sort_by_key(|session| session.id.parse::<u64>().unwrap_or(u64::MAX));
        sessions
    }

    /// Closes a session by its `Id`.
    pub(crate) fn close(&self, id: &str) -> bool {
        let mut open = self.lock();
        let before = open.by_token.len();
        open.by_token.retain(|_, session| session.id != id);
        open.by_token.len() < before
    }

    /// Closes every session, like a BMC restart.
    pub(crate) fn close_all(&self) {
        self.lock().by_token.clear();
    }

    /// Returns the number of sessions opened so far and the maximum open concurrently.
    pub(crate) fn totals(&self) -> (u64, usize) {
        let open = self.lock();
        (open.last, open.most)
    }
}

impl Open {
    fn expire(&mut self, rules: &SessionRules) {
        let now = Instant::now();
        self.by_token.retain(|_, session| now.duration_since(session.last_used) <= rules.timeout);
    }
}
