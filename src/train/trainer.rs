//! The loop. Every wait for the device stands under a comment that says "host sync".

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use burn::module::Module;
use burn::tensor::Device;
use kiln_data::{BatchSource, Example, Loader, OnePass, panic_text};
use kiln_kernels::Settings;
use kiln_model::Transformer;

use super::capture::CapturedSteps;
use super::deterministic::ensure_repeatable;
use super::device_failure::in_step;
use super::feed::{Group, GroupFeed};
use super::measured::Measured;
use super::non_finite::{StepStart, Watch};
use super::probe::{fit, try_largest};
use super::provenance::Provenance;
use super::state::TrainState;
use super::warm_up::warm_up;
use crate::checkpoint::{Best, Checkpoints, NamedTensor, Resume, Saved, Saver};
use crate::config::Config;
use crate::dataset::Vocabulary;
use crate::device::{compute_dtype, is_cpu, peak_flops_per_sec, reserved_bytes};
use crate::eval::{Masking, evaluate, validation_loss};
use crate::generate::Translator;
use crate::logging::Logging;
use crate::metrics::deferred::DeferredMetrics;
use crate::metrics::{Outliers, Span, Throughput, ValidationMetrics, WindowMetrics};

/// Everything that a run is made of.
pub struct Setup {
    /// Complete and validated; the model's vocabulary sizes filled in, see [`Vocabulary::complete`].
    pub config: Config,
    /// Where checkpoints go.
    pub run_dir: PathBuf,
    /// Where to compute.
    pub device: Device,
    /// The vocabulary.
    pub vocabulary: Vocabulary,
    /// Weights to start from, instead of drawn ones. A resumed run has its own.
    pub weights: Option<Vec<NamedTensor>>,
    /// Training data.
    pub train: Arc<dyn BatchSource>,
    /// Validation data.
    pub valid: Option<Arc<dyn BatchSource>>,
    /// lm: UTF-8 bytes of the validation text, to measure bits per byte with.
    pub valid_bytes: Option<u64>,
    /// Translation: text to translate and score after the last step; may be empty.
    pub valid_examples: Vec<Example>,
    /// Where numbers go.
    pub logging: Logging,
    /// Set it to have the run saved and ended after the step in progress.
    pub stop: Arc<AtomicBool>,
    /// Set it to have the run saved after the step in progress and go on; it is cleared then.
    pub save_now: Arc<AtomicBool>,
    /// Raise `train.split_batches` until the largest batch fits into memory.
    pub auto_micro_batch: bool,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// `train.steps` are done.
    Steps,
    /// `train.max_minutes` are over.
    Time,
    /// [`Setup::stop`] was set; the run can be resumed.
    Stopped,
    /// There was nothing left to do when it was resumed.
    AlreadyFinished,
}

/// What came out.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Why it ended.
    pub ended: Ended,
    /// Optimizer steps done since the very beginning.
    pub step: u64,
    /// Seconds of training since the very beginning, validation and saving left out.
    pub train_secs: f64,
    /// Speed over this process's training time.
    pub throughput: Throughput,
    /// Share of this process's training time spent waiting for data, 0 to 1.
    pub data_wait_share: f64,
    /// The last validation of this process.
    pub validation: Option<ValidationMetrics>,
    /// The best validation since the very beginning.
    pub best: Option<Best>,
    /// Translations of [`Setup::valid_examples`], if they were made.
    pub hypotheses: Vec<String>,
    /// The newest checkpoint of this process.
    pub checkpoint: Option<PathBuf>,
    /// Kernels that were first launched after the first line of metrics, by training or validation: 0 if every shape was
    /// warmed up. `None` where nothing is compiled.
    pub late_kernels: Option<usize>,
}

/// Trains.
pub struct Trainer {
    config: Config,
    operators: Settings,
    state: TrainState,
    feed: GroupFeed,
    valid: Option<Arc<dyn BatchSource>>,
    valid_bytes: Option<u64>,
    valid_examples: Vec<Example>,
    vocabulary: Vocabulary,
    saver: Saver,
    provenance: Provenance,
    logging: Logging,
    stop: Arc<AtomicBool>,
    save_now: Arc<AtomicBool>,
    deferred: DeferredMetrics,
    outliers: Outliers,
    watch: Watch,
    captured: CapturedSteps,
    measured: Measured,
    saved_step: Option<u64>,
    outcome: Outcome,
}

