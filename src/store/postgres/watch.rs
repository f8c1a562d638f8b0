//! Detects other processes' commits from PostgreSQL notifications, and from occasional polls
//! because delivery is not guaranteed. Behind a transaction pooler, only polling works.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use sqlx::{PgPool, postgres::PgListener};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{
    connections,
    fault::has_no_connection_left,
    link::StoreClient,
    rows::{escaped, unescaped},
};
use crate::{
    maintenance::ids::LockKey,
    outbound,
    store::{StoreError, watchers::Watchers},
};

/// The channel of `metal.commit`.
const CHANNEL: &str = "metal_changes";

/// PostgreSQL's payload limit is 8,000 bytes. A longer key is omitted, and every watcher polls.
const LONGEST_KEY: usize = 7_000;

/// The pause after a failed poll.
const PAUSE_AFTER_FAULT: Duration = Duration::from_secs(1);

/// The pause before the next attempt to listen to a server with too few connections.
const PAUSE_WHEN_CROWDED: Duration = Duration::from_secs(15);

/// The poll interval without notifications, and the interval if each poll needs a new connection.
const DEAF: Duration = Duration::from_millis(500);
const LOOK_WHEN_CROWDED: Duration = Duration::from_secs(2);

/// Returns true if more than half of the server's or the role's connections are in use. Waiting
/// processes then close theirs and poll rarely. For an ordinary role, the server counts that role's
/// connections.
const CROWDED: &str = "\
    SELECT 2 * count(*) > least(current_setting('max_connections')::bigint, \
        (SELECT nullif(r.rolconnlimit, -1) FROM pg_roles AS r WHERE r.rolname = session_user)) \
    FROM pg_stat_activity WHERE backend_type = 'client backend'";

/// Returns a change's notification payload: the revision and the key.
pub(super) fn message(key: &LockKey, revision: i64) -> String {
    let key = escaped(key.raw());
    if key.len() > LONGEST_KEY { format!("{revision}") } else { format!("{revision} {key}") }
}

/// Returns the lock named in a notification, or `None`. Any database role can send one with any
/// revision, so it only triggers a read.
fn hinted(payload: &str) -> Option<LockKey> {
    let (_, key) = payload.split_once(' ')?;
    Some(LockKey::new(unescaped(key)))
}

/// The locks to poll.
enum Look {
    Nowhere,
    /// Some of the watched locks.
    At(Vec<LockKey>),
    Everywhere,
}

impl Look {
    /// Adds a notification's lock.
    fn and(&mut self, payload: &str, watchers: &Watchers) {
        match (hinted(payload), self) {
            (_, Self::Everywhere) => {}
            (None, look) => *look = Self::Everywhere,
            (Some(key), look) if watchers.watches(&key) => match look {
                Self::At(keys) if keys.contains(&key) => {}
                Self::At(keys) => keys.push(key),
                _ => *look = Self::At(vec![key]),
            },
            _ => {}
        }
    }
}

/// A store handle's watch.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) link: StoreClient,
    /// The poll interval.
    pub(super) interval: Duration,
    /// True if notifications are enabled.
    pub(super) notifications: bool,
    pub(super) watchers: Watchers,
    pub(super) stop: CancellationToken,
}

/// Notification state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hearing {
    /// Notifications arrive.
    Listening,
    /// Notifications do not arrive.
    Deaf,
    /// Not listening, because the server has too few connections.
    Crowded,
}

/// An event from the listening connection.
enum ListenEvent {
    /// A change.
    Change(String),
    /// A new state. Earlier changes must be polled.
    Now(Hearing),
}

/// A separate listening connection. Dropping it closes the connection.
struct NotificationListener {
    heard: mpsc::Receiver<ListenEvent>,
    task: JoinHandle<()>,
}

impl Drop for NotificationListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl NotificationListener {
    fn open(watch: &Watch) -> Self {
        let (tell, heard) = mpsc::channel(1024);
        let (options, limit) = (watch.link.connections.options(), watch.link.limit);
        let clock = Arc::clone(&watch.link.clock);
        let task = tokio::spawn(async move {
            loop {
                let pool = outbound::pool(&options, 1, limit);
                let (said, pause) = match listen(&pool, &tell).await {
                    Ok(()) => (Hearing::Crowded, PAUSE_WHEN_CROWDED),
                    Err(error) if has_no_connection_left(&error) => (Hearing::Crowded, PAUSE_WHEN_CROWDED),
                    Err(error) => {
                        tracing::debug!(%error, "no notifications from the coordination store");
                        (Hearing::Deaf, PAUSE_AFTER_FAULT)
                    }
                };
                if tell.send(ListenEvent::Now(said)).await.is_err() {
                    return;
                }
                // The listening connection was returned to its pool, where it would stay open.
                connections::close(&pool).await;
                clock.sleep(pause).await;
            }
        });
        Self { heard, task }
    }
}

