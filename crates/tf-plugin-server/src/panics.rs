//! Converts a panic in a request into that request's error.
//!
//! Otherwise the process would end, the host would lose its connection, and the resource would be
//! missing from its state.
use std::{
    any::Any,
    backtrace::{Backtrace, BacktraceStatus},
    cell::RefCell,
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    sync::Once,
};

use futures_util::FutureExt;

thread_local! {
    /// Location of this thread's last panic. A panic is caught on the thread that it unwinds.
    static LAST_SITE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Details of a panic that are safe to show.
#[derive(Debug)]
pub(super) struct Caught {
    site: Option<String>,
    message: Option<&'static str>,
}

impl std::fmt::Display for Caught {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("The provider panicked")?;
        if let Some(site) = &self.site {
            write!(f, " at {site}")?;
        }
        match self.message {
            Some(message) => write!(f, ": {message}."),
            None => f.write_str("."),
        }
    }
}

/// Returns a panic message that is a literal. A formatted message can contain configuration values,
/// so it appears neither in the diagnostic nor in the log.
fn fixed_message(payload: &(dyn Any + Send)) -> Option<&'static str> {
    payload.downcast_ref::<&'static str>().copied()
}

/// Runs `work` and converts a panic into an error value.
pub(super) async fn caught<F: Future>(work: F) -> Result<F::Output, Caught> {
    LAST_SITE.take();
    // The captured state is dropped afterwards. Only the diagnostics are reused, which are plain
    // lists.
    let result = AssertUnwindSafe(work).catch_unwind().await;
    result.map_err(|payload| Caught { site: LAST_SITE.take(), message: fixed_message(payload.as_ref()) })
}

/// Logs panics as one line instead of printing them to standard error. Installed once per process.
pub(super) fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            LAST_SITE.set(info.location().map(ToString::to_string));
            if tracing::dispatcher::has_been_set() {
                log(info);
            } else {
                default(info);
            }
        }));
    });
}

fn log(info: &PanicHookInfo<'_>) {
    let site = info.location().map(ToString::to_string).unwrap_or_default();
    let reason = fixed_message(info.payload()).unwrap_or_default();
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!(site, reason, %backtrace, "panic");
    } else {
        tracing::error!(site, reason, "panic");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[tokio::test]
    async fn a_panic_tells_its_place_and_fixed_words_but_no_values() {
        install_hook();
        assert_eq!(caught(async { 1 }).await.unwrap(), 1);

        let fixed = caught(async { panic!("the cable is out") }).await;
        let fixed = fixed.map(|(): ()| ()).unwrap_err().to_string();
        assert!(fixed.contains("panics.rs"), "{fixed}");
        assert!(fixed.contains("the cable is out"), "{fixed}");

        let secret = "hunter2";
        let formatted = caught(async { panic!("bad password {secret}") }).await;
        let formatted = formatted.map(|(): ()| ()).unwrap_err().to_string();
        assert!(formatted.contains("panics.rs"), "{formatted}");
        assert!(!formatted.contains(secret), "{formatted}");
    }
}
