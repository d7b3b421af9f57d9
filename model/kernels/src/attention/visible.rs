//! The keys that each query sees, and those that dropout keeps, on the CPU.

use std::ops::Range;

use burn_flex::Flex;

use super::ops::FlashSpec;
use crate::dropout::philox::philox;
use crate::dropout::threshold_16;
use crate::host::ints;
use crate::maybe::MaybeInts;

/// The keys that queries see: a range for each query, since documents follow each other.
pub(super) struct Visible {
    /// H, T and S.
    n_heads: usize,
    n_queries: usize,
    n_keys: usize,
    causal: bool,
    window: Option<usize>,
    /// Keys of each batch row.
    lengths: Option<Vec<i32>>,
    /// The document around each position.
    documents: Option<Vec<Range<usize>>>,
    drop: Option<Drop>,
}

/// The random stream of a call, see [`crate::DropoutStream`].
struct Drop {
    key: [u32; 2],
    draw: [u32; 2],
    site: u32,
    limit: u32,
    factor: f32,
}

impl Visible {
    /// Reads key lengths, documents, and the state of a random stream.
    pub(super) fn new(
        spec: &FlashSpec,
        [n_queries, n_keys]: [usize; 2],
        [lengths, documents, random]: [MaybeInts<Flex>; 3],
    ) -> Self {
        let drop = random.into_option().filter(|_| spec.dropout > 0.0).map(|state| {
            let words: Vec<u32> = ints(state).into_iter().map(i32::cast_unsigned).collect();
            let (key, draw) = ([words[0], words[1]], [words[2], words[3]]);
            Drop { key, draw, site: spec.site, limit: threshold_16(spec.dropout), factor: 1.0 / (1.0 - spec.dropout) }
        });
        let documents = documents.into_option().map(|documents| ranges(&ints(documents), n_queries));
        let lengths = lengths.into_option().map(ints);
        Self {
            n_heads: spec.n_heads,
            n_queries,
            n_keys,
            causal: spec.causal,
            window: spec.window,
            lengths,
            documents,
            drop,
        }
    }

    pub(super) fn n_heads(&self) -> usize {
        self.n_heads
    }

    /// Returns the keys that a query of a batch row sees.
    pub(super) fn keys(&self, batch_row: usize, query: usize) -> Range<usize> {
        let document = self.documents.as_ref().map(|documents| &documents[batch_row * self.n_queries + query]);
        let mut seen = document.cloned().unwrap_or(0..self.n_keys);
        if self.causal {
            seen.end = seen.end.min((query + 1 + self.n_keys).saturating_sub(self.n_queries));
        }
        if let Some(lengths) = &self.lengths {
            seen.end = seen.end.min(usize::try_from(lengths[batch_row]).unwrap_or(0));
        }
        if let Some(window) = self.window {
            seen.start = seen.start.max(seen.end.saturating_sub(window));
        }
        seen
    }

    /// Calls `each` with the keys among `keys`, counted from the first, and their factors: 0 or `1 / (1 - p)`. Does nothing
    /// without dropout.
    ///
    /// The random numbers of a row are distributed to its keys in tiles of 64, in the register layout of a matrix product: one
    /// Philox block serves keys `c` and `c + 1` of every eight keys of a half tile.
    pub(super) fn each_kept(
        &self,
        batch_row: usize,
        head: usize,
        query: usize,
        keys: &Range<usize>,
        mut each: impl FnMut(usize, f32),
    ) {
        let Some(Drop { key, draw, site, limit, factor }) = self.drop else { return };

        let row = (batch_row * self.n_heads + head) * self.n_queries + query;
        let first_block = row * self.n_keys.next_multiple_of(64) / 8;
        for half_tile in (keys.start / 32 * 32..keys.end).step_by(32) {
            for pair in 0..4 {
                let block = first_block + half_tile / 8 + pair;
                let words = philox([block as u32, site, draw[0], draw[1]], key);
                for (eight, word) in words.into_iter().enumerate() {
                    for c in 0..2 {
                        let key = half_tile + 8 * eight + 2 * pair + c;
                        let is_kept = word >> (16 * c) & 0xffff >= limit;
                        if keys.contains(&key) {
                            each(key - keys.start, if is_kept { factor } else { 0.0 });
                        }
                    }
                }
            }
        }
    }
}

/// Returns the range of the positions with the same document, for each position of rows of `len`.
fn ranges(documents: &[i32], len: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::with_capacity(documents.len());
    for row in documents.chunks(len.max(1)) {
        let mut start = 0;
        for document in row.chunk_by(|a, b| a == b) {
            let range = start..start + document.len();
            start = range.end;
            ranges.extend(std::iter::repeat_n(range, document.len()));
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_ranges_of_their_rows() {
        assert_eq!(ranges(&[0, 0, 1, 1, 1, 1], 3), [0..2, 0..2, 2..3, 0..3, 0..3, 0..3]);
        assert!(ranges(&[], 0).is_empty());
    }
}
