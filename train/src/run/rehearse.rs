//! A run whose steps are looked at, and which leaves nothing behind.

use anyhow::{Context, Result};
use kiln_ranks::Ranks;
use tempfile::TempDir;

use super::Run;
use super::evaluate::Scratch;
use super::plan::Plan;
use super::prepare::refuse_for_devices;
use super::ranks::compare;
use crate::config::Config;
use crate::logging::Logging;
use crate::optim::Groups;
use crate::train::{Setup, Signals, Trainer, Validation};

/// A trainer with the data, the model and the settings of a run.
pub struct Rehearsal {
    /// The trainer.
    pub trainer: Trainer,
    /// The numbers of the run.
    pub plan: Plan,
    /// The configuration of the run.
    pub config: Config,
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
    /// If the data cannot be used, if the largest batch does not fit into memory, if a device fails, or if the ranks differ.
    #[doc(hidden)]
    pub fn rehearsal(&self, ranks: &Ranks) -> Result<Rehearsal> {
        self.config.train.f32_products.install_in_backend();
        refuse_for_devices(&self.config, ranks)?;
        let survey = ranks.first_then_others("preparing the data", || self.survey(false))?;
        compare(ranks, &survey.config, &survey.data, None)?;
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
            ranks: ranks.clone(),
            optimizers: Groups::of,
        };
        let trainer = Trainer::new(setup, None)?;
        Ok(Rehearsal { trainer, plan: survey.plan, config, _folder: folder, _scratch: survey._scratch })
    }
}
