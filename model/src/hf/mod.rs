//! Converts weights and configurations from and to Hugging Face `transformers`.
//!
//! Kiln supports fourteen families. Each has one table of names and layouts (`table` in its file), which import and export
//! share. It also has one mapping between its `config.json` and [`TransformerConfig`].
//!
//! | family | Kiln | particularities |
//! |---|---|---|
//! | `gpt2` | decoder-only | Conv1D weights have Kiln's layout, with queries, keys and values fused |
//! | `llama` | decoder-only | RMSNorm, rotary positions (also with Llama 3's scaling), SwiGLU, grouped queries |
//! | `mistral` | decoder-only | Llama with a sliding window |
//! | `qwen2` | decoder-only | Llama with biases of queries, keys and values |
//! | `qwen3` | decoder-only | Llama with a norm of each head of queries and keys |
//! | `gemma2` | decoder-only | norms before and after each part, bounded scores and logits, windows in every other layer |
//! | `gemma3_text` | decoder-only | as Gemma 2, with norms of heads and two bases of rotary positions, without bounds |
//! | `bert` | encoder-only | with or without the head that predicts masked tokens |
//! | `roberta` | encoder-only | BERT with positions that are counted from the padding id |
//! | `bart` | encoder-decoder | two unused rows before the positions; a bias on the logits |
//! | `marian` | encoder-decoder | positions with all sines before all cosines; a bias on the logits; begins with zeros |
//! | `pegasus` | encoder-decoder | Marian with norms before each part, and one vocabulary |
//! | `m2m_100` | encoder-decoder | also NLLB: norms before each part, positions as in fairseq |
//! | `t5` | encoder-decoder | relative positions, RMSNorm, no scale of scores; also `mt5`, which is exported as `t5` |
//!
//! The decoder-only families also have a head for classes of texts (`...ForSequenceClassification`).
//!
//! Import transposes PyTorch's `[n_out, n_in]` matrices and joins projections that Kiln fuses; export reverses both. This
//! module opens no files: its functions take and return tensors and JSON values.
//!
//! ```
//! use kiln_model::hf;
//! use serde_json::json;
//!
//! let error = hf::import(&json!({"model_type": "mamba"}), &[]).unwrap_err().to_string();
//! assert!(error.contains("mamba") && error.contains("gpt2, llama, mistral, qwen2, qwen3, gemma2, gemma3_text, bert"));
//! ```

mod bert;
mod classes;
mod configuration;
mod demands;
mod error;
mod export;
mod fields;
mod gemma;
mod gpt2;
#[cfg(test)]
mod harmless;
mod import;
mod llama;
mod marian;
mod model;
mod peft;
mod peft_settings;
mod plan;
mod prompt_tuning;
mod reorder;
mod rope;
mod seq2seq;
mod t5;
mod table;
mod tensor;
mod transpose;

use std::fmt;

use serde_json::{Map, Value, json};

pub use error::HfError;
use fields::Fields;
pub use marian::{ZeroStart, start_with_zeros};
pub use peft::{ExportedAdapter, ImportedAdapter, adapter_problems, export_adapter, import_adapter};
pub use plan::{ExportPlan, Exported, ImportPlan, Imported};
pub use prompt_tuning::{export_prompt, import_prompt, is_prompt};
use table::Table;
pub use tensor::{ElementType, FileTensor};

use crate::config::{Architecture, ClassHead, NormPlacement, Positions, TransformerConfig};
use crate::lora::plan_merge;
use crate::named_tensor::{LazyTensor, NamedTensor};

