//! A batch of padded token rows in one contiguous host buffer.

use serde::{Deserialize, Serialize};

/// Where the loader stands: the next batch to be produced. Saved with a checkpoint; any position is reached without
/// producing the batches before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Passes over the data that are complete.
    pub epoch: u64,
    /// Batches of this epoch that are done, counted over all ranks.
    pub batch: u64,
}

/// The padded shape of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Rows.
    pub batch_size: usize,
    /// Padded source length in tokens.
    pub source_len: usize,
    /// Padded target length in tokens.
    pub target_len: usize,
}

impl Shape {
    /// Source and target tokens of the batch with padding.
    pub fn padded_tokens(&self) -> usize {
        self.batch_size * (self.source_len + self.target_len)
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x ({} + {})", self.batch_size, self.source_len, self.target_len)
    }
}

/// Right-padded rows of token ids, ready to be uploaded in one copy.
///
/// # Shapes
///
/// B batch, S padded source length, T padded target length. `ids` holds, one after the other:
///
/// | part | shape | row |
/// |---|---|---|
/// | source | `[B, S]` | source ids, eos, padding |
/// | target input | `[B, T]` | bos, target ids, padding |
/// | labels | `[B, T]` | target ids, eos, padding |
/// | source lengths | `[B]` | tokens of the source row that are not padding |
/// | target lengths | `[B]` | tokens of the label row that are not padding |
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostBatch {
    /// All five parts; see the table above.
    pub ids: Vec<i32>,
    /// B: rows.
    pub batch_size: usize,
    /// S: padded source length in tokens.
    pub source_len: usize,
    /// T: padded target length in tokens.
    pub target_len: usize,
    /// Source tokens that are not padding, each row's eos included.
    pub source_tokens: u64,
    /// Labels that are not padding, each row's eos included.
    pub target_tokens: u64,
    /// Row numbers in the data set, in the order of the batch's rows.
    pub rows: Vec<u32>,
    /// Where to continue after this batch.
    pub next: Position,
}

impl HostBatch {
    /// B, S and T.
    pub fn shape(&self) -> Shape {
        Shape { batch_size: self.batch_size, source_len: self.source_len, target_len: self.target_len }
    }

    /// Source rows `[B, S]`.
    pub fn source(&self) -> &[i32] {
        &self.ids[..self.batch_size * self.source_len]
    }

    /// Decoder input rows `[B, T]`: bos and the target.
    pub fn target_input(&self) -> &[i32] {
        let start = self.batch_size * self.source_len;
        &self.ids[start..start + self.batch_size * self.target_len]
    }

    /// Label rows `[B, T]`: the target and eos.
    pub fn labels(&self) -> &[i32] {
        let start = self.batch_size * (self.source_len + self.target_len);
        &self.ids[start..start + self.batch_size * self.target_len]
    }

    /// Tokens of each source row `[B]`, eos included.
    pub fn source_lengths(&self) -> &[i32] {
        let start = self.batch_size * (self.source_len + 2 * self.target_len);
        &self.ids[start..start + self.batch_size]
    }

    /// Tokens of each label row `[B]`, eos included.
    pub fn target_lengths(&self) -> &[i32] {
        let start = self.batch_size * (self.source_len + 2 * self.target_len + 1);
        &self.ids[start..start + self.batch_size]
    }

    /// Share of padding among the padded source and label tokens, in [0, 1).
    pub fn padding_ratio(&self) -> f64 {
        let padded = self.shape().padded_tokens();
        if padded == 0 { 0.0 } else { 1.0 - (self.source_tokens + self.target_tokens) as f64 / padded as f64 }
    }
}
