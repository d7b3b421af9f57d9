//! Groups of micro-batches, uploaded to the device one step ahead.

use burn::tensor::Device;
use kiln_data::{Loader, Position, Rank, Shape};
use kiln_model::Batch;

use super::state::TrainState;
use crate::config::TrainConfig;
use crate::device::upload_split;
use crate::metrics::deferred::StepFacts;
use crate::metrics::{Span, SpanClock};

/// The micro-batches of one optimizer step.
#[derive(Debug)]
pub struct Group {
    /// Uploaded batches of this rank.
    pub batches: Vec<Batch>,
    /// The number of each, counted from the first micro-batch of the step over all ranks.
    pub numbers: Vec<u64>,
    /// Numbers that the step takes up over all ranks.
    pub n_numbers: u64,
    /// Epoch in which the group begins.
    pub epoch: u64,
    /// Position in the data after the group.
    pub next: Position,
}

impl Group {
    /// Returns what the host of this rank knows about the step that `state` has just taken over this group.
    pub fn facts<M>(&self, state: &TrainState<M>) -> StepFacts {
        let sum = |side: usize| -> u64 { self.batches.iter().map(|batch| tokens_of(batch)[side]).sum() };
        let (source_tokens, target_tokens) = (sum(0), sum(1));
        StepFacts {
            step: state.step,
            epoch: self.epoch,
            is_scaled: state.optimizer.is_scaled(),
            tokens: source_tokens + target_tokens,
            source_tokens,
            padded_tokens: self.padded_tokens(),
            samples: self.shapes().map(|shape| shape.batch_size as u64).sum(),
        }
    }

    /// Returns the shapes of the batches.
    pub fn shapes(&self) -> impl Iterator<Item = Shape> {
        self.batches.iter().map(shape_of)
    }

    /// Returns the number of positions, including padding.
    pub fn padded_tokens(&self) -> u64 {
        self.shapes().map(|shape| shape.padded_tokens() as u64).sum()
    }

    /// Returns the shape that needs most memory.
    pub fn largest_shape(&self) -> Option<Shape> {
        self.shapes().max_by_key(Shape::padded_tokens)
    }
}

/// Returns the padded shape of a batch.
pub(super) fn shape_of(batch: &Batch) -> Shape {
    match batch {
        Batch::Pairs(batch) => {
            Shape { batch_size: batch.batch_size, source_len: batch.source_len, target_len: batch.target_len }
        }
        Batch::Text(batch) => Shape::text(batch.batch_size, batch.seq_len),
    }
}

/// Returns the non-padding source tokens, and the non-padding target tokens or tokens of text.
pub(super) fn tokens_of(batch: &Batch) -> [u64; 2] {
    match batch {
        Batch::Pairs(batch) => [batch.source_tokens, batch.target_tokens],
        Batch::Text(batch) => [0, batch.tokens],
    }
}

/// Takes batches from a loader and keeps one group uploaded ahead.
pub struct GroupFeed {
    loader: Loader,
    device: Device,
    grad_accum_steps: usize,
    splits: usize,
    rank: Rank,
    position: Position,
    ahead: Option<Group>,
}

impl GroupFeed {
    /// Makes a feed from a loader that was started at `position`. A group is `train.grad_accum_steps` batches, each cut
    /// into `train.split_batches` micro-batches. The loader gives the share of `rank`.
    pub fn new(loader: Loader, position: Position, train: &TrainConfig, rank: Rank, device: Device) -> Self {
        let (grad_accum_steps, splits) = (train.grad_accum_steps.max(1), train.split_batches.max(1));
        Self { loader, device, grad_accum_steps, splits, rank, position, ahead: None }
    }

    /// Returns the next group: the one that was uploaded ahead, if there is one.
    pub fn next_group(&mut self, clock: &mut SpanClock) -> kiln_data::Result<Group> {
        match self.ahead.take() {
            Some(group) => Ok(group),
            None => self.load(clock),
        }
    }

    /// Uploads the next group ahead. Call it while the device is busy with a step: the wait for the loader and the enqueuing of
    /// the copy then delay no kernel. The copy itself takes its turn after the step, see [`upload`](fn@crate::device::upload).
    pub fn prefetch(&mut self, clock: &mut SpanClock) -> kiln_data::Result<()> {
        if self.ahead.is_none() {
            self.ahead = Some(self.load(clock)?);
        }
        Ok(())
    }

    fn load(&mut self, clock: &mut SpanClock) -> kiln_data::Result<Group> {
        let epoch = self.position.epoch;
        let mut batches = Vec::with_capacity(self.grad_accum_steps);
        let mut numbers = Vec::with_capacity(self.grad_accum_steps);

        for turn in 0..self.grad_accum_steps {
            let host = clock.time(Span::DataWait, || self.loader.next_batch())?;
            let first = self.first_number(turn, batches.len());
            batches.extend(clock.time(Span::Upload, || upload_split(&host, self.splits, &self.device)));
            numbers.extend((first..).take(batches.len() - numbers.len()));
            self.position = host.next;
            self.loader.recycle(host);
        }

        let n_numbers = self.first_number(self.grad_accum_steps, batches.len()) - self.first_number(0, 0);
        Ok(Group { batches, numbers, n_numbers, epoch, next: self.position })
    }

    /// Returns the number of the first micro-batch of this rank's batch number `turn` of a step, of which `n_before`
    /// micro-batches of this rank precede it.
    ///
    /// In a step of several batches each takes up the same number of numbers, so that a rank need not know how many rows the
    /// batches of other ranks have. Steps of runs from before there were ranks count the micro-batches.
    fn first_number(&self, turn: usize, n_before: usize) -> u64 {
        let Rank { rank, world_size, group_size } = self.rank;
        if group_size > 1 { ((turn * world_size + rank) * self.splits) as u64 } else { n_before as u64 }
    }
}
