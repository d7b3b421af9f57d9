//! A batch of padded or packed token rows in one contiguous host buffer. This file alone knows how the buffer is laid
//! out.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The next batch that the loader will produce. Saved with a checkpoint. A loader starts at any position without
/// producing the batches before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Complete passes over the data.
    pub epoch: u64,
    /// Batches of this epoch that were produced, counted over all ranks.
    pub batch: u64,
}

/// The padded shape of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Rows.
    pub batch_size: usize,
    /// Padded source length in tokens; 0 for text, which has one side.
    pub source_len: usize,
    /// Padded target length in tokens; for text the length of a row.
    pub target_len: usize,
}

impl Shape {
    /// Returns the shape of a batch of text.
    pub fn text(batch_size: usize, seq_len: usize) -> Self {
        Self { batch_size, source_len: 0, target_len: seq_len }
    }

    /// Returns how many batches of each shape so many rows make: full ones of this shape, and one with the rows left.
    pub(crate) fn batches_of(self, n_rows: usize) -> BTreeMap<Self, usize> {
        let (full, left) = (n_rows / self.batch_size, n_rows % self.batch_size);
        let all = [(self, full), (Self { batch_size: left, ..self }, usize::from(left > 0))];
        all.into_iter().filter(|(_, batches)| *batches > 0).collect()
    }

    /// Returns the number of source and target tokens of the batch, padding included.
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

/// What a batch holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchLayout {
    /// Source and target rows, for an encoder-decoder.
    #[default]
    Pairs,
    /// Rows of one side, for a language model.
    Text,
}

/// The parts of a batch of pairs, in the order in which they lie in [`HostBatch::ids`]. B batch, S padded source
/// length, T padded target length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairParts<P> {
    /// `[B, S]`: source ids, eos, padding.
    pub source: P,
    /// `[B, T]`: bos, target ids, padding.
    pub target_input: P,
    /// `[B, T]`: target ids, eos, padding.
    pub labels: P,
    /// `[B]`: non-padding tokens of each source row.
    pub source_lengths: P,
    /// `[B]`: non-padding tokens of each label row.
    pub target_lengths: P,
}

/// The parts of a batch of text, in the order in which they lie in [`HostBatch::ids`]. B batch, T row length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextParts<P> {
    /// `[B, T]`: what the model reads, then any valid id as padding.
    pub input: P,
    /// `[B, T]`: what the model should predict at each place, then [`HostBatch::NOT_COUNTED`].
    pub labels: P,
    /// `[B, T]`: place of each token in its document, or in its row.
    pub positions: P,
    /// `[B, T]`: number of each token's document within its row, from 0 and never descending; padding has a number of
    /// its own.
    pub documents: P,
    /// `[B]`: non-padding tokens of each row.
    pub lengths: P,
}

/// Rows of token ids, padded on the right, ready to be uploaded in one copy.
///
/// Either source and target rows ([`BatchLayout::Pairs`], whose parts are [`PairParts`]) or rows of text
/// ([`BatchLayout::Text`], [`TextParts`]; S is 0). The parts lie in `ids` one after the other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostBatch {
    /// What the batch holds.
    pub layout: BatchLayout,
    /// All five parts, one after the other.
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
    /// Text: the numbers of documents are the types of tokens instead (BERT's "segments"), and every row is one document.
    pub token_types: bool,
    /// Text: rows `2 i` and `2 i + 1` are a preferred answer and another one to the same prompt, to be compared with this beta.
    pub preference: Option<f64>,
    /// Non-padding source tokens, each row's eos included; 0 for text.
    pub source_tokens: u64,
    /// Non-padding labels, each row's eos included. For masked language modelling and for classes all tokens: the device decides
    /// which of them are masked and so counted in the loss. For conversations all tokens, whether they are learned or not.
    pub target_tokens: u64,
    /// Row numbers in the data set, in the order of the batch's rows.
    pub rows: Vec<u32>,
    /// A mixture: what the batch has of each source.
    pub sources: Vec<SourceCount>,
    /// A mixture: its number of sources. 0 without one.
    pub n_sources: usize,
    /// A mixture: the source of each row, by its number in the mixture.
    pub row_sources: Vec<u16>,
    /// Where to continue after this batch. The loader sets it.
    pub next: Position,
}

/// Rows and tokens of one source of a mixture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceCount {
    /// Name of the source.
    pub name: Arc<str>,
    /// Rows.
    pub rows: u64,
    /// Non-padding tokens: source and target, or tokens of text.
    pub tokens: u64,
}

impl HostBatch {
    /// Label of a place in a text where nothing is to be predicted. Not the padding token: many vocabularies have none,
    /// and end-of-text tokens, which are labels like any other, stand in for it.
    pub const NOT_COUNTED: i32 = -1;

