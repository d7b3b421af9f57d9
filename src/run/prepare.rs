//! Everything before the first step that needs no device: the lock, the data, the weights or checkpoint to start from.

use anyhow::Result;
use burn::tensor::Device;

use super::Run;
use super::error::RunError;
use super::folder::{take, write_config};
use super::lock::RunLock;
use super::resume::{resume_or_begin, vocabulary_of_run};
use super::weights::start_from;
use crate::checkpoint::{Checkpoints, Resume, Weights};
use crate::config::Config;
use crate::dataset::RunData;

/// A run that holds its lock and has its data: ready to [`start`](Self::start).
pub struct Prepared {
    /// Held as long as the run trains.
    pub(super) lock: RunLock,
    pub(super) run: Run,
    /// The run's configuration with the vocabulary sizes filled in.
    pub(super) config: Config,
    pub(super) device: Device,
    pub(super) data: RunData,
    /// Weights to start from instead of initial ones.
    pub(super) weights: Option<Weights>,
    /// The checkpoint to continue from.
    pub(super) resume: Option<Resume>,
}

impl Run {
    /// Takes the lock of the run folder, makes or finds the data, reads the weights or the checkpoint to start from,
    /// and writes the configuration.
    ///
    /// # Errors
    /// If the folder is locked or cannot be written, if the data cannot be used, or if the run cannot be resumed.
    pub fn prepare(self, resume: bool) -> Result<Prepared> {
        self.prepare_with(resume, None)
    }

    /// Prepares a run on `data`, or on the data of its configuration.
    pub(super) fn prepare_with(self, resume: bool, data: Option<RunData>) -> Result<Prepared> {
        let device = self.device()?;
        let lock = take(&self.dir, resume)?;
        let checkpoints = Checkpoints::of_run(&self.dir);
        if resume {
            // A killed run may have left a checkpoint without its name. Only the lock guarantees that no other process
            // is saving it at the moment.
            checkpoints.clean()?;
        }

        let (config, data) = match data {
            Some(data) => completed(self.config.clone(), data)?,
            None => self.data(resume)?,
        };
        let weights = match &self.options.from {
            Some(from) => Some(start_from(from, &config, &checkpoints)?),
            None => checkpoints.starting_weights()?,
        };
        let resume = match resume {
            true => resume_or_begin(&self, &config, &data, weights.is_some())?,
            false => None,
        };

        write_config(&self.dir, &config)?;
        Ok(Prepared { lock, run: self, config, device, data, weights, resume })
    }

    /// Makes or finds the data of the run. Returns it with the configuration, whose vocabulary sizes are filled in. A
    /// run that is resumed uses the vocabulary of its newest sound checkpoint.
    ///
    /// # Errors
    /// If the data cannot be used, or if the model does not fit the vocabulary.
    pub fn data(&self, resume: bool) -> Result<(Config, RunData)> {
        let config = self.config.clone();
        let vocabulary = match &self.options.from {
            Some(from) => Some(from.vocabulary.clone()),
            None if resume => vocabulary_of_run(&self.dir, config.task)?,
            None => None,
        };
        let data = RunData::open(&config, &self.dir, vocabulary, &mut |line| self.note(line))?;
        completed(config, data)
    }
}

/// Fills in the vocabulary sizes of the model.
fn completed(mut config: Config, data: RunData) -> Result<(Config, RunData)> {
    data.vocabulary.complete(&mut config.model).map_err(|problems| RunError::Config(format!("{problems:#}")))?;
    Ok((config, data))
}
