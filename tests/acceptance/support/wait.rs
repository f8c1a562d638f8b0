//! Waiting for a state with a deadline; the only place of the tests that lets time pass.

use std::time::{Duration, Instant};

/// How long a test waits for something that normally takes well under a second.
pub const PATIENCE: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(15);

/// Asks until `probe` gives an answer.
///
/// # Panics
/// When there is none after `limit`; `what` names the state that did not come.
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
