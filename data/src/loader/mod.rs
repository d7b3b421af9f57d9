//! Batches in a fixed order from a pool of worker threads.
//!
//! The global plan of an epoch is a list of batches that depends on seed, epoch and the batches of an optimizer step
//! alone. The batches of all epochs are numbered in one sequence. Rank r of W takes the numbers r, r + W, r + 2W .., so
//! that W ranks together see the batches of one rank. A position counts global batches and means the same for any number
//! of ranks.
//!
//! Workers take numbered jobs from a bounded channel and fill recycled buffers; the loader puts the results back in
//! order. A worker is at most `prefetch_factor` batches ahead, so memory is bounded. Which worker was faster does not
//! matter.

mod one_pass;
mod pool;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

pub use self::one_pass::OnePass;
use self::pool::{Done, Job, Pool, Worker};
use crate::batch::EpochPlan;
use crate::error::{Error, Result};
use crate::host_batch::{HostBatch, Position, Shape};
use crate::loader_config::LoaderConfig;
use crate::reorder::Reorder;
use crate::sampler::Order;
use crate::source::BatchSource;

/// The share of the batches that one of several processes takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Number of this process, counted from 0.
    pub rank: usize,
    /// Processes that share the data.
    pub world_size: usize,
    /// Batches of an optimizer step over all processes, which share a shape where they can. 1 leaves the order alone.
    pub group_size: usize,
}

impl Default for Rank {
    /// One process that takes all batches, one a step.
    fn default() -> Self {
        Self { rank: 0, world_size: 1, group_size: 1 }
    }
}

/// An endless sequence of batches, epoch after epoch.
///
/// Equal sources, configurations, seeds and positions give equal batches, whatever the number of workers.
pub struct Loader {
    source: Arc<dyn BatchSource>,
    engine: Engine,
    numbering: Numbering,
    /// Global number of this rank's next job.
    next_job: u64,
    /// Jobs that were given out and whose batches the caller does not have yet.
    in_flight: usize,
    max_in_flight: usize,
    plans: BTreeMap<u64, PlanState>,
    done: Reorder<Result<HostBatch>>,
    free: Vec<HostBatch>,
    n_buffers: usize,
    failed: Option<String>,
}

/// The threads that make batches: the caller's own or a pool.
enum Engine {
    Inline(Box<Worker>),
    Pool(Pool),
}

enum PlanState {
    Requested,
    Ready(Arc<EpochPlan>),
}

/// The numbering of the batches of all epochs.
#[derive(Debug, Clone, Copy)]
struct Numbering {
    batches_per_epoch: u64,
    start: u64,
    rank: u64,
    world_size: u64,
    group_size: u64,
    /// The number after the last batch; a single pass ends there.
    end: u64,
    /// `None` keeps the order of the files.
    seed: Option<u64>,
}

impl Numbering {
    fn order(&self, epoch: u64) -> Order {
        match self.seed {
            Some(seed) => Order::Shuffled { seed, epoch },
            None => Order::Sequential,
        }
    }

    /// Returns how to plan an epoch.
    fn plan(&self, epoch: u64) -> Job {
        // Groups follow one another from the start on, over the ends of epochs.
        let first = epoch * self.batches_per_epoch;
        let head = (self.start as i128 - first as i128).rem_euclid(self.group_size as i128) as usize;
        Job::Plan { epoch, order: self.order(epoch), group_size: self.group_size as usize, head }
    }

    /// Returns the position after the group of batches, one per rank, that `number` belongs to.
    fn position_after(&self, number: u64) -> Position {
        let group = (number - self.start) / self.world_size;
        let next = self.start + (group + 1) * self.world_size;
        Position { epoch: next / self.batches_per_epoch, batch: next % self.batches_per_epoch }
    }
}

impl Loader {
    /// Starts at `start`, without producing the batches before it.
    ///
    /// # Errors
    ///
    /// If the configuration is invalid, the source is empty, or `start` is behind the end of an epoch.
    pub fn new(source: Arc<dyn BatchSource>, config: &LoaderConfig, seed: u64, start: Position) -> Result<Self> {
        Self::for_rank(source, config, seed, start, Rank::default())
    }

    /// Does the same for one of several processes. All must start at the same position.
    pub fn for_rank(
        source: Arc<dyn BatchSource>,
        config: &LoaderConfig,
        seed: u64,
        start: Position,
        rank: Rank,
    ) -> Result<Self> {
        let seed = config.shuffle.then_some(seed);
        Self::start(source, config, seed, start, rank, u64::MAX)
    }

    fn start(
        source: Arc<dyn BatchSource>,
        config: &LoaderConfig,
        seed: Option<u64>,
        start: Position,
        Rank { rank, world_size, group_size }: Rank,
        end: u64,
    ) -> Result<Self> {
        let problems = config.validate();
        if !problems.is_empty() {
            return Err(Error::Invalid(problems.join("\n")));
        }
        if rank >= world_size {
            return Err(Error::Invalid(format!("rank {rank} of {world_size}: ranks count from 0")));
        }
        if group_size > 1 && !group_size.is_multiple_of(world_size) {
            return Err(Error::Invalid(format!(
                "{world_size} ranks cannot share {group_size} batches of a step evenly"
            )));
        }
        let batches_per_epoch = source.batches_per_epoch();
        if batches_per_epoch == 0 {
            return Err(Error::Invalid("the data set has no rows to load".into()));
        }
        if start.batch >= batches_per_epoch {
            return Err(Error::Invalid(format!(
                "cannot start at batch {} of epoch {}: an epoch has {batches_per_epoch} batches. The data or the loader's \
                 settings differ from the checkpoint's",
                start.batch, start.epoch
            )));
        }

        let max_in_flight = config.in_flight();
        let engine = match config.num_workers {
            0 => Engine::Inline(Box::new(Worker::new(source.clone()))),
            // Two more jobs are the plans of this epoch and the next.
            n => Engine::Pool(Pool::start(&source, n, max_in_flight + 2)?),
        };
        let numbering = Numbering {
            batches_per_epoch,
            start: start.epoch * batches_per_epoch + start.batch,
            rank: rank as u64,
            world_size: world_size as u64,
            group_size: group_size.max(1) as u64,
            end,
            seed,
        };

        Ok(Self {
            source,
            engine,
            numbering,
            next_job: numbering.start + numbering.rank,
            in_flight: 0,
            max_in_flight,
            plans: BTreeMap::new(),
            done: Reorder::new(0),
            free: Vec::new(),
            n_buffers: 0,
            failed: None,
        })
    }

