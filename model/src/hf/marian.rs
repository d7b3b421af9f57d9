//! Marian's start of the output: the padding token, last in the vocabulary, with a vector of zeros. CTranslate2 relies on it.
//!
//! Kiln's own translators begin with a start token whose vector is trained. An export adds the padding token behind the vocabulary,
//! and moves the vector of the start into the first of the decoder's positions, where no other token stands. An import moves it back.

use serde_json::json;

use super::table::OUTPUT;
use super::{ExportPlan, Family, FileTensor};
use crate::config::{TieEmbeddings, TransformerConfig};
use crate::named_tensor::{Elements, FloatType, LazyTensor};
use crate::position::sines_then_cosines;

/// The decoder's positions, in files where they are not sines and cosines alone.
const POSITIONS: &str = "model.decoder.embed_positions.weight";
const SHARED: &str = "model.shared.weight";
const OF_ENCODER: &str = "model.encoder.embed_tokens.weight";
const OF_DECODER: &str = "model.decoder.embed_tokens.weight";
const BIAS: &str = "final_logits_bias";
/// The logit of a token that never occurs.
const NEVER: f32 = -1e4;

/// A Marian model whose output begins with zeros, as far as it can.
#[derive(Debug)]
pub struct ZeroStart<'a> {
    /// The model.
    pub plan: ExportPlan<'a>,
    /// The id of the padding token that its tokenizer lacks; `None` if the tokenizer stays as it is.
    pub added: Option<u32>,
}

/// Lets the output of a Marian model begin with a vector of zeros, as CTranslate2 and Marian do. The model computes the same.
///
/// If the last token does not start the output, a padding token is added behind the vocabulary, unless `may_add` is false. Without it,
/// or if both languages have vocabularies of different sizes, the model stays as it is.
pub fn start_with_zeros(plan: ExportPlan<'_>, may_add: bool) -> ZeroStart<'_> {
    let unchanged = |plan| ZeroStart { plan, added: None };
    let number = |key: &str| plan.config[key].as_u64().map(|n| n as usize);
    let keys = ["vocab_size", "d_model", "max_position_embeddings", "pad_token_id", "decoder_start_token_id"];
    let [Some(n), Some(d), Some(max_positions), Some(pad), Some(start)] = keys.map(number) else {
        return unchanged(plan);
    };
    let is_last = pad == start && start + 1 == n;
    let one_size = plan.family == Family::Marian && number("decoder_vocab_size") == Some(n);
    if !one_size || !is_last && !may_add {
        return unchanged(plan);
    }
    let vector = row_of_decoder(&plan.tensors, start, d);
    let has_zeros = vector.iter().all(|x| *x == 0.0);
    if is_last && has_zeros {
        return unchanged(plan);
    }

    let ExportPlan { family, mut config, mut generation_config, tensors } = plan;
    let last = if is_last { start } else { n };
    let mut tensors: Vec<_> = tensors.into_iter().map(|tensor| with_last(tensor, last, d, is_last)).collect();
    if !tensors.iter().any(|tensor| tensor.name == BIAS) {
        let bias = move || Elements::F32((0..=last).map(|id| if id == last { NEVER } else { 0.0 }).collect());
        tensors.push(LazyTensor::new(BIAS, vec![1, last + 1], FloatType::F32, bias));
    }
    if !has_zeros {
        let scale = scale_of(config["scale_embedding"] == true, d);
        tensors.push(LazyTensor::new(POSITIONS, vec![max_positions, d], FloatType::F32, move || {
            let mut values = sines_then_cosines(max_positions, d);
            values.iter_mut().zip(&vector).for_each(|(position, x)| *position += x * scale);
            Elements::F32(values)
        }));
    }

    config["vocab_size"] = json!(last + 1);
    config["decoder_vocab_size"] = json!(last + 1);
    for json in [Some(&mut config), generation_config.as_mut()].into_iter().flatten() {
        json["pad_token_id"] = json!(last);
        json["decoder_start_token_id"] = json!(last);
    }
    let plan = ExportPlan { family, config, generation_config, tensors };
    ZeroStart { plan, added: (!is_last).then_some(last as u32) }
}

fn scale_of(scales: bool, d: usize) -> f32 {
    if scales { (d as f32).sqrt() } else { 1.0 }
}

/// The vector of a token in the decoder's table.
fn row_of_decoder(tensors: &[LazyTensor<'_>], token: usize, d: usize) -> Vec<f32> {
    let named = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    let table = named(OF_DECODER).or_else(|| named(SHARED)).expect("a Marian model has a table for its decoder");
    table.read().values[token * d..][..d].to_vec()
}

/// Returns a tensor whose row of token `last` is zero, or with such a row behind all others; of the bias, a logit that is never chosen.
fn with_last(tensor: LazyTensor<'_>, last: usize, d: usize, is_there: bool) -> LazyTensor<'_> {
    // A decoder's start that is the padding of sources and has logits of its own keeps the vectors of these.
    let is_kept = is_there && [OF_ENCODER, OUTPUT].contains(&&*tensor.name);
    let (width, value, shape) = match &*tensor.name {
        SHARED | OF_ENCODER | OF_DECODER | OUTPUT if !is_kept => (d, 0.0, vec![last + 1, d]),
        BIAS => (1, NEVER, vec![1, last + 1]),
        _ => return tensor,
    };
    LazyTensor::new(tensor.name.clone(), shape, FloatType::F32, move || {
        let mut values = tensor.read().values;
        values.truncate(last * width);
        values.extend(std::iter::repeat_n(value, width));
        Elements::F32(values)
    })
}

/// Moves what a file has in the first of the decoder's positions, beyond sines and cosines, into the vector of the start.
pub(super) fn move_start_back(
    config: &TransformerConfig,
    start: Option<u32>,
    tensors: &[FileTensor<'_>],
    weights: &mut [LazyTensor<'_>],
) {
    let d = config.d_model;
    let is_first = |tensor: &&FileTensor<'_>| {
        POSITIONS.ends_with(&tensor.name) && tensor.shape.get(1) == Some(&d) && tensor.problem().is_none()
    };
    let Some((start, positions)) = start.zip(tensors.iter().find(is_first)) else { return };
    let scale = scale_of(config.scale_embedding, d);
    let usual = sines_then_cosines(1, d);
    let moved: Vec<f32> = positions.values().iter().zip(&usual).map(|(x, usual)| (x - usual) / scale).collect();
    if moved.iter().all(|x| *x == 0.0) {
        return;
    }

    let shared = matches!(config.tie_embeddings, TieEmbeddings::ThreeWay | TieEmbeddings::Inputs);
    let name = if shared { "source_embedding.table" } else { "target_embedding.table" };
    for weight in weights.iter_mut().filter(|weight| weight.name == name) {
        let (table, moved) = (weight.clone(), moved.clone());
        *weight = LazyTensor::new(name, table.shape.clone(), FloatType::F32, move || {
            let mut values = table.read().values;
            let row = values.chunks_exact_mut(d).nth(start as usize);
            row.into_iter().flatten().zip(&moved).for_each(|(x, moved)| *x += moved);
            Elements::F32(values)
        });
    }
}
