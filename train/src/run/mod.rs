//! The life of a run: its folder and lock, the weights it starts from, resuming it, and using its checkpoints.
//!
//! ```no_run
//! use kiln_train::{Config, Run};
//!
//! let config = Config::preset("tiny").set("train.steps", 500).validate()?;
//! let outcome = Run::create("runs/a", config)?.train()?;
//! println!("loss {:.3}", outcome.validation.expect("the built-in task has validation text").loss);
//! println!("{}", Run::open("runs/a")?.translate(&["1074"])?[0]);
//! # Ok::<(), anyhow::Error>(())
//! ```

mod caches_before;
mod done;
mod error;
mod evaluate;
pub mod folder;
mod leftovers;
mod lock;
#[doc(hidden)]
pub mod need;
mod new_run;
mod new_vocabulary;
mod plan;
mod prepare;
mod ranks;
mod rehearse;
mod resume;
mod shapes;
mod start;
mod trained_model;
mod weights;

use std::path::{Path, PathBuf};

use anyhow::Result;
use burn::tensor::Device;
use kiln_model::TransformerConfig;

pub use error::RunError;
pub use evaluate::{Scores, Scoring};
pub use lock::{LOCK_FILE, LockError, RunLock};
pub use new_run::{NewRun, write_run};
pub use prepare::Prepared;
#[doc(hidden)]
pub use prepare::Survey;
#[doc(hidden)]
pub use ranks::compare_use;
#[doc(hidden)]
pub use rehearse::Rehearsal;
pub use start::Session;
pub use trained_model::{TrainedModel, WhichWeights};
#[cfg(test)]
pub(crate) use weights::start_from;

use kiln_ranks::{Link, Ranks};

use crate::checkpoint::RUN_CONFIG_FILE;
use crate::config::{Config, Sources, load};
use crate::dataset::{OwnData, RunData};
use crate::device::DeviceChoice;
use crate::eval::Model;
use crate::generate::{Continuation, Filled, MaskFiller, TextGenerator, Translator};
use crate::train::{Outcome, Signals, StepProfiler};

/// A training run: a folder, a configuration, and how to compute.
///
/// [`Self::train`] and [`Self::resume`] train; [`Self::evaluate`], [`Self::translate`], [`Self::generate`] and
/// [`Self::fill`] use the best checkpoint, or the last one of a run without validation. A file lock keeps two processes
/// from training in one folder.
pub struct Run {
    dir: PathBuf,
    config: Config,
    /// How to compute; [`Options::default`] suits a library.
    pub options: Options,
}

/// How a run computes, and what it reports. None of it changes a default result.
#[derive(Debug, Default)]
pub struct Options {
    /// The device to compute on.
    pub device: DeviceChoice,
    /// A model whose weights, vocabulary and data settings a new run starts from.
    pub from: Option<TrainedModel>,
    /// Make or read the vocabulary as the configuration says, instead of taking the one of `from`. Weights of tokens that both
    /// have are kept.
    pub new_vocabulary: bool,
    /// Keys whose values may differ from the checkpoint's when the run is resumed (`optim.lr`, `optim`).
    pub allow: Vec<String>,
    /// Raise `train.split_batches` until the largest batch fits into memory.
    pub auto_micro_batch: bool,
    /// Compute every operator by its reference definition instead of its kernel: slow, for comparisons.
    pub reference_operators: bool,
    /// Show notes and progress on stderr.
    pub console: bool,
    /// Sentences about the configuration, which are noted before the first step.
    pub notes: Vec<String>,
    /// Data of the program's own, in place of the files of the configuration.
    pub data: Option<OwnData>,
    /// The connection to the other processes that train the run together with this one, each on a device of its own. All make
    /// the same calls; rank 0 alone writes files and notes.
    pub link: Option<Link>,
    /// Measures the steps of `train.profile_at`. The command passes one on; without it they are not profiled, and a note says so.
    #[doc(hidden)]
    pub profiler: Option<Box<dyn StepProfiler>>,
}