    /// Returns the next batch. Give it back with [`Loader::recycle`] after the upload, so that its buffer is used
    /// again.
    ///
    /// # Errors
    ///
    /// If making the batch failed or its worker panicked. Every later call fails too.
    pub fn next_batch(&mut self) -> Result<HostBatch> {
        Ok(self.advance()?.expect("an endless sequence"))
    }

    /// Takes back the buffer of a batch.
    pub fn recycle(&mut self, batch: HostBatch) {
        if self.free.len() < self.max_in_flight + 2 {
            self.free.push(batch);
        }
    }

    /// Returns the number of batches of an epoch, all ranks together; the same in every epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        self.numbering.batches_per_epoch
    }

    /// Returns the number of batches of each shape in an epoch; `None` if rows must be read to know.
    pub fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        self.source.shapes()
    }

    /// Returns the number of buffers allocated so far. If batches are recycled, it stays near the prefetch depth.
    pub fn n_buffers(&self) -> usize {
        self.n_buffers
    }

    /// Returns the next batch; `None` at the end of a single pass.
    fn advance(&mut self) -> Result<Option<HostBatch>> {
        if let Some(error) = &self.failed {
            return Err(Error::Stopped(error.clone()));
        }
        let result = self.wait_for_batch();
        if let Err(error) = &result {
            self.failed = Some(error.to_string());
        }
        result
    }

    fn wait_for_batch(&mut self) -> Result<Option<HostBatch>> {
        loop {
            self.give_out_jobs()?;
            if let Some(batch) = self.done.pop() {
                self.in_flight -= 1;
                let batch = batch?;
                if batch.batch_size == 0 {
                    self.free.push(batch);
                    continue;
                }
                if matches!(self.engine, Engine::Pool(_)) {
                    self.give_out_jobs()?;
                }
                return Ok(Some(batch));
            }

            if self.in_flight == 0 && self.next_job >= self.numbering.end {
                return Ok(None);
            }
            match &mut self.engine {
                // Inline jobs are done as they are given out.
                Engine::Inline(_) => unreachable!("a job without a result"),
                Engine::Pool(pool) => {
                    let done = pool.receive();
                    self.take(done)?;
                }
            }
        }
    }

    /// Keeps `max_in_flight` jobs in flight, and requests the plan of the next epoch.
    fn give_out_jobs(&mut self) -> Result<()> {
        while self.in_flight < self.max_in_flight && self.next_job < self.numbering.end {
            let number = self.next_job;
            let epoch = number / self.numbering.batches_per_epoch;
            let Some(plan) = self.plan_of(epoch)? else { break };
            let buffer = self.free.pop().unwrap_or_else(|| {
                self.n_buffers += 1;
                HostBatch::default()
            });

            let index = (number % self.numbering.batches_per_epoch) as usize;
            self.next_job += self.numbering.world_size;
            self.in_flight += 1;
            self.give_out(Job::Batch { number, plan, index, buffer })?;

            // Drop the plans of past epochs, and make the next one while this one is in use.
            self.plans = self.plans.split_off(&epoch);
            if (epoch + 1) * self.numbering.batches_per_epoch < self.numbering.end
                && matches!(self.engine, Engine::Pool(_))
            {
                self.plan_of(epoch + 1)?;
            }
        }
        Ok(())
    }

    /// Returns the plan of an epoch if it is ready, and requests it otherwise.
    fn plan_of(&mut self, epoch: u64) -> Result<Option<Arc<EpochPlan>>> {
        if let Entry::Vacant(vacant) = self.plans.entry(epoch) {
            vacant.insert(PlanState::Requested);
            self.give_out(self.numbering.plan(epoch))?;
        }
        match self.plans.get(&epoch) {
            Some(PlanState::Ready(plan)) => Ok(Some(plan.clone())),
            _ => Ok(None),
        }
    }

    fn give_out(&mut self, job: Job) -> Result<()> {
        match &mut self.engine {
            Engine::Inline(worker) => {
                let done = worker.run(job);
                self.take(done)
            }
            Engine::Pool(pool) => {
                pool.send(job);
                Ok(())
            }
        }
    }

    fn take(&mut self, done: Done) -> Result<()> {
        match done {
            Done::Plan { epoch, plan } => {
                let plan = plan?;
                assert_eq!(
                    plan.len() as u64,
                    self.numbering.batches_per_epoch,
                    "a source plans as many batches as `batches_per_epoch` returns"
                );
                self.plans.insert(epoch, PlanState::Ready(Arc::new(plan)));
            }
            Done::Batch { number, batch } => {
                let next = self.numbering.position_after(number);
                let turn = (number - self.numbering.start) / self.numbering.world_size;
                self.done.insert(turn, batch.map(|batch| HostBatch { next, ..batch }));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
