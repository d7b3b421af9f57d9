//! The configuration of a run: one plain structure, saved in the run folder as `config.toml`.
//!
//! [`load`] merges the layers preset < file < `--set` and refuses unknown keys. [`Config::validate`] reports every impossible
//! combination at once, each with its remedy, before any work. `docs/configuration.md` lists all keys.

mod best_metric;
mod builder;
mod byte_size;
mod cache_limit;
mod chat;
mod choices;
mod device;
mod ending;
mod epochs;
mod filter;
mod fine_tune;
mod follow_names;
mod freeze;
mod generate;
mod give_way;
mod length;
mod loss_scale;
mod machine;
mod mix;
mod paths;
pub mod presets;
mod profile_at;
mod prompt;
mod reference;
mod resolve;
mod schedule;
mod set_keys;
mod spelling;
mod suggest;
#[doc(hidden)]
pub mod task;
mod validate;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_data::{
    CorpusConfig, FilterConfig, HeldOut, LabelConfig, LoaderConfig, TextConfig, TokenizerConfig, files::read_file,
};
use kiln_model::TransformerConfig;
use serde::{Deserialize, Serialize};

pub use best_metric::BestMetric;
pub use builder::ConfigBuilder;
pub use byte_size::ByteSize;
pub use cache_limit::RemovedSwitch;
pub use choices::{LostReplicas, NonFinite, OptimizerChoice};
pub use device::{Capture, Checkpointing, F32Products, Fp8Layers, Kernels, MasterWeights, Precision};
pub(crate) use device::{computed_again, fewer_activations};
pub use generate::{EarlyStopping, GenerateConfig, LengthNormalization, SpecialTokens};
pub use kiln_data::Task;
#[doc(hidden)]
pub use length::MANY_EPOCHS;
pub use length::Shortened;
pub use loss_scale::LossScaleConfig;
pub use machine::Machine;
pub(crate) use machine::{size, there_is};
pub use mix::{MixEntry, MixWeight};
pub use presets::Preset;
pub use profile_at::ProfileSteps;
pub use resolve::{Base, Chosen, ConfigError, Resolved, Sources, load, resolve};
#[doc(hidden)]
pub use resolve::{meant_by, named_task};
pub use schedule::{DecayEnd, Schedule};

/// Everything that decides what a run does. Two runs with equal configurations and equal data give equal weights on the CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What the model learns: `translation`, `lm` (the next token of a text), `mlm` (hidden tokens of a text), `classification` (the
    /// class of a text) or `tagging` (the tag of each word).
    pub task: Task,
    /// Seed of every random stream: initial weights, data order, dropout, masks.
    pub seed: u64,
    /// Where the text comes from and how it is read.
    pub data: DataConfig,
    /// The vocabulary, loaded from a file or trained on the training text.
    pub tokenizer: TokenizerConfig,
    /// Batching, workers and prefetch.
    pub loader: LoaderConfig,
    /// The shape of the Transformer. Vocabulary sizes of 0 are filled in from the tokenizer.
    pub model: TransformerConfig,
    /// Hyperparameters of the optimizer, its schedule and clipping.
    pub optim: OptimConfig,
    /// The loop: steps, precision, intervals.
    pub train: TrainConfig,
    /// How validation, `evaluate`, `translate` and `generate` generate text.
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
    /// Rows of `train` that become validation text, if `valid` is empty: their number, or a fraction below 1. A hash of what the model reads
    /// chooses them. With a fraction, a row stays on its side when others are added. 0: none.
    pub split: f64,
    /// Folder of the token caches. Unset: `cache/` in the run folder.
    pub cache_dir: Option<PathBuf>,
    /// Most bytes of token caches of the training text on disk; the sources of a mixture have equal parts of it. The text is then tokenized
    /// in parts, ahead of the training, and shuffled within windows of eight parts if rows are shuffled. Unset: the whole text
    /// is tokenized once.
    pub cache_limit: Option<ByteSize>,
    /// Pairs: format, names of fields, limits in tokens, tolerated fraction of bad rows.
    pub corpus: CorpusConfig,
    /// Plain text: how documents are read and packed into rows.
    pub text: TextConfig,
    /// Classification and tagging: fields of a row, and the names of the classes.
    pub labels: LabelConfig,
    /// The rows of training text that are wanted, of those that can be used.
    pub filter: FilterConfig,
    /// The rows of training text that `split` has taken out, where they are not in files of their own. Not a key of this table.
    #[serde(skip)]
    pub held_out: Option<Arc<HeldOut>>,
    /// Removed: see `cache_limit`.
    #[serde(skip_serializing)]
    pub direct: RemovedSwitch,
    /// `mix` without weights: shares are sizes to the power of one divided by this. Unset: 1.
    pub mix_temperature: Option<f64>,
    /// Several sources of training text in place of `train`, each with its share of the rows.
    pub mix: Vec<MixEntry>,
}

