//! What a run is: one plain structure, saved with the run as `config.toml`.
//!
//! Order of precedence: preset < file < `--set`, put together by [`load`]. Unknown keys are refused; [`Config::validate`]
//! reports every impossible combination at once, each with its remedy, before any work.

mod builder;
mod generate;
mod overrides;
pub mod presets;
mod suggest;
mod validate;

use std::path::PathBuf;

use kiln_data::{CorpusConfig, LoaderConfig, TextConfig, TokenizerConfig};
use kiln_model::TransformerConfig;
use serde::{Deserialize, Serialize};

pub use builder::ConfigBuilder;
pub use generate::GenerateConfig;
pub use kiln_data::Task;
pub use overrides::{ConfigError, Sources, load};
pub use presets::Preset;

/// Everything that decides what a run does. Two runs with equal configurations, data and worker-independent order
/// give equal weights on the CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What the model learns to do: `translation`, `lm` (the next token of a text) or `mlm` (hidden tokens of a text).
    pub task: Task,
    /// Seed of every random stream: initial weights, data order, dropout, masks.
    pub seed: u64,
    /// Where the text comes from and how rows are read.
    pub data: DataConfig,
    /// The vocabulary: loaded from a file, or trained on the training text.
    pub tokenizer: TokenizerConfig,
    /// Batching, workers and prefetch.
    pub loader: LoaderConfig,
    /// The Transformer's shape. `vocab_size` fields of 0 are filled in from the tokenizer.
    pub model: TransformerConfig,
    /// AdamW, its schedule and clipping.
    pub optim: OptimConfig,
    /// The loop: steps, precision, intervals.
    pub train: TrainConfig,
    /// How `evaluate`, `translate`, `generate` and validation generate text.
    pub generate: GenerateConfig,
}

/// Where the text comes from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// Training text. Empty: the built-in task (numbers in digits -> English words, or sentences about them).
    pub train: Vec<PathBuf>,
    /// Validation text. Empty: none (the built-in task brings its own).
    pub valid: Vec<PathBuf>,
    /// Folder of the token caches; the run folder's `cache/` when unset.
    pub cache_dir: Option<PathBuf>,
    /// Translation: how pairs are read: format, field names, limits in tokens, tolerated share of bad rows.
    pub corpus: CorpusConfig,
    /// lm and mlm: how documents are read and packed into rows.
    pub text: TextConfig,
    /// Direct mode: parse and tokenize inside the loader's workers instead of from the token cache.
    pub direct: bool,
}

/// AdamW (Loshchilov and Hutter 2019, PyTorch's semantics) and its learning-rate schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimConfig {
    /// Peak learning rate (for `noam`: the factor in front of d_model^-0.5 * min(s^-0.5, s * warmup^-1.5)).
    pub lr: f64,
    /// Decay of the first moment, in [0, 1).
    pub beta1: f64,
    /// Decay of the second moment, in [0, 1).
    pub beta2: f64,
    /// Added to the root of the second moment, outside the root.
    pub eps: f64,
    /// Decoupled weight decay; matrices only (biases, norms and 1-D parameters are never decayed).
    pub weight_decay: f64,
    /// Limit of the global gradient norm; 0 switches clipping off.
    pub max_grad_norm: f64,
    /// Shape of the schedule over optimizer steps.
    pub schedule: Schedule,
    /// Steps of linear warm-up from 0.
    pub warmup_steps: u64,
    /// Final learning rate as a share of `lr` (cosine, linear, warmup_stable_decay).
    pub min_lr_ratio: f64,
    /// Share of `train.steps` spent decaying at the end (warmup_stable_decay only), in (0, 1].
    pub decay_fraction: f64,
}

/// Learning-rate schedules; each a pure function of the optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// `lr` after warm-up.
    Constant,
    /// Half a cosine from `lr` to `lr * min_lr_ratio` at the last step.
    Cosine,
    /// A straight line from `lr` to `lr * min_lr_ratio` at the last step.
    Linear,
    /// Vaswani et al. 2017, section 5.3.
    Noam,
    /// Constant, then linear decay over the last `decay_fraction` of the steps.
    WarmupStableDecay,
}

