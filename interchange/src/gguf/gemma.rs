//! What llama.cpp fixes in its Gemma models, and what it reads.

use kiln_model::hf::Family;
use serde_json::Value;

use super::config::{head_dim, size};
use super::file::{Entry, GgufFile};
use super::{GgufError, refused};

pub(super) fn is_gemma(family: Family) -> bool {
    matches!(family, Family::Gemma2 | Family::Gemma3)
}

/// Adds the windows, the bounds, and the positions of the local layers.
pub(super) fn add(
    file: &mut GgufFile<'_>,
    family: Family,
    architecture: &str,
    config: &Value,
) -> Result<(), GgufError> {
    let is_third = family == Family::Gemma3;
    let every = if is_third { 6 } else { 2 };
    let kinds = config["layer_types"].as_array().map_or(&[][..], Vec::as_slice);
    let is_usual = |(layer, kind): (usize, &Value)| (*kind == "full_attention") == (layer + 1).is_multiple_of(every);
    if !kinds.iter().enumerate().all(is_usual) {
        return Err(refused(format!(
            "other layers than each {every}th are without a window (model.global_layer_every)"
        )));
    }
    file.add(format!("{architecture}.attention.sliding_window"), Entry::U32(size(config, "sliding_window")));

    for field in ["attn_logit_softcapping", "final_logit_softcapping"] {
        match (config[field].as_f64(), is_third) {
            (Some(bound), false) => file.add(format!("{architecture}.{field}"), Entry::F32(bound as f32)),
            (None, true) => {}
            (found, _) => {
                return Err(refused(format!("{field} is {}", found.map_or("missing".to_owned(), |x| x.to_string()))));
            }
        }
    }
    if is_third {
        let local = config["rope_parameters"]["sliding_attention"]["rope_theta"].as_f64().unwrap_or_default();
        file.add("gemma3.rope.freq_base_swa", Entry::F32(local as f32));
    }
    Ok(())
}

/// Returns the parameters of the rotary positions of layers without a window.
pub(super) fn rope(family: Family, config: &Value) -> &Value {
    let rope = &config["rope_parameters"];
    if family == Family::Gemma3 { &rope["full_attention"] } else { rope }
}

/// Returns what queries are multiplied with, so that the scores have the model's factor: llama.cpp divides them by the square root of
/// the features of a head, in the largest models of another number.
pub(super) fn query_factor(family: Family, config: &Value) -> f32 {
    let largest = if family == Family::Gemma3 { 62 } else { 46 };
    let divisor = if size(config, "num_hidden_layers") == largest {
        f64::from(size(config, "hidden_size")) / f64::from(size(config, "num_attention_heads"))
    } else {
        f64::from(head_dim(config))
    };
    (divisor / config["query_pre_attn_scalar"].as_f64().unwrap_or(divisor)).sqrt() as f32
}
