//! Servers lent to one test at a time, because starting one takes longer than most tests. After a
//! test, the server waits for the next borrower, who resets it first.

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, PoisonError},
};

/// Idle servers.
pub struct Shelf<T> {
    idling: Mutex<Vec<T>>,
    most: usize,
}

impl<T> Shelf<T> {
    /// Creates a shelf. Beyond `most` idle servers, those unused for longest end.
    pub const fn of(most: usize) -> Self {
        Self { idling: Mutex::new(Vec::new()), most }
    }

    pub fn take(&self, fits: impl Fn(&T) -> bool) -> Option<T> {
        let mut idling = self.idling.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idling.iter().position(fits)?;
        Some(idling.remove(at))
    }

    fn put(&self, it: T) {
        let mut idling = self.idling.lock().unwrap_or_else(PoisonError::into_inner);
        idling.push(it);
        let surplus = idling.len().saturating_sub(self.most);
        let gone: Vec<T> = idling.drain(..surplus).collect();
        drop(idling);
        drop(gone);
    }
}

/// A server type that can be lent.
pub trait Lendable: Sized + 'static {
    fn shelf() -> &'static Shelf<Self>;
}

/// A lent server. It is not reused if its test failed or changed the server itself, for example by
/// a kill.
pub struct Lent<T: Lendable> {
    // `Some` until the drop.
    it: Option<T>,
    whole: bool,
}

impl<T: Lendable> Lent<T> {
    pub fn new(it: T) -> Self {
        Self { it: Some(it), whole: true }
    }

    /// Wraps a server that ends with its test.
    pub fn once(it: T) -> Self {
        Self { it: Some(it), whole: false }
    }
}

impl<T: Lendable> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.it.as_ref().unwrap()
    }
}

impl<T: Lendable> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.whole = false;
        self.it.as_mut().unwrap()
    }
}

impl<T: Lendable> Drop for Lent<T> {
    fn drop(&mut self) {
        let it = self.it.take().unwrap();
        if self.whole && !std::thread::panicking() {
            T::shelf().put(it);
        }
    }
}
