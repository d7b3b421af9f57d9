//! Numbers of `config.json`, which export has written.

use serde_json::Value;

/// Returns the features of a head.
pub(super) fn head_dim(config: &Value) -> u32 {
    match config["head_dim"].as_u64() {
        Some(size) => size as u32,
        None => size(config, "hidden_size") / size(config, "num_attention_heads"),
    }
}

/// Returns a whole number of `config.json`, which export has written.
pub(super) fn size(config: &Value, key: &str) -> u32 {
    config[key].as_u64().unwrap_or_default() as u32
}

/// Returns a number of it.
pub(super) fn real(config: &Value, key: &str) -> f32 {
    config[key].as_f64().unwrap_or_default() as f32
}