    /// Makes a batch of pairs from its parts. Rows are numbered from 0.
    ///
    /// # Panics
    ///
    /// If a part does not have the size that `shape` gives it.
    pub fn pairs(shape: Shape, parts: PairParts<Vec<i32>>) -> Self {
        let sum = |lengths: &[i32]| lengths.iter().map(|len| *len as u64).sum();
        let (source_tokens, target_tokens) = (sum(&parts.source_lengths), sum(&parts.target_lengths));
        let PairParts { source, target_input, labels, source_lengths, target_lengths } = parts;
        let parts = [source, target_input, labels, source_lengths, target_lengths];
        Self { source_tokens, target_tokens, ..Self::from_parts(BatchLayout::Pairs, shape, parts) }
    }

    /// Makes a batch of text from its parts. Rows are numbered from 0; all labels but [`HostBatch::NOT_COUNTED`] count.
    ///
    /// # Panics
    ///
    /// If a part does not have the size that `shape` gives it.
    pub fn text(shape: Shape, boundaries: bool, parts: TextParts<Vec<i32>>) -> Self {
        let target_tokens = counted(&parts.labels);
        let TextParts { input, labels, positions, documents, lengths } = parts;
        let parts = [input, labels, positions, documents, lengths];
        Self { boundaries, target_tokens, ..Self::from_parts(BatchLayout::Text, shape, parts) }
    }

    fn from_parts(layout: BatchLayout, shape: Shape, parts: [Vec<i32>; 5]) -> Self {
        let Shape { batch_size, source_len, target_len } = shape;
        let mut batch = Self { layout, batch_size, source_len, target_len, ..Self::default() };
        let sizes = batch.widths().map(|width| batch_size * width);
        assert_eq!(parts.each_ref().map(Vec::len), sizes, "the parts of a batch of {shape}");
        batch.ids = parts.concat();
        batch.rows = (0..batch_size as u32).collect();
        batch
    }

    /// Starts a batch of pairs in this buffer: every place holds `pad`, no row is counted.
    pub fn start_pairs(&mut self, shape: Shape, pad: u32) -> PairParts<&mut [i32]> {
        self.ids.clear();
        self.start(BatchLayout::Pairs, shape, pad as i32);
        self.pair_parts_mut()
    }

    /// Starts a batch of text in this buffer. Its places hold arbitrary ids: fill all of them.
    pub fn start_text(&mut self, shape: Shape, boundaries: bool) -> TextParts<&mut [i32]> {
        self.start(BatchLayout::Text, shape, 0);
        self.boundaries = boundaries;
        self.text_parts_mut()
    }

    fn start(&mut self, layout: BatchLayout, shape: Shape, fill: i32) {
        (self.layout, self.boundaries, self.token_types, self.preference) = (layout, false, false, None);
        (self.batch_size, self.source_len, self.target_len) = (shape.batch_size, shape.source_len, shape.target_len);
        (self.source_tokens, self.target_tokens) = (0, 0);
        self.rows.clear();
        self.sources.clear();
        self.row_sources.clear();
        self.n_sources = 0;
        let places = self.widths().iter().sum::<usize>() * self.batch_size;
        self.ids.resize(places, fill);
    }

    /// Returns the parts of a batch of pairs.
    ///
    /// # Panics
    ///
    /// If this is a batch of text.
    pub fn pair_parts_mut(&mut self) -> PairParts<&mut [i32]> {
        self.expect_pairs();
        let [source, target_input, labels, source_lengths, target_lengths] = self.parts_mut();
        PairParts { source, target_input, labels, source_lengths, target_lengths }
    }

    /// Returns the parts of a batch of text.
    ///
    /// # Panics
    ///
    /// If this is a batch of pairs.
    pub fn text_parts_mut(&mut self) -> TextParts<&mut [i32]> {
        self.expect_text();
        let [input, labels, positions, documents, lengths] = self.parts_mut();
        TextParts { input, labels, positions, documents, lengths }
    }

    /// Returns B, S and T.
    pub fn shape(&self) -> Shape {
        Shape { batch_size: self.batch_size, source_len: self.source_len, target_len: self.target_len }
    }

    /// Returns the source rows `[B, S]`; empty for text.
    pub fn source(&self) -> &[i32] {
        match self.layout {
            BatchLayout::Pairs => self.part(0),
            BatchLayout::Text => &[],
        }
    }

    /// Returns the decoder's input rows `[B, T]`: bos and the target. For text, what the model reads.
    pub fn target_input(&self) -> &[i32] {
        match self.layout {
            BatchLayout::Pairs => self.part(1),
            BatchLayout::Text => self.part(0),
        }
    }

    /// Returns the label rows `[B, T]`: the target and eos. For text, what the model should predict at each place.
    pub fn labels(&self) -> &[i32] {
        match self.layout {
            BatchLayout::Pairs => self.part(2),
            BatchLayout::Text => self.part(1),
        }
    }

