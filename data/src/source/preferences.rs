//! Batches of answers to compare from a token cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::single_rows::RowKind;
use super::{BatchSource, BatchWorker};
use crate::batch::{Buckets, EpochPlan};
use crate::cache::{CacheKind, Lengths, TokenCache};
use crate::error::{Error, Result};
use crate::host_batch::{HostBatch, Shape};
use crate::loader_config::LoaderConfig;
use crate::sampler::Order;
use crate::tokenizer::TextTokenizer;

/// Pairs of answers to a prompt, the preferred one first, each with the prompt in a row of its own.
///
/// Both rows of a pair are in the same batch, padded to the length of their bucket. What the model learns to compare are the labels:
/// the tokens of the answers.
#[derive(Debug)]
pub struct PreferenceSource {
    cache: TokenCache,
    kind: RowKind,
    buckets: Buckets,
    /// What fills padding.
    fill: i32,
}

impl PreferenceSource {
    /// Sorts the pairs of a cache by the longer of their rows, which has `max_len` tokens at most. A batch of rows of T tokens has
    /// `batch_tokens / (2 T)` pairs. `beta` is passed on with each batch ([`HostBatch::preference`]).
    ///
    /// # Errors
    ///
    /// If the cache holds other rows, was made with another tokenizer or is damaged, if a pair does not fit into
    /// `loader.batch_tokens`, or if the settings are invalid.
    pub fn new(
        cache: TokenCache,
        tokenizer: &TextTokenizer,
        max_len: usize,
        loader: &LoaderConfig,
        beta: f64,
    ) -> Result<Self> {
        if cache.kind() != CacheKind::Preferences {
            return Err(Error::cache(cache.path(), "does not hold answers to compare"));
        }
        cache.check_tokenizer(tokenizer)?;
        let kind = RowKind::preferences(tokenizer, beta);
        let lengths: Vec<(usize, usize)> =
            (0..cache.n_rows() as u32).map(|pair| kind.lengths(&cache, (pair, 0))).collect::<Result<_>>()?;
        let longest = lengths.iter().map(|(_, len)| *len).max().unwrap_or(0);
        let (of_pairs, limit) = budget_of_pairs(longest, max_len, loader)?;
        let buckets = Buckets::new(lengths.into_iter(), (0, limit), &of_pairs)?;
        Ok(Self { buckets, fill: tokenizer.special().fill(), kind, cache })
    }

    /// Returns the cache.
    pub fn cache(&self) -> &TokenCache {
        &self.cache
    }

    /// Returns the number of pairs.
    pub fn n_pairs(&self) -> usize {
        self.cache.n_rows()
    }
}

/// Returns the configuration of batches of pairs, each of which takes two rows, and the length of the longest row that fits.
///
/// # Errors
///
/// If the `longest` row does not.
pub(super) fn budget_of_pairs(longest: usize, max_len: usize, loader: &LoaderConfig) -> Result<(LoaderConfig, usize)> {
    if 2 * longest > loader.batch_tokens {
        return Err(Error::Invalid(format!(
            "loader.batch_tokens = {} cannot hold both answers of the longest pair, {longest} tokens each with its prompt: set \
             it to at least {}, or lower data.text.seq_len",
            loader.batch_tokens,
            2 * longest
        )));
    }
    let of_pairs = LoaderConfig { batch_tokens: loader.batch_tokens / 2, ..loader.clone() };
    let limit = max_len.min(of_pairs.batch_tokens);
    Ok((of_pairs, limit))
}

/// Returns the shape of a batch of as many pairs.
fn in_rows(shape: Shape) -> Shape {
    Shape { batch_size: 2 * shape.batch_size, ..shape }
}

impl BatchSource for PreferenceSource {
    fn plan(&self, order: Order) -> EpochPlan {
        let of_pairs = self.buckets.plan(order);
        let mut plan = EpochPlan::with_capacity(self.n_pairs());
        for (pairs, shape) in (0..of_pairs.len()).map(|index| of_pairs.batch(index)) {
            plan.push(pairs, in_rows(shape));
        }
        plan
    }

    fn batches_per_epoch(&self) -> u64 {
        self.buckets.batches_per_epoch()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        Some(self.buckets.shapes().into_iter().map(|(shape, batches)| (in_rows(shape), batches)).collect())
    }

    fn lengths(&self) -> Vec<Lengths> {
        Lengths::of_cache(&self.cache, Lengths::MOST_COUNTED)
    }

    fn fingerprint(&self) -> String {
        self.cache.fingerprint_with(&format!("preferences {}", self.fill))
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(self)
    }
}

