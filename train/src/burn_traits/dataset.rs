//! Data as Burn's `Dataset`: the rows of a token cache, and the batches of any source.

use std::sync::Arc;

use burn::data::dataset::{Dataset, DatasetError};
use kiln_data::{BatchSource, CachedRow, EpochPlan, HostBatch, Order, TokenCache};

/// The rows of a token cache, in the order of the files. A row is read from the memory map when it is asked for.
#[derive(Debug)]
pub struct CachedRows(TokenCache);

impl CachedRows {
    /// Takes a cache of pairs or documents, such as [`prepare_pairs`](kiln_data::prepare_pairs) makes. Rows of conversations are errors.
    pub fn new(cache: TokenCache) -> Self {
        Self(cache)
    }
}

impl Dataset<CachedRow> for CachedRows {
    fn get(&self, index: usize) -> Result<CachedRow, DatasetError> {
        self.0.read_row(index).map_err(DatasetError::new)
    }

    fn len(&self) -> usize {
        self.0.n_rows()
    }
}

/// The batches of a source, as validation sees them: without shuffling, in the order of the files within length buckets.
pub struct SourceBatches {
    source: Arc<dyn BatchSource>,
    plan: EpochPlan,
}

impl SourceBatches {
    /// Plans the batches of `source`.
    pub fn new(source: Arc<dyn BatchSource>) -> Self {
        let plan = source.plan(Order::Sequential);
        Self { source, plan }
    }
}

impl Dataset<HostBatch> for SourceBatches {
    fn get(&self, index: usize) -> Result<HostBatch, DatasetError> {
        assert!(index < self.plan.len(), "batch {index} of {}", self.plan.len());
        let mut batch = HostBatch::default();
        self.source.clone().worker().fill(&self.plan, index, &mut batch).map_err(DatasetError::new)?;
        Ok(batch)
    }

    fn len(&self) -> usize {
        self.plan.len()
    }
}
