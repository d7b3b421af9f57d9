//! Batches of labelled rows, which lie in memory.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;
use std::thread;

use super::{BatchSource, BatchWorker};
use crate::batch::{Buckets, EpochPlan};
use crate::cache::Lengths;
use crate::corpus::{Labelled, LabelledCorpus, Unknown};
use crate::error::{Error, Result, panic_text};
use crate::host_batch::{HostBatch, Shape};
use crate::loader_config::LoaderConfig;
use crate::sampler::Order;
use crate::tokenizer::{LabelledEncoder, LabelledShape, TextTokenizer};

/// Rows for a model that predicts classes, one text (or pair of texts) per row.
///
/// The label of a text is at the first place of its row. The label of a word is at its first token. All other places
/// have [`HostBatch::NOT_COUNTED`].
#[derive(Debug)]
pub struct LabelledSource {
    rows: Vec<EncodedRow>,
    buckets: Buckets,
    fill: i32,
    has_types: bool,
    n_cut: u64,
    n_spelled: u64,
    unknown: Unknown,
    fingerprint: String,
}

#[derive(Debug)]
struct EncodedRow {
    ids: Vec<u32>,
    types: Vec<u8>,
    /// Place and class of each label.
    labels: Vec<(u32, u32)>,
}

impl LabelledSource {
    /// Encodes the rows of a corpus on `num_threads` threads. Longer rows are cut to `shape.max_len` tokens.
    ///
    /// # Errors
    ///
    /// If the tokenizer fails, or if a row does not fit into `loader.batch_tokens`.
    pub fn new(
        corpus: &LabelledCorpus,
        tokenizer: &TextTokenizer,
        shape: LabelledShape,
        loader: &LoaderConfig,
        num_threads: usize,
    ) -> Result<Self> {
        let size = corpus.rows().len().div_ceil(num_threads.max(1)).max(1);
        let encode = |rows: &[Labelled]| -> Result<(Vec<EncodedRow>, u64, LabelledEncoder)> {
            let mut encoder = shape.encoder(tokenizer)?;
            let (mut encoded, mut n_cut) = (Vec::with_capacity(rows.len()), 0);
            for row in rows {
                let found = encoder.encode(&row.input)?;
                n_cut += u64::from(found.is_cut);
                let labels = found.label_places(row);
                let types = if shape.has_types { found.types } else { Vec::new() };
                encoded.push(EncodedRow { ids: found.ids, types, labels });
            }
            Ok((encoded, n_cut, encoder))
        };
        let encoded = thread::scope(|scope| {
            let threads: Vec<_> = corpus.rows().chunks(size).map(|rows| scope.spawn(move || encode(rows))).collect();
            let joined = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| Err(Error::WorkerPanicked(panic_text(&*panic)))));
            joined.collect::<Result<Vec<_>>>()
        })?;

        let mut rows = Vec::with_capacity(corpus.rows().len());
        let (mut n_cut, mut n_spelled, mut unknown) = (0, 0, Unknown::default());
        for (encoded, cut, mut encoder) in encoded {
            rows.extend(encoded);
            n_cut += cut;
            let (of_encoder, spelled) = encoder.take_counts();
            n_spelled += spelled;
            unknown.merge(of_encoder);
        }
        if rows.len() > u32::MAX as usize {
            return Err(Error::Invalid("the data has more than 4,294,967,295 rows: split it".into()));
        }
        let lengths = rows.iter().map(|row| (0, row.ids.len()));
        Ok(Self {
            buckets: Buckets::new(lengths, (0, shape.max_len), loader)?,
            fill: tokenizer.special().fill(),
            has_types: shape.has_types,
            fingerprint: fingerprint(&rows, corpus.names(), &tokenizer.fingerprint()),
            rows,
            n_cut,
            n_spelled,
            unknown,
        })
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// Returns the number of rows that were longer than the limit.
    pub fn n_cut(&self) -> u64 {
        self.n_cut
    }

    /// Returns the number of special tokens that the texts spell.
    pub fn n_spelled(&self) -> u64 {
        self.n_spelled
    }

    /// Returns what the vocabulary cannot spell in the rows.
    pub fn unknown(&self) -> &Unknown {
        &self.unknown
    }
}

