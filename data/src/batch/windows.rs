//! The order in which an epoch reads a text in shards.

use crate::sampler::{Order, ShuffleOf};

/// The shards of an epoch, cut into windows. Rows are shuffled within a window, so only its shards are needed at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WindowOrder {
    order: Order,
    /// Shard numbers in order.
    shards: Vec<u32>,
    /// Shards of a window; the last one of an epoch may have fewer.
    size: usize,
    /// The first row of each window, and the number of all rows.
    starts: Vec<u64>,
}

impl WindowOrder {
    /// Orders shards with `rows` rows each. A window has `size` shards, or one shard in the order of the files.
    pub(crate) fn new(order: Order, rows: &[u64], size: usize) -> Self {
        let shards = order.indices(rows.len() as u32, ShuffleOf::Shards);
        let size = if order == Order::Sequential { 1 } else { size };
        let mut starts = vec![0];
        for window in shards.chunks(size) {
            let n_rows: u64 = window.iter().map(|shard| rows[*shard as usize]).sum();
            starts.push(starts[starts.len() - 1] + n_rows);
        }
        Self { order, shards, size, starts }
    }

    /// Returns the order that it was made of.
    pub(crate) fn order(&self) -> Order {
        self.order
    }

    /// Returns the number of windows.
    pub(crate) fn n_windows(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the number of rows of all windows.
    pub(crate) fn n_rows(&self) -> u64 {
        self.starts[self.n_windows()]
    }

    /// Returns the shards of a window.
    pub(crate) fn shards(&self, window: usize) -> &[u32] {
        let start = window * self.size;
        &self.shards[start..self.shards.len().min(start + self.size)]
    }

    /// Returns the window of a row of the epoch, the number of the row within it, and the rows of the window from this one on.
    pub(crate) fn find(&self, row: u64) -> (usize, u32, u64) {
        // Windows without rows share their start with the next one.
        let window = self.starts.partition_point(|start| *start <= row) - 1;
        (window, (row - self.starts[window]) as u32, self.starts[window + 1] - row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_one_window_and_every_shard_too() {
        let rows = [5, 0, 7, 1, 3, 3, 0, 9, 2, 4, 6];
        for order in [Order::Sequential, Order::Shuffled { seed: 3, epoch: 1 }] {
            let windows = WindowOrder::new(order, &rows, 4);
            let mut shards: Vec<u32> =
                (0..windows.n_windows()).flat_map(|window| windows.shards(window)).copied().collect();
            let n_of = |window: usize| windows.shards(window).iter().map(|shard| rows[*shard as usize]).sum::<u64>();
            let wanted = (0..windows.n_windows()).flat_map(|window| {
                let n = n_of(window);
                (0..n).map(move |row| (window, row as u32, n - row))
            });
            let found: Vec<_> = (0..windows.n_rows()).map(|row| windows.find(row)).collect();
            assert_eq!(found, wanted.collect::<Vec<_>>());
            assert_eq!(shards.is_sorted(), order == Order::Sequential);
            shards.sort_unstable();
            assert_eq!(shards, (0..11).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_order_never_changes_between_versions() {
        // A resumed run must see the same rows: these numbers may only change with a new checkpoint format.
        let windows = WindowOrder::new(Order::Shuffled { seed: 42, epoch: 7 }, &[1; 10], 4);
        assert_eq!((windows.shards(0), windows.shards(2)), (&[4, 2, 9, 8][..], &[5, 3][..]));
    }
}
