//! Values that many copies of a lock share.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that copies share until a copy changes it.
///
/// Each transition and each waiter copies the lock. With a thousand records, deep copies would
/// dominate every enqueue. Unchanged copies compare by pointer.
#[derive(Clone, Debug, Default)]
pub struct Shared<T>(Arc<T>);

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T: Clone> Shared<T> {
    /// Returns the value, cloned if other copies share it.
    #[must_use]
    pub fn into_inner(self) -> T {
        Arc::unwrap_or_clone(self.0)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_changed_leaves_the_others_as_they_were() {
        let first = Shared::from(vec![1]);
        let mut second = first.clone();
        assert_eq!(first, second);
        second.push(2);
        assert_eq!((&*first, &*second), (&vec![1], &vec![1, 2]));
        assert_eq!(second.into_inner(), [1, 2]);
        assert_eq!(first, Shared::from(vec![1]), "equal by value, too");
    }

    #[test]
    fn it_is_stored_as_the_value_alone() {
        let text = serde_json::to_string(&Shared::from(7)).unwrap();
        assert_eq!((text.as_str(), serde_json::from_str::<Shared<i32>>("7").unwrap()), ("7", Shared::from(7)));
    }
}
