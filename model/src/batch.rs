//! Batches of token ids on a device, as the models read them.

use burn::tensor::{Int, Tensor};

use crate::rows::Rows;

/// A batch for any of the architectures: pairs for an encoder-decoder, text for the other two.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a few per step; a box would cost more")]
pub enum Batch {
    /// Sources and targets.
    Pairs(PairBatch),
    /// Texts, one per row or several packed into a row.
    Text(TextBatch),
}

impl Batch {
    /// B.
    pub fn batch_size(&self) -> usize {
        match self {
            Self::Pairs(batch) => batch.batch_size,
            Self::Text(batch) => batch.batch_size,
        }
    }

    /// The labels, `[B * T]`, batch-major.
    pub fn labels(&self) -> &Tensor<1, Int> {
        match self {
            Self::Pairs(batch) => &batch.labels,
            Self::Text(batch) => &batch.labels,
        }
    }
}

/// A right-padded batch of source and target sequences. Every tensor of ids holds the padding id at padded positions.
///
/// Rows of a sequence tensor are batch-major: token t of row b is element `b * T + t`.
#[derive(Debug, Clone)]
pub struct PairBatch {
    /// Source ids, each row followed by the end token, `[B * S]`.
    pub source: Tensor<1, Int>,
    /// Input of the decoder: start token, then the target, `[B * T]`.
    pub target_input: Tensor<1, Int>,
    /// The next token at each position: the target, then the end token, `[B * T]`.
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
    /// Real labels of the whole batch, the divisor of a mean loss.
    pub target_tokens: u64,
}

impl PairBatch {
    /// Slices one uploaded tensor into the tensors of a batch.
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

/// A batch of text. Rows are right-padded with the padding id, or packed with several documents end to end.
///
/// Rows of a tensor are batch-major: token t of row b is element `b * T + t`.
#[derive(Debug, Clone)]
pub struct TextBatch {
    /// Token ids, `[B * T]`.
    pub input: Tensor<1, Int>,
    /// The token to predict at each position, `[B * T]`: the next one for a decoder-only model, the original one for an
    /// encoder-only model. [`Self::NOT_COUNTED`] at padding and at tokens that are not masked.
    ///
    /// The padding id cannot say so: GPT-2's tokenizer, for one, pads with its end-of-text token, which is also a label.
    pub labels: Tensor<1, Int>,
    /// Position of each token in its document, `[B * T]`, each in `0..max_positions`. None: 0 to T - 1 in every row.
    pub positions: Option<Tensor<1, Int>>,
    /// Document number of each token, `[B * T]`, never decreasing along a row. A token sees only its own document. None:
    /// each row is one document.
    pub documents: Option<Tensor<1, Int>>,
    /// Type of each token, `[B * T]`, each in `0..n_token_types`. None: type 0. Only for models with token types.
    pub token_types: Option<Tensor<1, Int>>,
    /// Rows `2 i` and `2 i + 1` are a preferred answer and another one to the same prompt, and the loss compares them with this
    /// beta (see [`DecoderOnly::prefer`](crate::DecoderOnly::prefer)). None: every row is by itself.
    pub preference: Option<f64>,
    /// At most so many labels count. A head for masked tokens then reads no more positions than that. None: it reads all.
    pub max_labels: Option<usize>,
    /// Non-padding tokens of each row, at least 1 each, `[B]`.
    pub lengths: Tensor<1, Int>,
    /// B.
    pub batch_size: usize,
    /// T, padding included.
    pub seq_len: usize,
    /// Non-padding tokens of the whole batch.
    pub tokens: u64,
}

impl TextBatch {
    /// The label of positions that the loss ignores.
    pub const NOT_COUNTED: i32 = -1;

    /// Slices one uploaded tensor into the tensors of a batch. The tensor always holds positions and documents. They are
    /// used only if `packed`, since attention without documents is faster.
    ///
    /// # Shapes
    /// - `ids`: `[4 * B * T + B]`: input, labels, positions, documents, lengths, in this order
    ///
    /// # Panics
    /// If `ids` has another length.
    pub fn from_contiguous(ids: Tensor<1, Int>, [batch_size, seq_len]: [usize; 2], tokens: u64, packed: bool) -> Self {
        let n = batch_size * seq_len;
        let [found] = ids.dims();
        let wanted = 4 * n + batch_size;
        assert_eq!(found, wanted, "a batch of {batch_size} rows of {seq_len} positions has {wanted} numbers");
        let part = |i: usize| ids.clone().narrow(0, i * n, n);
        Self {
            input: part(0),
            labels: part(1),
            positions: packed.then(|| part(2)),
            documents: packed.then(|| part(3)),
            token_types: None,
            preference: None,
            max_labels: None,
            lengths: ids.clone().narrow(0, 4 * n, batch_size),
            batch_size,
            seq_len,
            tokens,
        }
    }

    /// `[B, T]` with padding.
    pub fn shape(&self) -> [usize; 2] {
        [self.batch_size, self.seq_len]
    }

    /// The layout of the rows.
    pub fn rows(&self) -> Rows {
        Rows {
            relative: None,
            batch_size: self.batch_size,
            lengths: Some(self.lengths.clone()),
            documents: self.documents.clone(),
            positions: self.positions.clone(),
        }
    }
}
