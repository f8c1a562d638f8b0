//! A BMC: its machines, accounts, sessions and availability.

mod accounts;
mod sessions;
mod tasks;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

pub(crate) use self::accounts::{Account, Accounts, Caller, Privilege, Role};
pub(crate) use self::sessions::{Session, Sessions};
pub(crate) use self::tasks::{Task, Tasks};
use crate::machine::Machine;
use crate::personality::Personality;

/// A BMC's availability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// It answers.
    Up,
    /// Its port refuses connections, and open connections are cut.
    Refusing,
    /// It accepts connections and never sends any data, not even for TLS; open connections stop
    /// responding.
    Silent,
}

/// A BMC's status, independent of Redfish.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BmcStatus {
    /// Its name in the simulator.
    pub name: String,
    /// Its listener's address.
    pub url: String,
    /// Its availability.
    pub availability: Availability,
    /// Its machines' names.
    pub systems: Vec<String>,
    /// Requests received.
    pub requests: u64,
    /// Connections opened so far.
    pub connections_opened: u64,
    /// Open connections.
    pub connections_open: usize,
    /// The maximum of concurrent connections.
    pub connections_most: usize,
    /// Sessions opened so far.
    pub sessions_opened: u64,
    /// Open sessions.
    pub sessions_open: usize,
    /// The maximum of concurrent sessions.
    pub sessions_most: usize,
    /// Failed log-ins and basic authentications.
    pub wrong_passwords: u64,
    /// The users whose accounts are locked.
    pub locked_users: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Bmc {
    pub(crate) name: Arc<str>,
    pub(crate) uuid: Uuid,
    /// True if it serves several machines, each with its own manager.
    pub(crate) shared: bool,
    pub(crate) personality: Arc<Personality>,
    pub(crate) accounts: Accounts,
    pub(crate) sessions: Sessions,
    pub(crate) tasks: Tasks,
    pub(crate) requests: AtomicU64,
    pub(crate) connections: Connections,
    /// The requested availability.
    pub(crate) availability: watch::Sender<Availability>,
    /// The availability that the listener has applied.
    pub(crate) applied: watch::Sender<Availability>,
    pub(crate) address: OnceLock<SocketAddr>,
    pub(crate) tls: bool,
    systems: RwLock<BTreeMap<Arc<str>, Arc<Machine>>>,
}

/// Connection counts.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    opened: AtomicU64,
    open: AtomicUsize,
    most: AtomicUsize,
    closed: Notify,
}

impl Connections {
    pub(crate) fn open(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(open, Ordering::Relaxed);
    }

    pub(crate) fn close(&self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
        self.closed.notify_waiters();
    }

    /// Waits until all connections are closed.
    pub(crate) async fn drained(&self) {
        loop {
            let closed = self.closed.notified();
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
            closed.await;
        }
    }
}

impl Bmc {
    pub(crate) fn new(
        name: Arc<str>,
        shared: bool,
        personality: Arc<Personality>,
        accounts: Accounts,
        tls: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            uuid: Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("bmc:{name}").as_bytes()),
            name,
            shared,
            personality,
            accounts,
            sessions: Sessions::default(),
            tasks: Tasks::default(),
            requests: AtomicU64::new(0),
            connections: Connections::default(),
            availability: watch::Sender::new(Availability::Up),
            applied: watch::Sender::new(Availability::Up),
            address: OnceLock::new(),
            tls,
            systems: RwLock::default(),
        })
    }

    /// Adds a machine; returns false if its `Id` is taken.
    pub(crate) fn adopt(&self, machine: Arc<Machine>) -> bool {
        let mut systems = self.systems.write().unwrap_or_else(PoisonError::into_inner);
        if systems.contains_key(&machine.id) {
            return false;
        }
        systems.insert(Arc::clone(&machine.id), machine);
        true
    }

    pub(crate) fn system(&self, id: &str) -> Option<Arc<Machine>> {
        self.systems.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Returns true if each machine has its own manager.
    pub(crate) fn has_node_managers(&self) -> bool {
        self.shared && !self.personality.media.shared
    }

    /// Returns the only machine of a BMC that is not shared.
    pub(crate) fn only_system(&self) -> Option<Arc<Machine>> {
        self.drive_owner().filter(|_| !self.shared)
    }

    /// Returns the machine with the BMC's drives: the only machine, or the first if several share
    /// them.
    pub(crate) fn drive_owner(&self) -> Option<Arc<Machine>> {
        if self.has_node_managers() {
            return None;
        }
        self.systems.read().unwrap_or_else(PoisonError::into_inner).values().next().cloned()
    }

    pub(crate) fn systems(&self) -> Vec<Arc<Machine>> {
        self.systems.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        self.address.get().map_or_else(String::new, |address| format!("{scheme}://{address}"))
    }

    pub(crate) fn status(&self) -> BmcStatus {
        let (sessions_opened, sessions_most) = self.sessions.totals();
        BmcStatus {
            name: self.name.to_string(),
            url: self.url(),
            availability: *self.availability.borrow(),
            systems: self.systems().iter().map(|machine| machine.name.to_string()).collect(),
            requests: self.requests.load(Ordering::Relaxed),
            connections_opened: self.connections.opened.load(Ordering::Relaxed),
            connections_open: self.connections.open.load(Ordering::Relaxed),
            connections_most: self.connections.most.load(Ordering::Relaxed),
            sessions_opened,
            sessions_open: self.sessions.list(&self.personality.sessions).len(),
            sessions_most,
            wrong_passwords: self.accounts.wrong_attempts(),
            locked_users: self.accounts.locked(),
        }
    }
}
