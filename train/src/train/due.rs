//! What follows a step when it is due: a line of metrics (`lines`), a validation, a checkpoint. Each waits for the device; a
//! comment "host sync" marks the place.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use kiln_data::{BatchSource, Example, OnePass};

use super::held::Held;
use super::new_kernels::NewKernels;
use super::outcome::Ended;
use super::provenance::Provenance;
use super::setup::Validation;
use super::state::TrainState;
use crate::checkpoint::{Checkpoints, Saver};
use crate::config::task::traits_of;
use crate::config::{Config, LostReplicas};
use crate::dataset::Vocabulary;
use crate::eval::{Model, class_scores, figures, score, validation_loss};
use crate::metrics::{SampleMetrics, ValidationMetrics};

/// What is due after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) log: bool,
    pub(super) validate: bool,
    /// Whether the validation generates text, too.
    pub(super) with_text: bool,
    pub(super) save: bool,
    /// Whether the state is kept for a run that goes on without a rank that it loses.
    pub(super) hold: bool,
}

impl Due {
    /// Decides what is due after `step`. `ended` is set if it was the last one, `save_now` if a save was asked for.
    pub(super) fn after(
        step: u64,
        ended: Option<Ended>,
        save_now: bool,
        config: &Config,
        validation: &Validation,
    ) -> Self {
        let train = &config.train;
        // Where devices take steps alone, what is due waits until they have the same weights.
        let between = train.sync_every.max(1);
        let meets = step.is_multiple_of(between) || step == train.steps;
        let before = (step - 1) / between * between;
        let every = |n_steps: u64| n_steps > 0 && meets && step / n_steps > before / n_steps;

        let is_last = matches!(ended, Some(Ended::Steps | Ended::Time));
        let with_text = is_last
            || match train.translate_every {
                0 => train.best_metric.scores_text() || validation.is_small(),
                n_steps => every(n_steps),
            };
        let for_text = every(train.translate_every) && validation.has_text(config.task);
        let validate = validation.source.is_some() && (every(train.validate_every) || for_text || is_last);
        let save = every(train.save_every) || ended.is_some() || save_now;
        // A checkpoint or a validation ends a line, too: a resumed run then lacks no metrics.
        let hold = train.lost_replicas == LostReplicas::GoOn && meets;
        let log = step.is_multiple_of(train.log_every.max(1)) || validate || save || hold;
        Self { log, validate, with_text, save, hold }
    }
}

/// The result of a validation.
pub(super) struct Validated {
    pub(super) metrics: ValidationMetrics,
    /// Translations of [`Validation::examples`], if they were made.
    pub(super) hypotheses: Option<Vec<String>>,
    /// What the model wrote after [`Validation::prompt`], if it did.
    pub(super) continuation: Option<String>,
    pub(super) elapsed: Duration,
}

impl Validation {
    /// Measures the validation set and, `with_text`, translates it or continues its prompt. `None` without a validation set. Kernels
    /// that only the text launches are excluded from `new_kernels`.
    pub(super) fn measure<M: Model>(
        &self,
        state: &TrainState<M>,
        config: &Config,
        vocabulary: &Vocabulary,
        with_text: bool,
        new_kernels: &mut NewKernels,
    ) -> Result<Option<Validated>> {
        let Some(source) = self.source.clone() else { return Ok(None) };
        let start = Instant::now();
        let model = state.for_validation(config.train.use_ema)?;
        let TrainState { ranks, label_smoothing, masking, device, .. } = state;
        let batches = OnePass::for_rank(source, &config.loader, ranks.part())?;
        // Host sync.
        let mut own = BTreeMap::new();
        let (loss, classes) = match traits_of(config.task).classes {
            _ if !M::FIGURES.is_empty() => {
                let found = figures(&model, batches, *label_smoothing, masking.as_ref(), device, ranks)?;
                own = found.1;
                (found.0, None)
            }
            None => {
                let masking = masking.as_ref();
                (validation_loss(&model, batches, *label_smoothing, masking, device, ranks)?, None)
            }
            Some(_) => {
                let names = &config.data.labels.names;
                let (loss, scores) = class_scores(&model, batches, *label_smoothing, names, device, ranks)?;
                (loss, Some(scores))
            }
        };

        let mut metrics = ValidationMetrics {
            step: state.step,
            loss: loss.loss,
            nll: loss.nll,
            target_tokens: loss.target_tokens,
            bits_per_byte: self.n_bytes.map(|n_bytes| loss.bits_per_byte(n_bytes)),
            masked_accuracy: loss.masked.map(|masked| masked.model),
            unigram_accuracy: loss.masked.map(|masked| masked.unigram),
            reward_accuracy: loss.rewards.map(|rewards| rewards.accuracy),
            reward_margin: loss.rewards.map(|rewards| rewards.margin),
            accuracy: classes.as_ref().map(|scores| scores.accuracy),
            macro_f1: classes.as_ref().map(|scores| scores.macro_f1),
            micro_f1: classes.as_ref().map(|scores| scores.micro_f1),
            entity_f1: classes.and_then(|scores| scores.entities).map(|entities| entities.f1),
            figures: own,
            ..ValidationMetrics::default()
        };

        metrics.sources = self.by_source(&model, state, config)?;

        let mut hypotheses = None;
        if with_text && !self.examples.is_empty() {
            let sources: Vec<&str> = self.examples.iter().map(|example| example.source.as_str()).collect();
            let translate = || model.translate(&sources, vocabulary, &config.generate, ranks.part());
            if let Some(lines) = new_kernels.without(translate)? {
                let lines = ranks.merge("sharing the translations", lines)?.into_iter().map(Option::unwrap_or_default);
                let scores = score(lines.collect(), &self.examples, 0.0);
                metrics.bleu = Some(scores.bleu.score);
                metrics.no_four_grams = scores.bleu.has_no_four_grams();
                metrics.chrf = Some(scores.chrf);
                metrics.exact_match = Some(scores.exact_match);
                hypotheses = Some(scores.hypotheses);
            }
        }

        let mut continuation = None;
        if let Some(prompt) = self.prompt_of(config.task).filter(|_| with_text) {
            // Every rank writes it: it is short, and none has to wait for a share.
            continuation = new_kernels.without(|| model.continue_prompt(prompt, vocabulary, config))?;
        }

        let elapsed = start.elapsed();
        metrics.elapsed_secs = elapsed.as_secs_f64();
        Ok(Some(Validated { metrics, hypotheses, continuation, elapsed }))
    }
}

