//! What the model trains on: one batch of token ids on a device.

use burn::tensor::{Int, Tensor};

/// A right-padded batch of source and target sequences. Padded positions hold the padding id everywhere.
///
/// Rows of a sequence tensor are batch-major: token t of row b is element `b * T + t`.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Source ids, each row closed by the end token, `[B * S]`.
    pub source: Tensor<1, Int>,
    /// What the decoder reads: start token and target, `[B * T]`.
    pub target_input: Tensor<1, Int>,
    /// What it should say next: target and end token, `[B * T]`.
    pub labels: Tensor<1, Int>,
    /// Real source tokens per row, at least 1 each, `[B]`.
    pub source_lengths: Tensor<1, Int>,
    /// Real labels per row, `[B]`.
    pub target_lengths: Tensor<1, Int>,
    /// B.
    pub batch_size: usize,
    /// S, padding included.
    pub source_len: usize,
    /// T, padding included.
    pub target_len: usize,
    /// Real source tokens of the whole batch.
    pub source_tokens: u64,
    /// Real labels of the whole batch: the losses that a mean divides by.
    pub target_tokens: u64,
}

impl Batch {
    /// Cuts one uploaded tensor into the parts of a batch.
    ///
    /// # Shapes
    /// - `ids`: `[B * S + 2 * B * T + 2 * B]`: source, target input, labels, source lengths, target lengths, in this
    ///   order
    ///
    /// # Panics
    /// If `ids` has another length.
    pub fn from_contiguous(
        ids: Tensor<1, Int>,
        [batch_size, source_len, target_len]: [usize; 3],
        source_tokens: u64,
        target_tokens: u64,
    ) -> Self {
        let [b, s, t] = [batch_size, source_len, target_len];
        let [found] = ids.dims();
        let wanted = b * s + 2 * b * t + 2 * b;
        assert_eq!(found, wanted, "a batch of {b} rows, {s} source and {t} target positions has {wanted} numbers");
        let mut start = 0;
        let mut next = |len: usize| {
            start += len;
            ids.clone().narrow(0, start - len, len)
        };
        Self {
            source: next(b * s),
            target_input: next(b * t),
            labels: next(b * t),
            source_lengths: next(b),
            target_lengths: next(b),
            batch_size,
            source_len,
            target_len,
            source_tokens,
            target_tokens,
        }
    }

    /// `[B, S, T]` with padding.
    pub fn shape(&self) -> [usize; 3] {
        [self.batch_size, self.source_len, self.target_len]
    }
}
