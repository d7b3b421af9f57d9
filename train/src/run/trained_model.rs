//! A checkpoint of a run, opened to evaluate it or to generate text with it.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use kiln_data::{PairTokenizers, TextTokenizer};
use kiln_model::{DecoderOnly, EncoderDecoder, EncoderOnly, LazyTensor, Transformer, TransformerConfig};

use super::error::RunError;
use crate::checkpoint::{
    CheckpointError, Checkpoints, MANIFEST_FILE, NamedTensor, OpenWeights, RUN_CONFIG_FILE, Weights, has_average,
    load_into, load_model, load_tensors, read_average, read_weights,
};
use crate::config::task::traits_of;
use crate::config::{Config, Precision};
use crate::dataset::Vocabulary;
use crate::device::{DeviceChoice, DeviceError, PrecisionError, compute_dtype, start};

/// The weights of a checkpoint that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum WhichWeights {
    /// The weights of the last step.
    Trained,
    /// Their exponential moving average (train.ema_decay).
    Averaged,
}

impl WhichWeights {
    /// Returns what `config` says about the checkpoint in `path`.
    fn usual(config: &Config, path: &Path) -> Result<Self, CheckpointError> {
        Ok(if config.train.use_ema && has_average(path)? { Self::Averaged } else { Self::Trained })
    }

    /// Reads them from the checkpoint in `path`.
    pub(super) fn read(self, path: &Path) -> Result<Weights, CheckpointError> {
        match self {
            Self::Trained => read_weights(path),
            Self::Averaged => read_average(path),
        }
    }
}

/// One checkpoint with everything needed to use it.
#[derive(Debug)]
pub struct TrainedModel {
    /// The checkpoint's folder.
    pub path: PathBuf,
    /// Optimizer steps of the checkpoint.
    pub step: u64,
    /// The configuration that it was trained with.
    pub config: Config,
    /// The model's shape.
    pub model: TransformerConfig,
    /// The vocabulary.
    pub vocabulary: Vocabulary,
    /// Where the weights come from.
    pub which: WhichWeights,
    stored: OpenWeights,
    /// All of them, once they have been asked for.
    weights: OnceLock<Vec<NamedTensor>>,
}

impl TrainedModel {
    /// Opens a run to use it, or refuses a folder that holds none, see [`Self::open`].
    ///
    /// # Errors
    /// [`RunError::NoRun`] if `dir` is neither a run folder nor a checkpoint.
    pub fn find(dir: &Path, checkpoint: Option<&str>) -> Result<Self> {
        Self::find_weights(dir, checkpoint, None)
    }

    /// Opens a run as [`Self::find`] does, and meanwhile the device that will compute with it.
    ///
    /// # Errors
    /// As [`Self::find`], and if the device does not exist.
    pub fn find_and_open(dir: &Path, checkpoint: Option<&str>, device: DeviceChoice) -> Result<(Device, Self)> {
        thread::scope(|scope| {
            let opening = scope.spawn(|| {
                let device = device.open()?;
                start(&device);
                Ok::<_, DeviceError>(device)
            });
            let found = Self::find(dir, checkpoint);
            let device = opening.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            Ok((device, found?))
        })
    }

    /// Opens a run as [`Self::find`] does, with the weights that are asked for. Without a wish the run's `train.use_ema` decides.
    ///
    /// # Errors
    /// As [`Self::find`], and if the run has no averaged weights.
    pub fn find_weights(dir: &Path, checkpoint: Option<&str>, which: Option<WhichWeights>) -> Result<Self> {
        if !dir.join(RUN_CONFIG_FILE).is_file() && !dir.join(MANIFEST_FILE).is_file() {
            return Err(RunError::NoRun(dir.to_path_buf()).into());
        }
        Self::open_weights(dir, checkpoint, which)
    }

    /// Opens `checkpoint` (`best`, `last`, `step-00002000`, `2000`) of the run in `dir`. Without a name: the best one,
    /// or the last one if there was no validation. `dir` may also be a checkpoint's own folder.
    pub fn open(dir: &Path, checkpoint: Option<&str>) -> Result<Self> {
        Self::open_weights(dir, checkpoint, None)
    }