impl Trainer {
    /// Prepares a fresh run, or continues one: a run must be resumed with what it was begun with, see
    /// [`find_resume`](crate::checkpoint::find_resume).
    pub fn new(setup: Setup, resume: Option<Resume>) -> Result<Self> {
        let Setup { mut config, run_dir, device, vocabulary, weights, train, valid, valid_bytes, .. } = setup;
        let Setup { valid_examples, mut logging, stop, save_now, auto_micro_batch, .. } = setup;
        let dtype = compute_dtype(config.train.precision, &device)?;
        // On the CPU every sum has a fixed order anyway.
        let operators =
            Settings { deterministic: config.train.deterministic && !is_cpu(&device), ..Settings::current() };
        let _installed = operators.install();
        let checkpoints = Checkpoints::of_run(&run_dir);
        checkpoints.clean()?;
        if let Some(resume) = &resume {
            checkpoints.point_to(&resume.path, &resume.snapshot)?;
        }
        let saved_step = resume.as_ref().map(|resume| resume.snapshot.state.step);
        let masking = Masking::of(&config, &vocabulary)?;
        let begin = || -> Result<TrainState> {
            let mut state = match (&resume, &weights) {
                (None, None) => TrainState::new(&config, &config.model, dtype, &device),
                (None, Some(weights)) => TrainState::from_weights(&config, &config.model, weights, dtype, &device)?,
                (Some(resume), _) => TrainState::restore(&config, &resume.snapshot, dtype, &device)
                    .with_context(|| format!("resuming from {}", resume.path.display()))?,
            };
            state.masking.clone_from(&masking);
            Ok(state)
        };
        let is_finished = saved_step.is_some_and(|step| step >= config.train.steps);
        let started = Instant::now();
        let (accum, splits) = (config.train.grad_accum_steps, config.train.split_batches);
        let (state, splits) = if is_finished {
            (begin()?, splits)
        } else {
            let attempt = |state: &_, splits| try_largest(state, &train, valid.as_ref(), accum, splits);
            fit(&device, splits, auto_micro_batch, begin, attempt, |note| logging.note(note))?
        };
        config.train.split_batches = splits;
        // The state has copies.
        drop((resume, weights));
        if !is_finished {
            if config.train.deterministic {
                logging.note(&ensure_repeatable(&state, &train, splits)?)?;
            }
            // The CPU compiles nothing.
            if config.train.warm_up && !is_cpu(&device) {
                let sources = [Some(&train), valid.as_ref()];
                let warmed = warm_up(&state, sources, [accum, splits], started, |done, of| {
                    logging.preparing("warming up", done, of)
                })?;
                logging.note(&warmed.to_string())?;
            }
        }
        let provenance = Provenance::new(&config, train.fingerprint(), &vocabulary, &run_dir)?;
        let watch = Watch::new(&config, &run_dir, train.clone());
        let loader = Loader::new(train, &config.loader, config.seed, state.position)?;
        let captured = CapturedSteps::new(config.train.capture, &device);
        let feed = GroupFeed::new(loader, state.position, &config.train, device.clone());
        let saver = Saver::new(checkpoints, config.train.keep_last);
        let outcome = Outcome {
            ended: Ended::AlreadyFinished,
            step: state.step,
            train_secs: state.train_secs,
            throughput: Throughput::default(),
            data_wait_share: 0.0,
            validation: None,
            best: state.best,
            hypotheses: Vec::new(),
            checkpoint: None,
            late_kernels: None,
        };
        Ok(Self {
            measured: Measured::start(peak_flops_per_sec(&device, dtype)),
            config,
            operators,
            state,
            feed,
            valid,
            valid_bytes,
            valid_examples,
            vocabulary,
            saver,
            provenance,
            logging,
            stop,
            save_now,
            deferred: DeferredMetrics::default(),
            outliers: Outliers::default(),
            watch,
            captured,
            saved_step,
            outcome,
        })
    }

