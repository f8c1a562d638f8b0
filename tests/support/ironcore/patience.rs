//! Waiting for a state, with a deadline.

use std::time::{Duration, Instant};

/// How long something may take that normally takes a second or two, on a machine that is busy with
/// other tests.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Asks until there is an answer.
///
/// # Panics
/// When there is none in time; `what` names the state that did not come.
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
