//! A run whose steps are looked at, and which leaves nothing behind.

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::Run;
use super::evaluate::Scratch;
use super::plan::Plan;
use crate::config::Config;
use crate::distributed::Ranks;
use crate::logging::Logging;
use crate::train::{Setup, Signals, Trainer, Validation};

/// A trainer with the data, the model and the settings of a run.
pub(crate) struct Rehearsal {
    pub(crate) trainer: Trainer,
    pub(crate) plan: Plan,
    pub(crate) config: Config,
    /// Takes the place of the run folder.
    _folder: TempDir,
    /// Holds the token caches.
    _scratch: Option<Scratch>,
}

impl Run {
    /// Makes the data and the trainer of the run, with initial weights: their values do not change what a step takes. Token caches
    /// that do not exist yet are made in a temporary folder.
    ///
    /// # Errors
    /// If the data cannot be used, if the largest batch does not fit into memory, or if the device fails.
    pub(crate) fn rehearsal(&self) -> Result<Rehearsal> {
        ensure!(
            self.config.train.sync_every <= 1,
            "train.sync_every = {} is for several devices, and a profile is taken on one: add --set train.sync_every=1",
            self.config.train.sync_every
        );
        self.config.train.f32_products.install_in_backend();
        let survey = self.survey(false)?;
        let folder = tempfile::tempdir().context("making a temporary folder; TMPDIR names another place")?;

        let config = survey.config.clone();
        let setup = Setup {
            config: survey.config,
            run_dir: folder.path().to_path_buf(),
            device: survey.device,
            vocabulary: survey.data.vocabulary,
            weights: None,
            train: survey.data.train,
            validation: Validation::default(),
            logging: Logging::silent(),
            signals: Signals::default(),
            checkpointing: survey.plan.checkpointing,
            auto_micro_batch: self.options.auto_micro_batch,
            reference_operators: self.options.reference_operators,
            ranks: Ranks::alone(),
        };
        let trainer = Trainer::new(setup, None)?;
        Ok(Rehearsal { trainer, plan: survey.plan, config, _folder: folder, _scratch: survey._scratch })
    }
}
