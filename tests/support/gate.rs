//! A switch that holds a stand-in at a place.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Holds what asks it while it is closed. Copies hold the same.
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
