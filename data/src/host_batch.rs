//! A batch of padded or packed token rows in one contiguous host buffer.

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
    /// Padded source length in tokens; 0 in batches of text, which have one side.
    pub source_len: usize,
    /// Padded target length in tokens; the length of a row in batches of text.
    pub target_len: usize,
}

impl Shape {
    /// The shape of a batch of text.
    pub fn text(batch_size: usize, seq_len: usize) -> Self {
        Self { batch_size, source_len: 0, target_len: seq_len }
    }

    /// Source and target tokens of the batch with padding.
    pub fn padded_tokens(&self) -> usize {
        self.batch_size * (self.source_len + self.target_len)
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.source_len {
            0 => write!(f, "{} x {}", self.batch_size, self.target_len),
            source_len => write!(f, "{} x ({source_len} + {})", self.batch_size, self.target_len),
        }
    }
}

/// What the parts of a batch are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Source and target rows, for an encoder-decoder.
    #[default]
    Pairs,
    /// Rows of one side, for a language model.
    Text,
}

/// Rows of token ids, padded on the right, ready to be uploaded in one copy.
///
/// # Shapes
///
/// B batch, S padded source length, T padded target length. With [`Layout::Pairs`], `ids` holds, one after the other:
///
/// | part | shape | row |
/// |---|---|---|
/// | source | `[B, S]` | source ids, eos, padding |
/// | target input | `[B, T]` | bos, target ids, padding |
/// | labels | `[B, T]` | target ids, eos, padding |
/// | source lengths | `[B]` | tokens of the source row that are not padding |
/// | target lengths | `[B]` | tokens of the label row that are not padding |
///
/// With [`Layout::Text`], where S is 0:
///
/// | part | shape | row |
/// |---|---|---|
/// | input | `[B, T]` | what the model reads, then any valid id as padding |
/// | labels | `[B, T]` | what it should predict at each place, then [`HostBatch::NOT_COUNTED`] |
/// | positions | `[B, T]` | place of each token in its document, or in its row |
/// | documents | `[B, T]` | number of each token's document within its row, from 0 and never descending; padding has a number of its own |
/// | lengths | `[B]` | tokens of the row that are not padding |
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostBatch {
    /// What the parts of `ids` are.
    pub layout: Layout,
    /// All five parts; see the tables above.
    pub ids: Vec<i32>,
    /// B: rows.
    pub batch_size: usize,
    /// S: padded source length in tokens.
    pub source_len: usize,
    /// T: padded target length in tokens.
    pub target_len: usize,
    /// Text: rows hold several documents that must not see each other, so positions and document numbers matter.
    /// Otherwise positions count from 0 in each row, and every row is one document.
    pub boundaries: bool,
    /// Source tokens that are not padding, each row's eos included; 0 for text.
    pub source_tokens: u64,
    /// Labels that are not padding, each row's eos included. For masked language modelling all tokens: which of them are
    /// masked, and so counted in the loss, is decided on the device.
    pub target_tokens: u64,
    /// Row numbers in the data set, in the order of the batch's rows.
    pub rows: Vec<u32>,
    /// Where to continue after this batch.
    pub next: Position,
}

impl HostBatch {
    /// Label of a place in a text where nothing is to be predicted. Not the padding token: many vocabularies have none, and
    /// end-of-text tokens, which are labels like any other, stand in for it.
    pub const NOT_COUNTED: i32 = -1;

    /// B, S and T.
    pub fn shape(&self) -> Shape {
        Shape { batch_size: self.batch_size, source_len: self.source_len, target_len: self.target_len }
    }

    /// Source rows `[B, S]`.
    pub fn source(&self) -> &[i32] {
        &self.ids[..self.batch_size * self.source_len]
    }

    /// Decoder input rows `[B, T]`: bos and the target. For text, what the model reads.
    pub fn target_input(&self) -> &[i32] {
        self.rows_after(0)
    }

