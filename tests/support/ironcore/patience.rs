//! Waits for a state, with a deadline.

use std::time::{Duration, Instant};

/// Limit for changes that normally take a second or two, on a busy machine.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Polls until the probe returns a value.
///
/// # Panics
/// After the deadline; the message contains `what`.
pub async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = probe().await {
            return answer;
        }
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
