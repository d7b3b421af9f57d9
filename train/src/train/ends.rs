//! What a trainer does before its first step and after its last one.

use std::any::TypeId;

use anyhow::Result;
use kiln_data::Position;
use kiln_metrics::logging::Activity;
use kiln_metrics::units::thousands;
use kiln_model::Transformer;
use kiln_ranks::Link;

use super::best::new_best;
use super::course;
use super::due::Validated;
use super::lines::Reporting;
use super::trainer::Trainer;
use crate::config::LostReplicas;
use crate::eval::Model;

impl<M: Model> Trainer<M> {
    /// Validates the weights of another run before the first step. They stay the best ones if training makes them worse.
    pub(super) fn validate_weights(&mut self) -> Result<()> {
        let Self { state, config, vocabulary, validation, reporting, saving, .. } = self;
        let Reporting { logging, measured, .. } = reporting;
        logging.begin(Activity::Work("validating"))?;
        let found = validation.measure(state, config, vocabulary, false, &mut measured.new_kernels)?;
        let Some(Validated { metrics, .. }) = found else { return Ok(()) };
        if let Some(best) = new_best(&metrics, &config.train.best_metric, None)
            && saving.start_is_best(state.ranks.is_first())?
        {
            state.best = Some(best);
        }
        logging.validation(&metrics)
    }

    /// Says of a run from trained weights that no validation was better than the one before its first step.
    fn worsened(&self) -> Option<String> {
        let (best, last) = self.state.best.as_ref().zip(self.outcome.validation.as_ref())?;
        let is_worse = best.step == 0 && last.step > 0;
        is_worse.then(|| format!(
            "warning: training made the model worse: validation loss {:.4} before the first step, {:.4} now; `best` is the model that the \
             run began with, and a lower optim.lr (now {}) changes it less",
            best.loss, last.loss, self.config.optim.lr
        ))
    }

    /// Says that the loss ended above a guess, or above its first value.
    fn went_wrong(&self) -> Option<String> {
        let Self { state, config, outcome, reporting, .. } = self;
        // The loss of another model may be of any kind.
        let is_transformer = TypeId::of::<M>() == TypeId::of::<Transformer>();
        let guess = is_transformer.then(|| course::guess(config, &config.model));
        let valid = outcome.validation.as_ref().filter(|valid| valid.step == state.step);
        reporting.course.warning(valid, guess, config.optim.lr)
    }

    /// Notes at the end of a run what its validations, its replicas and its sources have come to.
    pub(super) fn note_end(&mut self) -> Result<()> {
        if let Some(warning) = self.worsened().or_else(|| self.went_wrong()) {
            self.reporting.logging.note(&warning)?;
        }
        self.note_unread_batches()?;
        match self.state.sources.in_words() {
            Some(sentence) => self.reporting.logging.note(&sentence),
            None => Ok(()),
        }
    }

    /// Says how many batches the run has not read because replicas were away. No batch is read twice.
    fn note_unread_batches(&mut self) -> Result<()> {
        let link = self.state.ranks.link().filter(|_| self.config.train.lost_replicas == LostReplicas::GoOn);
        let Some(planned_size) = link.map(Link::planned_size) else { return Ok(()) };
        let Position { epoch, batch } = self.state.position;
        let read = epoch * self.reporting.watch.source().batches_per_epoch() + batch;
        let planned = self.state.step * (self.config.train.grad_accum_steps * planned_size) as u64;
        if read >= planned {
            return Ok(());
        }
        self.reporting.logging.note(&format!(
            "the run has read {} batches; with all {planned_size} replicas in every step it would have read {}",
            thousands(read as f64),
            thousands(planned as f64)
        ))
    }
}
