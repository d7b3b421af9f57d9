//! Batches of answers to compare from a token cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{BatchSource, BatchWorker};
use crate::batch::{Around, Buckets, EpochPlan, RowFormat, RowWriter};
use crate::cache::{CacheKind, TokenCache, Tokens};
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
    format: RowFormat,
    buckets: Buckets,
    vocab_size: usize,
    strength: f64,
}

impl PreferenceSource {
    /// Sorts the pairs of a cache by the longer of their rows, which has `max_len` tokens at most. A batch of rows of T tokens has
    /// `batch_tokens / (2 T)` pairs. `strength` is passed on with each batch ([`HostBatch::preference`]).
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
        strength: f64,
    ) -> Result<Self> {
        if cache.kind() != CacheKind::Preferences {
            return Err(Error::cache(cache.path(), "does not hold answers to compare"));
        }
        if cache.tokenizer_fingerprint() != tokenizer.fingerprint() {
            return Err(Error::cache(cache.path(), "was made with another tokenizer"));
        }
        let lengths: Vec<usize> = (0..cache.n_rows())
            .map(|pair| rows_of(&cache, pair).map(|rows| rows.map(<[u32]>::len).into_iter().max().unwrap_or(0)))
            .collect::<Result<_>>()?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if 2 * longest > loader.batch_tokens {
            return Err(Error::Invalid(format!(
                "loader.batch_tokens = {} cannot hold both answers of the longest pair, {longest} tokens each with its prompt: set \
                 it to at least {}, or lower data.text.seq_len",
                loader.batch_tokens,
                2 * longest
            )));
        }

        let special = tokenizer.special();
        let fill = special.pad.or(special.eos).unwrap_or(0) as i32;
        // A pair takes two rows.
        let of_pairs = LoaderConfig { batch_tokens: loader.batch_tokens / 2, ..loader.clone() };
        let limit = max_len.min(of_pairs.batch_tokens);
        Ok(Self {
            buckets: Buckets::new(lengths.into_iter().map(|len| (0, len)), (0, limit), &of_pairs)?,
            vocab_size: tokenizer.vocab_size(),
            format: RowFormat { input: Around::default(), labels: Around::default(), fill, boundaries: false },
            strength,
            cache,
        })
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

/// Returns the flagged ids of both rows of a pair.
fn rows_of(cache: &TokenCache, pair: usize) -> Result<[&[u32]; 2]> {
    let damaged = || Error::cache(cache.path(), format!("pair {pair} is damaged"));
    let Tokens::Wide([n_chosen, ids @ ..]) = cache.document(pair) else { return Err(damaged()) };
    let (chosen, rejected) = ids.split_at_checked(*n_chosen as usize).ok_or_else(damaged)?;
    if chosen.is_empty() || rejected.is_empty() { Err(damaged()) } else { Ok([chosen, rejected]) }
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

    fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(self.cache.fingerprint().as_bytes())
            .update(format!("preferences {}", self.format.fill).as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(self)
    }
}

impl BatchWorker for Arc<PreferenceSource> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (pairs, shape) = plan.batch(index);
        let mut rows = RowWriter::new(batch, Shape { batch_size: 2 * pairs.len(), ..shape }, &self.format);
        for pair in pairs {
            for ids in rows_of(&self.cache, *pair as usize)? {
                // A damaged file must not become an index out of range on the device.
                let largest = rows.push_flagged(ids) as usize;
                if largest >= self.vocab_size {
                    let found = format!("pair {pair} has id {largest}, the vocabulary holds {}", self.vocab_size);
                    return Err(Error::cache(self.cache.path(), found));
                }
                rows.end_row(*pair);
            }
        }
        batch.preference = Some(self.strength);
        Ok(())
    }
}