/// Hyperparameters of AdamW (Loshchilov and Hutter 2019, PyTorch's semantics), and the learning-rate schedule of every optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimConfig {
    /// Peak learning rate. With `noam`: the factor before `d_model^-0.5 * min(s^-0.5, s * warmup_steps^-1.5)`.
    pub lr: f64,
    /// Decay of the first moment, in [0, 1).
    pub beta1: f64,
    /// Decay of the second moment, in [0, 1).
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay; matrices only (biases, norms and 1-D parameters are never decayed).
    pub weight_decay: f64,
    /// `model.d_model` of the model on which `lr` and `weight_decay` were found; the matrices of layers then take the rate and the
    /// decay that suit the width of this one. 0: as given.
    #[serde(default)]
    pub tuned_width: usize,
    /// Layers of the model on which they were found, of its deeper stack. 0: as given.
    #[serde(default)]
    pub tuned_depth: usize,
    /// Limit of the global gradient norm; 0 switches clipping off.
    pub max_grad_norm: f64,
    /// Shape of the schedule over optimizer steps.
    pub schedule: Schedule,
    /// Steps of linear warm-up from 0.
    pub warmup_steps: u64,
    /// Steps of warm-up as a fraction of `train.steps`, in [0, 1), in place of `warmup_steps`. 0: `warmup_steps` counts.
    pub warmup_ratio: f64,
    /// Final learning rate as a fraction of `lr` (cosine, linear, warmup_stable_decay).
    pub min_lr_ratio: f64,
    /// Fraction of `train.steps` spent decaying at the end (warmup_stable_decay only), in (0, 1].
    pub decay_fraction: f64,
    /// The step at which decay reaches its end. A run keeps its own when it is resumed.
    #[serde(default = "DecayEnd::without_the_key")]
    pub decay_end: DecayEnd,
    /// `train.sync_every`: learning rate of the outer optimizer; 1 with `outer_momentum = 0` takes the mean of the devices.
    pub outer_lr: f64,
    /// `train.sync_every`: Nesterov momentum of the outer optimizer, in [0, 1).
    pub outer_momentum: f64,
}

