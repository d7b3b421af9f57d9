//! What is diagnosed: a configuration on its data and on a device. Nothing here writes into a run folder.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::tensor::{Device, FloatDType};
use kiln_data::{
    BatchLayout, BatchSource, BatchWorker, EpochPlan, HostBatch, Loader, LoaderConfig, Order, Position, Rank, Shape,
};
use kiln_model::ActivationCheckpointing;
use kiln_ranks::Ranks;
use kiln_train::config::{Capture, Config};
use kiln_train::dataset::RunData;
use kiln_train::eval::{Init, Model};
use kiln_train::metrics::SpanClock;
use kiln_train::train::feed::{Group, GroupFeed};
use kiln_train::train::{CapturedSteps, TrainState};

use super::altered::{Altered, Change};
use crate::diagnose::measure::{Effort, Prepared};

/// A run that is diagnosed.
pub struct Subject<'a, M> {
    /// The configuration, with the sizes of its vocabularies.
    pub config: &'a Config,
    /// Its data.
    pub data: &'a RunData,
    /// The folder of the token caches.
    pub cache_dir: PathBuf,
    /// The device that it trains on.
    pub device: Device,
    /// The compute dtype.
    pub dtype: FloatDType,
    /// The activations that are kept.
    pub checkpointing: ActivationCheckpointing,
    /// The batch that needs most memory.
    pub largest: Shape,
    /// The other processes, for tests of several devices.
    pub ranks: Ranks,
    /// How often a step is timed.
    pub effort: Effort,
    /// Steps of the test for leaks.
    pub leak_steps: usize,
    /// How its model is made.
    pub init: &'a Init<'a, M>,
}

impl<M: Model> Subject<'_, M> {
    /// Returns a state with initial weights.
    ///
    /// # Errors
    /// If the device fails.
    pub fn state(&self) -> Result<TrainState<M>> {
        self.state_in(self.dtype)
    }

    /// Returns a state that computes in `dtype`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn state_in(&self, dtype: FloatDType) -> Result<TrainState<M>> {
        let Self { config, checkpointing, ref device, .. } = *self;
        let vocabulary = Some(&self.data.vocabulary);
        Prepared { config, model: &config.model, vocabulary, checkpointing, dtype, device }.state(self.init)
    }

    /// Returns the parameters of the model.
    pub(super) fn n_params(&self) -> u64 {
        let parts = self.init.parts(&self.config.model, self.config.seed);
        parts.iter().map(|part| part.n_params as u64).sum()
    }

    /// Returns whether steps are replayed: as early as possible, unless the configuration replays none.
    pub(super) fn capture(&self) -> Capture {
        if self.config.train.capture == Capture::Off { Capture::Off } else { Capture::On }
    }

    /// Returns steps that are replayed as in a long run.
    pub fn captured(&self) -> CapturedSteps<M> {
        CapturedSteps::new(self.capture(), &self.device)
    }

    /// Batches of a step.
    pub fn accumulated(&self) -> usize {
        self.config.train.grad_accum_steps.max(1)
    }

    /// Returns the batches that all tests take: the first ones of an epoch, again and again.
    ///
    /// # Errors
    /// If there are none.
    pub fn window(&self) -> Result<Arc<dyn BatchSource>> {
        let order = match self.config.loader.shuffle {
            true => Order::Shuffled { seed: self.config.seed, epoch: 0 },
            false => Order::Sequential,
        };
        let n = self.effort.steps * self.accumulated();
        Ok(Arc::new(Window::new(self.data.train.clone(), order, n)?))
    }

    /// Returns a loader of `source` with `num_workers` threads.
    ///
    /// # Errors
    /// If the loader's configuration is invalid.
    pub fn loader(&self, source: Arc<dyn BatchSource>, num_workers: usize) -> Result<Loader> {
        let config = LoaderConfig { num_workers, ..self.config.loader.clone() };
        Ok(Loader::new(source, &config, self.config.seed, Position::default())?)
    }

    /// Returns a feed of `source` with as many loader threads as the run has.
    ///
    /// # Errors
    /// As [`Self::loader`].
    pub fn feed(&self, source: Arc<dyn BatchSource>, num_workers: usize) -> Result<GroupFeed> {
        let loader = self.loader(source, num_workers)?;
        let rank = Rank::default();
        Ok(GroupFeed::new(loader, Position::default(), &self.config.train, rank, self.device.clone())?)
    }

    /// Returns the groups of the window with random tokens, on the device.
    ///
    /// # Errors
    /// If a batch cannot be made.
    pub fn resident(&self) -> Result<Vec<Group>> {
        let vocab = self.config.model.source_vocab_size.min(self.config.model.target_vocab_size).max(1);
        let change = Synthetic { vocab: vocab as u32, random: 0x9e37_79b9 };
        self.groups(Arc::new(Altered { inner: self.window()?, change }))
    }

    /// Returns the groups of a window over `source`, on the device.
    ///
    /// # Errors
    /// If a batch cannot be made.
    pub(super) fn groups(&self, source: Arc<dyn BatchSource>) -> Result<Vec<Group>> {
        let mut feed = self.feed(source, 0)?;
        let mut clock = SpanClock::start();
        (0..self.effort.steps).map(|_| Ok(feed.next_group(&mut clock)?)).collect()
    }
}

