//! The global order of rows and batches: a pure function of seed and epoch.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The order of the rows in an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The order of the files.
    Sequential,
    /// Shuffled, differently in each epoch.
    Shuffled {
        /// Seed of the run.
        seed: u64,
        /// Epoch, from 0.
        epoch: u64,
    },
}

/// What is shuffled. Each has its own stream of random numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ShuffleOf {
    Rows,
    Batches,
    Documents,
    Groups,
    Shards,
}

impl Order {
    /// Returns the numbers below `n` in this order.
    pub(crate) fn indices(self, n: u32, of: ShuffleOf) -> Vec<u32> {
        let mut indices: Vec<u32> = (0..n).collect();
        self.apply(&mut indices, of);
        indices
    }

    /// Returns the order of a pass over one of several lists that have this seed in common.
    pub(crate) fn of_pass(self, list: u64, pass: u64) -> Self {
        let Self::Shuffled { seed, .. } = self else { return Self::Sequential };
        let mut hasher = blake3::Hasher::new_derive_key("kiln-data 2026 seeds of the sources of a mixture");
        hasher.update(&seed.to_le_bytes()).update(&list.to_le_bytes());
        let bytes = *hasher.finalize().as_bytes();
        Self::Shuffled { seed: u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")), epoch: pass }
    }

    /// Returns the order of another epoch.
    pub(crate) fn at_epoch(self, epoch: u64) -> Self {
        match self {
            Self::Sequential => self,
            Self::Shuffled { seed, .. } => Self::Shuffled { seed, epoch },
        }
    }

    /// Returns the epoch; the order of the files is the same in all.
    pub(crate) fn epoch(self) -> u64 {
        match self {
            Self::Sequential => 0,
            Self::Shuffled { epoch, .. } => epoch,
        }
    }

    /// Returns the order of the next epoch; `None` for the order of the files, which is the same in all.
    pub(crate) fn next_epoch(self) -> Option<Self> {
        match self {
            Self::Sequential => None,
            Self::Shuffled { seed, epoch } => Some(Self::Shuffled { seed, epoch: epoch + 1 }),
        }
    }

    /// Puts items into this order (Fisher-Yates shuffle).
    pub(crate) fn apply<T>(self, items: &mut [T], of: ShuffleOf) {
        let Self::Shuffled { seed, epoch } = self else { return };
        let mut random = generator(seed, epoch, of);
        for i in (1..items.len()).rev() {
            items.swap(i, below(&mut random, i as u32 + 1) as usize);
        }
    }
}

fn generator(seed: u64, epoch: u64, of: ShuffleOf) -> ChaCha8Rng {
    let mut hasher = blake3::Hasher::new_derive_key("kiln-data 2026 order of rows and batches");
    hasher.update(&seed.to_le_bytes()).update(&epoch.to_le_bytes()).update(&[of as u8]);
    ChaCha8Rng::from_seed(*hasher.finalize().as_bytes())
}

/// Returns a uniformly distributed number below `bound` (Lemire 2019).
pub(crate) fn below(random: &mut impl Rng, bound: u32) -> u32 {
    let threshold = bound.wrapping_neg() % bound;
    loop {
        let wide = u64::from(random.next_u32()) * u64::from(bound);
        if wide as u32 >= threshold {
            return (wide >> 32) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_is_a_permutation_and_depends_on_everything() {
        let order = |seed, epoch, of| Order::Shuffled { seed, epoch }.indices(1000, of);
        let first = order(1, 0, ShuffleOf::Rows);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert_eq!(first, order(1, 0, ShuffleOf::Rows));
        for other in [order(2, 0, ShuffleOf::Rows), order(1, 1, ShuffleOf::Rows), order(1, 0, ShuffleOf::Batches)] {
            assert_ne!(first, other);
        }
        assert_eq!(Order::Sequential.indices(3, ShuffleOf::Rows), [0, 1, 2]);
        assert_eq!(order(1, 0, ShuffleOf::Rows).len() + Order::Sequential.indices(0, ShuffleOf::Rows).len(), 1000);
    }

    #[test]
    fn every_place_is_equally_likely() {
        // Where item 0 of 8 ends up over 8000 epochs: 1000 each, standard deviation 30.
        let mut places = [0u32; 8];
        for epoch in 0..8000 {
            let order = Order::Shuffled { seed: 3, epoch }.indices(8, ShuffleOf::Rows);
            places[order.iter().position(|i| *i == 0).expect("a permutation")] += 1;
        }
        assert!(places.iter().all(|n| (850..1150).contains(n)), "{places:?}");
    }

    #[test]
    fn the_order_never_changes_between_versions() {
        // A resumed run must see the same rows: these numbers may only change with a new checkpoint format.
        let order = Order::Shuffled { seed: 42, epoch: 7 }.indices(10, ShuffleOf::Rows);
        assert_eq!(order, [4, 1, 8, 0, 7, 3, 5, 9, 2, 6]);
    }
}
