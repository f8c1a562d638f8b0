//! A process's connection pool, which shrinks to the connections in use.
//!
//! sqlx 0.9 must not close idle connections: its pool maintenance has a counter that can wrap
//! around, and then it loops forever on one core (transact-rs/sqlx issue 3645; fixed after 0.9.0 by
//! pull request 4289). It runs only for pools with an idle timeout or a maximum lifetime, so these
//! pools have neither.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use sqlx::{PgPool, Postgres, pool::PoolConnection};

use crate::{
    clock::{Clock, within},
    outbound::{self, GuardedPostgres},
};

/// The most connections per process, not counting the listener. Hundreds of processes share a
/// server, which allows a hundred connections by default.
const CONNECTIONS: u32 = 3;

/// The interval for closing unused connections: shorter than the heartbeat interval of a waiting
/// process.
const TIDY: Duration = Duration::from_secs(3);

/// The time limit for closing a connection.
const GOODBYE: Duration = Duration::from_secs(1);

/// Closes a pool within [`GOODBYE`], so that the program can exit.
pub(super) async fn close(pool: &PgPool) {
    let _ = within(GOODBYE, pool.close()).await;
}

/// A store handle's connections.
#[derive(Debug)]
pub(super) struct Connections {
    pool: PgPool,
    options: GuardedPostgres,
    clock: Arc<dyn Clock>,
    /// Connections in use now, and the peak since the last cleanup.
    used: AtomicU32,
    most: AtomicU32,
    /// True while the cleanup task runs.
    tidied: AtomicBool,
}

/// A connection in use.
pub(super) struct Taken {
    pub(super) connection: PoolConnection<Postgres>,
    _used: Used,
}

struct Used(Arc<Connections>);

impl Drop for Used {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Connections {
    pub(super) fn new(options: GuardedPostgres, limit: Duration, clock: Arc<dyn Clock>) -> Arc<Self> {
        let pool = outbound::pool(&options, CONNECTIONS, limit);
        let (used, most) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { pool, options, clock, used, most, tidied: AtomicBool::new(false) })
    }

    /// Returns options for a connection outside this pool.
    pub(super) fn options(&self) -> GuardedPostgres {
        self.options.clone()
    }

    /// Takes a connection for exclusive use.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Taken, sqlx::Error> {
        let used = self.used.fetch_add(1, Ordering::SeqCst) + 1;
        let guard = Used(Arc::clone(self));
        self.most.fetch_max(used, Ordering::SeqCst);
        let connection = self.pool.acquire().await?;
        if !self.tidied.swap(true, Ordering::SeqCst) {
            let (this, clock) = (Arc::downgrade(self), Arc::clone(&self.clock));
            tokio::spawn(async move {
                loop {
                    clock.sleep(TIDY).await;
                    let Some(this) = this.upgrade() else { return };
                    this.tidy().await;
                    // A concurrent caller either finds the flag set, or sets it and starts its own
                    // task.
                    this.tidied.store(false, Ordering::SeqCst);
                    if this.pool.is_closed() || this.pool.size() == 0 || this.tidied.swap(true, Ordering::SeqCst) {
                        return;
                    }
                }
            });
        }
        Ok(Taken { connection, _used: guard })
    }

    /// Closes connections that were not needed since the last cleanup.
    async fn tidy(&self) {
        let needed = self.most.swap(self.used.load(Ordering::SeqCst), Ordering::SeqCst);
        for _ in needed..self.pool.size() {
            let Some(idle) = self.pool.try_acquire() else { return };
            let _ = within(GOODBYE, idle.close()).await;
        }
    }

    /// Closes all connections.
    pub(super) async fn close(&self) {
        close(&self.pool).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_pool_has_what_starts_the_maintenance_of_sqlx() {
        let options = sqlx::postgres::PgConnectOptions::new().host("127.0.0.1");
        let pool = outbound::pool(&GuardedPostgres::new(options, false).unwrap(), 1, Duration::from_secs(1));
        assert_eq!(pool.options().get_idle_timeout(), None);
        assert_eq!(pool.options().get_max_lifetime(), None);
        assert_eq!(pool.options().get_min_connections(), 0);
    }
}
