//! The weights, under llama.cpp's names and in its order of features.

use std::sync::Arc;

use kiln_model::hf::{ExportPlan, Family};
use kiln_model::{Elements, FloatType, LazyTensor, NamedTensor};
use serde_json::Value;

use super::config::size;
use super::file::{BLOCK, GgufFile, Tensor};
use super::gemma::{is_gemma, query_factor};
use super::metadata::rope_factors;
use super::{GgufError, GgufType, refused};

/// Names of `transformers` within a layer, and llama.cpp's.
const IN_LAYER: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
/// The same for GPT-2.
const IN_GPT2_LAYER: [(&str, &str); 6] = [
    ("ln_1", "attn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("ln_2", "ffn_norm"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
];
/// Names in a layer of Gemma that other families lack, or use otherwise.
const IN_GEMMA_LAYER: [(&str, &str); 3] = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];
/// Names outside of the layers.
const OUTSIDE: [(&str, &str); 6] = [
    ("embed_tokens", "token_embd"),
    ("norm", "output_norm"),
    ("lm_head", "output"),
    ("wte", "token_embd"),
    ("wpe", "position_embd"),
    ("ln_f", "output_norm"),
];

/// Adds all tensors of the model.
pub(super) fn add<'a>(file: &mut GgufFile<'a>, model: ExportPlan<'a>, stored: GgufType) -> Result<(), GgufError> {
    let ExportPlan { family, config, tensors, .. } = model;
    let config = Arc::new(config);
    for tensor in tensors {
        let name = name_of(family, &tensor.name)
            .ok_or_else(|| refused(format!("it has no place for the tensor {}", tensor.name)))?;
        let mut shape = tensor.shape.clone();
        if is_transposed(family, &tensor.name, &shape) {
            shape.reverse();
        }
        let stored = stored_as(&name, &shape, stored);

        let (config, of_gemma_named) = (config.clone(), is_gemma(family).then(|| name.clone()));
        let read = move || {
            let tensor = in_order(family, &config, tensor.read());
            let tensor = match &of_gemma_named {
                Some(name) => of_gemma(family, &config, name, tensor),
                None => tensor,
            };
            Elements::F32(tensor.values)
        };
        file.push(Tensor { tensor: LazyTensor::new(name, shape, FloatType::F32, read), stored });
    }
    if let Some(values) = rope_factors(&config) {
        let factors = NamedTensor { name: "rope_freqs.weight".to_owned(), shape: vec![values.len()], values };
        file.push(Tensor { tensor: factors.into(), stored: GgufType::F32 });
    }
    Ok(())
}

fn name_of(family: Family, name: &str) -> Option<String> {
    let (path, kind) = name.rsplit_once('.')?;
    let path = path.strip_prefix("model.").or(path.strip_prefix("transformer.")).unwrap_or(path);
    if let Some((_, name)) = OUTSIDE.iter().find(|(theirs, _)| *theirs == path) {
        return Some(format!("{name}.{kind}"));
    }
    let (prefix, table) = match family {
        Family::Gpt2 => ("h.", &IN_GPT2_LAYER[..]),
        _ => ("layers.", &IN_LAYER[..]),
    };
    let (layer, inner) = path.strip_prefix(prefix)?.split_once('.')?;
    let own = if is_gemma(family) { &IN_GEMMA_LAYER[..] } else { &[] };
    let (_, name) = own.iter().chain(table).find(|(theirs, _)| *theirs == inner)?;
    Some(format!("blk.{layer}.{name}.{kind}"))
}

/// Returns the tensor with its features in llama.cpp's order: Llama's queries and keys have both halves of a rotation next to each
/// other there, and GPT-2's matrices have a row for each output.
fn in_order(family: Family, config: &Value, tensor: NamedTensor) -> NamedTensor {
    let heads = match family {
        Family::Llama | Family::Mistral if tensor.name.contains(".q_proj.") => size(config, "num_attention_heads"),
        Family::Llama | Family::Mistral if tensor.name.contains(".k_proj.") => size(config, "num_key_value_heads"),
        _ if is_transposed(family, &tensor.name, &tensor.shape) => return transposed(tensor),
        _ => return tensor,
    } as usize;
    let rows = tensor.shape[0];
    let width = tensor.values.len() / rows;
    let half = rows / heads / 2;
    let mut values = Vec::with_capacity(tensor.values.len());
    for row in 0..rows {
        let (head, at) = (row / (2 * half), row % (2 * half));
        let from = head * 2 * half + at % 2 * half + at / 2;
        values.extend_from_slice(&tensor.values[from * width..(from + 1) * width]);
    }
    NamedTensor { values, ..tensor }
}

/// Returns a tensor of Gemma as llama.cpp computes with it: the weights of norms are whole, not what they have above 1, and queries
/// bring what the model's factor of the scores has above llama.cpp's.
fn of_gemma(family: Family, config: &Value, name: &str, mut tensor: NamedTensor) -> NamedTensor {
    let factor = query_factor(family, config);
    let is_norm = name.contains("norm.");
    let scales = match family {
        Family::Gemma3 => name.contains("attn_q_norm."),
        _ => name.contains("attn_q."),
    };
    let factor = if scales { factor } else { 1.0 };
    for x in &mut tensor.values {
        *x = (*x + if is_norm { 1.0 } else { 0.0 }) * factor;
    }
    tensor
}

/// Whether llama.cpp has the tensor the other way round.
fn is_transposed(family: Family, name: &str, shape: &[usize]) -> bool {
    family == Family::Gpt2 && shape.len() == 2 && name.contains(".h.")
}

fn transposed(tensor: NamedTensor) -> NamedTensor {
    let [rows, columns] = [tensor.shape[0], tensor.shape[1]];
    let values = (0..rows * columns).map(|i| tensor.values[i % rows * columns + i / rows]).collect();
    NamedTensor { shape: vec![columns, rows], values, ..tensor }
}

fn stored_as(name: &str, shape: &[usize], wanted: GgufType) -> GgufType {
    match wanted {
        _ if shape.len() < 2 || name == "position_embd.weight" => GgufType::F32,
        GgufType::Q8_0 if !shape[shape.len() - 1].is_multiple_of(BLOCK) => GgufType::F16,
        wanted => wanted,
    }
}
