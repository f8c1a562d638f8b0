//! Servers that one test after the other has for itself, because starting one takes longer than
//! most tests: when a test ends, its server waits for the next one. Who takes it away from there
//! makes it as new first.

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, PoisonError},
};

/// Where servers wait.
pub struct Shelf<T> {
    idling: Mutex<Vec<T>>,
    most: usize,
}

impl<T> Shelf<T> {
    /// Of more than so many, those that were not wanted for the longest time end.
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

/// What can be lent.
pub trait Lendable: Sized + 'static {
    fn shelf() -> &'static Shelf<Self>;
}

/// A lent server. One that was changed itself, for example killed, or whose test failed, is not
/// lent again.
pub struct Lent<T: Lendable> {
    // There until it is dropped.
    it: Option<T>,
    whole: bool,
}

impl<T: Lendable> Lent<T> {
    pub fn new(it: T) -> Self {
        Self { it: Some(it), whole: true }
    }

    /// It ends with its test.
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
