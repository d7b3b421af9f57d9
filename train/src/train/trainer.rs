//! The loop. Every wait for the device stands under a comment that says "host sync".

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use kiln_data::panic_text;
use kiln_kernels::Settings;
use kiln_metrics::logging::Activity;
use kiln_model::Transformer;
use kiln_ranks::{Link, LinkError, Phase};

use super::best::new_best;
use super::capture::CapturedSteps;
use super::due::{Due, Saving, Validated};
use super::feed::{Group, GroupFeed};
use super::forecast::Forecast;
use super::guard::{StepStart, in_step};
use super::held::Held;
use super::lines::Reporting;
use super::measured::Measured;
use super::outcome::{Ended, Outcome};
use super::patience;
use super::profiling::Profiling;
use super::setup::{Signals, Validation};
use super::state::TrainState;
use super::step::train_step_with;
use super::together::Step;
use crate::config::{Config, LostReplicas};
use crate::dataset::Vocabulary;
use crate::device::{is_cpu, limited_to};
use crate::eval::Model;
use crate::metrics::Span;

/// Trains a model: one of Kiln's, or any other [`Model`].
pub struct Trainer<M: Model = Transformer> {
    pub(super) config: Config,
    /// How the operators compute.
    pub(super) operators: Settings,
    pub(super) state: TrainState<M>,
    pub(super) feed: GroupFeed,
    /// Computes the gradients of a micro-batch, by replay if its shape recurs.
    pub(super) gradients: CapturedSteps<M>,
    pub(super) vocabulary: Vocabulary,
    pub(super) validation: Validation,
    pub(super) reporting: Reporting,
    pub(super) profiling: Profiling,
    pub(super) saving: Saving,
    pub(super) signals: Signals,
    pub(super) outcome: Outcome,
    pub(super) forecast: Forecast,
    /// Whether the run starts from the weights of another one.
    pub(super) has_weights: bool,
    /// Whether the end was put off until the ranks have the same weights.
    pub(super) end_is_deferred: bool,
    /// `train.lost_replicas`: this rank's state after the last exchange.
    pub(super) held: Option<Held>,
}

impl<M: Model> Trainer<M> {
    /// Returns the state that is being trained.
    pub fn state(&self) -> &TrainState<M> {
        &self.state
    }

    /// Returns the configuration, with the `train.split_batches` that
    /// [`Setup::auto_micro_batch`](super::Setup::auto_micro_batch) has found.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns how the operators of this run compute.
    pub fn operators(&self) -> Settings {
        self.operators
    }

    /// Returns the vocabulary.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Returns the data that the run is validated on.
    pub fn validation(&self) -> &Validation {
        &self.validation
    }

    /// Takes this rank's state after the last exchange, if it goes on without a rank that is lost.
    pub(crate) fn take_held(&mut self) -> Option<Held> {
        self.held.take()
    }

    /// Notes how long it took from `began` until the first step can be taken, if there is one to take.
    pub(crate) fn note_ready(&mut self, began: Instant) -> Result<()> {
        if self.state.step >= self.config.train.steps {
            return Ok(());
        }
        let secs = began.elapsed().as_secs_f64();
        self.reporting.logging.note(&format!("ready for the first step after {secs:.1} s"))
    }

    /// Trains to the end, or until stopped.
    ///
    /// # Errors
    /// If data cannot be read, a file cannot be written, the device fails, or a loss is not finite.
    pub fn run(&mut self) -> Result<Outcome> {
        let (_installed, _limited) = (self.operators.install(), limited_to(self.config.train.limit_bytes()));
        if let Some(ended) = self.finished(self.state.train_secs) {
            return self.end_finished_run(ended);
        }

        // Several ranks agree on that after their first step.
        if self.is_asked_to_stop() && !self.state.ranks.are_many() {
            self.reporting.logging.finish()?;
            return Ok(self.summarize(Ended::Stopped));
        }
        if self.has_weights && self.state.step == 0 {
            self.validate_weights()?; // host sync
        }

        self.note_profiles()?;
        if let Some(note) = self.reporting.limit.note(&self.config) {
            self.reporting.logging.note(&note)?;
        }
        self.forecast.start();
        self.reporting.measured.restart();
        let ended = self.steps().inspect_err(|error| self.reporting.log_completed_steps(&mut self.state, error))?;

        self.note_end()?;
        let outcome = self.summarize(ended);
        self.reporting.logging.end(&self.totals(&outcome))?;
        self.reporting.logging.finish()?;
        Ok(outcome)
    }

