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
use super::outcome::{Ended, Outcome};
use super::state::TrainState;
use super::summary;
use super::trainer::Trainer;
use crate::config::LostReplicas;
use crate::device::is_cpu;
use crate::eval::Model;
use crate::metrics::RunMetrics;

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
        self.note_missed_profiles()?;
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

    /// Ends a run that had reached its limit when it was resumed.
    pub(super) fn end_finished_run(&mut self, ended: Ended) -> Result<Outcome> {
        let (step, train) = (self.state.step, &self.config.train);
        let (what, more) = match ended {
            Ended::Steps => ("train.steps", (2 * step).to_string()),
            Ended::NoImprovement => ("train.patience", (2 * train.patience).to_string()),
            _ => ("train.max_minutes", (2.0 * train.max_minutes).to_string()),
        };
        let note = format!(
            "this run is finished: it has reached {what} at step {step}; nothing to do; --set {what}={more} trains longer"
        );
        self.reporting.logging.note(&note)?;
        self.state.ranks.finish()?;
        self.reporting.logging.finish()?;
        Ok(self.outcome.clone())
    }

    /// Returns the totals of the whole run, with the processes before this one.
    pub(super) fn totals(&self, outcome: &Outcome) -> RunMetrics {
        let TrainState { step, train_secs, source_tokens, target_tokens, best, .. } = &self.state;
        let (host, host_syncs) = self.reporting.measured.since_first_step();
        let tokens = source_tokens + target_tokens;
        let device = match is_cpu(&self.state.device) {
            true => summary::Device::Cpu,
            false => summary::Device::Gpu(self.reporting.gpu_busy()),
        };
        let mut run = RunMetrics {
            step: *step,
            outcome: outcome.ended.name().into(),
            train_secs: *train_secs,
            tokens,
            tokens_per_sec: tokens as f64 / train_secs.max(1e-9),
            padding_ratio: outcome.throughput.padding_ratio,
            data_wait_share: outcome.data_wait_share,
            best_step: best.as_ref().map(|best| best.step),
            sources: self.state.sources.clone(),
            host,
            host_syncs,
            summary: String::new(),
        };
        run.summary = summary::sentence(&run, device, self.reporting.watch.source(), &self.config.loader);
        run
    }

    pub(super) fn summarize(&mut self, ended: Ended) -> Outcome {
        let Self { state, outcome, saving, reporting, .. } = self;
        outcome.ended = ended;
        outcome.step = state.step;
        outcome.train_secs = state.train_secs;
        outcome.best = state.best.clone();
        outcome.checkpoint = saving.newest.clone();
        reporting.measured.summarize(outcome);
        outcome.clone()
    }
}
