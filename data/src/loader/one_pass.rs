//! A pass over a data set that ends.

use std::ops::Range;
use std::sync::Arc;

use super::{Loader, Rank};
use crate::error::Result;
use crate::host_batch::{HostBatch, Position};
use crate::loader_config::LoaderConfig;
use crate::source::BatchSource;

/// Every batch of a data set once: in the order of the files within length buckets, for validation, or an epoch of a [`Loader`].
pub struct OnePass {
    loader: Loader,
}

impl OnePass {
    /// Starts at the beginning; ignores `config.shuffle`.
    pub fn new(source: Arc<dyn BatchSource>, config: &LoaderConfig) -> Result<Self> {
        Self::for_rank(source, config, Rank::default())
    }

    /// Does the same for one of several processes. The last ranks may get one batch less.
    pub fn for_rank(source: Arc<dyn BatchSource>, config: &LoaderConfig, rank: Rank) -> Result<Self> {
        let end = source.batches_per_epoch();
        let loader = Loader::start(source, config, None, Position::default(), rank, end)?;
        Ok(Self { loader })
    }

    /// Starts at batch `batches.start` of an epoch in the order of a [`Loader`] with the same configuration and seed, and ends before
    /// batch `batches.end`.
    ///
    /// # Errors
    ///
    /// As [`Loader::new`].
    ///
    /// # Panics
    ///
    /// If the range reaches beyond the epoch.
    pub fn of_epoch(
        source: Arc<dyn BatchSource>,
        config: &LoaderConfig,
        seed: u64,
        epoch: u64,
        batches: Range<u64>,
    ) -> Result<Self> {
        let per_epoch = source.batches_per_epoch();
        assert!(batches.end <= per_epoch, "batches {batches:?} of an epoch of {per_epoch}");
        let (start, seed) = (Position { epoch, batch: batches.start }, config.shuffle.then_some(seed));
        let end = epoch * per_epoch + batches.end;
        Ok(Self { loader: Loader::start(source, config, seed, start, Rank::default(), end)? })
    }

    /// Takes back the buffer of a batch.
    pub fn recycle(&mut self, batch: HostBatch) {
        self.loader.recycle(batch);
    }
}

impl Iterator for OnePass {
    type Item = Result<HostBatch>;

    /// Ends after the last batch or the first error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.loader.failed.is_some() { None } else { self.loader.advance().transpose() }
    }
}
