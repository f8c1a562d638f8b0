//! Waits for a state with a deadline; no other test code sleeps.

use std::time::{Duration, Instant};

/// Limit for changes that normally take well under a second.
pub const PATIENCE: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(15);

/// Polls until `probe` returns a value.
///
/// # Panics
/// After `limit`; the message contains `what`.
pub async fn eventually<T>(what: &str, limit: Duration, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = probe().await {
            return answer;
        }
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}
