//! A workload for each family of models that other tools publish, of about 125 M parameters.

use kiln_model::{
    Activation, Architecture, FeedForwardActivation, InitScheme, NormKind, NormPlacement, Positions, TieEmbeddings,
    TransformerConfig,
};

use super::Workload;

impl Workload {
    /// Returns the workload of family `name`.
    pub(super) fn family(name: &str) -> Option<Self> {
        let llama = TransformerConfig { target_vocab_size: 32_000, ..TransformerConfig::llama_125m() };
        let (title, model, shape) = match name {
            "mistral" => ("Mistral, window of 1024", mistral(llama), [16, 2048]),
            "qwen2" => ("Qwen 2", TransformerConfig { qkv_bias: Some(true), ..llama }, [16, 2048]),
            "qwen3" => ("Qwen 3, heads of 128", qwen3(llama), [16, 2048]),
            "gemma2" => ("Gemma 2, window of 1024 in every other layer", gemma2(llama), [16, 2048]),
            "gemma3" => ("Gemma 3, heads of 256, window of 512", gemma3(llama), [16, 2048]),
            "t5" => ("T5 base", t5(), [64, 128]),
            _ => return None,
        };
        let [rows, len] = shape;
        Some(Self::synthetic(name, format!("{title}, {rows} x {len}"), model, shape))
    }
}

fn mistral(llama: TransformerConfig) -> TransformerConfig {
    TransformerConfig { attention_window: 1024, ..llama }
}

fn qwen3(llama: TransformerConfig) -> TransformerConfig {
    TransformerConfig { qk_norm: true, head_dim: 128, n_heads: 8, n_kv_heads: 4, ..llama }
}

fn gemma2(llama: TransformerConfig) -> TransformerConfig {
    TransformerConfig {
        norm: NormPlacement::Sandwich,
        activation: FeedForwardActivation::GEGLU,
        scale_embedding: true,
        head_dim: 128,
        n_heads: 8,
        n_kv_heads: 4,
        attention_window: 1024,
        global_layer_every: 2,
        attention_softcap: 50.0,
        logits_softcap: 30.0,
        ..llama
    }
}

fn gemma3(llama: TransformerConfig) -> TransformerConfig {
    TransformerConfig {
        qk_norm: true,
        head_dim: 256,
        n_heads: 4,
        n_kv_heads: 1,
        attention_window: 512,
        global_layer_every: 6,
        rope_theta: 1e6,
        local_rope_theta: Some(1e4),
        attention_softcap: 0.0,
        logits_softcap: 0.0,
        ..gemma2(llama)
    }
}

fn t5() -> TransformerConfig {
    TransformerConfig {
        architecture: Architecture::EncoderDecoder,
        d_model: 768,
        n_heads: 12,
        d_ff: 3072,
        n_encoder_layers: 12,
        n_decoder_layers: 12,
        source_vocab_size: 32_128,
        target_vocab_size: 32_128,
        max_positions: 512,
        norm: NormPlacement::Pre,
        norm_kind: NormKind::RmsNorm,
        positions: Positions::Relative,
        activation: Activation::Relu.into(),
        attention_scale: Some(1.0),
        bias: false,
        scale_embedding: false,
        scale_output: true,
        tie_embeddings: TieEmbeddings::ThreeWay,
        init: InitScheme::SmallNormal,
        ..TransformerConfig::base()
    }
}
