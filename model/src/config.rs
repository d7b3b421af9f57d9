//! The shape of a Transformer: one plain structure, checked once, saved beside the weights as `config.json`.

use serde::{Deserialize, Serialize};

/// Everything that decides the shape of an encoder-decoder and the distribution of its first weights.
///
/// Defaults are Vaswani et al. 2017 "base" with pre-norm. Parameters follow from the numbers here alone, so a saved
/// configuration and a file of weights are a whole model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransformerConfig {
    /// Features of every hidden state (D). A multiple of `n_heads`; multiples of 64 are fast on GPUs.
    pub d_model: usize,
    /// Attention heads (H); each has `d_model / n_heads` dimensions.
    pub n_heads: usize,
    /// Inner features of the feed-forward layers (F), usually `4 * d_model`.
    pub d_ff: usize,
    /// Encoder layers.
    pub n_encoder_layers: usize,
    /// Decoder layers.
    pub n_decoder_layers: usize,
    /// Source tokens in the vocabulary; 0: filled in from the tokenizer.
    pub source_vocab_size: usize,
    /// Target tokens in the vocabulary (V); 0: filled in from the tokenizer.
    pub target_vocab_size: usize,
    /// Longest source and longest target, in tokens, with their end or start token.
    pub max_positions: usize,
    /// Where layer normalization stands.
    pub norm: NormPlacement,
    /// Added to the variance under the root of every layer normalization.
    pub norm_eps: f64,
    /// How positions are told to the model.
    pub positions: Positions,
    /// Between the two feed-forward projections.
    pub activation: Activation,
    /// Share of elements zeroed after the embeddings, inside feed-forward layers and before every residual sum, in
    /// [0, 1).
    pub dropout: f64,
    /// Which of the three token matrices (source embedding, target embedding, output projection) are one.
    pub tie_embeddings: TieEmbeddings,
    /// Distribution of the first weights.
    pub init: InitScheme,
    /// Id of the padding token: labels equal to it do not count. Filled in from the tokenizer.
    pub pad_id: u32,
}

/// Where layer normalization stands in a residual branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlacement {
    /// `x + f(norm(x))`, and one norm at the end of each stack (Xiong et al. 2020). Trains without a careful warm-up.
    Pre,
    /// `norm(x + f(x))`, as in the paper of 2017. Needs warm-up.
    Post,
}

/// How positions are told to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// Sines and cosines of geometrically spaced wavelengths; no parameters (Vaswani et al. 2017, section 3.5).
    Sinusoidal,
    /// One trained vector per position, one table for the encoder and one for the decoder.
    Learned,
}

