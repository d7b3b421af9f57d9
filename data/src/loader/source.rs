//! Where batches come from: what the worker pool runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::LoaderConfig;
use crate::bucket::Buckets;
use crate::cache::{Kind, TokenCache, Tokens};
use crate::collate::Collator;
use crate::error::{Error, Result};
use crate::host_batch::{HostBatch, Shape};
use crate::plan::EpochPlan;
use crate::sampler::Order;
use crate::tokenizer::{SpecialIds, Tokenizers};

/// A data set that can be cut into batches. Implement it to feed the loader from somewhere else.
pub trait BatchSource: Send + Sync + 'static {
    /// The batches of an epoch: a pure function of `order`.
    fn plan(&self, order: Order) -> EpochPlan;

    /// Batches of every epoch; all plans have as many.
    fn batches_per_epoch(&self) -> u64;

    /// Batches of each shape in an epoch, if shapes are known before rows are read.
    fn shapes(&self) -> Option<BTreeMap<Shape, usize>>;

    /// Fingerprint of the rows, in hex. With the loader's configuration and a seed it decides every batch: a run must not
    /// be resumed on a source with another one.
    fn fingerprint(&self) -> String;

    /// What one thread needs to make batches.
    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker>;
}

/// Makes batches on one thread.
pub trait BatchWorker: Send {
    /// Fills `batch`, a used buffer, with batch `index` of a plan. Everything but `next` must be set. A batch without rows is
    /// skipped.
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()>;
}

/// Batches from a token cache.
#[derive(Debug)]
pub struct CachedSource {
    cache: TokenCache,
    buckets: Buckets,
    special: SpecialIds,
}

impl CachedSource {
    /// Sorts the rows of a cache into buckets. The cache must have been made with these tokenizers.
    pub fn new(cache: TokenCache, tokenizers: &Tokenizers, config: &LoaderConfig) -> Result<Self> {
        if cache.kind() != Kind::Pairs {
            return Err(Error::cache(cache.path(), "holds documents of plain text, wanted pairs"));
        }
        if cache.tokenizer_fingerprint() != tokenizers.fingerprint() {
            return Err(Error::cache(cache.path(), "was made with another tokenizer"));
        }
        let lengths = (0..cache.n_rows()).map(|row| cache.lengths(row));
        let buckets = Buckets::new(lengths, cache.max_lens(), config)?;
        Ok(Self { buckets, special: tokenizers.special(), cache })
    }

    /// The cache.
    pub fn cache(&self) -> &TokenCache {
        &self.cache
    }

    /// Shapes and padding.
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }
}

impl BatchSource for CachedSource {
    fn plan(&self, order: Order) -> EpochPlan {
        self.buckets.plan(order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.buckets.batches_per_epoch()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        Some(self.buckets.shapes())
    }

    fn fingerprint(&self) -> String {
        self.cache.fingerprint()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(self)
    }
}

impl BatchWorker for Arc<CachedSource> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (rows, shape) = plan.batch(index);
        let mut collator = Collator::new(batch, shape, self.special);
        let (source_vocab, target_vocab) = self.cache.vocab_sizes();
        for row in rows {
            let (max_source, max_target) = match self.cache.row(*row as usize) {
                (Tokens::Narrow(source), Tokens::Narrow(target)) => collator.push(*row, source, target),
                (Tokens::Wide(source), Tokens::Wide(target)) => collator.push(*row, source, target),
                _ => unreachable!("a cache has one token width"),
            };
            // A damaged file must not become an index out of range on the device.
            if max_source as usize >= source_vocab || max_target as usize >= target_vocab {
                return Err(Error::cache(
                    self.cache.path(),
                    format!(
                        "row {row} is damaged: it has ids {max_source} and {max_target}, the vocabularies hold \
                             {source_vocab} and {target_vocab}"
                    ),
                ));
            }
        }
        Ok(())
    }
}
