//! Batches of pairs from a token cache.

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
use crate::tokenizer::PairTokenizers;

/// Rows whose lengths are sorted again just to know.
const MOST_ROWS: usize = 1 << 20;

/// Batches of pairs from a token cache.
#[derive(Debug)]
pub struct PairSource {
    cache: TokenCache,
    kind: RowKind,
    buckets: Buckets,
}

impl PairSource {
    /// Sorts the rows of a cache into buckets.
    ///
    /// # Errors
    ///
    /// If the cache holds plain text or was made with other tokenizers, or if the configuration is invalid.
    pub fn new(cache: TokenCache, tokenizers: &PairTokenizers, config: &LoaderConfig) -> Result<Self> {
        if cache.kind() != CacheKind::Pairs {
            return Err(Error::cache(cache.path(), "holds documents of plain text, wanted pairs"));
        }
        if cache.tokenizer_fingerprint() != tokenizers.fingerprint() {
            return Err(Error::cache(cache.path(), "was made with another tokenizer"));
        }
        let lengths = (0..cache.n_rows()).map(|row| cache.lengths(row));
        let buckets = Buckets::new(lengths, cache.max_lens(), config)?;
        Ok(Self { cache, kind: RowKind::pairs(tokenizers), buckets })
    }

    /// Returns the cache.
    pub fn cache(&self) -> &TokenCache {
        &self.cache
    }

    /// Returns how its rows become rows of a batch.
    pub(super) fn kind(&self) -> &RowKind {
        &self.kind
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
        let mut writer = self.kind.writer(batch, shape);
        rows.iter().try_for_each(|row| writer.push(&self.cache, (*row, 0), *row))
    }
}
