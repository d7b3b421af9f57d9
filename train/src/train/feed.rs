//! Groups of micro-batches: a thread of its own uploads them, one group ahead of the training loop.

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use burn::tensor::Device;

use kiln_data::{Error, Loader, Position, Rank, Shape, jobs};
use kiln_kernels::capture::apart;
use kiln_model::Batch;

use super::exchange::Sums;
use super::state::TrainState;
use crate::config::TrainConfig;
use crate::device::{RowSources, Uploaded, send_split};
use crate::metrics::deferred::StepFacts;
use crate::metrics::{SourceMetrics, Span, SpanClock};

/// The micro-batches of one optimizer step.
#[derive(Debug)]
pub struct Group<B = Batch> {
    /// Uploaded batches of this rank.
    pub batches: Vec<B>,
    /// The number of each, counted from the first micro-batch of the step over all ranks.
    pub numbers: Vec<u64>,
    /// Numbers that the step takes up over all ranks.
    pub n_numbers: u64,
    /// Epoch in which the group begins.
    pub epoch: u64,
    /// A mixture: what this rank's batches have of each source.
    pub sources: SourceMetrics,
    /// A mixture: which rows of each batch are of which source. Empty without one.
    pub row_sources: Vec<RowSources>,
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
            sources: self.sources.clone(),
        }
    }

    /// Adds up the losses of micro-batch number `turn` of the group, from 1, by source. Without a mixture nothing is added.
    pub(super) fn by_source<G>(&self, turn: usize, (sums, gradients): (Sums, G)) -> (Sums, G) {
        (sums.by_source(self.row_sources.get(turn - 1)), gradients)
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

/// Keeps one group uploaded ahead, on a thread and, on a GPU, a stream of its own.
///
/// The uploading thread waits for the loader, copies the next group to the device while the device computes a step, and holds
/// it until it is asked for. An error of the loader comes in its turn, after the groups before it.
pub struct GroupFeed {
    /// `None` when the feed is dropped.
    groups: Option<Receiver<kiln_data::Result<Group<Uploaded>>>>,
    thread: Option<JoinHandle<()>>,
}

impl GroupFeed {
    /// Makes a feed from a loader that was started at `position`. A group is `train.grad_accum_steps` batches, each cut
    /// into `train.split_batches` micro-batches. The loader gives the share of `rank`.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub fn new(
        loader: Loader,
        position: Position,
        train: &TrainConfig,
        rank: Rank,
        device: Device,
    ) -> kiln_data::Result<Self> {
        let (grad_accum_steps, splits) = (train.grad_accum_steps.max(1), train.split_batches.max(1));
        let uploader = Uploader { loader, device, grad_accum_steps, splits, rank, position };
        // Without room in the channel, the thread is one group ahead and no more.
        let (sender, groups) = sync_channel(0);
        let thread = thread::Builder::new().name("kiln-upload".into()).spawn(move || uploader.run(&sender));
        let thread = thread.map_err(|error| Error::Invalid(format!("cannot start the uploading thread: {error}")))?;
        Ok(Self { groups: Some(groups), thread: Some(thread) })
    }

    /// Returns the next group.
    ///
    /// # Errors
    /// If the loader has failed. Every later call fails, too.
    ///
    /// # Panics
    /// With the panic of the uploading thread, for example because the device is out of memory.
    pub fn next_group(&mut self, clock: &mut SpanClock) -> kiln_data::Result<Group> {
        let groups = self.groups.as_ref().expect("a feed that was not dropped");
        let Ok(group) = clock.time(Span::DataWait, || groups.recv()) else {
            if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
                resume_unwind(panic);
            }
            return Err(Error::Stopped("the uploading thread has ended".into()));
        };
        let Group { batches, numbers, n_numbers, epoch, sources, next, .. } = group?;
        let taken: Vec<_> = clock.time(Span::Upload, || batches.into_iter().map(Uploaded::take).collect());
        let (batches, row_sources): (Vec<Batch>, Vec<_>) = taken.into_iter().unzip();
        let row_sources = row_sources.into_iter().flatten().collect();
        Ok(Group { batches, numbers, n_numbers, epoch, sources, row_sources, next })
    }
}

impl Drop for GroupFeed {
    fn drop(&mut self) {
        self.groups = None;
        if let Some(thread) = self.thread.take() {
            // A panic after the last group that was wanted concerns nobody.
            let _ = thread.join();
        }
    }
}

/// The work of the uploading thread.
struct Uploader {
    loader: Loader,
    device: Device,
    grad_accum_steps: usize,
    splits: usize,
    rank: Rank,
    position: Position,
}

impl Uploader {
    /// Uploads groups until nobody wants them any more, or until one fails.
    fn run(mut self, groups: &SyncSender<kiln_data::Result<Group<Uploaded>>>) {
        loop {
            let group = self.load();
            let has_failed = group.is_err();
            if groups.send(group).is_err() || has_failed {
                return;
            }
        }
    }

    fn load(&mut self) -> kiln_data::Result<Group<Uploaded>> {
        let epoch = self.position.epoch;
        let mut batches = Vec::with_capacity(self.grad_accum_steps);
        let mut numbers = Vec::with_capacity(self.grad_accum_steps);
        let mut sources = SourceMetrics::default();

        for turn in 0..self.grad_accum_steps {
            let host = self.loader.next_batch()?;
            let first = self.first_number(turn, batches.len());
            // The driver allows no allocation on any stream while one is being recorded.
            let sent = apart(|| jobs::timed("upload", || send_split(&host, self.splits, &self.device)));
            batches.extend(sent);
            numbers.extend((first..).take(batches.len() - numbers.len()));
            sources.count(&host.sources);
            self.position = host.next;
            self.loader.recycle(host);
        }

        let n_numbers = self.first_number(self.grad_accum_steps, batches.len()) - self.first_number(0, 0);
        Ok(Group { batches, numbers, n_numbers, epoch, sources, row_sources: Vec::new(), next: self.position })
    }

    /// Returns the number of the first micro-batch of this rank's batch number `turn` of a step, of which `n_before`
    /// micro-batches of this rank precede it.
    ///
    /// In a step of several batches each takes up the same number of numbers, so that a rank need not know how many rows the
    /// batches of other ranks have. Steps of runs from before there were ranks count the micro-batches.
    fn first_number(&self, turn: usize, n_before: usize) -> u64 {
        let Rank { rank, world_size, group_size } = self.rank;
        if group_size > 1 || world_size > 1 {
            ((turn * world_size + rank) * self.splits) as u64
        } else {
            n_before as u64
        }
    }
}
