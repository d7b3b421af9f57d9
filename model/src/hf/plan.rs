//! What an import and an export bring: a model with all its weights, or with weights that are read when they are needed.

use serde_json::Value;

use super::{Family, TokenIds};
use crate::config::TransformerConfig;
use crate::named_tensor::{LazyTensor, NamedTensor};

/// A model imported from Hugging Face.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// Its family.
    pub family: Family,
    /// Its configuration in Kiln. `pad_id` is 0 if `config.json` names no padding token.
    pub config: TransformerConfig,
    /// Special tokens.
    pub tokens: TokenIds,
    /// Every parameter of the model.
    pub weights: Vec<NamedTensor>,
    /// What was left out or differs slightly. Show these lines to the user.
    pub notes: Vec<String>,
}

/// An [`Imported`] model whose weights are read when they are needed.
#[derive(Debug)]
pub struct ImportPlan<'a> {
    /// As [`Imported::family`].
    pub family: Family,
    /// As [`Imported::config`].
    pub config: TransformerConfig,
    /// As [`Imported::tokens`].
    pub tokens: TokenIds,
    /// Every parameter of the model. Matrices of 16-bit elements stay 16 bits wide.
    pub weights: Vec<LazyTensor<'a>>,
    /// As [`Imported::notes`].
    pub notes: Vec<String>,
}

impl ImportPlan<'_> {
    /// Reads all weights.
    pub fn read(self) -> Imported {
        let Self { family, config, tokens, weights, notes } = self;
        Imported { family, config, tokens, weights: weights.iter().map(LazyTensor::read).collect(), notes }
    }
}

/// A model exported to Hugging Face.
#[derive(Debug, Clone, PartialEq)]
pub struct Exported {
    /// Its family.
    pub family: Family,
    /// `config.json`, without the `dtype` of the stored weights.
    pub config: Value,
    /// `generation_config.json`, for models that generate text.
    pub generation_config: Option<Value>,
    /// The contents of `model.safetensors`, in f32.
    pub tensors: Vec<NamedTensor>,
}

/// An [`Exported`] model whose weights are read when they are needed.
#[derive(Debug)]
pub struct ExportPlan<'a> {
    /// As [`Exported::family`].
    pub family: Family,
    /// As [`Exported::config`].
    pub config: Value,
    /// As [`Exported::generation_config`].
    pub generation_config: Option<Value>,
    /// The contents of `model.safetensors`. Those that the model has in 16 bits, and as they are, stay so.
    pub tensors: Vec<LazyTensor<'a>>,
}

impl ExportPlan<'_> {
    /// Reads all weights.
    pub fn read(self) -> Exported {
        let Self { family, config, generation_config, tensors } = self;
        Exported { family, config, generation_config, tensors: tensors.iter().map(LazyTensor::read).collect() }
    }
}
