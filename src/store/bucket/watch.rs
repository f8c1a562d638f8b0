//! Wakes waiters: one poll per process for all locks that it watches. A bucket sends no events.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

use super::{commit::AT_ONCE, lock::Rows};
use crate::{
    clock::Clock,
    store::{StoreError, group::jittered, watchers::Watchers},
};

/// The poll interval, and its random part, so that processes do not poll at the same time.
const POLL: (Duration, Duration) = (Duration::from_millis(1600), Duration::from_millis(800));

/// The longest pause after a failure.
const PAUSE: Duration = Duration::from_secs(10);

/// A store handle's watch.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) rows: Arc<Rows>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) watchers: Watchers,
    pub(super) stop: CancellationToken,
}

/// Polls until the last watcher or the store is closed.
pub(super) async fn run(watch: Weak<Watch>) {
    let mut pause = interval();
    while let Some(this) = watch.upgrade() {
        if this.watchers.nobody_left() {
            break;
        }
        pause = match look(&this).await {
            Ok(()) => interval(),
            Err(error) => {
                tracing::debug!(%error, "the coordination store cannot be watched");
                this.watchers.wake_all();
                (pause * 2).min(PAUSE)
            }
        };
        let (clock, stop) = (Arc::clone(&this.clock), this.stop.clone());
        drop(this);
        tokio::select! {
            () = clock.sleep(pause) => {}
            () = stop.cancelled() => break,
        }
    }
}

fn interval() -> Duration {
    POLL.0 + jittered(POLL.1)
}

/// Reads each watched lock that has changed.
async fn look(watch: &Watch) -> Result<(), StoreError> {
    let keys = watch.watchers.keys();
    let reading = keys.iter().map(|key| async move { (key, watch.rows.read(key).await) });
    let mut reading = stream::iter(reading.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
    while let Some((key, row)) = reading.next().await {
        watch.watchers.moved(key, row?.revision);
    }
    Ok(())
}
