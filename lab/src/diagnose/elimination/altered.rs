//! The batches of another source, each of them changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln_data::{BatchSource, BatchWorker, EpochPlan, HostBatch, Order, Shape};

/// A change of batches. Each worker has a copy of its own.
pub(super) trait Change: Clone + Send + Sync + 'static {
    fn apply(&mut self, batch: &mut HostBatch);
}

/// Batches of `inner`, in its order, after a change.
pub(super) struct Altered<C> {
    pub(super) inner: Arc<dyn BatchSource>,
    pub(super) change: C,
}

impl<C: Change> BatchSource for Altered<C> {
    fn plan(&self, order: Order) -> EpochPlan {
        self.inner.plan(order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.inner.batches_per_epoch()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        None
    }

    fn fingerprint(&self) -> String {
        self.inner.fingerprint()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(AlteredWorker { worker: self.inner.clone().worker(), change: self.change.clone() })
    }
}

struct AlteredWorker<C> {
    worker: Box<dyn BatchWorker>,
    change: C,
}

impl<C: Change> BatchWorker for AlteredWorker<C> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> kiln_data::Result<()> {
        self.worker.fill(plan, index, batch)?;
        self.change.apply(batch);
        Ok(())
    }
}