fn fingerprint(rows: &[EncodedRow], names: &[String], tokenizer: &str) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("kiln-data 2026 labelled rows");
    hasher.update(tokenizer.as_bytes());
    for name in names {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
    }
    for row in rows {
        hasher.update(&(row.ids.len() as u64).to_le_bytes());
        for id in &row.ids {
            hasher.update(&id.to_le_bytes());
        }
        hasher.update(&row.types).update(&(row.labels.len() as u64).to_le_bytes());
        for (place, label) in &row.labels {
            hasher.update(&place.to_le_bytes()).update(&label.to_le_bytes());
        }
    }
    hasher.finalize().to_hex().to_string()
}

impl BatchSource for LabelledSource {
    fn plan(&self, order: Order) -> EpochPlan {
        self.buckets.plan(order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.buckets.batches_per_epoch()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        Some(self.buckets.shapes())
    }

    fn lengths(&self) -> Vec<Lengths> {
        let length = |row: usize| self.rows[row].ids.len();
        vec![Lengths::of("row", self.rows.len(), Lengths::MOST_COUNTED, length)]
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(self)
    }
}

impl BatchWorker for Arc<LabelledSource> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (numbers, shape) = plan.batch(index);
        let shape = Shape { batch_size: numbers.len(), ..shape };
        let mut writer = LabelledWriter::new(batch, shape, self.fill, self.has_types);
        for number in numbers {
            let EncodedRow { ids, types, labels } = &self.rows[*number as usize];
            let types = types.iter().copied().chain(iter::repeat(0));
            writer.push(*number, ids.iter().copied().zip(types), labels.iter().copied());
        }
        Ok(())
    }
}

/// Writes labelled rows into a batch.
pub(super) struct LabelledWriter<'a> {
    batch: &'a mut HostBatch,
    has_types: bool,
}

impl<'a> LabelledWriter<'a> {
    /// Makes room for `shape`.
    pub(super) fn new(batch: &'a mut HostBatch, shape: Shape, fill: i32, has_types: bool) -> Self {
        let parts = batch.start_text(shape, false);
        parts.input.fill(fill);
        parts.labels.fill(HostBatch::NOT_COUNTED);
        parts.documents.fill(0);
        batch.token_types = has_types;
        Self { batch, has_types }
    }

