//! The part of a product that a thread computes at a time.

use std::ops::Range;

/// The most rows of a tile. Tall tiles read the right operand less often
/// (`benches/results/2026-11-29-cpu-products.md`).
pub(super) const HEIGHT: usize = 512;

/// Memory of a thread.
#[derive(Default)]
pub(super) struct Room {
    pub(super) copied: Vec<f32>,
    /// Sums that do not lie in the result.
    pub(super) sums: Vec<f32>,
}

/// Cuts rows into blocks of at most `height`, as equal as can be.
pub(super) fn blocks(rows: Range<usize>, height: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let (n, first) = (rows.len().div_ceil(height), rows.start);
    (0..n).map(move |i| first + i * rows.len() / n..first + (i + 1) * rows.len() / n)
}