/// A model family of `transformers`, by the `model_type` of its `config.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// GPT-2 (Radford et al. 2019).
    Gpt2,
    /// Llama (Touvron et al. 2023), up to version 3.
    Llama,
    /// Mistral (Jiang et al. 2023).
    Mistral,
    /// Qwen 2 and 2.5 (Yang et al. 2024).
    Qwen2,
    /// Qwen 3 (Yang et al. 2025), without experts.
    Qwen3,
    /// Gemma 2 (Gemma Team 2024).
    Gemma2,
    /// The text models of Gemma 3 (Gemma Team 2025).
    Gemma3,
    /// BERT (Devlin et al. 2019).
    Bert,
    /// RoBERTa (Liu et al. 2019).
    Roberta,
    /// BART (Lewis et al. 2020).
    Bart,
    /// Marian (Junczys-Dowmunt et al. 2018), as converted by the OPUS-MT project.
    Marian,
    /// Pegasus (Zhang et al. 2020).
    Pegasus,
    /// M2M-100 (Fan et al. 2021) and NLLB (NLLB Team 2022), without experts.
    M2m100,
    /// T5 (Raffel et al. 2020), its versions 1.1 and Flan, and mT5.
    T5,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Gpt2,
        Self::Llama,
        Self::Mistral,
        Self::Qwen2,
        Self::Qwen3,
        Self::Gemma2,
        Self::Gemma3,
        Self::Bert,
        Self::Roberta,
        Self::Bart,
        Self::Marian,
        Self::Pegasus,
        Self::M2m100,
        Self::T5,
    ];

    /// The `model_type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3_text",
            Self::Bert => "bert",
            Self::Roberta => "roberta",
            Self::Bart => "bart",
            Self::Marian => "marian",
            Self::Pegasus => "pegasus",
            Self::M2m100 => "m2m_100",
            Self::T5 => "t5",
        }
    }

    /// The family that `config.json` names.
    fn of_json(config: &Map<String, Value>) -> Result<Self, HfError> {
        let family = |found: String| HfError::Family { found };
        let Some(model_type) = config.get("model_type") else { return Err(family("it has no model_type".into())) };
        let name = model_type.as_str().map(|name| if name == t5::MULTILINGUAL { Self::T5.name() } else { name });
        let known = Self::ALL.into_iter().find(|known| name == Some(known.name()));
        known.ok_or_else(|| family(format!("model_type {model_type} is not supported")))
    }

    /// The family closest to a model. Its mapping reports whether it can express the model.
    fn nearest(config: &TransformerConfig) -> Self {
        let is_pre_norm = config.norm == NormPlacement::Pre;
        match (config.architecture, config.positions) {
            (Architecture::DecoderOnly, Positions::Rotary) => llama::nearest(config),
            (Architecture::DecoderOnly, _) => Self::Gpt2,
            (Architecture::EncoderOnly, _) => bert::nearest(config),
            (Architecture::EncoderDecoder, Positions::Relative) => Self::T5,
            (Architecture::EncoderDecoder, Positions::Learned) => Self::Bart,
            (Architecture::EncoderDecoder, Positions::SinusoidalFairseq) => Self::M2m100,
            (Architecture::EncoderDecoder, _) if is_pre_norm => Self::Pegasus,
            (Architecture::EncoderDecoder, _) => Self::Marian,
        }
    }

    /// Writes the fields of `config.json`.
    fn write(self, config: &TransformerConfig) -> Result<Map<String, Value>, HfError> {
        let (mut written, problems) = match self {
            Self::Gpt2 => gpt2::write(config),
            Self::Llama | Self::Mistral | Self::Qwen2 | Self::Qwen3 => llama::write(config, self),
            Self::Gemma2 | Self::Gemma3 => gemma::write(config, self),
            Self::Bert | Self::Roberta => bert::write(config, self),
            Self::Bart => seq2seq::write_bart(config),
            Self::Marian => seq2seq::write_marian(config),
            Self::Pegasus => seq2seq::write_pegasus(config),
            Self::M2m100 => seq2seq::write_m2m_100(config),
            Self::T5 => t5::write(config),
        };
        if config.class_head == ClassHead::Last {
            classes::write(self, config, &mut written);
        }
        match problems.is_empty() {
            true => Ok(written),
            false => Err(HfError::NotExpressible { family: self, problems }),
        }
    }

    fn table(self, config: &TransformerConfig) -> Table {
        let mut table = match self {
            Self::Gpt2 => gpt2::table(config),
            Self::Llama | Self::Mistral | Self::Qwen2 | Self::Qwen3 => llama::table(config),
            Self::Gemma2 | Self::Gemma3 => gemma::table(config),
            Self::Bert | Self::Roberta => bert::table(config, self),
            Self::Bart | Self::Marian | Self::Pegasus | Self::M2m100 => seq2seq::table(config),
            Self::T5 => t5::table(config),
        };
        if config.class_head == ClassHead::Last {
            classes::replace_output(&mut table, config);
        }
        table
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Ids of the special tokens in `config.json`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenIds {
    /// Padding.
    pub pad: Option<u32>,
    /// Start of a text.
    pub bos: Option<u32>,
    /// End of a text; the first one, if there are several.
    pub eos: Option<u32>,
    /// First input of a decoder.
    pub decoder_start: Option<u32>,
}

/// Imports a model from a `config.json` and the tensors of its weight files.
///
/// Names may have or lack the prefix of the bare model (`transformer.`, `model.`, `bert.`). Second copies of tied matrices
/// must equal the first. Constants in older files (`attn.bias`, `position_ids`, ...) are skipped.
///
/// # Errors
/// If the family or one of its options is not supported, or if tensors are missing, unknown, misshaped or of an unsupported
/// type (not f64, f32, f16 or bf16). Each error lists all problems of its kind.
pub fn import(config: &Value, tensors: &[FileTensor<'_>]) -> Result<Imported, HfError> {
    Ok(plan_import(config, tensors, &|| ())?.read())
}

/// Does the same as [`import`], but reads the elements of a parameter only when they are needed: a model is converted in the memory
/// of its largest parameter. Each time elements of a tensor have been read, `after` is called, which may give memory of the mapped
/// file back.
///
/// # Errors
/// As [`import`].
pub fn plan_import<'a>(
    config: &Value,
    tensors: &[FileTensor<'a>],
    after: &'a (dyn Fn() + Sync),
) -> Result<ImportPlan<'a>, HfError> {
    let no_object = HfError::Family { found: "it is not a JSON object".to_owned() };
    let object = config.as_object().ok_or(no_object)?;
    let family = Family::of_json(object)?;
    let mut fields = Fields::new(object);

    let has = |end: &str| tensors.iter().any(|tensor| tensor.name.ends_with(end));
    let (config, tokens) = configuration::read(&mut fields, family, &has);

    let Fields { mut problems, mut notes, .. } = fields;
    if problems.is_empty() {
        problems = config.validate();
    }
    if !problems.is_empty() {
        return Err(HfError::Config { family, problems });
    }

    let taken = import::plan(&family.table(&config), tensors, after)
        .map_err(|problems| HfError::Tensors { family, problems })?;
    notes.extend(taken.notes);
    let mut weights = taken.weights;
    if family == Family::Marian {
        marian::move_start_back(&config, tokens.decoder_start, tensors, &mut weights);
    }
    Ok(ImportPlan { family, config, tokens, weights, notes })
}

/// Returns the family of `transformers` that [`export`] would write a model of `config` as.
///
/// # Errors
/// If no family computes the same; the error lists every difference.
pub fn export_family(config: &TransformerConfig) -> Result<Family, HfError> {
    let family = Family::nearest(config);
    prompt_tuning::refuse(family, config)?;
    // Export reorders the features of alternating sines and cosines.
    let positions = match config.positions {
        Positions::Sinusoidal => Positions::SinusoidalHalves,
        other => other,
    };
    family.write(&TransformerConfig { positions, ..config.clone() })?;
    Ok(family)
}

/// Exports a model to the family of `transformers` that computes the same.
///
/// Adapters are merged into the weights that they stand next to; [`export_adapter`] exports them alone.
///
/// Alternating sines and cosines become Marian's order of positions, and the features of the weights are reordered with
/// them.
///
/// # Errors
/// If no family computes the same (the error lists every difference), or if `weights` do not fit `config`.
pub fn export(config: &TransformerConfig, weights: &[NamedTensor], tokens: &TokenIds) -> Result<Exported, HfError> {
    Ok(plan_export(config, weights.iter().map(LazyTensor::borrowed).collect(), tokens)?.read())
}

/// Does the same as [`export`] with weights that are read only when a tensor of the export is: a model is converted in the memory of
/// its largest parameter.
///
/// # Errors
/// As [`export`].
pub fn plan_export<'a>(
    config: &TransformerConfig,
    weights: Vec<LazyTensor<'a>>,
    tokens: &TokenIds,
) -> Result<ExportPlan<'a>, HfError> {
    let family = Family::nearest(config);
    prompt_tuning::refuse(family, config)?;
    let (mut config, mut weights) = (config.clone(), weights);
    if config.has_adapters() {
        let missing = |path: String| HfError::Tensors { family, problems: vec![format!("missing: {path}")] };
        (config, weights) = plan_merge(&config, weights).map_err(missing)?;
    }
    if matches!(family, Family::Marian | Family::Pegasus) && config.positions == Positions::Sinusoidal {
        (config, weights) = reorder::to_halves(&config, weights);
    }

    let written = family.write(&config)?;
    let mut tensors =
        export::plan(&family.table(&config), weights).map_err(|problems| HfError::Tensors { family, problems })?;
    if family == Family::Pegasus {
        tensors.extend(seq2seq::stored_positions(&config));
    }

    let mut tokens = *tokens;
    if family == Family::Pegasus {
        // As in published models, the padding starts the output.
        tokens.pad = tokens.decoder_start.or(tokens.pad);
    }
    let ids = ids_json(family, &tokens);
    let generates = config.architecture != Architecture::EncoderOnly && !config.has_classes();
    let generation_config = generates.then(|| {
        let mut generation = ids.clone();
        if family == Family::Marian {
            // Marian starts its output with the padding token, which must not occur again.
            generation.extend(tokens.pad.map(|pad| ("bad_words_ids".to_owned(), json!([[pad]]))));
        }
        Value::Object(generation)
    });

    let mut json = Map::from_iter([("model_type".to_owned(), json!(family.name()))]);
    json.extend(written);
    json.extend(ids);
    Ok(ExportPlan { family, config: Value::Object(json), generation_config, tensors })
}

/// The fields of special tokens. Absent tokens are written as `null`, because the defaults refer to the family's original
/// vocabulary.
fn ids_json(family: Family, tokens: &TokenIds) -> Map<String, Value> {
    let mut ids = Map::from_iter([
        ("pad_token_id".to_owned(), json!(tokens.pad)),
        ("bos_token_id".to_owned(), json!(tokens.bos)),
        ("eos_token_id".to_owned(), json!(tokens.eos)),
    ]);
    if matches!(family, Family::Bart | Family::Marian | Family::Pegasus | Family::M2m100 | Family::T5) {
        ids.insert("decoder_start_token_id".to_owned(), json!(tokens.decoder_start));
    }
    if matches!(family, Family::Bart | Family::Marian | Family::Pegasus) {
        ids.insert("forced_eos_token_id".to_owned(), json!(tokens.eos));
    }
    ids
}
