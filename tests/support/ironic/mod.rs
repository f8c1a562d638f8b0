//! An Ironic that one test after the other has for itself. Starting one costs a core eight seconds,
//! which is more than many tests take; so what a test left in it is deleted, and it is lent again.
//!
//! One that was killed or whose test failed is not lent again, nor one that something else than its
//! options tells from others: a Keystone, a certificate, a policy.

pub mod installation;

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, PoisonError},
};

use installation::Installation;
pub use installation::Options;

/// So many wait for the next test; each takes a fifth of a GiB.
const IDLE: usize = 5;

static IDLING: Mutex<Vec<Installation>> = Mutex::new(Vec::new());

/// A lent Ironic. A test that changes it in other ways than by its API gives none back.
pub struct Ironic {
    // There until it is dropped.
    it: Option<Installation>,
    whole: bool,
}

impl Ironic {
    /// One without a node.
    pub async fn start(options: Options) -> Self {
        while let Some(mut it) = take(&options) {
            if it.clean().await {
                return Self { it: Some(it), whole: true };
            }
        }
        let whole = options.is_plain();
        Self { it: Some(Installation::start(options).await), whole }
    }
}

fn take(options: &Options) -> Option<Installation> {
    let mut idling = IDLING.lock().unwrap_or_else(PoisonError::into_inner);
    let at = idling.iter().position(|it| options.is_plain() && it.options().kind() == options.kind())?;
    Some(idling.remove(at))
}

impl Deref for Ironic {
    type Target = Installation;

    fn deref(&self) -> &Installation {
        self.it.as_ref().unwrap()
    }
}

impl DerefMut for Ironic {
    fn deref_mut(&mut self) -> &mut Installation {
        self.whole = false;
        self.it.as_mut().unwrap()
    }
}

impl Drop for Ironic {
    fn drop(&mut self) {
        let it = self.it.take().unwrap();
        if !self.whole || std::thread::panicking() {
            return;
        }
        let mut idling = IDLING.lock().unwrap_or_else(PoisonError::into_inner);
        idling.push(it);
        // Those that were not wanted for the longest time are the first.
        let surplus = idling.len().saturating_sub(IDLE);
        let gone: Vec<Installation> = idling.drain(..surplus).collect();
        drop(idling);
        drop(gone);
    }
}
