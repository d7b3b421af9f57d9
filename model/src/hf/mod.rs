//! Weights and configurations of Hugging Face `transformers`, in both directions.
//!
//! Five families are known. Each has one table of names and layouts (`table` in its file here), which importing reads one
//! way and exporting the other, and one mapping between its `config.json` and [`TransformerConfig`].
//!
//! | family | Kiln | what is particular |
//! |---|---|---|
//! | `gpt2` | decoder-only | Conv1D weights lie as Kiln's do, queries, keys and values in one |
//! | `llama` | decoder-only | RMSNorm, rotary positions, SwiGLU, grouped queries |
//! | `bert` | encoder-only | with or without the head that predicts masked tokens |
//! | `bart` | encoder-decoder | two unused rows in front of the positions; a bias on the logits |
//! | `marian` | encoder-decoder | sines and cosines in halves; a bias on the logits |
//!
//! Weights are exchanged with torch's `[n_out, n_in]` matrices transposed and fused projections joined. This module opens
//! no file: tensors and JSON values come in and go out.
//!
//! ```
//! use kiln_model::hf;
//! use serde_json::json;
//!
//! let error = hf::import(&json!({"model_type": "t5"}), &[]).unwrap_err().to_string();
//! assert!(error.contains("t5") && error.contains("gpt2, llama, bert, bart and marian"));
//! ```

mod bert;
mod demands;
mod error;
mod export;
mod fields;
mod gpt2;
mod import;
mod llama;
mod model;
mod reorder;
mod seq2seq;
mod table;
mod tensor;

use std::fmt;

use serde_json::{Map, Value, json};

pub use error::HfError;
use fields::Fields;
use table::Table;
pub use tensor::{ElementType, FileTensor, NamedTensor};

use crate::config::{Architecture, Positions, TransformerConfig};