/// The non-linearity of the feed-forward layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `x * Phi(x)` with the exact normal distribution function (erf), PyTorch's default GELU.
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`, the GELU of GPT-2.
    GeluTanh,
}

/// Which token matrices are one (Press and Wolf 2017).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TieEmbeddings {
    /// Source embedding = target embedding = output projection; needs one joint vocabulary.
    ThreeWay,
    /// Target embedding = output projection.
    Output,
    /// Three matrices.
    None,
}

/// Distribution of the first weights. Biases start at 0, norms at 1 and 0, token embeddings at a normal of standard
/// deviation `d_model^-0.5` (and are multiplied by `sqrt(d_model)` when they are looked up) in both schemes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitScheme {
    /// Uniform within `sqrt(6 / (fan_in + fan_out))` (Glorot and Bengio 2010). The query, key and value projections
    /// count as one matrix of fan-out `3 * d_model`, as in PyTorch.
    Xavier,
    /// Normal of standard deviation `sqrt(2 / (5 * d_model))` (Nguyen and Salazar 2019; 0.02 at a d_model of 1000). The
    /// projections that end a residual branch are divided by `sqrt(2 * layers)`, so that the residual stream does not
    /// grow with depth (Radford et al. 2019).
    Scaled,
}

impl Default for TransformerConfig {
    fn default() -> Self {
        Self {
            d_model: 512,
            n_heads: 8,
            d_ff: 2048,
            n_encoder_layers: 6,
            n_decoder_layers: 6,
            source_vocab_size: 0,
            target_vocab_size: 0,
            max_positions: 512,
            norm: NormPlacement::Pre,
            norm_eps: 1e-5,
            positions: Positions::Sinusoidal,
            activation: Activation::Relu,
            dropout: 0.1,
            tie_embeddings: TieEmbeddings::ThreeWay,
            init: InitScheme::Xavier,
            pad_id: 0,
        }
    }
}

impl TransformerConfig {
    /// 0.4 M parameters and the vocabulary: learns the built-in task on a CPU in minutes.
    pub fn tiny() -> Self {
        Self {
            d_model: 96,
            n_heads: 4,
            d_ff: 256,
            n_encoder_layers: 2,
            n_decoder_layers: 2,
            max_positions: 128,
            dropout: 0.0,
            ..Self::default()
        }
    }

    /// 5.5 M parameters and the vocabulary: a patient CPU or any GPU.
    pub fn small() -> Self {
        Self { d_model: 256, n_heads: 4, d_ff: 1024, n_encoder_layers: 3, n_decoder_layers: 3, ..Self::default() }
    }

    /// 44 M parameters and the vocabulary: "base" of Vaswani et al. 2017.
    pub fn base() -> Self {
        Self::default()
    }

    /// 176 M parameters and the vocabulary: "big" of Vaswani et al. 2017.
    pub fn big() -> Self {
        Self { d_model: 1024, n_heads: 16, d_ff: 4096, dropout: 0.3, ..Self::default() }
    }

    /// Dimensions of one attention head (K).
    pub fn head_dim(&self) -> usize {
        self.d_model / self.n_heads
    }

    /// Everything that is impossible about this configuration, each with its remedy; empty when a model can be built.
    /// Vocabulary sizes of 0 pass: they are filled in from the tokenizer, and [`Self::init`] refuses them.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, value) in [
            ("d_model", self.d_model),
            ("n_heads", self.n_heads),
            ("d_ff", self.d_ff),
            ("n_encoder_layers", self.n_encoder_layers),
            ("n_decoder_layers", self.n_decoder_layers),
        ] {
            if value == 0 {
                problems.push(format!("model.{name} is 0; set it to at least 1"));
            }
        }
        if self.n_heads > 0 && !self.d_model.is_multiple_of(self.n_heads) {
            let below = self.d_model / self.n_heads * self.n_heads;
            problems.push(format!(
                "model.d_model {} is not a multiple of model.n_heads {}; set model.d_model to {} or choose another number of heads",
                self.d_model,
                self.n_heads,
                below + self.n_heads,
            ));
        }
        if self.positions == Positions::Sinusoidal && !self.d_model.is_multiple_of(2) {
            problems.push(format!(
                "model.d_model {} is odd, but sinusoidal positions come in pairs; make it even or set model.positions = \"learned\"",
                self.d_model
            ));
        }
        if self.max_positions < 2 {
            problems.push(format!(
                "model.max_positions {} leaves no room for a token and its end; set it to the longest sequence in tokens",
                self.max_positions
            ));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            problems.push(format!("model.dropout {} is outside [0, 1); 0.1 is usual", self.dropout));
        }
        if !(self.norm_eps > 0.0 && self.norm_eps < 1.0) {
            problems.push(format!("model.norm_eps {} is outside (0, 1); 1e-5 is usual", self.norm_eps));
        }
        self.validate_vocabularies(&mut problems);
        problems
    }

    fn validate_vocabularies(&self, problems: &mut Vec<String>) {
        let (source, target) = (self.source_vocab_size, self.target_vocab_size);
        if source > 0 && target > 0 && source != target && self.tie_embeddings == TieEmbeddings::ThreeWay {
            problems.push(format!(
                "model.tie_embeddings = \"three_way\" needs one vocabulary, but the source has {source} tokens and the target {target}; \
                 set model.tie_embeddings = \"output\" or use a joint tokenizer"
            ));
        }
        for (name, size) in [("source_vocab_size", source), ("target_vocab_size", target)] {
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

    #[test]
    fn presets_are_valid() {
        for config in
            [TransformerConfig::tiny(), TransformerConfig::small(), TransformerConfig::base(), TransformerConfig::big()]
        {
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
    fn json_round_trip_refuses_unknown_fields() {
        let config = TransformerConfig { norm: NormPlacement::Post, pad_id: 3, ..TransformerConfig::small() };
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<TransformerConfig>(&text).unwrap(), config);
        let error = serde_json::from_str::<TransformerConfig>("{\"d_modell\": 8}").unwrap_err().to_string();
        assert!(error.contains("d_modell"), "{error}");
    }
}
