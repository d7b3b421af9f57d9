//! Numbered results that arrive in any order and leave in the order of their numbers.

use std::collections::VecDeque;

/// Holds results that arrived early until it is their turn.
#[derive(Debug)]
pub(crate) struct Reorder<T> {
    next: u64,
    /// Slot i belongs to number `next + i`.
    slots: VecDeque<Option<T>>,
}

impl<T> Reorder<T> {
    /// The first result to leave is number `next`.
    pub(crate) fn new(next: u64) -> Self {
        Self { next, slots: VecDeque::new() }
    }

    /// Adds a result.
    ///
    /// # Panics
    ///
    /// If the number arrived before.
    pub(crate) fn insert(&mut self, number: u64, value: T) {
        let offset = number.checked_sub(self.next).expect("a number arrives once") as usize;
        if self.slots.len() <= offset {
            self.slots.resize_with(offset + 1, || None);
        }
        let slot = &mut self.slots[offset];
        assert!(slot.is_none(), "number {number} arrived twice");
        *slot = Some(value);
    }

    /// Returns the next result in order, if it has arrived.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let value = self.slots.front_mut()?.take()?;
        self.slots.pop_front();
        self.next += 1;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_leave_in_order() {
        let mut reorder = Reorder::new(5);
        reorder.insert(7, 'c');
        assert_eq!(reorder.pop(), None);
        reorder.insert(5, 'a');
        assert_eq!(reorder.pop(), Some('a'));
        assert_eq!(reorder.pop(), None);
        reorder.insert(6, 'b');
        reorder.insert(8, 'd');
        assert_eq!(
            [reorder.pop(), reorder.pop(), reorder.pop(), reorder.pop()],
            [Some('b'), Some('c'), Some('d'), None]
        );
    }
}
