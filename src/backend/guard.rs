//! The right to act, asked again between the requests of one call.
//!
//! The engine checks that it may act right before each call. But one call may become several
//! requests: a refused form is followed by another one, a `PATCH` with an outdated entity tag by a
//! second one. A process that was stopped between them may have been replaced meanwhile. So the
//! engine hands down how to ask again, and a backend asks with [`before_change`] right before each
//! request that changes something; the first one of a call is covered by the check of the engine
//! itself.
//!
//! It travels with the task and not as an argument, so that no layer between the engine and the
//! request can forget to pass it on.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;

use super::BackendError;

/// Asks whether the process that makes a call still may.
#[async_trait]
pub trait StillOurs: Send + Sync {
    /// Why not, or why that cannot be known at the moment; `Ok` when it may.
    async fn check(&self) -> Result<(), String>;
}

struct Guard {
    ours: Arc<dyn StillOurs>,
    sent: AtomicBool,
}

tokio::task_local! {
    static GUARD: Guard;
}

/// Runs one call. Only what runs in the same task is guarded.
pub async fn guarded<T>(ours: Arc<dyn StillOurs>, call: impl Future<Output = T> + Send) -> T {
    GUARD.scope(Guard { ours, sent: AtomicBool::new(false) }, call).await
}

/// To be awaited right before each request that changes a machine or a cluster. Outside of
/// [`guarded`] it asks nobody. The error is [`BackendError::NotSent`]; the request must not be sent
/// then.
pub async fn before_change(request: &str) -> Result<(), BackendError> {
    let asked = GUARD.try_with(|guard| guard.sent.swap(true, Ordering::Relaxed).then(|| Arc::clone(&guard.ours)));
    let Ok(Some(ours)) = asked else { return Ok(()) };
    ours.check().await.map_err(|cause| BackendError::NotSent { request: request.to_owned(), cause })
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
        assert!(error.outcome_unknown(), "the first one was sent: {error:?}");
        assert_eq!(error.to_string(), "POST /b was not sent: replaced");
        assert_eq!(replaced.0.load(Ordering::Relaxed), 1);
        // Each call begins again, and what nobody guards goes through.
        guarded(replaced.clone(), before_change("POST /c")).await.unwrap();
        before_change("POST /d").await.unwrap();
        before_change("POST /e").await.unwrap();
    }
}
