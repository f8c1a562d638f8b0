//! Connections to the database, and their handling after errors.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use sqlx::{ConnectOptions as _, PgConnection};

use super::{
    connections::{Connections, Taken},
    fault::ErrorMapper,
};
use crate::{
    clock::Clock,
    outbound::GuardedPostgres,
    store::{StoreError, patience::Patience},
};

/// Access to a database.
#[derive(Clone, Debug)]
pub(super) struct StoreClient {
    pub(super) connections: Arc<Connections>,
    pub(super) faults: ErrorMapper,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) patience: Patience,
    pub(super) limit: Duration,
    /// True behind a transaction pooler: session state ends with each transaction.
    pub(super) pooled: bool,
}

impl StoreClient {
    pub(super) fn new(
        options: GuardedPostgres,
        faults: ErrorMapper,
        clock: Arc<dyn Clock>,
        limit: Duration,
        pooled: bool,
    ) -> Self {
        let patience = Patience::new(faults.address(), Arc::clone(&clock), limit);
        let options = options.tuned(|options| {
            let options = options.disable_statement_logging();
            // Poolers support neither prepared statements nor start-up parameters.
            if pooled { options.statement_cache_capacity(0).extra_float_digits(None) } else { options }
        });
        let connections = Connections::new(options, limit, Arc::clone(&clock));
        Self { connections, faults, clock, patience, limit, pooled }
    }

    /// Returns a connection for one statement, or for one transaction behind a pooler.
    pub(super) async fn session(&self) -> Result<Session<'_>, StoreError> {
        let taken = self.connections.take().await.map_err(|error| self.faults.sqlx(&error))?;
        let mut session = Session::new(self, taken);
        if self.pooled {
            session.run("BEGIN").await?;
            session.open = true;
        }
        Ok(session)
    }

    /// Closes all connections quickly, so that the program can exit.
    pub(super) async fn close(&self) {
        self.connections.close().await;
    }
}

/// A connection in use. Dropping it without [`Session::end`] closes it and aborts its work.
pub(super) struct Session<'a> {
    link: &'a StoreClient,
    taken: Taken,
    open: bool,
    well: bool,
}

impl<'a> Session<'a> {
    fn new(link: &'a StoreClient, taken: Taken) -> Self {
        Self { link, taken, open: false, well: false }
    }

    async fn run(&mut self, sql: &'static str) -> Result<(), StoreError> {
        let faults = &self.link.faults;
        sqlx::raw_sql(sql).execute(&mut *self.taken.connection).await.map_err(|error| faults.sqlx(&error))?;
        Ok(())
    }

    /// Commits the transaction, if any, and returns the connection to the pool.
    pub(super) async fn end(mut self) -> Result<(), StoreError> {
        if self.open {
            self.run("COMMIT").await?;
        }
        self.well = true;
        Ok(())
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if !self.well {
            self.taken.connection.close_on_drop();
        }
    }
}

impl Deref for Session<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.taken.connection
    }
}

impl DerefMut for Session<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.taken.connection
    }
}
