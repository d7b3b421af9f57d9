//! A training run at one step, as plain data on the host, independent of device and trainer.

use kiln_data::Position;
pub use kiln_model::NamedTensor;
use kiln_model::TransformerConfig;
use serde::{Deserialize, Serialize};

use super::NamedState;
use crate::config::{BestMetric, MasterWeights};
use crate::metrics::SourceMetrics;

/// Version of the folder's layout and of `trainer_state.json`. Format 1, which is still read, has both moments of AdamW for every weight;
/// format 2 the state that each weight's optimizer names.
pub const FORMAT: u32 = 2;

/// Everything that a resumed run needs to continue bit for bit.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Master weights. Their order has no meaning.
    pub weights: Vec<NamedTensor>,
    /// The optimizer's state, sorted by name; without frozen weights.
    pub optimizer: Vec<NamedState>,
    /// Counters and data position.
    pub state: TrainerState,
    /// The model's shape, vocabulary sizes filled in.
    pub model: TransformerConfig,
    /// Files stored unchanged: the run's `config.toml` and the tokenizer's files.
    pub files: Vec<StoredFile>,
    /// `train.ema_decay`: averaged weights, f32, with the names and the order of the weights; without frozen ones.
    pub ema: Option<Vec<NamedTensor>>,
    /// `train.sync_every` above 1: what the devices do not share.
    pub replicas: Option<Replicas>,
}

/// Devices that took steps alone, at a step after which all have the same weights. The [`Snapshot`] holds the optimizer's state of the
/// first one.
#[derive(Debug, Clone, PartialEq)]
pub struct Replicas {
    /// Momentum of the outer optimizer, with the names of the weights.
    pub momentum: Vec<NamedTensor>,
    /// The optimizer's state of the other devices, sorted by name.
    pub other_states: Vec<Vec<NamedState>>,
}

/// A checkpoint without the state of its training: enough to use the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// Optimizer steps done.
    pub step: u64,
    /// f32 weights.
    pub weights: Vec<NamedTensor>,
    /// The model's shape.
    pub model: TransformerConfig,
    /// Files stored unchanged: the run's `config.toml` and the tokenizer's files.
    pub files: Vec<StoredFile>,
}

/// A small file that travels with the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// Plain file name.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// `trainer_state.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerState {
    /// [`FORMAT`], or the older one of the file.
    pub format: u32,
    /// Identifies the run, see `RUN/checkpoints/run`. Absent in checkpoints of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub run: Option<String>,
    /// Optimizer steps done.
    pub step: u64,
    /// Steps that made no update. The learning rate and Adam's bias corrections depend on the number of the other steps.
    #[serde(default)]
    pub skipped_steps: u64,
    /// The loss scale, for fp16.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_scale: Option<LossScale>,
    /// Micro-batches done. Dropout and masking depend on it and on the seed.
    pub micro_steps: u64,
    /// The position at which the data continues.
    pub position: Position,
    /// Batches of an epoch. Absent in checkpoints of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub epoch_batches: Option<u64>,
    /// Fingerprint of the training batches, from the loader's source.
    pub data_fingerprint: String,
    /// Fingerprint of the validation batches, which `best` is measured on. Absent without them, and in checkpoints of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub validation_fingerprint: Option<String>,
    /// Fingerprint of the tokenizers.
    pub tokenizer_fingerprint: String,
    /// Source tokens trained on, without padding.
    pub source_tokens: u64,
    /// Target tokens, or tokens of text, trained on, without padding.
    pub target_tokens: u64,
    /// A mixture: what was trained on of each source.
    #[serde(skip_serializing_if = "SourceMetrics::is_empty", default)]
    pub sources: SourceMetrics,
    /// Seconds of training, without validation and saving. `train.max_minutes` limits them.
    pub train_secs: f64,
    /// Steps whose loss or gradient norm was not finite.
    pub non_finite_steps: u64,
    /// The best validation so far.
    pub best: Option<Best>,
    /// `train.patience`: how long the run has waited for a better validation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub patience: Option<Patience>,
    /// `train.freeze`: paths of the parameters that are not trained, sorted. They have no state.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub frozen: Vec<String>,
    /// `train.master_weights`: the type of the trained weights and of the optimizer's state in their files.
    #[serde(skip_serializing_if = "MasterWeights::is_default", default)]
    pub master_weights: MasterWeights,
    /// Batches of an optimizer step, over all ranks, where there are several: the order of the data depends on it. Absent
    /// in runs whose order does not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub group_size: Option<u64>,
    /// `train.sync_every` above 1: the counters of each device. Empty in other runs.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub replicas: Vec<ReplicaCounters>,
}

