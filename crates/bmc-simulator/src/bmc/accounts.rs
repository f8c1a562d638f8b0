//! A BMC's accounts, with failed log-ins and lock-out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use secrecy::{ExposeSecret, SecretString};
use tokio::time::Instant;

use crate::config::Credentials;
use crate::personality::SessionRules;

/// A role defined in the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Administrator,
    Operator,
    ReadOnly,
}

/// A permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    Login,
    ConfigureManager,
    ConfigureUsers,
    ConfigureComponents,
}

impl Role {
    pub(crate) const ALL: [Self; 3] = [Self::Administrator, Self::Operator, Self::ReadOnly];

    pub(crate) const fn id(self) -> &'static str {
        match self {
            Self::Administrator => "Administrator",
            Self::Operator => "Operator",
            Self::ReadOnly => "ReadOnly",
        }
    }

    pub(crate) fn parse(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.id() == id)
    }

    /// Returns the privileges as named in Redfish.
    pub(crate) const fn privileges(self) -> &'static [&'static str] {
        match self {
            Self::Administrator => {
                &["Login", "ConfigureManager", "ConfigureUsers", "ConfigureComponents", "ConfigureSelf"]
            }
            Self::Operator => &["Login", "ConfigureComponents", "ConfigureSelf"],
            Self::ReadOnly => &["Login", "ConfigureSelf"],
        }
    }

    pub(crate) fn may(self, privilege: Privilege) -> bool {
        match privilege {
            Privilege::Login => true,
            Privilege::ConfigureComponents => self != Self::ReadOnly,
            Privilege::ConfigureManager | Privilege::ConfigureUsers => self == Self::Administrator,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) id: String,
    pub(crate) user_name: String,
    pub(crate) password: SecretString,
    pub(crate) role: Role,
    pub(crate) enabled: bool,
    pub(crate) change_required: bool,
    wrong_in_a_row: u32,
    locked: Option<LockedUntil>,
}

#[derive(Clone, Copy, Debug)]
enum LockedUntil {
    Unlocked,
    Then(Instant),
}

impl Account {
    pub(crate) fn new(id: String, user_name: String, password: SecretString, role: Role) -> Self {
        Self { id, user_name, password, role, enabled: true, change_required: false, wrong_in_a_row: 0, locked: None }
    }

    pub(crate) fn locked(&self) -> bool {
        match self.locked {
            None => false,
            Some(LockedUntil::Unlocked) => true,
            Some(LockedUntil::Then(then)) => Instant::now() < then,
        }
    }

    pub(crate) fn unlock(&mut self) {
        self.locked = None;
        self.wrong_in_a_row = 0;
    }
}

/// A request's sender.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) account: String,
    pub(crate) user_name: String,
    pub(crate) role: Role,
    pub(crate) change_required: bool,
}

impl Caller {
    fn of(account: &Account) -> Self {
        Self {
            account: account.id.clone(),
            user_name: account.user_name.clone(),
            role: account.role,
            change_required: account.change_required,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Accounts {
    all: Mutex<Vec<Account>>,
    /// The password with which unknown names can log in, if any.
    for_anybody: Option<SecretString>,
    wrong: AtomicU64,
    last: AtomicU64,
}

impl Accounts {
    pub(crate) fn new(credentials: &Credentials, anybody: bool) -> Self {
        let first =
            Account::new("1".into(), credentials.username.clone(), credentials.password.clone(), Role::Administrator);
        let for_anybody = anybody.then(|| credentials.password.clone());
        Self { all: Mutex::new(vec![first]), for_anybody, wrong: AtomicU64::new(0), last: AtomicU64::new(1) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Account>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a user's name and password. Failures are counted, including those for unknown users.
    pub(crate) fn check(&self, user_name: &str, password: &str, rules: &SessionRules) -> Option<Caller> {
        let mut accounts = self.lock();
        let known = accounts.iter().any(|account| account.user_name == user_name);
        if let Some(wanted) = self.for_anybody.as_ref().filter(|_| !known)
            && wanted.expose_secret() == password
        {
            accounts.push(Account::new(self.next_id(), user_name.to_owned(), wanted.clone(), Role::Administrator));
        }
        let account = accounts.iter_mut().find(|account| account.user_name == user_name);
        if let Some(account) = account {
            let right = account.password.expose_secret() == password;
            if right && account.enabled && !account.locked() {
                account.unlock();
                return Some(Caller::of(account));
            }
            if !right {
                account.wrong_in_a_row += 1;
                if rules.lockout_after != 0 && account.wrong_in_a_row >= rules.lockout_after {
                    account.locked = Some(match rules.lockout {
                        None => LockedUntil::Unlocked,
                        Some(time) => LockedUntil::Then(Instant::now() + time),
                    });
                }
            }
        }
        self.wrong.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Returns a session's owner while the account is enabled.
    pub(crate) fn caller(&self, id: &str) -> Option<Caller> {
        self.lock().iter().find(|account| account.id == id && account.enabled).map(Caller::of)
    }

    pub(crate) fn wrong_attempts(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    pub(crate) fn locked(&self) -> Vec<String> {
        self.lock().iter().filter(|account| account.locked()).map(|account| account.user_name.clone()).collect()
    }

    pub(crate) fn unlock_all(&self) {
        self.lock().iter_mut().for_each(Account::unlock);
    }

    pub(crate) fn next_id(&self) -> String {
        (self.last.fetch_add(1, Ordering::Relaxed) + 1).to_string()
    }
}