    fn open_weights(dir: &Path, checkpoint: Option<&str>, which: Option<WhichWeights>) -> Result<Self> {
        ensure!(dir.is_dir(), "{}: no such folder; name a run folder (kiln train writes runs/NAME)", dir.display());
        let path = if dir.join(MANIFEST_FILE).exists() {
            ensure!(
                checkpoint.is_none(),
                "{} is a checkpoint already; leave --checkpoint out, or name the run folder",
                dir.display()
            );
            if let Some(checkpoints) = Checkpoints::around(dir) {
                checkpoints.ensure_own(dir)?;
            }
            dir.to_path_buf()
        } else {
            let checkpoints = Checkpoints::of_run(dir);
            match checkpoint {
                Some(name) => checkpoints.resolve(name)?,
                None => checkpoints.usual()?,
            }
        };

        let run_dir = path.ancestors().nth(2).unwrap_or(dir);
        let instead = |error| Checkpoints::of_run(run_dir).instead_of(error);
        // A damaged checkpoint is answered with a sound one, before its configuration is read.
        let trained = OpenWeights::open(&path, false).map_err(instead)?;
        let config = Config::read(&path.join(RUN_CONFIG_FILE))?;
        let which = which.map_or_else(|| WhichWeights::usual(&config, &path), Ok).map_err(instead)?;
        let found = match which {
            WhichWeights::Trained => trained,
            WhichWeights::Averaged => OpenWeights::open(&path, true).map_err(instead)?,
        };

        let vocabulary = Vocabulary::load_dir(&path, config.task)
            .with_context(|| format!("loading the tokenizer of {}", path.display()))?;
        vocabulary.check(&found.model).with_context(|| path.display().to_string())?;
        let (step, model, weights) = (found.step, found.model.clone(), OnceLock::new());
        Ok(Self { path, step, config, model, vocabulary, which, stored: found, weights })
    }

    /// Returns the run with its validation rows where `data.split` has put them, to score it on them.
    #[must_use]
    pub fn with_split_rows(mut self) -> Self {
        if let Some(dir) = self.path.ancestors().nth(2) {
            self.config = self.config.with_split_of(dir);
        }
        self
    }

    /// The weights, by the paths of their parameters.
    pub fn weights(&self) -> &[NamedTensor] {
        self.weights.get_or_init(|| self.tensors().iter().map(LazyTensor::read).collect())
    }