    /// Label rows `[B, T]`: the target and eos. For text, what the model should predict at each place.
    pub fn labels(&self) -> &[i32] {
        self.rows_after(1)
    }

    /// Text: places `[B, T]` of the tokens in their documents or rows.
    ///
    /// # Panics
    ///
    /// If this is a batch of pairs.
    pub fn positions(&self) -> &[i32] {
        self.expect_text();
        self.rows_after(2)
    }

    /// Text: numbers `[B, T]` of the documents within their row.
    ///
    /// # Panics
    ///
    /// If this is a batch of pairs.
    pub fn documents(&self) -> &[i32] {
        self.expect_text();
        self.rows_after(3)
    }

    /// Text: tokens of each row `[B]` that are not padding.
    ///
    /// # Panics
    ///
    /// If this is a batch of pairs.
    pub fn lengths(&self) -> &[i32] {
        self.expect_text();
        &self.ids[4 * self.batch_size * self.target_len..]
    }

    /// Tokens of each source row `[B]`, eos included.
    ///
    /// # Panics
    ///
    /// If this is a batch of text.
    pub fn source_lengths(&self) -> &[i32] {
        &self.pair_lengths()[..self.batch_size]
    }

    /// Tokens of each label row `[B]`, eos included.
    ///
    /// # Panics
    ///
    /// If this is a batch of text.
    pub fn target_lengths(&self) -> &[i32] {
        &self.pair_lengths()[self.batch_size..]
    }

    /// Share of padding among the padded source and label tokens, in [0, 1).
    pub fn padding_ratio(&self) -> f64 {
        let padded = self.shape().padded_tokens();
        if padded == 0 { 0.0 } else { 1.0 - (self.source_tokens + self.target_tokens) as f64 / padded as f64 }
    }

    /// The batch cut by rows into `n` batches of about the same size, fewer if there are not as many rows. Padding stays as it is, and
    /// each says to continue after the whole batch.
    pub fn split(&self, n: usize) -> Vec<Self> {
        let n = n.clamp(1, self.batch_size.max(1));
        let (s, t) = (self.source_len, self.target_len);
        let widths = match self.layout {
            Layout::Pairs => [s, t, t, 1, 1],
            Layout::Text => [t, t, t, t, 1],
        };
        let part = |i: usize| {
            let (start, end) = (i * self.batch_size / n, (i + 1) * self.batch_size / n);
            let mut ids = Vec::with_capacity((end - start) * widths.iter().sum::<usize>());
            let mut offset = 0;
            for width in widths {
                ids.extend_from_slice(&self.ids[offset + start * width..offset + end * width]);
                offset += self.batch_size * width;
            }
            let mut part = Self {
                ids,
                batch_size: end - start,
                rows: self.rows[start..end].to_vec(),
                source_tokens: 0,
                target_tokens: 0,
                ..*self
            };
            let sum = |lengths: &[i32]| lengths.iter().map(|len| *len as u64).sum();
            match self.layout {
                Layout::Pairs => {
                    (part.source_tokens, part.target_tokens) = (sum(part.source_lengths()), sum(part.target_lengths()));
                }
                Layout::Text => {
                    part.target_tokens =
                        part.labels().iter().filter(|label| **label != Self::NOT_COUNTED).count() as u64;
                }
            }
            part
        };
        (0..n).map(part).collect()
    }

    /// The part of T wide rows that stands behind the source and `n` others.
    fn rows_after(&self, n: usize) -> &[i32] {
        let start = self.batch_size * (self.source_len + n * self.target_len);
        &self.ids[start..start + self.batch_size * self.target_len]
    }

    fn pair_lengths(&self) -> &[i32] {
        assert_eq!(self.layout, Layout::Pairs, "a batch of text has no source and target lengths");
        &self.ids[self.batch_size * (self.source_len + 2 * self.target_len)..]
    }

    fn expect_text(&self) {
        assert_eq!(self.layout, Layout::Text, "a batch of pairs has no positions and documents");
    }
}
