//! Checks the lock again between a call's requests.
//!
//! The engine checks the lock immediately before each call. A single call can send several
//! requests: a rejected form is followed by another, and a `PATCH` with an outdated entity tag is
//! repeated. Another process can replace a stopped process between them. So backends call
//! [`before_change`] immediately before each request that changes something. The engine's own check
//! covers the first request of a call.
//!
//! The check is task-local instead of an argument, so that no layer in between can fail to pass
//! it.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;

use super::BackendError;

/// Checks the calling process's lock.
#[async_trait]
pub trait StillOurs: Send + Sync {
    /// Returns `Ok` while the lock is held by the process, otherwise the reason.
    async fn check(&self) -> Result<(), String>;
}

struct Guard {
    ours: Arc<dyn StillOurs>,
    sent: AtomicBool,
}

tokio::task_local! {
    static GUARD: Guard;
}

/// Runs a call under guard. Covers only requests in the same task.
pub async fn guarded<T>(ours: Arc<dyn StillOurs>, call: impl Future<Output = T> + Send) -> T {
    GUARD.scope(Guard { ours, sent: AtomicBool::new(false) }, call).await
}

/// Checks the lock; await it immediately before each request that changes a machine or cluster.
/// Without [`guarded`] it always succeeds.
///
/// # Errors
/// [`BackendError::NotSent`]: the caller must not send the request.
pub async fn before_change(request: &str) -> Result<(), BackendError> {
    let asked = GUARD.try_with(|guard| guard.sent.swap(true, Ordering::Relaxed).then(|| Arc::clone(&guard.ours)));
    let Ok(Some(ours)) = asked else { return Ok(()) };
    ours.check().await.map_err(|cause| BackendError::NotSent { request: request.into(), cause: cause.into() })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    struct Replaced(AtomicUsize);

    #[async_trait]
    impl StillOurs for Replaced {
        async fn check(&self) -> Result<(), String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Err("replaced".into())
        }
    }

    #[tokio::test]
    async fn the_second_request_of_a_call_is_asked_for_and_not_sent() {
        let replaced = Arc::new(Replaced(AtomicUsize::new(0)));
        let call = async {
            before_change("PATCH /a").await?;
            assert_eq!(replaced.0.load(Ordering::Relaxed), 0, "the engine has just checked");
            before_change("POST /b").await
        };
        let error = guarded(replaced.clone(), call).await.unwrap_err();
        assert!(error.outcome_unknown(), "the first request was sent: {error:?}");
        assert_eq!(error.to_string(), "POST /b was not sent: replaced");
        assert_eq!(replaced.0.load(Ordering::Relaxed), 1);
        // Each call starts over, and unguarded changes pass.
        guarded(replaced.clone(), before_change("POST /c")).await.unwrap();
        before_change("POST /d").await.unwrap();
        before_change("POST /e").await.unwrap();
    }
}