    /// What is being trained.
    pub fn state(&self) -> &TrainState {
        &self.state
    }

    /// The configuration, with what [`Setup::auto_micro_batch`] has found.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Trains to the end, or until stopped.
    pub fn run(&mut self) -> Result<Outcome> {
        let _installed = self.operators.install();
        if let Some(ended) = self.finished(self.state.train_secs) {
            let what = if ended == Ended::Steps { "train.steps" } else { "train.max_minutes" };
            self.logging.note(&format!(
                "this run is finished: it stands at step {} and {what} is reached; nothing to do",
                self.state.step
            ))?;
            self.logging.finish()?;
            return Ok(self.outcome.clone());
        }
        self.measured.restart();
        loop {
            let group = self.feed.next_group(&mut self.measured.clock)?;
            self.step(&group)?;
            let train_secs = self.state.train_secs + self.measured.window_start.elapsed().as_secs_f64();
            let ended =
                self.finished(train_secs).or_else(|| self.stop.load(Ordering::Relaxed).then_some(Ended::Stopped));
            if ended.is_none() {
                // The device is busy with the step; the next group is on its way meanwhile.
                self.feed.prefetch(&mut self.measured.clock)?;
            }
            let saved = self.saver.poll()?;
            self.note_saved(saved);
            self.report(ended)?;
            if let Some(ended) = ended {
                self.outcome.ended = ended;
                break;
            }
        }
        // What is on its way to disk decides whether the run can be told to be over.
        let saved = self.saver.wait()?;
        self.note_saved(saved);
        self.logging.finish()?;
        self.outcome.step = self.state.step;
        self.outcome.train_secs = self.state.train_secs;
        self.outcome.best = self.state.best;
        self.measured.summarize(&mut self.outcome);
        Ok(self.outcome.clone())
    }

    /// Whether nothing is left to do after `train_secs` of training, and why.
    fn finished(&self, train_secs: f64) -> Option<Ended> {
        if self.state.step >= self.config.train.steps {
            return Some(Ended::Steps);
        }
        let limit_secs = self.config.train.max_minutes * 60.0;
        (limit_secs > 0.0 && train_secs >= limit_secs).then_some(Ended::Time)
    }

    /// Enqueues one optimizer step.
    fn step(&mut self, group: &Group) -> Result<()> {
        let (step, micro_step) = (self.state.step + 1, self.state.micro_steps);
        self.watch.begin(StepStart { step, position: self.state.position, micro_step });
        let Self { state, captured, measured: Measured { clock, .. }, .. } = self;
        // A backend that runs out of memory while enqueuing panics; the user wants to know the batch.
        let step = || catch_unwind(AssertUnwindSafe(|| captured.step(state, &group.batches)));
        let measures = clock
            .time(Span::Step, step)
            .map_err(|panic| in_step(anyhow!(panic_text(&*panic)), group.largest_shape()))?;
        let notes = self.captured.take_notes();
        notes.iter().try_for_each(|note| self.logging.note(note))?;
        self.state.position = group.next;
        self.deferred.push(group.facts(&self.state), measures);
        self.measured.count(group, &self.config.model);
        Ok(())
    }

    /// Writes, validates and saves what is due after a step.
    fn report(&mut self, ended: Option<Ended>) -> Result<()> {
        let train = &self.config.train;
        let step = self.state.step;
        let due = |every: u64| every > 0 && step.is_multiple_of(every);
        let at_end = matches!(ended, Some(Ended::Steps | Ended::Time));
        let validate = self.valid.is_some() && (due(train.validate_every) || at_end);
        let save = due(train.save_every) || ended.is_some() || self.save_now.swap(false, Ordering::Relaxed);
        // A checkpoint or a validation ends a line too: then no measurement is in the air that a resumed run would lack.
        if due(train.log_every) || validate || save {
            self.log()?; // host sync
        }
        let is_best = validate && self.validate(at_end)?; // host sync
        if is_best || (save && self.saved_step != Some(step)) {
            self.save(is_best)?; // host sync
        }
        if validate || save {
            self.measured.leave_out();
        }
        Ok(())
    }

