//! A finished or unfinished run, opened to evaluate it or to generate text with it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, FloatDType};
use kiln_model::{Transformer, TransformerConfig};

use super::{Checkpoints, MANIFEST_FILE, NamedTensor, RUN_CONFIG_FILE, Vocabulary, load_model, read_weights};
use crate::config::Config;

/// One checkpoint with everything needed to use it.
#[derive(Debug)]
pub struct Run {
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
    weights: Vec<NamedTensor>,
}

impl Run {
    /// Opens `checkpoint` (`best`, `last`, `step-00002000`, `2000`) of the run in `dir`. Without a name: the best one, or the
    /// last one if there was no validation. `dir` may also be a checkpoint's own folder.
    pub fn open(dir: &Path, checkpoint: Option<&str>) -> Result<Self> {
        ensure!(dir.is_dir(), "{}: no such folder; name a run folder (kiln train writes runs/NAME)", dir.display());
        let path = if dir.join(MANIFEST_FILE).exists() {
            ensure!(
                checkpoint.is_none(),
                "{} is a checkpoint already; leave --checkpoint out, or name the run folder",
                dir.display()
            );
            dir.to_path_buf()
        } else {
            let checkpoints = Checkpoints::of_run(dir);
            match checkpoint {
                Some(name) => checkpoints.resolve(name)?,
                None => checkpoints.resolve("best").or_else(|_| checkpoints.resolve("last"))?,
            }
        };
        let found = read_weights(&path)?;
        let config_path = path.join(RUN_CONFIG_FILE);
        let text =
            std::fs::read_to_string(&config_path).with_context(|| format!("reading {}", config_path.display()))?;
        let config = Config::from_toml(&text).with_context(|| format!("reading {}", config_path.display()))?;
        let vocabulary = Vocabulary::load_dir(&path, config.task)
            .with_context(|| format!("loading the tokenizer of {}", path.display()))?;
        vocabulary.check(&found.model).with_context(|| path.display().to_string())?;
        Ok(Self { path, step: found.step, config, model: found.model, vocabulary, weights: found.weights })
    }

    /// The weights, by the paths of their parameters.
    pub fn weights(&self) -> &[NamedTensor] {
        &self.weights
    }

    /// The model on `device` in `dtype`, not tracked by autodiff.
    pub fn load_model(&self, dtype: FloatDType, device: &Device) -> Result<Transformer> {
        load_model(&self.model, &self.weights, dtype, device)
            .with_context(|| format!("loading {}", self.path.display()))
    }
}