/// Listens until an error. Returns `Ok` without listening if the server has too few connections.
async fn listen(pool: &PgPool, tell: &mpsc::Sender<ListenEvent>) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    if sqlx::query_scalar(CROWDED).fetch_one(&mut *connection).await? {
        return Ok(());
    }
    drop(connection);
    let mut listener = PgListener::connect_with(pool).await?;
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    let mut next = ListenEvent::Now(Hearing::Listening);
    while tell.send(next).await.is_ok() {
        match listener.try_recv().await? {
            Some(notification) => next = ListenEvent::Change(notification.payload().to_owned()),
            None => return Err(sqlx::Error::WorkerCrashed),
        }
    }
    Ok(())
}

/// Watches until the last watcher or the store is closed.
pub(super) async fn run(watch: Weak<Watch>) {
    let mut ear = None;
    let (mut next, mut hearing) = (Look::Everywhere, Hearing::Deaf);
    while let Some(this) = watch.upgrade() {
        if this.watchers.nobody_left() {
            break;
        }
        if this.notifications && ear.is_none() {
            ear = Some(NotificationListener::open(&this));
        }
        let mut pause = match hearing {
            Hearing::Listening => this.interval,
            Hearing::Deaf => this.interval.min(DEAF),
            Hearing::Crowded => this.interval.min(LOOK_WHEN_CROWDED),
        };
        if let Err(error) = look(&this, &next, hearing == Hearing::Crowded).await {
            tracing::debug!(%error, "the coordination store cannot be watched");
            this.watchers.wake_all();
            pause = PAUSE_AFTER_FAULT;
        }
        let (clock, stop) = (Arc::clone(&this.link.clock), this.stop.clone());
        drop(this);
        let hear = async {
            match &mut ear {
                Some(ear) => ear.heard.recv().await,
                None => std::future::pending().await,
            }
        };
        let heard = tokio::select! {
            heard = hear => heard,
            () = clock.sleep(pause) => None,
            () = stop.cancelled() => break,
        };
        let Some(this) = watch.upgrade() else { break };
        next = match heard {
            Some(ListenEvent::Change(payload)) => {
                let mut look = Look::Nowhere;
                look.and(&payload, &this.watchers);
                // Polls once for all pending notifications.
                while let Some(more) = ear.as_mut().and_then(|ear| ear.heard.try_recv().ok()) {
                    match more {
                        ListenEvent::Change(payload) => look.and(&payload, &this.watchers),
                        ListenEvent::Now(now) => (hearing, look) = (now, Look::Everywhere),
                    }
                }
                look
            }
            Some(ListenEvent::Now(now)) => {
                hearing = now;
                Look::Everywhere
            }
            None => Look::Everywhere,
        };
    }
}

async fn look(watch: &Watch, at: &Look, crowded: bool) -> Result<(), StoreError> {
    let keys = match at {
        Look::Nowhere => return Ok(()),
        Look::At(keys) => keys.clone(),
        Look::Everywhere => watch.watchers.keys(),
    };
    let keys: Vec<String> = keys.iter().map(|key| escaped(key.raw()).into_owned()).collect();
    let moved: Vec<(String, i64)> = watch
        .link
        .patience
        .once(async {
            let mut session = watch.link.session().await?;
            let query = sqlx::query_as("SELECT lock_key, revision FROM metal.locks WHERE lock_key = ANY ($1)");
            let query = query.bind(&keys).persistent(!watch.link.pooled).fetch_all(&mut *session).await;
            let moved = query.map_err(|error| watch.link.faults.sqlx(&error))?;
            // Dropping the session instead closes its connection.
            if !crowded {
                session.end().await?;
            }
            Ok(moved)
        })
        .await?;
    for (key, revision) in moved {
        watch.watchers.moved(&LockKey::new(unescaped(&key)), revision);
    }
    Ok(())
}