/// No run counts further than this: f64 holds whole numbers up to it, and sums below it do not overflow.
const MOST: u64 = 1 << 53;
/// Seconds above this are three centuries.
const LONGEST: f64 = 1e10;

impl TrainerState {
    /// Returns what no training can have written, with the key and the value found.
    pub fn validate(&self) -> Vec<String> {
        let counters = [
            ("step", self.step),
            ("skipped_steps", self.skipped_steps),
            ("micro_steps", self.micro_steps),
            ("position.epoch", self.position.epoch),
            ("position.batch", self.position.batch),
            ("epoch_batches", self.epoch_batches.unwrap_or(1)),
            ("source_tokens", self.source_tokens),
            ("target_tokens", self.target_tokens),
            ("non_finite_steps", self.non_finite_steps),
            ("group_size", self.group_size.unwrap_or(1)),
            ("best.step", self.best.as_ref().map_or(0, |best| best.step)),
        ];

        let too_large = counters.into_iter().filter(|(_, value)| *value > MOST);
        let mut problems: Vec<_> =
            too_large.map(|(key, value)| format!("{key} is {value}, which no run can reach")).collect();
        if !(1..=FORMAT).contains(&self.format) {
            problems.push(format!("format is {}; this version reads format 1 to {FORMAT}", self.format));
        }
        if self.group_size == Some(0) {
            problems.push("group_size is 0, but a step takes a batch".into());
        }
        if !(0.0..=LONGEST).contains(&self.train_secs) {
            problems.push(format!("train_secs is {}, which is not a time that a run can take", self.train_secs));
        }

        let of_replicas = self.replicas.iter().filter_map(|replica| replica.loss_scale);
        for LossScale { scale, .. } in self.loss_scale.into_iter().chain(of_replicas) {
            if !(scale.is_finite() && scale > 0.0) {
                problems.push(format!("loss_scale has a scale of {scale}, but a scale is above 0"));
            }
        }
        problems
    }
}

/// What a device counts that takes steps alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaCounters {
    /// Its steps that made no update.
    pub skipped_steps: u64,
    /// Its loss scale, for fp16.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_scale: Option<LossScale>,
}

/// Dynamic loss scaling between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// The factor for the loss of the next step.
    pub scale: f32,
    /// Steps without an overflow since the last change of the scale.
    pub good_steps: u32,
}

/// The best validation result so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Step it was measured at.
    pub step: u64,
    /// Validation loss at that step, nats per target token.
    pub loss: f64,
    /// The score that made it the best one; `None` if it has the lowest loss.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub score: Option<Score>,
}

/// How long a run has waited for a better validation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patience {
    /// What is compared.
    pub metric: BestMetric,
    /// The last value that was an improvement; `None` before the first finite one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub value: Option<f64>,
    /// Validations since then.
    pub validations: u64,
}

/// A score, or another figure of a validation than the loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// Never [`BestMetric::Loss`].
    pub metric: BestMetric,
    /// Higher is better, unless [`BestMetric::falls`].
    pub value: f64,
}

impl Best {
    /// Returns whether this validation is better than `other`, which was chosen by the same metric. Among equal scores the
    /// lower loss wins.
    pub fn beats(&self, other: &Self) -> bool {
        let value = |best: &Self| {
            best.score.as_ref().map_or(0.0, |score| if score.metric.falls() { -score.value } else { score.value })
        };
        let (score, others) = (value(self), value(other));
        score > others || (score == others && self.loss < other.loss)
    }
}

impl Snapshot {
    /// Takes the optimizer's state and counters of device `rank`, if the devices have their own.
    pub fn as_replica(mut self, rank: usize) -> Self {
        let Some(counters) = self.state.replicas.get(rank).copied() else { return self };
        self.state.skipped_steps = counters.skipped_steps;
        self.state.loss_scale = counters.loss_scale;
        let others = self.replicas.as_mut().map(|replicas| &mut replicas.other_states);
        if let Some(states) = others.and_then(|others| others.get_mut(rank.checked_sub(1)?)) {
            self.optimizer = std::mem::take(states);
        }
        self
    }

    /// The optimizer's tensors of the name `name`; none if it keeps no such state.
    pub fn optimizer_state(&self, name: &str) -> &[NamedTensor] {
        self.optimizer.iter().find(|state| state.name == name).map_or(&[], |state| state.tensors.as_slice())
    }

    /// The stored file `name`.
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        self.files.iter().find(|file| file.name == name).map(|file| file.bytes.as_slice())
    }
}