impl Validation {
    /// Returns the negative log-likelihood on each source of a mixture.
    fn by_source<M: Model>(&self, model: &M, state: &TrainState<M>, config: &Config) -> Result<BTreeMap<String, f64>> {
        let TrainState { ranks, label_smoothing, masking, device, .. } = state;
        let nll = |(name, source): &(String, Arc<dyn BatchSource>)| {
            let batches = OnePass::for_rank(source.clone(), &config.loader, ranks.part())?;
            // Host sync.
            let loss = validation_loss(model, batches, *label_smoothing, masking.as_ref(), device, ranks)?;
            Ok((name.clone(), loss.nll))
        };
        self.parts.iter().map(nll).collect()
    }
}

/// Translations that are logged at a validation, always of the same sources.
const N_SAMPLES: usize = 3;

impl Validation {
    /// Returns the first few translations of [`Self::examples`], with what was read and wanted, and the continuation of
    /// [`Self::prompt`].
    pub(super) fn samples(&self, validated: &Validated) -> Vec<SampleMetrics> {
        let step = validated.metrics.step;
        let pairs = self.examples.iter().zip(validated.hypotheses.iter().flatten()).take(N_SAMPLES);
        let sample = |(example, output): (&Example, &String)| SampleMetrics {
            step,
            source: example.source.clone(),
            output: output.clone(),
            reference: Some(example.target.clone()),
        };
        let continued = self.prompt.iter().zip(&validated.continuation).map(|(prompt, output)| SampleMetrics {
            step,
            source: prompt.clone(),
            output: output.clone(),
            reference: None,
        });
        pairs.map(sample).chain(continued).collect()
    }
}

/// The checkpoints of a run.
pub(super) struct Saving {
    saver: Saver,
    provenance: Provenance,
    /// Step of the newest checkpoint.
    saved_step: Option<u64>,
    /// Folder of the newest checkpoint that this process has completed.
    pub(super) newest: Option<PathBuf>,
}

impl Saving {
    pub(super) fn new(
        checkpoints: Checkpoints,
        keep_last: usize,
        provenance: Provenance,
        saved_step: Option<u64>,
    ) -> Self {
        Self { saver: Saver::new(checkpoints, keep_last), provenance, saved_step, newest: None }
    }

    /// Refuses to go on if the run folder is no longer in its place.
    ///
    /// # Errors
    /// If it was moved or deleted.
    pub(super) fn ensure_in_place(&self) -> Result<()> {
        Ok(self.saver.checkpoints().ensure_in_place()?)
    }

    /// Lets `best` name the weights that the run began with, if they are a checkpoint; all ranks see the same folder.
    ///
    /// # Errors
    /// If the pointer cannot be written.
    pub(super) fn start_is_best(&self, is_first: bool) -> Result<bool> {
        let checkpoints = self.saver.checkpoints();
        if is_first {
            return Ok(checkpoints.point_to_start()?);
        }
        Ok(checkpoints.list()?.first().is_some_and(|(step, _)| *step == 0))
    }

    /// Copies what this rank has at the exchange that was just completed.
    pub(super) fn hold<M: Model>(&self, state: &TrainState<M>) -> Result<Held> {
        Ok(Held::new(state.own_copy(&self.provenance)?)) // host sync
    }

    /// Returns whether there is no checkpoint of `step` yet.
    pub(super) fn has_no_checkpoint_of(&self, step: u64) -> bool {
        self.saved_step != Some(step)
    }

    /// Starts a save in the background, on rank 0; all ranks must call it. Waits only for the copy from the device and for the end of an earlier save.
    /// Returns the time that this took.
    pub(super) fn begin<M: Model>(&mut self, state: &TrainState<M>, is_best: bool) -> Result<Duration> {
        let start = Instant::now();
        // Host sync: weights and optimizer state.
        let copy = state.host_copy(&self.provenance)?;
        self.saved_step = Some(state.step);
        if state.ranks.is_first() {
            let before = self.saver.begin(is_best, move || copy.into_snapshot())?;
            self.newest = before.map(|saved| saved.path).or(self.newest.take());
        }
        Ok(start.elapsed())
    }

    /// Notes a save that has completed since the last call. Does not wait.
    ///
    /// # Errors
    /// If the save has failed.
    pub(super) fn poll(&mut self) -> Result<()> {
        self.newest = self.saver.poll()?.map(|saved| saved.path).or(self.newest.take());
        Ok(())
    }

    /// Waits for the save in progress.
    ///
    /// # Errors
    /// If the save has failed.
    pub(super) fn wait(&mut self) -> Result<()> {
        self.newest = self.saver.wait()?.map(|saved| saved.path).or(self.newest.take());
        Ok(())
    }
}
