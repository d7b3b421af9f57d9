//! Kiln's loader as Burn's `DataLoader`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;
use kiln_data::{BatchSource, LoaderConfig, OnePass, Position};
use kiln_model::Batch;

use crate::device::upload;

/// The batches of a source on a device. Every call of `iter` is the next epoch, whose order depends on the seed and its number alone.
///
/// An item is a batch, so Burn's counts of items are counts of batches.
pub struct BatchLoader {
    source: Arc<dyn BatchSource>,
    config: LoaderConfig,
    seed: u64,
    device: Device,
    /// The part of each epoch that this loader has.
    batches: Range<u64>,
    epoch: AtomicU64,
}

impl BatchLoader {
    /// A loader of whole epochs, from the first one on. Without `config.shuffle` all epochs are equal, as validation wants it.
    pub fn new(source: Arc<dyn BatchSource>, config: &LoaderConfig, seed: u64, device: &Device) -> Self {
        let batches = 0..source.batches_per_epoch();
        Self { source, config: config.clone(), seed, device: device.clone(), batches, epoch: AtomicU64::new(0) }
    }

    /// Returns the loader with `epoch` as its next epoch, counted from 0. A training that resumes behind its third epoch wants 3.
    #[must_use]
    pub fn at_epoch(self, epoch: u64) -> Self {
        Self { epoch: AtomicU64::new(epoch), ..self }
    }

    fn with(&self, device: Device, batches: Range<u64>) -> Arc<dyn DataLoader<Batch>> {
        let epoch = AtomicU64::new(self.epoch.load(Ordering::Relaxed));
        Arc::new(Self {
            source: self.source.clone(),
            config: self.config.clone(),
            seed: self.seed,
            device,
            batches,
            epoch,
        })
    }

    fn len(&self) -> u64 {
        self.batches.end - self.batches.start
    }
}

impl DataLoader<Batch> for BatchLoader {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch> + 'a> {
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        let start = || OnePass::of_epoch(self.source.clone(), &self.config, self.seed, epoch, self.batches.clone());
        Box::new(EpochOfBatches {
            pass: (self.len() > 0).then(start),
            device: self.device.clone(),
            start: Position { epoch, batch: self.batches.start },
            batches_per_epoch: self.source.batches_per_epoch(),
            done: 0,
            total: self.expected_num_items(),
        })
    }

    fn num_items(&self) -> usize {
        self.len() as usize
    }

    /// The number of batches; `None` if the source must read rows to know whether a batch is empty.
    fn expected_num_items(&self) -> Option<usize> {
        self.source.shapes().map(|_| self.num_items())
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<Batch>> {
        self.with(device.clone(), self.batches.clone())
    }

    /// The batches from `start` to `end` of each epoch.
    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<Batch>> {
        let place = |at: usize| (self.batches.start + at as u64).min(self.batches.end);
        self.with(self.device.clone(), place(start)..place(end.max(start)))
    }
}

/// One epoch.
struct EpochOfBatches {
    /// `None` without batches. An error that kept it from starting is its only item.
    pass: Option<kiln_data::Result<OnePass>>,
    device: Device,
    start: Position,
    batches_per_epoch: u64,
    done: u64,
    total: Option<usize>,
}

impl Iterator for EpochOfBatches {
    type Item = Result<Batch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let pass = match self.pass.take()? {
            Ok(pass) => self.pass.insert(Ok(pass)).as_mut().ok()?,
            Err(error) => return Some(Err(DatasetError::new(error))),
        };
        let host = match pass.next()? {
            Ok(host) => host,
            Err(error) => return Some(Err(DatasetError::new(error))),
        };
        let after = (host.next.epoch - self.start.epoch) * self.batches_per_epoch + host.next.batch;
        self.done = after - self.start.batch;
        let batch = upload(&host, &self.device);
        pass.recycle(host);
        Some(Ok(batch))
    }
}

impl DataLoaderIterator<Batch> for EpochOfBatches {
    fn progress(&self) -> Progress {
        Progress::new(self.done as usize, self.total, Some("batches".into()))
    }
}
