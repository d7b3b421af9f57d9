//! Data sets that can be cut into batches: pairs and texts from a token cache, and texts in shards.

mod chat;
mod estimate;
mod labelled;
mod mix;
mod pairs;
mod preferences;
mod single_rows;
mod streamed;
mod text;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use chat::ChatSource;
pub use estimate::BatchEstimate;
pub use labelled::LabelledSource;
pub use mix::{MixPart, MixParts, MixShares, MixSource, MixedPart, SharesFrom, StreamedMix, StreamedParts};
pub use pairs::PairSource;
pub use preferences::PreferenceSource;
pub use streamed::{StreamedInOrder, StreamedRows, StreamedSource};
pub use text::TextSource;

use crate::batch::EpochPlan;
use crate::cache::Lengths;
use crate::error::Result;
use crate::host_batch::{HostBatch, Shape};
use crate::loader_config::LoaderConfig;
use crate::sampler::Order;

/// A data set that can be cut into batches. Implement it to feed the loader from a data set of your own.
pub trait BatchSource: Send + Sync + 'static {
    /// Plans the batches of an epoch. A pure function of `order`; [`Buckets::plan`](crate::Buckets::plan) is the usual
    /// implementation.
    fn plan(&self, order: Order) -> EpochPlan;

    /// Plans the batches of an epoch of a run whose optimizer steps take `group_size` batches, over all ranks. For data sets whose rows
    /// depend on the step; otherwise it is [`Self::plan`].
    fn plan_for_steps(&self, order: Order, _group_size: usize) -> EpochPlan {
        self.plan(order)
    }

    /// Returns the number of batches of an epoch. All plans have as many.
    fn batches_per_epoch(&self) -> u64;

    /// Returns the number of batches of each shape in an epoch; `None` if rows must be read to know.
    fn shapes(&self) -> Option<BTreeMap<Shape, usize>>;

    /// Returns the fraction of all positions that would be padding with another configuration, 0 to 1; `None` if rows must be
    /// read to know, or if there are too many of them to find out within a second.
    fn padding_with(&self, _config: &LoaderConfig) -> Option<f64> {
        None
    }

    /// Returns how long the rows of the text are, side by side, before they are packed. Empty if rows must be read to know.
    fn lengths(&self) -> Vec<Lengths> {
        Vec::new()
    }

    /// Returns a fingerprint of the rows, in hex. Together with the loader's configuration and a seed it decides every
    /// batch: a run must not be resumed on a source with another fingerprint.
    fn fingerprint(&self) -> String;

    /// Returns what one thread needs to make batches.
    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker>;
}

/// Makes batches on one thread.
pub trait BatchWorker: Send {
    /// Fills `batch`, a used buffer, with batch `index` of a plan: everything but `next`. The loader skips a batch
    /// without rows. [`Collator`](crate::Collator) writes batches of pairs.
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()>;
}
