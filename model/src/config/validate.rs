//! Reports all problems of a configuration at once.

use super::{Architecture, Positions, TieEmbeddings, TransformerConfig};

impl TransformerConfig {
    /// Returns all problems of this configuration with their remedies, or nothing if a model can be built. A vocabulary size
    /// of 0 is not a problem yet: the tokenizer fills it in, and [`Self::init`] refuses it.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        self.validate_sizes(&mut problems);
        self.validate_heads(&mut problems);
        self.validate_positions(&mut problems);
        self.validate_attention(&mut problems);
        self.validate_numbers(&mut problems);
        self.validate_parts(&mut problems);
        self.validate_vocabularies(&mut problems);
        self.validate_lora(&mut problems);
        self.validate_prompt(&mut problems);
        self.validate_classes(&mut problems);
        problems
    }

    fn validate_sizes(&self, problems: &mut Vec<String>) {
        let encoder = self.architecture != Architecture::DecoderOnly;
        let decoder = self.architecture != Architecture::EncoderOnly;
        for (name, value, needed) in [
            ("d_model", self.d_model, true),
            ("n_heads", self.n_heads, true),
            ("d_ff", self.d_ff, true),
            ("n_encoder_layers", self.n_encoder_layers, encoder),
            ("n_decoder_layers", self.n_decoder_layers, decoder),
        ] {
            if needed && value == 0 {
                problems.push(format!("model.{name} is 0; set it to at least 1"));
            }
        }

        // No machine holds more, and sizes below these multiply without overflow.
        for (name, value, most) in [
            ("d_model", self.d_model, 1 << 20),
            ("d_ff", self.d_ff, 1 << 20),
            ("n_heads", self.n_heads, 1 << 16),
            ("head_dim", self.head_dim, 1 << 16),
            ("n_encoder_layers", self.n_encoder_layers, 10_000),
            ("n_decoder_layers", self.n_decoder_layers, 10_000),
            ("max_positions", self.max_positions, 1 << 24),
        ] {
            if value > most {
                problems.push(format!("model.{name} {value} is above {most}, the largest that is supported; lower it"));
            }
        }
        if self.max_positions < 2 {
            problems.push(format!(
                "model.max_positions {} leaves no room for a token and the end token; set it to the length of the longest sequence in \
                 tokens",
                self.max_positions
            ));
        }
    }

    fn validate_heads(&self, problems: &mut Vec<String>) {
        if self.n_heads == 0 {
            return;
        }
        if self.head_dim == 0 && !self.d_model.is_multiple_of(self.n_heads) {
            let below = self.d_model / self.n_heads * self.n_heads;
            problems.push(format!(
                "model.d_model {} is not a multiple of model.n_heads {}; set model.d_model to {} or choose another number of heads",
                self.d_model,
                self.n_heads,
                below + self.n_heads,
            ));
        }
        if !self.n_heads.is_multiple_of(self.kv_heads()) {
            problems.push(format!(
                "model.n_kv_heads {} does not divide model.n_heads {}; set it to a divisor, or to 0 for the same number",
                self.n_kv_heads, self.n_heads
            ));
        }
    }

    fn validate_positions(&self, problems: &mut Vec<String>) {
        if self.positions == Positions::Sinusoidal && !self.d_model.is_multiple_of(2) {
            problems.push(format!(
                "model.d_model {} is odd, but alternating sines and cosines need pairs of features; make it even or set model.positions = \
                 \"learned\"",
                self.d_model
            ));
        }

        if self.positions == Positions::SinusoidalFairseq && self.d_model < 4 {
            problems.push(format!(
                "model.d_model {} is below 4, the least for model.positions = \"sinusoidal_fairseq\"; make it larger",
                self.d_model
            ));
        }
        if self.positions == Positions::Rotary {
            if self.n_heads > 0 && !self.head_dim().is_multiple_of(2) {
                problems.push(format!(
                    "model.d_model {}, model.n_heads {} and model.head_dim {} make heads of {} dimensions, but rotary positions \
                     rotate pairs; choose numbers that make it even, or set model.positions = \"learned\"",
                    self.d_model,
                    self.n_heads,
                    self.head_dim,
                    self.head_dim()
                ));
            }
            if !(self.rope_theta > 1.0 && self.rope_theta.is_finite()) {
                problems.push(format!("model.rope_theta {} is not above 1; 10000 is usual", self.rope_theta));
            }
        }
    }

    fn validate_numbers(&self, problems: &mut Vec<String>) {
        for (name, value, usual) in [
            ("dropout", self.dropout, "0.1"),
            ("activation_dropout", self.activation_dropout.unwrap_or_default(), "0"),
            ("attention_dropout", self.attention_dropout, "0 or 0.1"),
        ] {
            if !(0.0..1.0).contains(&value) {
                problems.push(format!("model.{name} {value} is outside [0, 1); {usual} is usual"));
            }
        }
        if !(self.norm_eps > 0.0 && self.norm_eps < 1.0) {
            problems.push(format!("model.norm_eps {} is outside (0, 1); 1e-5 is usual", self.norm_eps));
        }
    }

    /// Checks options that only one architecture has.
    fn validate_parts(&self, problems: &mut Vec<String>) {
        let architecture = match self.architecture {
            Architecture::EncoderDecoder => "encoder_decoder",
            Architecture::DecoderOnly => "decoder_only",
            Architecture::EncoderOnly => "encoder_only",
        };
        let encoder_only = self.architecture == Architecture::EncoderOnly;
        let decoder_only = self.architecture == Architecture::DecoderOnly;

        for (set, key, remedy) in [
            (self.n_token_types > 0 && !encoder_only, "n_token_types", "set it to 0"),
            (self.pooler && !encoder_only, "pooler", "set it to false"),
            (self.qkv_bias.is_some() && !decoder_only, "qkv_bias", "leave it out"),
            (self.feed_forward_bias.is_some() && !decoder_only, "feed_forward_bias", "leave it out"),
            (self.qk_norm && !decoder_only, "qk_norm", "set it to false"),
            (self.attention_window > 0 && !decoder_only, "attention_window", "set it to 0"),
            (self.global_layer_every > 0 && !decoder_only, "global_layer_every", "set it to 0"),
            (self.logits_softcap > 0.0 && !decoder_only, "logits_softcap", "set it to 0"),
            (
                self.final_logits_bias && self.architecture != Architecture::EncoderDecoder,
                "final_logits_bias",
                "set it to false",
            ),
            (self.scale_output && self.architecture != Architecture::EncoderDecoder, "scale_output", "set it to false"),
        ] {
            if set {
                problems.push(format!(
                    "model.{key} is not supported with model.architecture = \"{architecture}\"; {remedy}"
                ));
            }
        }
    }

    fn validate_vocabularies(&self, problems: &mut Vec<String>) {
        let (source, target) = (self.source_vocab_size, self.target_vocab_size);
        let two = self.architecture == Architecture::EncoderDecoder;
        if two && source > 0 && target > 0 && source != target && self.tie_embeddings.ties_inputs() {
            problems.push(format!(
                "model.tie_embeddings = {} needs one vocabulary, but the source has {source} tokens and the target {target}; \
                 set model.tie_embeddings = \"output\" or use a joint tokenizer",
                serde_json::json!(self.tie_embeddings)
            ));
        }
        if !two && self.tie_embeddings == TieEmbeddings::Inputs {
            problems.push(
                "model.tie_embeddings = \"inputs\" ties two embeddings, but the model has one; set it to \"output\" or \"none\""
                    .to_owned(),
            );
        }

        let used = match self.architecture {
            Architecture::EncoderDecoder => vec![("source_vocab_size", source), ("target_vocab_size", target)],
            Architecture::DecoderOnly => vec![("target_vocab_size", target)],
            Architecture::EncoderOnly => vec![("source_vocab_size", source)],
        };
        for (name, size) in used {
            if size > 0 && self.pad_id as usize >= size {
                problems.push(format!(
                    "model.pad_id {} is not one of the {size} tokens of model.{name}; take both from the same tokenizer",
                    self.pad_id
                ));
            }
            if size > i32::MAX as usize {
                problems.push(format!("model.{name} {size} is above {}; token ids are 32-bit", i32::MAX));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NormPlacement;

    #[test]
    fn presets_are_valid() {
        for config in [
            TransformerConfig::tiny(),
            TransformerConfig::small(),
            TransformerConfig::base(),
            TransformerConfig::big(),
            TransformerConfig::transformer_base(),
            TransformerConfig::transformer_big(),
            TransformerConfig::gpt2_124m(),
            TransformerConfig::gpt2_350m(),
            TransformerConfig::llama_125m(),
            TransformerConfig::llama_1b(),
            TransformerConfig::bert_small(),
        ] {
            assert_eq!(config.validate(), Vec::<String>::new());
        }
    }

    #[test]
    fn all_problems_are_named_at_once() {
        let config = TransformerConfig {
            d_model: 30,
            n_heads: 4,
            d_ff: 0,
            dropout: 1.0,
            norm_eps: f64::NAN,
            max_positions: 1,
            source_vocab_size: 10,
            target_vocab_size: 12,
            pad_id: 11,
            ..TransformerConfig::default()
        };

        let problems = config.validate().join("\n");
        for field in [
            "d_model 30",
            "d_ff is 0",
            "dropout 1",
            "norm_eps NaN",
            "max_positions 1",
            "three_way",
            "source_vocab_size",
        ] {
            assert!(problems.contains(field), "{field} is missing in:\n{problems}");
        }
        assert!(problems.contains("set model.d_model to 32"), "{problems}");
        assert_eq!(config.validate().len(), 7, "{problems}");
    }

    #[test]
    fn problems_of_newer_options_are_named_too() {
        let config = TransformerConfig {
            architecture: Architecture::DecoderOnly,
            d_model: 12,
            n_heads: 4,
            n_kv_heads: 3,
            n_encoder_layers: 0,
            positions: Positions::Rotary,
            rope_theta: 0.0,
            n_token_types: 2,
            pooler: true,
            final_logits_bias: true,
            activation_dropout: Some(-0.5),
            attention_dropout: 1.0,
            target_vocab_size: 7,
            pad_id: 9,
            ..TransformerConfig::default()
        };

        let problems = config.validate().join("\n");
        for field in [
            "n_kv_heads 3",
            "heads of 3 dimensions",
            "rope_theta 0",
            "n_token_types",
            "pooler",
            "final_logits_bias",
            "activation_dropout -0.5",
            "attention_dropout 1",
            "pad_id 9",
        ] {
            assert!(problems.contains(field), "{field} is missing in:\n{problems}");
        }
        assert_eq!(config.validate().len(), 9, "{problems}");
    }

    #[test]
    fn a_configuration_without_the_newer_options_still_loads() {
        let old = r#"{"d_model":16,"n_heads":2,"d_ff":32,"n_encoder_layers":1,"n_decoder_layers":1,"source_vocab_size":5,
            "target_vocab_size":5,"max_positions":8,"norm":"pre","norm_eps":1e-5,"positions":"sinusoidal","activation":"relu",
            "dropout":0.1,"tie_embeddings":"three_way","init":"xavier","pad_id":0}"#;
        let config: TransformerConfig = serde_json::from_str(old).unwrap();
        assert_eq!(config.architecture, Architecture::EncoderDecoder);
        assert!(config.bias && config.scale_embedding && !config.embedding_norm);
        assert_eq!((config.kv_heads(), config.activation_dropout), (2, None));
    }

    #[test]
    fn json_round_trip_refuses_unknown_fields() {
        let config = TransformerConfig { norm: NormPlacement::Post, pad_id: 3, ..TransformerConfig::small() };
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<TransformerConfig>(&text).unwrap(), config);
        let error = serde_json::from_str::<TransformerConfig>("{\"d_modell\": 8}").unwrap_err().to_string();
        assert!(error.contains("d_modell"), "{error}");
    }
}