impl BatchWorker for Arc<PreferenceSource> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (pairs, shape) = plan.batch(index);
        let mut writer = self.kind.writer(batch, in_rows(Shape { batch_size: pairs.len(), ..shape }));
        pairs.iter().try_for_each(|pair| writer.push(&self.cache, (*pair, 0), *pair))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::prepare_chat;
    use crate::corpus::{TextConfig, TextCorpus, TextFormat};
    use crate::fixtures::{TextFixture, stories};
    use crate::loader::OnePass;
    use crate::tokenizer::{TokenizerConfig, TokenizerKind};

    fn config() -> TextConfig {
        TextConfig { format: TextFormat::Preferences, seq_len: 400, ..TextConfig::default() }
    }

    fn source(rows: &str, loader: &LoaderConfig) -> Result<PreferenceSource> {
        let tokenizer =
            TokenizerConfig { kind: TokenizerKind::ByteLevelBpe, vocab_size: 300, ..TokenizerConfig::default() };
        let fixture = TextFixture::new(&stories(50, 20), &tokenizer);
        let path = fixture.dir.path().join("pairs.jsonl");
        std::fs::write(&path, rows).expect("writable");
        let corpus = TextCorpus::open(&[path], &config()).expect("a file");
        let template = fixture.tokenizer.chat_template().expect("a template");
        let cache = fixture.dir.path().join("pairs.tokens");
        let prepared = prepare_chat(&cache, &corpus, &fixture.tokenizer, &template, 1, &mut |_| {}).expect("rows");
        assert_eq!(prepared.cache.n_rows(), 20);
        PreferenceSource::new(prepared.cache, &fixture.tokenizer, 400, loader, 0.25)
    }

    fn rows() -> String {
        let row = |n: usize| {
            format!("{{\"prompt\": \"{n}\", \"chosen\": \"{}\", \"rejected\": \"no\"}}\n", "a".repeat(n + 1))
        };
        (0..20).map(row).collect()
    }

    #[test]
    fn both_answers_of_a_pair_are_in_one_batch() {
        let loader =
            LoaderConfig { num_workers: 0, batch_tokens: 1200, bucket_multiple: 16, ..LoaderConfig::default() };
        let source = Arc::new(source(&rows(), &loader).expect("a source"));
        let n_tokens: u64 = (0..20).map(|pair| source.cache().row_lengths(pair).1 as u64).sum();
        assert_eq!(source.cache().n_tokens(), n_tokens);

        let mut seen = Vec::new();
        for batch in OnePass::new(source.clone() as Arc<dyn BatchSource>, &loader).expect("good settings") {
            let batch = batch.expect("a batch");
            assert_eq!((batch.preference, batch.boundaries, batch.batch_size % 2), (Some(0.25), false, 0));
            assert!(batch.shape().padded_tokens() <= 1200);
            assert_eq!(batch.shape().batch_size, batch.rows.len());
            for pair in batch.rows.chunks_exact(2) {
                assert_eq!(pair[0], pair[1]);
                seen.push(pair[0]);
            }
            // The rejected answer is always two letters and the end of the turn.
            let width = batch.target_len;
            let counted = |row: usize| {
                batch.labels()[row * width..(row + 1) * width]
                    .iter()
                    .filter(|id| **id != HostBatch::NOT_COUNTED)
                    .count()
            };
            let rejected: Vec<usize> = (1..batch.batch_size).step_by(2).map(counted).collect();
            assert!(rejected.iter().all(|n| *n == rejected[0] && *n > 0), "{rejected:?}");

            // Parts keep pairs together.
            let parts = batch.split(3);
            assert!(parts.iter().all(|part| part.batch_size % 2 == 0 && part.preference == Some(0.25)));
            assert_eq!(parts.iter().map(|part| part.batch_size).sum::<usize>(), batch.batch_size);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..20).collect::<Vec<u32>>());
        let shapes = source.shapes().expect("known");
        assert_eq!(shapes.iter().map(|(shape, n)| shape.batch_size * n).sum::<usize>(), 40, "{shapes:?}");
    }

    #[test]
    fn a_budget_that_cannot_hold_a_pair_is_refused() {
        let loader = LoaderConfig { num_workers: 0, batch_tokens: 40, ..LoaderConfig::default() };
        let error = source(&rows(), &loader).expect_err("too small").to_string();
        assert!(error.contains("loader.batch_tokens = 40 cannot hold both answers of the longest pair"), "{error}");
    }
}