    /// Reads what the steps since the last line have measured. The host waits for the device here.
    fn log(&mut self) -> Result<()> {
        let Self { deferred, measured, state, .. } = self;
        let rate = state.optimizer.learning_rate();
        // Host sync: a few numbers a step.
        let steps = measured.clock.time(Span::Drain, || deferred.drain(|update| rate.at(update)));
        let mut steps = steps.map_err(|error| in_step(error.into(), measured.largest))?;
        if let Some(last) = steps.last() {
            state.optimizer.observe(last.updates);
        }
        steps.truncate(Watch::n_valid(&steps));
        steps.iter_mut().for_each(|step| self.outliers.mark(step));
        let totals = measured.end_window(&steps);
        self.state.train_secs += totals.training().as_secs_f64();
        let throughput = measured.window.take(totals.training(), measured.peak_flops_per_sec);
        for step in &steps {
            self.logging.step(step)?;
        }
        if let Some(mut window) = WindowMetrics::new(&steps, throughput, totals.data_wait_share()) {
            window.new_kernels = measured.new_kernels.take();
            window.memory_bytes = reserved_bytes(&self.state.device);
            self.logging.window(&window)?;
            let notes = self.watch.look(&steps, &self.state, self.state.non_finite_steps)?;
            notes.iter().try_for_each(|note| self.logging.note(note))?;
            self.state.non_finite_steps += window.non_finite_steps;
        }
        Ok(())
    }

    /// Measures the validation set; at the end of a run, translates it too. Returns whether this is the best loss so far.
    fn validate(&mut self, with_text: bool) -> Result<bool> {
        let Some(valid) = self.valid.clone() else { return Ok(false) };
        let start = Instant::now();
        let model = self.state.model.valid();
        let batches = OnePass::new(valid, &self.config.loader)?;
        // Host sync.
        let masking = self.state.masking.as_ref();
        let loss = validation_loss(&model, batches, self.state.label_smoothing, masking, &self.state.device)?;
        let mut metrics = ValidationMetrics {
            step: self.state.step,
            loss: loss.loss,
            nll: loss.nll,
            target_tokens: loss.target_tokens,
            bits_per_byte: self.valid_bytes.map(|n_bytes| loss.bits_per_byte(n_bytes)),
            masked_accuracy: loss.masked.map(|masked| masked.model),
            unigram_accuracy: loss.masked.map(|masked| masked.unigram),
            ..ValidationMetrics::default()
        };
        if with_text
            && let (Transformer::EncoderDecoder(model), Vocabulary::Pairs(tokenizers)) = (&model, &self.vocabulary)
            && !self.valid_examples.is_empty()
        {
            let translator = Translator::new(model, tokenizers.clone(), self.config.generate.clone())?;
            let translate = || evaluate(&translator, &self.valid_examples);
            let scores = self.measured.new_kernels.without(translate)?;
            metrics.bleu = Some(scores.bleu.score);
            metrics.chrf = Some(scores.chrf);
            metrics.exact_match = Some(scores.exact_match);
            self.outcome.hypotheses = scores.hypotheses;
        }
        let elapsed = start.elapsed();
        metrics.elapsed_secs = elapsed.as_secs_f64();
        self.measured.clock.add(Span::Validate, elapsed);
        self.logging.validation(&metrics)?;
        let is_best = loss.loss.is_finite() && self.state.best.is_none_or(|best| loss.loss < best.loss);
        if is_best {
            self.state.best = Some(Best { step: self.state.step, loss: loss.loss });
        }
        self.outcome.validation = Some(metrics);
        Ok(is_best)
    }

    /// Hands a checkpoint to the saver. Only the copy from the device, and the end of a save still under way, are waited for.
    fn save(&mut self, is_best: bool) -> Result<()> {
        let start = Instant::now();
        // Host sync: weights and moments.
        let copy = self.state.host_copy(&self.provenance)?;
        let before = self.saver.begin(is_best, move || copy.into_snapshot())?;
        self.note_saved(before);
        self.measured.clock.add(Span::Save, start.elapsed());
        self.saved_step = Some(self.state.step);
        Ok(())
    }

    fn note_saved(&mut self, saved: Option<Saved>) {
        if let Some(saved) = saved {
            self.outcome.checkpoint = Some(saved.path);
        }
    }
}