/// The training loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Optimizer steps, absolute: a resumed run stops at the same step.
    pub steps: u64,
    /// Passes over the training data, in place of `steps`. 0: `steps` counts.
    pub epochs: f64,
    /// The optimizer: `adamw`; or `muon`, which updates weight matrices of layers by Muon, and tables, heads and vectors by AdamW.
    pub optimizer: OptimizerChoice,
    /// Patterns of parameters that are not trained, by whole names of their paths (`decoder.layers.0`, `*embedding*`).
    pub freeze: Vec<String>,
    /// Minutes of training after which the run stops at any step; 0: no limit. Schedules still count steps.
    pub max_minutes: f64,
    /// Compute precision; `auto` is bf16 on CUDA and f32 on the CPU.
    pub precision: Precision,
    /// Precision of master weights and of the optimizer's state: `f32`; or `bf16`, rounded stochastically, for half the memory of weights,
    /// gradients and state. For AdamW.
    pub master_weights: MasterWeights,
    /// GPU, `precision = "f32"`: how products multiply, also in attention. `f32`: with the accuracy of f32, as PyTorch does unless told
    /// otherwise. `tf32`: rounded to TF32, 11 significant bits, for the tensor cores.
    pub f32_products: F32Products,
    /// `precision = "fp8"`: the layers whose products take operands in FP8: `all`, or `inner` for all but the first and the last.
    pub fp8_layers: Fp8Layers,
    /// GPU: whether equal seeds must give equal bits, as they do on the CPU. Kiln refuses settings that cannot promise this. Before
    /// the first step it computes the gradients of the largest batch twice and compares them.
    pub deterministic: bool,
    /// Micro-batches per optimizer step on each device. A run that is resumed on another number of devices keeps their number over
    /// all devices.
    pub grad_accum_steps: usize,
    /// Label smoothing of the training loss, in [0, 1).
    pub label_smoothing: f64,
    /// `data.text.format = "preferences"`: factor of the rewards (beta of DPO), above 0. An answer's reward is this factor times its
    /// log-likelihood minus the one under the reference: the model without adapters, or the one that the run began with.
    pub preference_beta: f64,
    /// mlm: fraction of the tokens to be predicted, in (0, 1]. The mask token replaces 80 % of them, a random token 10 %, and
    /// 10 % stay (Devlin et al. 2019).
    pub masked_share: f64,
    /// Fraction of the tokens that are only read (of sources, of texts with classes, of questions in conversations) that a mask hides in
    /// each training step, in [0, 1). Nothing is hidden in validation.
    pub hidden_share: f64,
    /// Steps between metric lines. Each line is a host sync.
    pub log_every: u64,
    /// Steps that are profiled while the run trains, as `kiln profile` does, into `profile-step-N` in its folder. 0 or none: no step.
    pub profile_at: ProfileSteps,
    /// Steps between validations; 0: only at the end.
    pub validate_every: u64,
    /// Steps between validations at which the model also writes: translations, which are scored, or the continuation of a prompt. 0: at
    /// every validation if the text has up to 1,000 pairs or `best_metric` needs the scores, else only at the end.
    pub translate_every: u64,
    /// Measure by which the best checkpoint is chosen. Each score needs a task that has it, and a figure (`max:NAME`, `min:NAME`) a
    /// model of one's own; among equal scores the lower loss wins.
    pub best_metric: BestMetric,
    /// Validations in a row without an improvement of `best_metric` after which the run ends; 0: it never ends early.
    pub patience: u64,
    /// Least change of `best_metric` that `patience` counts as an improvement: nats per token, points, or a fraction.
    pub min_improvement: f64,
    /// Decay, per optimizer step, of an exponential moving average of the weights; 0: none. The first steps average over fewer weights.
    pub ema_decay: f64,
    /// `ema_decay`: whether validation, `best_metric` and the commands that use the run take the averaged weights.
    pub use_ema: bool,
    /// Steps between checkpoints; 0: only at the end.
    pub save_every: u64,
    /// Checkpoints kept in addition to the best one.
    pub keep_last: usize,
    /// Micro-batches that every batch of the loader is cut into; `--auto-micro-batch` finds the number that fits in memory. The
    /// optimizer step still uses the whole batch.
    pub split_batches: usize,
    /// Memory that the run may use on each device (`24GiB`), so that a device stands for a smaller one. Estimates and automatic choices plan
    /// for it, and a run that holds more stops. Unset: the memory of the device.
    pub memory_limit: Option<ByteSize>,
    /// Which activations are kept for backward: `off` keeps all, `selective` computes norms and activations again, `layer` whole
    /// layers. `auto` takes the first of these that fits into memory. Gradients are equal bit for bit.
    pub activation_checkpointing: Checkpointing,
    /// Several devices: whether each keeps master weights and optimizer state of its slice alone (ZeRO-1). Results are equal bit for bit.
    pub shard_optimizer: bool,
    /// Several devices: MiB of the pieces in which gradients and weights travel between them. 0: up to four pieces of at least 24 MiB
    /// between GPUs, whole slices over TCP. Results are equal bit for bit.
    pub exchange_mib: usize,
    /// Steps from one outer step to the next (DiLoCo, Douillard et al. 2023). Each of several devices takes them alone, for slow links.
    /// 1: no outer optimizer; gradients are exchanged in every step.
    pub sync_every: u64,
    /// `sync_every` above 1, several devices: what happens when the process of one is lost: `end` ends the run; with `go_on` the others
    /// continue from the last exchange, and a process that is started in its place takes part after the next one.
    pub lost_replicas: LostReplicas,
    /// GPU: which kernels compute products and attention: `auto`, the newest that the GPU has the instructions for; `ampere`, at most
    /// those for Ampere; or `stock`, Burn's own. For measurements.
    pub kernels: Kernels,
    /// GPU: whether every shape of the data runs once before the clock starts, so that no kernel is compiled later.
    pub warm_up: bool,
    /// Replay of forward and backward as CUDA graphs: `auto` for shapes that recur often, `on` as early as possible, or `off`.
    /// Results are equal bit for bit.
    pub capture: Capture,
    /// Reaction to a loss or gradient that is not finite: `stop` or `skip`. The update is left out in both cases. With `precision =
    /// "fp16"`, `loss_scale` handles overflows instead.
    pub non_finite: NonFinite,
    /// `non_finite = "skip"`: the run stops after more skipped updates than this.
    pub max_non_finite_steps: u64,
    /// `precision = "fp16"`: the scale that keeps small gradients from vanishing.
    pub loss_scale: LossScaleConfig,
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
            tuned_width: 0,
            tuned_depth: 0,
            max_grad_norm: 1.0,
            schedule: Schedule::Cosine,
            warmup_steps: 800,
            warmup_ratio: 0.0,
            min_lr_ratio: 0.0,
            decay_fraction: 0.1,
            decay_end: DecayEnd::AfterLastStep,
            outer_lr: 0.9,
            outer_momentum: 0.5,
        }
    }
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            steps: 6000,
            epochs: 0.0,
            optimizer: OptimizerChoice::Adamw,
            freeze: Vec::new(),
            max_minutes: 0.0,
            precision: Precision::Auto,
            master_weights: MasterWeights::F32,
            f32_products: F32Products::F32,
            fp8_layers: Fp8Layers::All,
            deterministic: false,
            grad_accum_steps: 1,
            label_smoothing: 0.1,
            preference_beta: 0.1,
            masked_share: 0.15,
            hidden_share: 0.0,
            log_every: 10,
            profile_at: ProfileSteps::default(),
            validate_every: 500,
            translate_every: 0,
            best_metric: BestMetric::Loss,
            patience: 0,
            min_improvement: 0.0,
            ema_decay: 0.0,
            use_ema: true,
            save_every: 1000,
            keep_last: 3,

            split_batches: 1,
            memory_limit: None,
            activation_checkpointing: Checkpointing::Auto,
            shard_optimizer: true,
            exchange_mib: 0,
            sync_every: 1,
            lost_replicas: LostReplicas::End,
            kernels: Kernels::Auto,
            warm_up: true,
            capture: Capture::Auto,
            non_finite: NonFinite::Stop,
            max_non_finite_steps: 10,
            loss_scale: LossScaleConfig::default(),
        }
    }
}

