//! The shape of the model, under llama.cpp's keys.

use kiln_model::hf::{ExportPlan, Family};
use serde_json::Value;

use super::config::{head_dim, real, size};
use super::file::{Entry, GgufFile};
use super::gemma::{self, is_gemma};
use super::{GgufError, GgufType, refused};

/// Adds what describes the model. Refuses what llama.cpp would leave out.
pub(super) fn add(
    file: &mut GgufFile<'_>,
    architecture: &str,
    name: &str,
    ExportPlan { family, config, .. }: &ExportPlan<'_>,
    stored: GgufType,
) -> Result<(), GgufError> {
    if config["attention_bias"] == Value::Bool(true) || config["mlp_bias"] == Value::Bool(true) {
        return Err(refused("it has biases (attention_bias, mlp_bias) that its Llama has not"));
    }

    let file_type = match stored {
        GgufType::F32 => 0,
        GgufType::F16 => 1,
        GgufType::Q8_0 => 7,
        GgufType::Bf16 => 32,
    };
    file.add("general.architecture", Entry::Text(architecture.to_owned()));
    file.add("general.type", Entry::Text("model".to_owned()));
    file.add("general.name", Entry::Text(name.to_owned()));
    file.add("general.file_type", Entry::U32(file_type));
    file.add("general.quantization_version", Entry::U32(2));
    let mut number = |key: &str, value: u32| file.add(format!("{architecture}.{key}"), Entry::U32(value));

    if *family == Family::Gpt2 {
        // The second is approximated by the first; the command says so.
        let activation = config["activation_function"].as_str().unwrap_or_default();
        if !["gelu_new", "gelu"].contains(&activation) {
            return Err(refused(format!("its GPT-2 has GELU, and this model {activation} (model.activation)")));
        }
        number("context_length", size(config, "n_positions"));
        number("embedding_length", size(config, "n_embd"));
        number("feed_forward_length", size(config, "n_inner"));
        number("block_count", size(config, "n_layer"));
        number("attention.head_count", size(config, "n_head"));
        let epsilon = real(config, "layer_norm_epsilon");
        file.add("gpt2.attention.layer_norm_epsilon", Entry::F32(epsilon));
        return Ok(());
    }

    let head_dim = head_dim(config);
    let positions = size(config, "max_position_embeddings");
    let window = window(*family, config);
    // llama.cpp keeps to the second number alone.
    window.into_iter().for_each(|window| number("attention.sliding_window", window));
    number("context_length", window.map_or(positions, |window| window.min(positions)));
    number("embedding_length", size(config, "hidden_size"));
    number("feed_forward_length", size(config, "intermediate_size"));
    number("block_count", size(config, "num_hidden_layers"));
    number("attention.head_count", size(config, "num_attention_heads"));
    number("attention.head_count_kv", size(config, "num_key_value_heads"));
    number("attention.key_length", head_dim);
    number("attention.value_length", head_dim);
    number("rope.dimension_count", head_dim);
    number("vocab_size", size(config, "vocab_size"));
    let mut real_number = |key: &str, value: f32| file.add(format!("{architecture}.{key}"), Entry::F32(value));
    real_number("attention.layer_norm_rms_epsilon", real(config, "rms_norm_eps"));
    let rope = gemma::rope(*family, config);
    real_number("rope.freq_base", real(rope, "rope_theta"));

    match (rope["rope_type"].as_str(), family) {
        (Some("default"), _) | (Some("llama3"), Family::Llama | Family::Mistral) => {}
        (Some("linear"), Family::Gemma3) => {
            file.add("gemma3.rope.scaling.type", Entry::Text("linear".to_owned()));
            file.add("gemma3.rope.scaling.factor", Entry::F32(real(rope, "factor")));
        }
        (kind, _) => {
            return Err(refused(format!(
                "rotary positions of the kind {} in a {family} model",
                kind.unwrap_or("unknown")
            )));
        }
    }
    if is_gemma(*family) { gemma::add(file, *family, architecture, config) } else { Ok(()) }
}

/// Returns the window of a model whose architecture has none in llama.cpp: a text up to its length is computed in the same way.
pub(super) fn window(family: Family, config: &Value) -> Option<u32> {
    let has_window = config["sliding_window"].is_number() && config["use_sliding_window"] != Value::Bool(false);
    (has_window && !is_gemma(family)).then(|| size(config, "sliding_window"))
}

/// Returns the factors that divide the frequencies of Llama 3's rotary positions, one for two features of a head.
pub(super) fn rope_factors(config: &Value) -> Option<Vec<f32>> {
    let rope = &config["rope_parameters"];
    if rope["rope_type"] != "llama3" {
        return None;
    }
    let of = |key: &str| rope[key].as_f64().unwrap_or(1.0);
    let (factor, low, high) = (of("factor"), of("low_freq_factor"), of("high_freq_factor"));
    let (base, original) = (of("rope_theta"), of("original_max_position_embeddings"));
    let head_dim = head_dim(config);
    let factors = (0..head_dim).step_by(2).map(|i| {
        let wavelength = 2.0 * std::f64::consts::PI * base.powf(f64::from(i) / f64::from(head_dim));
        if wavelength < original / high {
            return 1.0;
        }
        if wavelength > original / low {
            return factor as f32;
        }
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
    });
    Some(factors.collect())
}
