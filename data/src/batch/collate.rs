//! Pairs of ids into the padded rows of a batch.

use crate::host_batch::{HostBatch, PairParts, Shape};
use crate::tokenizer::SpecialIds;

/// Writes pairs into a batch whose shape is fixed in advance. The batch's buffer is reused.
#[derive(Debug)]
pub struct Collator<'a> {
    batch: &'a mut HostBatch,
    special: SpecialIds,
    row: usize,
}

impl<'a> Collator<'a> {
    /// Makes room for `shape` and fills it with padding.
    pub fn new(batch: &'a mut HostBatch, shape: Shape, special: SpecialIds) -> Self {
        batch.start_pairs(shape, special.pad);
        Self { batch, special, row: 0 }
    }

    /// Adds a row. `source` and `target` come without special tokens. Returns their largest ids.
    ///
    /// # Panics
    ///
    /// If a row is longer than the shape allows, or if there are more rows than it has.
    pub fn push<T: Copy + Into<u32>>(&mut self, number: u32, source: &[T], target: &[T]) -> (u32, u32) {
        let Shape { batch_size, source_len, target_len } = self.batch.shape();
        assert!(self.row < batch_size, "the batch has {batch_size} rows and no room for another");
        assert!(
            source.len() < source_len && target.len() < target_len,
            "row {number} has {} + {} tokens and eos, the batch is {source_len} + {target_len} wide",
            source.len(),
            target.len()
        );
        let (row, eos) = (self.row, self.special.eos as i32);
        let parts: PairParts<&mut [i32]> = self.batch.pair_parts_mut();

        let source_row = &mut parts.source[row * source_len..];
        let max_source = copy(source, source_row);
        source_row[source.len()] = eos;

        let labels = &mut parts.labels[row * target_len..];
        let max_target = copy(target, labels);
        labels[target.len()] = eos;

        let input = &mut parts.target_input[row * target_len..];
        input[0] = self.special.bos as i32;
        input[1..=target.len()].copy_from_slice(&labels[..target.len()]);

        parts.source_lengths[row] = source.len() as i32 + 1;
        parts.target_lengths[row] = target.len() as i32 + 1;

        self.batch.source_tokens += source.len() as u64 + 1;
        self.batch.target_tokens += target.len() as u64 + 1;
        self.batch.rows.push(number);
        self.row += 1;
        (max_source, max_target)
    }
}

/// Copies ids to the start of `to` and returns the largest.
fn copy<T: Copy + Into<u32>>(ids: &[T], to: &mut [i32]) -> u32 {
    let mut largest = 0;
    for (to, id) in to.iter_mut().zip(ids) {
        let id: u32 = (*id).into();
        largest = largest.max(id);
        *to = id as i32;
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shifted_and_padded() {
        let special = SpecialIds { pad: 0, bos: 1, eos: 2, unk: 3 };
        let mut batch = HostBatch { ids: vec![9; 100], rows: vec![7], ..HostBatch::default() };
        let mut collator = Collator::new(&mut batch, Shape { batch_size: 2, source_len: 4, target_len: 3 }, special);
        assert_eq!(collator.push(5, &[10u16, 11, 12], &[20, 21]), (12, 21));
        assert_eq!(collator.push::<u16>(6, &[13], &[]), (13, 0));
        assert_eq!(batch.source(), [10, 11, 12, 2, 13, 2, 0, 0]);
        assert_eq!(batch.target_input(), [1, 20, 21, 1, 0, 0]);
        assert_eq!(batch.labels(), [20, 21, 2, 2, 0, 0]);
        assert_eq!(batch.source_lengths(), [4, 2]);
        assert_eq!(batch.target_lengths(), [3, 1]);
        assert_eq!(batch.ids.len(), 2 * (4 + 3 + 3 + 2));
        assert_eq!((batch.source_tokens, batch.target_tokens, &batch.rows[..]), (6, 4, &[5, 6][..]));
        assert!((batch.padding_ratio() - 4.0 / 14.0).abs() < 1e-12);
    }

    #[test]
    #[should_panic(expected = "row 8 has 4 + 1 tokens and eos, the batch is 4 + 3 wide")]
    fn a_row_that_is_too_long_is_refused() {
        let special = SpecialIds { pad: 0, bos: 1, eos: 2, unk: 3 };
        let mut batch = HostBatch::default();
        let shape = Shape { batch_size: 1, source_len: 4, target_len: 3 };
        Collator::new(&mut batch, shape, special).push(8, &[1u32; 4], &[1]);
    }
}
