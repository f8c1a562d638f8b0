//! The connections of one process, which are as many as are in use at once.
//!
//! Closing what nobody needs is not left to sqlx's pool: in 0.9 its maintenance counts idle
//! connections in a way that now and then wraps round, and then turns in a circle on one core, for
//! ever (transact-rs/sqlx issue 3645; mended after 0.9.0 by pull request 4289). It runs only where
//! a pool has an idle timeout or a longest life, so ours have neither.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use sqlx::{
    PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::clock::{Clock, within};

/// How many connections a process has at most, beside the one that listens: hundreds of processes
/// share a server that has a hundred by default.
const CONNECTIONS: u32 = 3;

/// How often those are closed that nobody needed since the last time: between two heartbeats of a
/// process that only waits.
const TIDY: Duration = Duration::from_secs(3);

/// How long closing may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// A pool that opens a connection when one is needed, and closes none by itself.
pub(super) fn pool(options: PgConnectOptions, most: u32, limit: Duration) -> PgPool {
    PgPoolOptions::new()
        .min_connections(0)
        .max_connections(most)
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(limit)
        // It would cost a round trip each time; one that broke is noticed by its use.
        .test_before_acquire(false)
        .connect_lazy_with(options)
}

/// Closes a pool; not longer than somebody who ends a program wants to wait.
pub(super) async fn close(pool: &PgPool) {
    let _ = within(GOODBYE, pool.close()).await;
}

/// The connections of a store handle.
#[derive(Debug)]
pub(super) struct Connections {
    pool: PgPool,
    clock: Arc<dyn Clock>,
    /// In use now, and the most that were since they were tidied last.
    used: AtomicU32,
    most: AtomicU32,
    /// Whether somebody tidies.
    tidied: AtomicBool,
}

/// One of them, in use.
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
    pub(super) fn new(options: PgConnectOptions, limit: Duration, clock: Arc<dyn Clock>) -> Arc<Self> {
        let pool = pool(options, CONNECTIONS, limit);
        let (used, most) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { pool, clock, used, most, tidied: AtomicBool::new(false) })
    }

    /// How a connection of one's own is opened.
    pub(super) fn options(&self) -> PgConnectOptions {
        (*self.pool.connect_options()).clone()
    }

    /// A connection that nobody else uses.
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
                    // Whoever opens one while this is decided finds either somebody who tidies, or
                    // nobody and begins.
                    this.tidied.store(false, Ordering::SeqCst);
                    if this.pool.is_closed() || this.pool.size() == 0 || this.tidied.swap(true, Ordering::SeqCst) {
                        return;
                    }
                }
            });
        }
        Ok(Taken { connection, _used: guard })
    }

    /// Closes what was not needed since the last time.
    async fn tidy(&self) {
        let needed = self.most.swap(self.used.load(Ordering::SeqCst), Ordering::SeqCst);
        for _ in needed..self.pool.size() {
            let Some(idle) = self.pool.try_acquire() else { return };
            let _ = within(GOODBYE, idle.close()).await;
        }
    }

    /// Closes all.
    pub(super) async fn close(&self) {
        close(&self.pool).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_pool_has_what_starts_the_maintenance_of_sqlx() {
        let pool = pool(PgConnectOptions::new(), 1, Duration::from_secs(1));
        assert_eq!(pool.options().get_idle_timeout(), None);
        assert_eq!(pool.options().get_max_lifetime(), None);
        assert_eq!(pool.options().get_min_connections(), 0);
    }
}
