//! Batches of pairs from a token cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{BatchSource, BatchWorker};
use crate::batch::{Buckets, Collator, EpochPlan};
use crate::cache::{CacheKind, Lengths, TokenCache, Tokens};
use crate::error::{Error, Result};
use crate::host_batch::{HostBatch, Shape};
use crate::loader_config::LoaderConfig;
use crate::sampler::Order;
use crate::tokenizer::{PairTokenizers, SpecialIds};

/// Rows whose lengths are sorted again just to know.
const MOST_ROWS: usize = 1 << 20;

/// Batches of pairs from a token cache.
#[derive(Debug)]
pub struct PairSource {
    rows: PairRows,
    buckets: Buckets,
}

/// The pairs of a token cache.
#[derive(Debug)]
pub(super) struct PairRows {
    pub(super) cache: TokenCache,
    /// The special tokens around them.
    pub(super) special: SpecialIds,
}

impl PairRows {
    /// # Errors
    ///
    /// If the cache holds plain text or was made with other tokenizers.
    pub(super) fn new(cache: TokenCache, tokenizers: &PairTokenizers) -> Result<Self> {
        if cache.kind() != CacheKind::Pairs {
            return Err(Error::cache(cache.path(), "holds documents of plain text, wanted pairs"));
        }
        if cache.tokenizer_fingerprint() != tokenizers.fingerprint() {
            return Err(Error::cache(cache.path(), "was made with another tokenizer"));
        }
        Ok(Self { cache, special: tokenizers.special() })
    }

    /// Adds row `row` of the cache to a batch, as row `number` of the data set.
    pub(super) fn push(&self, collator: &mut Collator<'_>, row: u32, number: u32) -> Result<()> {
        let (source_vocab, target_vocab) = self.cache.vocab_sizes();
        let (max_source, max_target) = match self.cache.row(row as usize) {
            (Tokens::Narrow(source), Tokens::Narrow(target)) => collator.push(number, source, target),
            (Tokens::Wide(source), Tokens::Wide(target)) => collator.push(number, source, target),
            _ => unreachable!("a cache has one token width"),
        };

        self.cache.check_id("row", row as usize, max_source, source_vocab)?;
        self.cache.check_id("row", row as usize, max_target, target_vocab)
    }
}

impl PairSource {
    /// Sorts the rows of a cache into buckets.
    ///
    /// # Errors
    ///
    /// If the cache holds plain text or was made with other tokenizers, or if the configuration is invalid.
    pub fn new(cache: TokenCache, tokenizers: &PairTokenizers, config: &LoaderConfig) -> Result<Self> {
        let rows = PairRows::new(cache, tokenizers)?;
        let lengths = (0..rows.cache.n_rows()).map(|row| rows.cache.lengths(row));
        let buckets = Buckets::new(lengths, rows.cache.max_lens(), config)?;
        Ok(Self { rows, buckets })
    }

    /// Returns the cache.
    pub fn cache(&self) -> &TokenCache {
        &self.rows.cache
    }

    /// Returns the pairs.
    pub(super) fn rows(&self) -> &PairRows {
        &self.rows
    }

    /// Returns the buckets, which know shapes and padding.
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }
}

impl BatchSource for PairSource {
    fn plan(&self, order: Order) -> EpochPlan {
        self.buckets.plan(order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.buckets.batches_per_epoch()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        Some(self.buckets.shapes())
    }

    fn padding_with(&self, config: &LoaderConfig) -> Option<f64> {
        let cache = self.cache();
        if cache.n_rows() > MOST_ROWS {
            return None;
        }
        let lengths = (0..cache.n_rows()).map(|row| cache.lengths(row));
        Some(Buckets::new(lengths, cache.max_lens(), config).ok()?.padding_ratio())
    }

    fn lengths(&self) -> Vec<Lengths> {
        Lengths::of_cache(self.cache(), Lengths::MOST_COUNTED)
    }

    fn fingerprint(&self) -> String {
        self.cache().fingerprint()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(self)
    }
}

impl BatchWorker for Arc<PairSource> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (rows, shape) = plan.batch(index);
        let mut collator = Collator::new(batch, shape, self.rows.special);
        for row in rows {
            self.rows.push(&mut collator, *row, *row)?;
        }
        Ok(())
    }
}
