//! A switch that pauses a stand-in at one point.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Pauses its callers while closed. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<AtomicBool>);

impl Gate {
    pub fn close(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub fn open(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