    /// Adds a row: its tokens with their types, and place and class of its labels.
    pub(super) fn push(
        &mut self,
        number: u32,
        tokens: impl Iterator<Item = (u32, u8)>,
        labels: impl Iterator<Item = (u32, u32)>,
    ) {
        let (width, row) = (self.batch.target_len, self.batch.rows.len());
        let start = row * width;
        let parts = self.batch.text_parts_mut();
        let mut n_tokens = 0;
        for (place, (id, kind)) in (start..start + width).zip(tokens) {
            parts.input[place] = id as i32;
            parts.documents[place] = if self.has_types { i32::from(kind) } else { 0 };
            n_tokens += 1;
        }
        for (place, label) in labels {
            parts.labels[start + place as usize] = label as i32;
        }
        for (to, position) in parts.positions[start..start + width].iter_mut().zip(0..) {
            *to = position;
        }
        parts.lengths[row] = n_tokens;
        self.batch.target_tokens += n_tokens as u64;
        self.batch.rows.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::{LabelConfig, LabelledInput, Task};
    use crate::fixtures::{TextFixture, stories};
    use crate::host_batch::Position;
    use crate::loader::{Loader, OnePass, Rank};
    use crate::tokenizer::{TokenizerConfig, TokenizerKind};

    fn source(text: &str, task: Task, has_types: bool) -> Arc<LabelledSource> {
        let config = TokenizerConfig { kind: TokenizerKind::WordPiece, vocab_size: 300, ..TokenizerConfig::default() };
        let fixture = TextFixture::new(&stories(50, 20), &config);
        let path = fixture.dir.path().join("labelled.jsonl");
        std::fs::write(&path, text).expect("writable");
        let corpus = LabelledCorpus::read(&[path], task, &LabelConfig::default()).expect("rows");
        let shape = LabelledShape { max_len: 16, has_types, is_decoder: false, splits_special_tokens: true };
        let loader = LoaderConfig { batch_tokens: 64, bucket_multiple: 4, ..LoaderConfig::default() };
        Arc::new(LabelledSource::new(&corpus, &fixture.tokenizer, shape, &loader, 3).expect("a source"))
    }

    #[test]
    fn special_tokens_of_a_text_are_split_and_counted_or_read() {
        let config = TokenizerConfig { kind: TokenizerKind::WordPiece, vocab_size: 300, ..TokenizerConfig::default() };
        let fixture = TextFixture::new(&stories(50, 20), &config);
        let end = fixture.tokenizer.special().eos.expect("an end token");
        let input = LabelledInput::Text { text: "one [SEP] two [SEP]".into(), pair: None };
        let shape = LabelledShape { max_len: 64, has_types: false, is_decoder: false, splits_special_tokens: true };
        for splits in [true, false] {
            let shape = LabelledShape { splits_special_tokens: splits, ..shape };
            let mut encoder = shape.encoder(&fixture.tokenizer).expect("room");
            let around = encoder.around_text().1.iter().filter(|id| **id == end).count();
            let row = encoder.encode(&input).expect("encodes");
            let found = row.ids.iter().filter(|id| **id == end).count() - around;
            assert_eq!((found, encoder.take_counts().1), (if splits { 0 } else { 2 }, 2), "{:?}", row.ids);
        }
    }

    fn texts(n: usize) -> String {
        let row = |(i, text): (usize, String)| {
            let pair = if i % 3 == 0 { ", \"text_pair\": \"one two\"" } else { "" };
            format!("{{\"text\": \"{text}\"{pair}, \"label\": {}}}\n", i % 3)
        };
        stories(n, 12).into_iter().enumerate().map(row).collect()
    }

    #[test]
    fn each_row_comes_once_an_epoch_with_its_class_at_the_first_place() {
        let source = source(&texts(40), Task::Classification, true);
        let config = LoaderConfig { num_workers: 2, batch_tokens: 64, ..LoaderConfig::default() };
        let mut loader = Loader::new(source.clone(), &config, 7, Position::default()).expect("a loader");
        let [lengths] = &source.lengths()[..] else { panic!("one side") };
        assert_eq!((lengths.side.as_str(), lengths.rows), ("row", 40));
        assert!(lengths.quantiles[3] <= 16, "{lengths:?}");

        let mut seen = Vec::new();
        for _ in 0..source.batches_per_epoch() {
            let batch = loader.next_batch().expect("a batch");
            assert!(batch.token_types && !batch.boundaries);
            for (i, number) in batch.rows.iter().enumerate() {
                let row = i * batch.target_len..(i + 1) * batch.target_len;
                let labels = &batch.labels()[row.clone()];
                assert_eq!(labels[0], (*number % 3) as i32);
                assert!(labels[1..].iter().all(|label| *label == HostBatch::NOT_COUNTED));
                assert_eq!(batch.documents()[row].contains(&1), number % 3 == 0, "only pairs have a second type");
            }
            assert_eq!(batch.target_tokens, batch.lengths().iter().map(|len| *len as u64).sum::<u64>());
            seen.extend(batch.rows.iter().copied());
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn tags_are_at_the_first_tokens_of_words_and_other_data_has_another_fingerprint() {
        let text = "{\"tokens\": [\"seventeen\", \"one\"], \"tags\": [\"b\", \"a\"]}\n";
        let words = source(text, Task::Tagging, false);
        let batch = OnePass::for_rank(words.clone(), &LoaderConfig::default(), Rank::default())
            .expect("a pass")
            .next()
            .expect("a batch")
            .expect("readable");
        let counted: Vec<i32> = batch.labels().iter().copied().filter(|label| *label >= 0).collect();
        assert_eq!((counted, batch.labels()[1], batch.token_types), (vec![1, 0], 1, false));
        let other = source(&text.replace("\"b\", \"a\"", "\"a\", \"b\""), Task::Tagging, false);
        assert_ne!(words.fingerprint(), other.fingerprint());
        assert_eq!(words.fingerprint(), source(text, Task::Tagging, false).fingerprint());
    }
}