    /// The weights, each of which is read when it is needed.
    pub fn tensors(&self) -> Vec<LazyTensor<'_>> {
        self.stored.tensors()
    }

    /// The model on `device` in `dtype`, not tracked by autodiff.
    pub fn load_model(&self, dtype: FloatDType, device: &Device) -> Result<Transformer> {
        load_tensors(&self.model, self.tensors(), dtype, device)
            .with_context(|| format!("loading {}", self.path.display()))
    }

    /// Does the same as [`Self::load_model`]. If the run compares answers with the model that it began with, the model has that one as
    /// its reference.
    ///
    /// # Errors
    /// If the run has not kept the weights that it began with.
    pub(super) fn load_with_reference(&self, dtype: FloatDType, device: &Device) -> Result<Transformer> {
        let model = self.load_model(dtype, device)?;
        if !self.config.compares_with_start() {
            return Ok(model);
        }
        let run = self.path.ancestors().nth(2).context("a checkpoint lies in a run")?;
        let weights = Checkpoints::of_run(run).weights_before_training();
        let weights = weights.context("answers are compared with the model that the run began with")?;
        let reference = load_model(&weights.model, &weights.weights, dtype, device)?;
        model.with_reference(reference).context("only language models compare answers")
    }

    /// Returns `module`, a model of one's own or a part of it, with the weights of the checkpoint in `dtype`. It stays on its device,
    /// and autodiff tracks it if it did before. The module has exactly the parameters of the checkpoint.
    ///
    /// # Errors
    /// If a parameter is missing in one of the two, or has another shape.
    pub fn load_into<M: Module>(&self, module: M, dtype: FloatDType) -> Result<M> {
        load_into(module, self.weights(), dtype).with_context(|| format!("loading {}", self.path.display()))
    }

    /// Returns the dtype to use the model in: f32 if it was trained in f32, else what suits `device`. A model trained
    /// in bf16 can be used on a CPU, which computes in f32.
    ///
    /// # Errors
    /// If the device does not support the dtype.
    pub fn dtype_on(&self, device: &Device) -> Result<FloatDType, PrecisionError> {
        let is_f32 = self.config.train.precision == Precision::F32;
        compute_dtype(if is_f32 { Precision::F32 } else { Precision::Auto }, device)
    }

    /// Returns the model and the tokenizers of a run that translates.
    ///
    /// # Errors
    /// [`RunError::OtherTask`] for a run of another task.
    pub fn translation(&self, dtype: FloatDType, device: &Device) -> Result<(EncoderDecoder, PairTokenizers)> {
        if let (Some(tokenizers), Transformer::EncoderDecoder(model)) =
            (self.vocabulary.pairs(), self.load_model(dtype, device)?)
        {
            return Ok((model, tokenizers.clone()));
        }
        Err(self.other_task("translate").into())
    }

    /// Returns the model and the tokenizer of a run that continues text.
    ///
    /// # Errors
    /// [`RunError::OtherTask`] for a run of another task.
    pub fn language_model(&self, dtype: FloatDType, device: &Device) -> Result<(DecoderOnly, TextTokenizer)> {
        self.check_language_model()?;
        match (self.load_model(dtype, device)?, &self.vocabulary) {
            (Transformer::DecoderOnly(model), Vocabulary::Text(tokenizer)) => Ok((model, tokenizer.clone())),
            _ => unreachable!("a validated configuration for lm has a decoder-only model and one vocabulary"),
        }
    }

    /// Returns the model and the tokenizer of a run that fills in hidden tokens.
    ///
    /// # Errors
    /// [`RunError::OtherTask`] for a run of another task, [`RunError::NoMaskedHead`] for a bare encoder.
    pub fn masked_model(&self, dtype: FloatDType, device: &Device) -> Result<(EncoderOnly, TextTokenizer)> {
        self.check_masked_model()?;
        match (self.load_model(dtype, device)?, &self.vocabulary) {
            (Transformer::EncoderOnly(model), Vocabulary::Text(tokenizer)) => Ok((model, tokenizer.clone())),
            _ => unreachable!("a validated configuration for mlm has an encoder-only model and one vocabulary"),
        }
    }

    /// Returns the model and the tokenizer of a run that predicts classes.
    ///
    /// # Errors
    /// [`RunError::OtherTask`] for a run of another task.
    pub fn class_model(&self, dtype: FloatDType, device: &Device) -> Result<(Transformer, TextTokenizer)> {
        if traits_of(self.config.task).classes.is_none() {
            return Err(self.other_task("predict classes").into());
        }
        let Vocabulary::Text(tokenizer) = &self.vocabulary else {
            unreachable!("a validated configuration for classes has one vocabulary")
        };
        Ok((self.load_model(dtype, device)?, tokenizer.clone()))
    }

    /// Refuses a run that does not fill in hidden tokens.
    ///
    /// # Errors
    /// [`RunError::OtherTask`] or [`RunError::NoMaskedHead`].
    pub fn check_masked_model(&self) -> Result<(), RunError> {
        match (traits_of(self.config.task).hides_tokens, self.model.mlm_head) {
            (true, true) => Ok(()),
            (true, false) => Err(RunError::NoMaskedHead(self.path.clone())),
            (false, _) => Err(self.other_task("fill in hidden tokens")),
        }
    }

    /// Refuses a run that does not continue text.
    ///
    /// # Errors
    /// [`RunError::OtherTask`].
    pub fn check_language_model(&self) -> Result<(), RunError> {
        match traits_of(self.config.task).continues_text {
            true => Ok(()),
            false => Err(self.other_task("continue text")),
        }
    }

    fn other_task(&self, wanted: &'static str) -> RunError {
        let instead = traits_of(self.config.task).instead;
        RunError::OtherTask { path: self.path.clone(), task: self.config.task, wanted, instead }
    }
}
