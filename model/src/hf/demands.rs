//! Shared by the families' exports: names of activations, and checks of what a family requires.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::config::{FeedForwardActivation, TransformerConfig};

/// Collects the differences between a model and what a family requires.
pub(super) struct Demands(pub(super) Vec<String>);

impl Demands {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// Requires `found` to be `wanted`.
    pub(super) fn equal<T: PartialEq + Serialize>(&mut self, field: &str, found: T, wanted: T) {
        if found != wanted {
            // As in a configuration.
            let [found, wanted] = [found, wanted].map(|value| serde_json::to_string(&value).expect("a key's value"));
            self.0.push(format!("model.{field} is {found}, but this family has {wanted}"));
        }
    }

    /// Requires attention without the options of Llama's relatives.
    pub(super) fn plain_attention(&mut self, config: &TransformerConfig) {
        self.equal("head_dim", config.head_dim() * config.n_heads, config.d_model);
        self.equal("qkv_bias", config.has_qkv_bias(), config.bias);
        self.equal("feed_forward_bias", config.has_feed_forward_bias(), config.bias);
        self.equal("qk_norm", config.qk_norm, false);
        self.equal("attention_window", config.attention_window, 0);
        self.plain_scores(config);
    }

    /// Requires scores of attention without the options of Gemma and T5.
    pub(super) fn plain_scores(&mut self, config: &TransformerConfig) {
        self.equal("attention_scale", config.attention_scale, None);
        self.equal("attention_softcap", config.attention_softcap, 0.0);
        self.equal("logits_softcap", config.logits_softcap, 0.0);
    }

    /// The name of an element-wise activation.
    pub(super) fn activation(&mut self, activation: FeedForwardActivation) -> &'static str {
        if activation.is_gated() {
            self.0.push(format!(
                "model.activation is \"{activation}\", but this family has element-wise activations only"
            ));
            return "";
        }
        activation.by().names_in_transformers()[0]
    }
}

/// The content of a JSON object literal.
pub(super) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => unreachable!("{other} is not an object"),
    }
}
