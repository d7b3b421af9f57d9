//! A training run at one step, as plain host data: no device, no trainer.

use kiln_data::Position;
pub use kiln_model::NamedTensor;
use kiln_model::TransformerConfig;
use serde::{Deserialize, Serialize};

/// Version of the folder's layout and of `trainer_state.json`.
pub const FORMAT: u32 = 1;

/// Everything that a resumed run needs to continue bit for bit.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// f32 master weights. The order carries no meaning; names do.
    pub weights: Vec<NamedTensor>,
    /// AdamW's first moments, named and ordered as the weights.
    pub first_moments: Vec<NamedTensor>,
    /// AdamW's second moments, named and ordered as the weights.
    pub second_moments: Vec<NamedTensor>,
    /// Counters and position.
    pub state: TrainerState,
    /// The model's shape, vocabulary sizes filled in.
    pub model: TransformerConfig,
    /// Files stored as they are: the run's `config.toml`, the tokenizer's files.
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
    /// [`FORMAT`].
    pub format: u32,
    /// Optimizer steps done.
    pub step: u64,
    /// Those of them that made no update. The schedule and Adam's bias corrections are functions of the others' number.
    #[serde(default)]
    pub skipped_steps: u64,
    /// fp16: the loss scale.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_scale: Option<LossScale>,
    /// Micro-batches done. Dropout and masks are functions of it and the seed.
    pub micro_steps: u64,
    /// Where the data continues.
    pub position: Position,
    /// Fingerprint of the training data's batches, as the loader's source gives it.
    pub data_fingerprint: String,
    /// Fingerprint of the tokenizers.
    pub tokenizer_fingerprint: String,
    /// Source tokens trained on, without padding.
    pub source_tokens: u64,
    /// Target tokens, or tokens of text, trained on, without padding.
    pub target_tokens: u64,
    /// Seconds spent training, validation and saving left out; `train.max_minutes` counts them.
    pub train_secs: f64,
    /// Steps whose loss or gradient norm was not finite.
    pub non_finite_steps: u64,
    /// The best validation so far.
    pub best: Option<Best>,
}

/// Dynamic loss scaling between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// What the loss of the next step is multiplied with.
    pub scale: f32,
    /// Steps without an overflow since it last changed.
    pub good_steps: u32,
}

/// A validation result to beat.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Step it was measured at.
    pub step: u64,
    /// Validation loss, nats per target token.
    pub loss: f64,
}

impl Snapshot {
    /// The stored file `name`.
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        self.files.iter().find(|file| file.name == name).map(|file| file.bytes.as_slice())
    }
}