/// A model family of `transformers`, by the `model_type` of its `config.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// GPT-2 (Radford et al. 2019).
    Gpt2,
    /// Llama (Touvron et al. 2023).
    Llama,
    /// BERT (Devlin et al. 2019).
    Bert,
    /// BART (Lewis et al. 2020).
    Bart,
    /// Marian (Junczys-Dowmunt et al. 2018), as converted by the OPUS-MT project.
    Marian,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Gpt2, Self::Llama, Self::Bert, Self::Bart, Self::Marian];

    /// The `model_type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
            Self::Bert => "bert",
            Self::Bart => "bart",
            Self::Marian => "marian",
        }
    }

    /// The family that `config.json` names.
    fn of_json(config: &Map<String, Value>) -> Result<Self, HfError> {
        let family = |found: String| HfError::Family { found };
        let Some(model_type) = config.get("model_type") else { return Err(family("it has no model_type".into())) };
        let known = Self::ALL.into_iter().find(|known| model_type.as_str() == Some(known.name()));
        known.ok_or_else(|| family(format!("model_type {model_type} is not supported")))
    }

    /// The family that comes closest to a model; whether it can express it is told by its mapping.
    fn nearest(config: &TransformerConfig) -> Self {
        match (config.architecture, config.positions) {
            (Architecture::DecoderOnly, Positions::Rotary) => Self::Llama,
            (Architecture::DecoderOnly, _) => Self::Gpt2,
            (Architecture::EncoderOnly, _) => Self::Bert,
            (Architecture::EncoderDecoder, Positions::Learned) => Self::Bart,
            (Architecture::EncoderDecoder, _) => Self::Marian,
        }
    }

    fn table(self, config: &TransformerConfig) -> Table {
        match self {
            Self::Gpt2 => gpt2::table(config),
            Self::Llama => llama::table(config),
            Self::Bert => bert::table(config),
            Self::Bart | Self::Marian => seq2seq::table(config),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Ids of special tokens that `config.json` may hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenIds {
    /// Fills rows.
    pub pad: Option<u32>,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text; the first one, if there are several.
    pub eos: Option<u32>,
    /// Begins what a decoder writes.
    pub decoder_start: Option<u32>,
}

/// A model that came from Hugging Face.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// What it was.
    pub family: Family,
    /// Its shape in Kiln. `pad_id` is 0 where `config.json` names no padding token.
    pub config: TransformerConfig,
    /// Special tokens.
    pub tokens: TokenIds,
    /// Every parameter of the model.
    pub weights: Vec<NamedTensor>,
    /// What was left out or is not quite the same; show it.
    pub notes: Vec<String>,
}

/// Makes a Kiln model of a `config.json` and the tensors of its weight files.
///
/// Names may come with or without the prefix of the bare model (`transformer.`, `model.`, `bert.`); second copies of tied
/// matrices must equal the first; constants that older files hold (`attn.bias`, `position_ids`, ...) are skipped.
///
/// # Errors
/// If the family or one of its options is not supported, or if tensors are missing, unknown, of another shape or of a
/// type other than f32, f16 and bf16. Each error lists all.
pub fn import(config: &Value, tensors: &[FileTensor<'_>]) -> Result<Imported, HfError> {
    let no_object = HfError::Family { found: "it is no JSON object".to_owned() };
    let object = config.as_object().ok_or(no_object)?;
    let family = Family::of_json(object)?;
    let mut fields = Fields::new(object);
    let has = |end: &str| tensors.iter().any(|tensor| tensor.name.ends_with(end));
    let mut config = match family {
        Family::Gpt2 => gpt2::read(&mut fields),
        Family::Llama => llama::read(&mut fields),
        Family::Bert => bert::read(&mut fields, &has),
        Family::Bart => seq2seq::read_bart(&mut fields),
        Family::Marian => seq2seq::read_marian(&mut fields),
    };
    let tokens = TokenIds {
        pad: token_id(&mut fields, "pad_token_id"),
        bos: token_id(&mut fields, "bos_token_id"),
        eos: token_id(&mut fields, "eos_token_id"),
        decoder_start: token_id(&mut fields, "decoder_start_token_id"),
    };
    config.pad_id = tokens.pad.unwrap_or(0);
    let Fields { mut problems, mut notes, .. } = fields;
    if problems.is_empty() {
        problems = config.validate();
    }
    if !problems.is_empty() {
        return Err(HfError::Config { family, problems });
    }
    let taken =
        import::import(&family.table(&config), tensors).map_err(|problems| HfError::Tensors { family, problems })?;
    notes.extend(taken.notes);
    Ok(Imported { family, config, tokens, weights: taken.weights, notes })
}

/// A model for Hugging Face.
#[derive(Debug, Clone, PartialEq)]
pub struct Exported {
    /// What it is there.
    pub family: Family,
    /// `config.json`, without the `dtype` that the weights are stored in.
    pub config: Value,
    /// `generation_config.json`; none for models that do not generate.
    pub generation_config: Option<Value>,
    /// The contents of `model.safetensors`, in f32.
    pub tensors: Vec<NamedTensor>,
}

/// Writes a Kiln model as the family of `transformers` that computes the same.
///
/// Sinusoidal positions that alternate sine and cosine become Marian's halves, and the weights' features are reordered
/// with them.
///
/// # Errors
/// If no family computes the same, with all that stands in the way, or if `weights` are not those of `config`.
pub fn export(config: &TransformerConfig, weights: &[NamedTensor], tokens: &TokenIds) -> Result<Exported, HfError> {
    let family = Family::nearest(config);
    let reordered;
    let (config, weights) = if family == Family::Marian && config.positions == Positions::Sinusoidal {
        reordered = reorder::to_halves(config, weights);
        (&reordered.0, reordered.1.as_slice())
    } else {
        (config, weights)
    };
    let (written, problems) = match family {
        Family::Gpt2 => gpt2::write(config),
        Family::Llama => llama::write(config),
        Family::Bert => bert::write(config),
        Family::Bart => seq2seq::write_bart(config),
        Family::Marian => seq2seq::write_marian(config),
    };
    if !problems.is_empty() {
        return Err(HfError::NotExpressible { family, problems });
    }
    let tensors =
        export::export(&family.table(config), weights).map_err(|problems| HfError::Tensors { family, problems })?;
    let ids = ids_json(family, tokens);
    let generation_config = (family != Family::Bert).then(|| {
        let mut generation = ids.clone();
        if family == Family::Marian {
            // Its padding begins what it writes, and stands nowhere else.
            generation.extend(tokens.pad.map(|pad| ("bad_words_ids".to_owned(), json!([[pad]]))));
        }
        Value::Object(generation)
    });
    let mut json = Map::from_iter([("model_type".to_owned(), json!(family.name()))]);
    json.extend(written);
    json.extend(ids);
    Ok(Exported { family, config: Value::Object(json), generation_config, tensors })
}

/// A token's id; the first of a list.
fn token_id(fields: &mut Fields<'_>, key: &str) -> Option<u32> {
    let mut value = fields.get(key)?;
    if let Value::Array(several) = value {
        fields.notes.push(format!("{key} {value}: the first one is used"));
        value = several.first()?;
    }
    // Some files say -1 for "none".
    if value.as_i64() == Some(-1) {
        return None;
    }
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    if id.is_none() {
        fields.problems.push(format!("{key} is {value}, not a token's id"));
    }
    id
}

/// The fields of special tokens. Absent ones are spelled out as `null`: their defaults belong to the family's original
/// vocabulary.
fn ids_json(family: Family, tokens: &TokenIds) -> Map<String, Value> {
    let mut ids = Map::from_iter([
        ("pad_token_id".to_owned(), json!(tokens.pad)),
        ("bos_token_id".to_owned(), json!(tokens.bos)),
        ("eos_token_id".to_owned(), json!(tokens.eos)),
    ]);
    if matches!(family, Family::Bart | Family::Marian) {
        ids.insert("decoder_start_token_id".to_owned(), json!(tokens.decoder_start));
        ids.insert("forced_eos_token_id".to_owned(), json!(tokens.eos));
    }
    ids
}