impl Run {
    /// Names a new run. Its folder must not hold a run yet; it may hold the token caches.
    ///
    /// # Errors
    /// [`RunError::Exists`] if the folder holds a run.
    pub fn create(dir: impl Into<PathBuf>, config: Config) -> Result<Self, RunError> {
        let dir = dir.into();
        if !folder::is_free(&dir)? {
            return Err(RunError::Exists { dir, remedy: "open it, or choose another folder".into() });
        }
        Ok(Self::in_folder(dir, config))
    }

    /// Opens the run in a folder, with the configuration that it was trained with.
    ///
    /// # Errors
    /// [`RunError::NoRun`] if the folder holds none, or if its configuration is not valid.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self> {
        let dir = dir.into();
        let file = dir.join(RUN_CONFIG_FILE);
        if !file.is_file() {
            return Err(RunError::NoRun(dir).into());
        }
        let config = load(&Sources { file: Some(file), ..Sources::default() })?;
        Ok(Self::in_folder(dir, config))
    }

    /// Names the run in `dir`, whether the folder holds one or not.
    #[doc(hidden)]
    pub fn in_folder(dir: PathBuf, config: Config) -> Self {
        Self { dir, config, options: Options::default() }
    }

    /// Returns the run with another device; the default is the first GPU if there is one, else the CPU.
    pub fn on(mut self, device: DeviceChoice) -> Self {
        self.options.device = device;
        self
    }

    /// Returns the run with notes and progress on stderr.
    pub fn with_console(mut self) -> Self {
        self.options.console = true;
        self
    }

    /// Returns the run folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the configuration. Vocabulary sizes of 0 are filled in when the run starts.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Trains a new run to its end.
    ///
    /// # Errors
    /// If the folder holds a run already or cannot be written, if the data cannot be used, or if the training fails.
    pub fn train(self) -> Result<Outcome> {
        self.prepare(false)?.start(Signals::default())?.train()
    }

    /// Trains a new run of another model than Kiln's own. `init` returns the model with initial weights in f32 on the
    /// device that it gets, which tracks gradients. Its configuration is the run's `model` section with the vocabulary
    /// sizes filled in; the model may use as much of it as it likes.
    ///
    /// # Errors
    /// As [`Self::train`].
    pub fn train_model<M: Model>(self, init: impl Fn(&TransformerConfig, &Device) -> M) -> Result<Outcome> {
        self.prepare(false)?.start_model(Signals::default(), init)?.train()
    }

    /// Continues the run from its newest sound checkpoint. A run that is finished already returns
    /// [`Ended::AlreadyFinished`](crate::train::Ended::AlreadyFinished).
    ///
    /// # Errors
    /// If configuration, data or vocabulary are not those of the checkpoint, or if the training fails.
    pub fn resume(self) -> Result<Outcome> {
        self.prepare(true)?.start(Signals::default())?.train()
    }

    /// Continues the run of another model than Kiln's own, see [`Self::train_model`].
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn resume_model<M: Model>(self, init: impl Fn(&TransformerConfig, &Device) -> M) -> Result<Outcome> {
        self.prepare(true)?.start_model(Signals::default(), init)?.train()
    }

    /// Trains a new run on a data set of your own instead of the files of its configuration. `data` holds the batch
    /// source and the vocabulary that the checkpoints save; `examples/custom_source.rs` shows how to make it.
    ///
    /// # Errors
    /// As [`Self::train`].
    pub fn train_on(self, data: RunData) -> Result<Outcome> {
        self.prepare_with(false, Some(data))?.start(Signals::default())?.train()
    }

    /// Continues a run on a data set of your own, see [`Self::train_on`].
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn resume_on(self, data: RunData) -> Result<Outcome> {
        self.prepare_with(true, Some(data))?.start(Signals::default())?.train()
    }

    /// Trains a new run of another model than Kiln's own on a data set of your own: [`Self::train_model`] and [`Self::train_on`] in
    /// one. `examples/error_detector` shows both.
    ///
    /// # Errors
    /// As [`Self::train`].
    pub fn train_model_on<M: Model>(
        self,
        data: RunData,
        init: impl Fn(&TransformerConfig, &Device) -> M,
    ) -> Result<Outcome> {
        self.prepare_with(false, Some(data))?.start_model(Signals::default(), init)?.train()
    }

    /// Continues a run of another model than Kiln's own on a data set of your own, see [`Self::train_model_on`].
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn resume_model_on<M: Model>(
        self,
        data: RunData,
        init: impl Fn(&TransformerConfig, &Device) -> M,
    ) -> Result<Outcome> {
        self.prepare_with(true, Some(data))?.start_model(Signals::default(), init)?.train()
    }

    /// Scores the run on its validation text.
    ///
    /// # Errors
    /// If the run has no checkpoint or no validation text, or if the device fails.
    pub fn evaluate(&self) -> Result<Scores> {
        let model = self.trained()?.with_split_rows();
        let (generate, device) = (model.config.generate.clone(), self.device()?);
        let scoring = Scoring { run: &model, generate, int8: None, device: &device, ranks: &Ranks::alone() };
        scoring.score(&[], &mut |line| self.note(line))
    }

    /// Translates lines, in order; an empty line stays empty.
    ///
    /// # Errors
    /// [`RunError::OtherTask`] if the run does not translate; or if a line is too long.
    pub fn translate<S: AsRef<str>>(&self, lines: &[S]) -> Result<Vec<String>> {
        let (run, device) = (self.trained()?, self.device()?);
        let (model, tokenizers) = run.translation(run.dtype_on(&device)?, &device)?;
        Ok(Translator::new(&model, tokenizers, run.config.generate)?.translate(lines, 0)?)
    }

    /// Continues prompts, in order.
    ///
    /// # Errors
    /// [`RunError::OtherTask`] if the run does not continue text; or if a prompt is empty or too long.
    pub fn generate<S: AsRef<str>>(&self, prompts: &[S]) -> Result<Vec<Continuation>> {
        let (run, device) = (self.trained()?, self.device()?);
        let (model, tokenizer) = run.language_model(run.dtype_on(&device)?, &device)?;
        Ok(TextGenerator::new(&model, tokenizer, run.config.generate)?.generate(prompts, 0)?)
    }

    /// Fills in the masks of lines, in order, with up to `top_k` candidates for each mask. A mask is written as the mask
    /// token of the run's vocabulary or as `[MASK]`.
    ///
    /// # Errors
    /// [`RunError::OtherTask`] if the run does not fill in hidden tokens, [`RunError::NoMaskedHead`] if it is a bare
    /// encoder; or if a line has no mask or is too long.
    pub fn fill<S: AsRef<str>>(&self, lines: &[S], top_k: usize) -> Result<Vec<Filled>> {
        let (run, device) = (self.trained()?, self.device()?);
        let (model, tokenizer) = run.masked_model(run.dtype_on(&device)?, &device)?;
        Ok(MaskFiller::new(&model, &tokenizer, run.config.generate)?.fill(lines, top_k, 0)?)
    }

    /// Opens the best checkpoint, or the last one if there was no validation.
    ///
    /// # Errors
    /// If there is no checkpoint, or if it is damaged.
    pub fn trained(&self) -> Result<TrainedModel> {
        TrainedModel::find(&self.dir, None)
    }

    fn device(&self) -> Result<Device> {
        Ok(self.options.device.open()?)
    }

    fn note(&self, line: &str) {
        if self.options.console && self.options.link.as_ref().is_none_or(Link::is_first) {
            kiln_metrics::logging::console::print_line(line);
        }
    }
}
