//! Encoders that outlive their threads, because of the words that they remember. A small shard ends before a new one has learned them.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// Encoders that no thread uses.
#[derive(Debug)]
pub(super) struct Pool<T>(Mutex<Vec<T>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<T> Pool<T> {
    /// Lends an encoder, or a new one if all are lent.
    pub(super) fn lend(&self, new: impl FnOnce() -> T) -> Lent<'_, T> {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Lent { pool: self, item: Some(free.unwrap_or_else(new)) }
    }
}

/// An encoder that returns to its pool.
#[derive(Debug)]
pub(super) struct Lent<'p, T> {
    pool: &'p Pool<T>,
    item: Option<T>,
}

impl<T> Deref for Lent<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.item.as_ref().expect("there until it is dropped")
    }
}

impl<T> DerefMut for Lent<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.item.as_mut().expect("there until it is dropped")
    }
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        self.pool.0.lock().unwrap_or_else(PoisonError::into_inner).extend(self.item.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_lent_again_and_nothing_twice() {
        let pool = Pool::default();
        let (first, mut second) = (pool.lend(|| 1), pool.lend(|| 2));
        assert_eq!((*first, *second), (1, 2));
        *second = 3;
        drop(second);
        assert_eq!(*pool.lend(|| 4), 3);
        drop(first);
        let (one, other, new) = (pool.lend(|| 5), pool.lend(|| 5), pool.lend(|| 5));
        let mut all = [*one, *other, *new];
        all.sort_unstable();
        assert_eq!(all, [1, 3, 5]);
    }
}