/// The first batches of an epoch, which come again in every epoch.
struct Window {
    inner: Arc<dyn BatchSource>,
    plan: Arc<EpochPlan>,
    n: usize,
}

impl Window {
    fn new(inner: Arc<dyn BatchSource>, order: Order, n: usize) -> Result<Self> {
        let plan = Arc::new(inner.plan(order));
        ensure!(!plan.is_empty(), "the data set has no batches");
        Ok(Self { inner, plan, n })
    }
}

impl BatchSource for Window {
    /// Each "row" is the number of a batch of the inner plan.
    fn plan(&self, _order: Order) -> EpochPlan {
        let mut plan = EpochPlan::with_capacity(self.n);
        for at in 0..self.n {
            let index = at % self.plan.len();
            plan.push(&[index as u32], self.plan.batch(index).1);
        }
        plan
    }

    fn batches_per_epoch(&self) -> u64 {
        self.n as u64
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        None
    }

    fn fingerprint(&self) -> String {
        self.inner.fingerprint()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        let worker = self.inner.clone().worker();
        Box::new(WindowWorker { worker, plan: self.plan.clone() })
    }
}

struct WindowWorker {
    worker: Box<dyn BatchWorker>,
    plan: Arc<EpochPlan>,
}

impl BatchWorker for WindowWorker {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> kiln_data::Result<()> {
        let of_inner = plan.batch(index).0[0] as usize;
        self.worker.fill(&self.plan, of_inner, batch)
    }
}

/// Replaces tokens by random ones. Shapes and lengths stay.
#[derive(Clone)]
struct Synthetic {
    vocab: u32,
    random: u32,
}

impl Change for Synthetic {
    fn apply(&mut self, batch: &mut HostBatch) {
        let (source_len, target_len) = (batch.source_len, batch.target_len);
        match batch.layout {
            BatchLayout::Pairs => {
                let parts = batch.pair_parts_mut();
                self.shuffle(parts.source, parts.source_lengths, source_len);
                self.shuffle(parts.target_input, parts.target_lengths, target_len);
            }
            BatchLayout::Text => {
                let parts = batch.text_parts_mut();
                self.shuffle(parts.input, parts.lengths, target_len);
            }
        }
    }
}

impl Synthetic {
    /// Replaces the tokens of rows of `width` places; padding stays.
    fn shuffle(&mut self, ids: &mut [i32], lengths: &[i32], width: usize) {
        // The first ids are special tokens.
        let first = 8.min(self.vocab / 2);
        for (row, len) in ids.chunks_mut(width.max(1)).zip(lengths) {
            for id in &mut row[..*len as usize] {
                // xorshift32 (Marsaglia 2003).
                self.random ^= self.random << 13;
                self.random ^= self.random >> 17;
                self.random ^= self.random << 5;
                *id = (first + self.random % (self.vocab - first)) as i32;
            }
        }
    }
}