    /// Takes steps until the run ends.
    fn steps(&mut self) -> Result<Ended> {
        let ended = loop {
            self.state.ranks.enter(Phase::Step);
            self.begin_profile()?; // host sync, before a step of train.profile_at
            let group = self.feed.next_group(&mut self.reporting.measured.clock)?; // uploaded ahead
            let Step { facts, ended, save_now, regroup, .. } = self.step(&group)?; // stays on the device
            self.end_profile(&group, &facts)?; // host sync, after a step of train.profile_at
            self.saving.poll()?;

            let due = Due::after(self.state.step, ended, save_now, &self.config, &self.validation);
            if due.log {
                self.saving.ensure_in_place()?;
                self.reporting.end_line(self.state.step, self.gradients.take_replayed());
            }
            let read = self.reporting.read_lines(&mut self.state, due.validate || due.save || due.hold)?; // host sync
            self.note_time_left(facts.padded_tokens, read)?;
            let is_best = due.validate && self.validate_or_save(due)?; // host sync
            let ended = match ended {
                None => self.end_without_improvement(due)?,
                ended => ended,
            };
            if is_best || ((due.save || ended.is_some()) && self.saving.has_no_checkpoint_of(self.state.step)) {
                self.state.ranks.enter(Phase::Save);
                self.reporting.logging.flush()?; // a run that resumes here lacks no metrics
                let elapsed = self.saving.begin(&self.state, is_best)?; // host sync
                self.reporting.measured.clock.add(Span::Save, elapsed);
            }
            if due.hold {
                self.reporting.logging.flush()?;
                self.held = Some(self.saving.hold(&self.state)?); // host sync
            }
            if due.validate || due.save || due.hold {
                self.reporting.measured.exclude_pause();
                self.reporting.device_clock.exclude_pause();
            }
            if let Some(ended) = ended {
                break ended;
            }
            if regroup {
                self.saving.wait()?;
                bail!(LinkError::Superseded);
            }
        };

        self.write_profile()?;
        // Wait for the save in progress: the run has finished only if it succeeds.
        self.saving.wait()?;
        self.saving.ensure_in_place()?;
        self.state.ranks.finish()?;
        Ok(ended)
    }

    /// Enqueues one optimizer step, and agrees with the other ranks on what follows.
    pub(super) fn step(&mut self, group: &Group) -> Result<Step> {
        let Self { state, gradients, reporting, .. } = self;
        let (step, micro_step) = (state.step + 1, state.micro_steps);
        reporting.watch.begin(StepStart { step, position: state.position, micro_step });

        // A backend that runs out of memory while enqueuing panics; the error names the batch.
        let Measured { clock, .. } = &mut reporting.measured;
        let (logging, number) = (&mut reporting.logging, state.step + 1);
        let (mut micro_batch, of) = (0, group.batches.len());
        let numbered: Vec<_> = group.numbers.iter().copied().zip(&group.batches).collect();
        let step = || {
            train_step_with(state, &numbered, group.n_numbers, |state, batch, before| {
                micro_batch += 1;
                // Only the console shows it.
                let _ = logging.begin(Activity::Step { step: number, micro_batch, of });
                group.by_source(micro_batch, gradients.compute(state, batch, before))
            })
        };
        let take_step = || catch_unwind(AssertUnwindSafe(step));
        reporting.device_clock.begin_step();
        let measures = clock
            .time(Span::Enqueue, take_step)
            .map_err(|panic| in_step(anyhow!(panic_text(&*panic)), group.largest_shape()))??;
        reporting.device_clock.end_step();
        state.ranks.check()?;

        gradients.take_notes().iter().try_for_each(|note| reporting.logging.note(note))?;
        state.position = group.next;
        let step = self.step_of_this_rank(group).agreed_by_all(&self.state.ranks)?;
        let step = self.defer_to_exchange(step)?;
        let Self { state, reporting, .. } = self;
        state.source_tokens += step.facts.source_tokens;
        state.target_tokens += step.facts.tokens - step.facts.source_tokens;
        state.sources.merge(&step.facts.sources);
        reporting.deferred.push(step.facts.clone(), measures);
        reporting.measured.count(group, step.flops);
        Ok(step)
    }

    /// Where ranks take steps alone, puts the end and a save that was asked for off until they have the same weights.
    fn defer_to_exchange(&mut self, step: Step) -> Result<Step> {
        let meeting = self.state.exchange.next_meeting(self.state.step);
        if meeting == self.state.step {
            return Ok(step);
        }
        if step.save_now {
            self.signals.save_now.store(true, Ordering::Relaxed);
        }
        if step.ended.is_some() && !std::mem::replace(&mut self.end_is_deferred, true) {
            let note =
                format!("the run ends with step {meeting}, when the outer optimizer takes a step (train.sync_every)");
            self.reporting.logging.note(&note)?;
        }
        Ok(Step { ended: None, save_now: false, regroup: false, ..step })
    }

    /// Returns the step that was just enqueued.
    fn step_of_this_rank(&self, group: &Group) -> Step {
        Step {
            facts: group.facts(&self.state),
            flops: self.state.flops(group.shapes()),
            ended: self.ended(),
            stop: self.is_asked_to_stop(),
            save_now: self.signals.save_now.swap(false, Ordering::Relaxed),
            regroup: self.is_regrouped(),
        }
    }