    /// Text: returns the places `[B, T]` of the tokens in their documents or rows.
    ///
    /// # Panics
    ///
    /// If this is a batch of pairs.
    pub fn positions(&self) -> &[i32] {
        self.expect_text();
        self.part(2)
    }

    /// Text: returns the numbers `[B, T]` of the documents within their row.
    ///
    /// # Panics
    ///
    /// If this is a batch of pairs.
    pub fn documents(&self) -> &[i32] {
        self.expect_text();
        self.part(3)
    }

    /// Text: returns the number of non-padding tokens of each row, `[B]`.
    ///
    /// # Panics
    ///
    /// If this is a batch of pairs.
    pub fn lengths(&self) -> &[i32] {
        self.expect_text();
        self.part(4)
    }

    /// Returns the number of tokens of each source row `[B]`, eos included.
    ///
    /// # Panics
    ///
    /// If this is a batch of text.
    pub fn source_lengths(&self) -> &[i32] {
        self.expect_pairs();
        self.part(3)
    }

    /// Returns the number of tokens of each label row `[B]`, eos included.
    ///
    /// # Panics
    ///
    /// If this is a batch of text.
    pub fn target_lengths(&self) -> &[i32] {
        self.expect_pairs();
        self.part(4)
    }

    /// Returns the share of padding among the padded source and label tokens, in [0, 1).
    pub fn padding_ratio(&self) -> f64 {
        let padded = self.shape().padded_tokens();
        if padded == 0 { 0.0 } else { 1.0 - (self.source_tokens + self.target_tokens) as f64 / padded as f64 }
    }

    /// Cuts the batch by rows into `n` batches of about the same size, or fewer if there are fewer rows. Padding stays
    /// as it is. Each batch continues after the whole one. Answers to compare stay together. Parts have no counts of sources.
    pub fn split(&self, n: usize) -> Vec<Self> {
        let unit = if self.preference.is_some() { 2 } else { 1 };
        let units = self.batch_size / unit;
        let n = n.clamp(1, units.max(1));
        (0..n).map(|i| self.slice(i * units / n * unit..(i + 1) * units / n * unit)).collect()
    }

    /// Returns some rows of the batch.
    fn slice(&self, rows: Range<usize>) -> Self {
        let widths = self.widths();
        let mut ids = Vec::with_capacity(rows.len() * widths.iter().sum::<usize>());
        for (n, width) in widths.into_iter().enumerate() {
            ids.extend_from_slice(&self.part(n)[rows.start * width..rows.end * width]);
        }
        let row_sources = self.row_sources.get(rows.clone()).unwrap_or_default().to_vec();
        let (batch_size, rows) = (rows.len(), self.rows[rows].to_vec());
        let mut slice = Self { ids, batch_size, rows, row_sources, sources: Vec::new(), ..*self };

        let sum = |lengths: &[i32]| lengths.iter().map(|len| *len as u64).sum();
        (slice.source_tokens, slice.target_tokens) = match self.layout {
            BatchLayout::Pairs => (sum(slice.source_lengths()), sum(slice.target_lengths())),
            // Labels of classes are fewer than the tokens that are read.
            BatchLayout::Text if self.target_tokens == sum(self.lengths()) => (0, sum(slice.lengths())),
            BatchLayout::Text => (0, counted(slice.labels())),
        };
        slice
    }

    /// Returns the places that a row takes in each of the five parts. The only statement of the layout.
    fn widths(&self) -> [usize; 5] {
        let (s, t) = (self.source_len, self.target_len);
        match self.layout {
            BatchLayout::Pairs => [s, t, t, 1, 1],
            BatchLayout::Text => [t, t, t, t, 1],
        }
    }

    fn part(&self, n: usize) -> &[i32] {
        let widths = self.widths();
        let start = self.batch_size * widths[..n].iter().sum::<usize>();
        &self.ids[start..start + self.batch_size * widths[n]]
    }

    fn parts_mut(&mut self) -> [&mut [i32]; 5] {
        let sizes = self.widths().map(|width| width * self.batch_size);
        let mut rest = &mut self.ids[..];
        sizes.map(|size| rest.split_off_mut(..size).expect("the buffer holds all five parts"))
    }

    fn expect_pairs(&self) {
        assert_eq!(self.layout, BatchLayout::Pairs, "a batch of text has no source and target lengths");
    }

    fn expect_text(&self) {
        assert_eq!(self.layout, BatchLayout::Text, "a batch of pairs has no positions and documents");
    }
}

/// Labels of a text that count in the loss.
fn counted(labels: &[i32]) -> u64 {
    labels.iter().filter(|label| **label != HostBatch::NOT_COUNTED).count() as u64
}

#[cfg(test)]
mod tests;