impl Config {
    /// Returns the whole configuration as TOML with every key. [`Config::from_toml`] reads it back.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a configuration has string keys and plain values")
    }

    /// Reads the `config.toml` of a run or a checkpoint, which has every key.
    ///
    /// # Errors
    /// If the file cannot be read, is not a whole configuration of this version, or has values outside their limits; the error names
    /// the file, and the line or the key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let problem = |line: usize, what: &str| ConfigError {
            problems: vec![format!(
                "{}{}: {}",
                path.display(),
                if line == 0 { String::new() } else { format!(":{line}") },
                what.lines().next().unwrap_or_default()
            )],
        };
        let bytes = read_file(path).map_err(|error| problem(0, &format!("cannot be read: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|_| problem(0, "is not UTF-8, so it was damaged"))?;
        let config = Self::from_toml(&text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = 1 + text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count();
            problem(line, &format!("not a configuration of this version: {}", error.message()))
        })?;
        let found = config.problems_when_read();
        let problems: Vec<_> = found.iter().map(|found| format!("{}: {found}", path.display())).collect();
        if problems.is_empty() { Ok(config) } else { Err(ConfigError { problems }) }
    }

    /// Reads the output of [`Config::to_toml`], the `config.toml` of a run.
    pub fn from_toml(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }
}