    /// Returns whether other ranks train together from here on. Rank 0 reads a file, after an exchange only.
    fn is_regrouped(&self) -> bool {
        let Self { state, config, .. } = self;
        config.train.lost_replicas == LostReplicas::GoOn
            && state.exchange.next_meeting(state.step) == state.step
            && state.ranks.is_first()
            && state.ranks.link().is_some_and(Link::is_superseded)
    }

    /// Validates; if that fails, saves a checkpoint that is due before the run ends. Several ranks cannot: another one may be gone.
    fn validate_or_save(&mut self, due: Due) -> Result<bool> {
        self.validate(due.with_text).inspect_err(|_| {
            if due.save && self.saving.has_no_checkpoint_of(self.state.step) && !self.state.ranks.are_many() {
                // The error that is reported is the one of the validation.
                let _ = self.saving.begin(&self.state, false).and_then(|_| self.saving.wait());
            }
        })
    }

    /// Validates, logs the result, and returns whether it is the best so far.
    fn validate(&mut self, with_text: bool) -> Result<bool> {
        let Self { state, config, vocabulary, validation, reporting: Reporting { logging, measured, .. }, .. } = self;
        state.ranks.enter(Phase::Validate);
        logging.begin(Activity::Work("validating"))?;
        let found = validation.measure(state, config, vocabulary, with_text, &mut measured.new_kernels)?;
        let Some(validated) = found else { return Ok(false) };
        measured.clock.add(Span::Validate, validated.elapsed);
        logging.validation(&validated.metrics)?;
        for sample in validation.samples(&validated) {
            logging.sample(&sample)?;
        }
        let Validated { metrics, hypotheses, continuation, .. } = validated;
        let best = new_best(&metrics, &config.train.best_metric, state.best.as_ref());
        let is_best = best.is_some();
        state.best = best.or(state.best.take());
        state.patience = patience::after(&metrics, &config.train, state.patience.as_ref());
        self.outcome.hypotheses = hypotheses.unwrap_or(std::mem::take(&mut self.outcome.hypotheses));
        self.outcome.continuation = continuation;
        self.outcome.validation = Some(metrics);
        Ok(is_best)
    }

    /// Ends the run if its validations have brought no improvement for too long. All ranks have the same numbers.
    fn end_without_improvement(&mut self, due: Due) -> Result<Option<Ended>> {
        let Self { state, config: Config { train, .. }, reporting, .. } = self;
        if !due.validate || !patience::is_exhausted(state.patience.as_ref(), train) {
            return Ok(None);
        }
        let best = state.best.as_ref().map_or(String::new(), |best| format!("; the best one is of step {}", best.step));
        let note = format!(
            "{} brought no improvement of {} by more than {} (train.patience, train.min_improvement): the run ends \
             with step {}{best}",
            kiln_metrics::units::counted(train.patience, "validation"),
            train.best_metric.name(),
            train.min_improvement,
            state.step
        );
        reporting.logging.note(&note)?;
        Ok(Some(Ended::NoImprovement))
    }

    /// Notes once how long the training will take, after a step of `padded_tokens`. `read` are the padded tokens of the lines that
    /// were read after it.
    fn note_time_left(&mut self, padded_tokens: u64, read: Option<u64>) -> Result<()> {
        // The CPU has completed a step when it returns; of a GPU that is known when the step is read.
        let completed = if is_cpu(&self.state.device) { Some(padded_tokens) } else { read };
        let Some(completed) = completed else { return Ok(()) };
        let left = self.config.train.steps.saturating_sub(self.state.step);
        match self.forecast.observe(completed, read.is_some(), left, &self.config) {
            Some(sentence) => self.reporting.logging.note(&sentence),
            None => Ok(()),
        }
    }

    fn is_asked_to_stop(&self) -> bool {
        self.signals.stop.load(Ordering::Relaxed)
    }

    /// Returns why the run ends after the step in progress, if it does.
    fn ended(&self) -> Option<Ended> {
        let train_secs = self.state.train_secs + self.reporting.measured.window_start.elapsed().as_secs_f64();
        self.finished(train_secs).or_else(|| self.is_asked_to_stop().then_some(Ended::Stopped))
    }

    /// Returns which limit the run has reached after `train_secs` of training, if any.
    fn finished(&self, train_secs: f64) -> Option<Ended> {
        if self.state.step >= self.config.train.steps {
            return Some(Ended::Steps);
        }
        if patience::is_exhausted(self.state.patience.as_ref(), &self.config.train) {
            return Some(Ended::NoImprovement);
        }
        let limit_secs = self.config.train.max_minutes * 60.0;
        (limit_secs > 0.0 && train_secs >= limit_secs).then_some(Ended::Time)
    }
}