/// The training loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Optimizer steps, absolute: a resumed run stops at the same step.
    pub steps: u64,
    /// Stop after this many minutes of training all the same; 0: no limit. Schedules still count steps.
    pub max_minutes: f64,
    /// Compute precision; `auto` is bf16 on CUDA and f32 on the CPU.
    pub precision: Precision,
    /// Whether two runs with one seed must end with the same bits on a GPU, as they do on the CPU: what cannot promise that is refused,
    /// and the gradients of the largest batch are computed twice before the first step and compared.
    pub deterministic: bool,
    /// Micro-batches per optimizer step.
    pub grad_accum_steps: usize,
    /// Label smoothing of the training loss, in [0, 1).
    pub label_smoothing: f64,
    /// mlm: share of the tokens to be guessed, in (0, 1]. Of these 80 % are hidden behind the mask, 10 % behind a random token, and
    /// 10 % stay (Devlin et al. 2019).
    pub masked_share: f64,
    /// Steps between metric lines (each a host sync).
    pub log_every: u64,
    /// Steps between validations; 0: only at the end.
    pub validate_every: u64,
    /// Steps between checkpoints; 0: only at the end.
    pub save_every: u64,
    /// Checkpoints kept besides the best one.
    pub keep_last: usize,
    /// Micro-batches that every batch of the loader is cut into; `--auto-micro-batch` finds how many memory needs. The optimizer
    /// step stays that of the whole batch.
    pub split_batches: usize,
    /// GPU: runs every shape of the data once before the clock starts, so that no kernel is compiled later.
    pub warm_up: bool,
    /// Forward and backward of shapes that recur as CUDA graphs: `auto` where that pays in a long run, `on` as soon as it can be,
    /// `off`. Results are the same bit for bit.
    pub capture: Capture,
    /// What a loss or gradient that is not finite leads to: `stop` or `skip`. Such an update is never made. With `precision =
    /// "fp16"`, `loss_scale` deals with it.
    pub non_finite: NonFinite,
    /// `non_finite = "skip"`: the run ends when more steps than this had no update.
    pub max_non_finite_steps: u64,
    /// `precision = "fp16"`: the scale that keeps small gradients from vanishing.
    pub loss_scale: LossScaleConfig,
}

/// Dynamic loss scaling, as `torch.amp.GradScaler` does it: the gradient of `init` times the mean loss is computed, and the
/// update takes the factor back. Where it overflows, the update is left out (neither the schedule nor Adam's step count moves) and
/// the scale is lowered; after many steps without an overflow it is raised. Only `precision = "fp16"` looks at it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossScaleConfig {
    /// The scale to begin with.
    pub init: f32,
    /// What it is multiplied with when it is raised, at least 1.
    pub growth_factor: f32,
    /// What it is multiplied with after an overflow, in (0, 1).
    pub backoff_factor: f32,
    /// Steps without an overflow, in a row, after which it is raised.
    pub growth_interval: u32,
    /// The lowest scale: an overflow here is no matter of scale, and the run ends with the name of what was not finite.
    pub floor: f32,
}

/// When forward and backward are replayed as CUDA graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capture {
    /// Shapes that came 500 times, in up to 40 % of the device's memory.
    Auto,
    /// Shapes that came three times, in up to 70 % of the device's memory.
    On,
    /// Never.
    Off,
}

/// What to do about a loss or gradient that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NonFinite {
    /// End the run, keep the last checkpoint, save the batch and name the parameters.
    Stop,
    /// Go on with the next batch, count and show it.
    Skip,
}

/// Compute precision; master weights and optimizer moments are f32 in every case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// bf16 on CUDA, f32 on the CPU.
    Auto,
    /// 32-bit floats.
    F32,
    /// bfloat16 weights and activations.
    Bf16,
    /// IEEE half precision weights and activations, with a dynamic loss scale: for GPUs without bfloat16.
    Fp16,
}

impl Default for Config {
    /// [`presets::base`].
    fn default() -> Self {
        presets::base()
    }
}

impl Default for OptimConfig {
    fn default() -> Self {
        Self {
            lr: 7e-4,
            beta1: 0.9,
            beta2: 0.98,
            eps: 1e-9,
            weight_decay: 0.01,
            max_grad_norm: 1.0,
            schedule: Schedule::Cosine,
            warmup_steps: 800,
            min_lr_ratio: 0.0,
            decay_fraction: 0.1,
        }
    }
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            steps: 6000,
            max_minutes: 0.0,
            precision: Precision::Auto,
            deterministic: false,
            grad_accum_steps: 1,
            label_smoothing: 0.1,
            masked_share: 0.15,
            log_every: 10,
            validate_every: 500,
            save_every: 1000,
            keep_last: 3,
            split_batches: 1,
            warm_up: true,
            capture: Capture::Auto,
            non_finite: NonFinite::Stop,
            max_non_finite_steps: 10,
            loss_scale: LossScaleConfig::default(),
        }
    }
}

impl Default for LossScaleConfig {
    fn default() -> Self {
        Self { init: 65536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000, floor: 1.0 }
    }
}

impl Config {
    /// Whether this run trains on the built-in task: no training text is named.
    pub fn is_built_in_task(&self) -> bool {
        self.data.train.is_empty()
    }

    /// The whole configuration as TOML, every key spelled out; [`Config::from_toml`] reads it back.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a configuration has string keys and plain values")
    }

    /// Reads what [`Config::to_toml`] wrote: a run's own `config.toml`.
    pub fn from_toml(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }
}
