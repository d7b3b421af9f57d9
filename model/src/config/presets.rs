//! Configurations by name. Where a preset has the size of a published model, a test counts its parameters.

use kiln_kernels::Activation;

use super::{
    Architecture, FeedForwardActivation, InitScheme, NormKind, NormPlacement, Positions, TieEmbeddings,
    TransformerConfig,
};

impl TransformerConfig {
    /// 0.4 M parameters plus the vocabulary: learns the built-in task on a CPU in minutes.
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

    /// 5.5 M parameters plus the vocabulary: for any GPU, or for hours on a CPU.
    pub fn small() -> Self {
        Self { d_model: 256, n_heads: 4, d_ff: 1024, n_encoder_layers: 3, n_decoder_layers: 3, ..Self::default() }
    }

    /// 44 M parameters plus the vocabulary: "base" of Vaswani et al. 2017, with pre-norm.
    pub fn base() -> Self {
        Self::default()
    }

    /// 176 M parameters plus the vocabulary: "big" of Vaswani et al. 2017, with pre-norm.
    pub fn big() -> Self {
        Self { d_model: 1024, n_heads: 16, d_ff: 4096, dropout: 0.3, ..Self::default() }
    }

    /// "base" of Vaswani et al. 2017 as published, with post-norm: 63,082,496 parameters with its 37,000 tokens.
    pub fn transformer_base() -> Self {
        Self { norm: NormPlacement::Post, ..Self::base() }
    }

    /// "big" of Vaswani et al. 2017 as published, with post-norm: 214,245,376 parameters with its 37,000 tokens.
    pub fn transformer_big() -> Self {
        Self { norm: NormPlacement::Post, ..Self::big() }
    }

    /// GPT-2 small (Radford et al. 2019): 124,439,808 parameters with its 50,257 tokens.
    pub fn gpt2_124m() -> Self {
        Self {
            architecture: Architecture::DecoderOnly,
            d_model: 768,
            n_heads: 12,
            d_ff: 3072,
            n_encoder_layers: 0,
            n_decoder_layers: 12,
            max_positions: 1024,
            scale_embedding: false,
            positions: Positions::Learned,
            activation: Activation::GeluTanh.into(),
            activation_dropout: Some(0.0),
            attention_dropout: 0.1,
            init: InitScheme::SmallNormal,
            ..Self::default()
        }
    }

    /// GPT-2 medium (Radford et al. 2019): 354,823,168 parameters with its 50,257 tokens.
    pub fn gpt2_350m() -> Self {
        Self { d_model: 1024, n_heads: 16, d_ff: 4096, n_decoder_layers: 24, ..Self::gpt2_124m() }
    }

    /// GPT-2 small with what has made small language models better since: rotary positions, RMS norms, normalized queries and keys, heads
    /// of 128 features, ReLU squared and an output table of its own (Jordan et al. 2024, modded-nanogpt): 162,152,448 parameters with the
    /// 50,257 tokens of GPT-2.
    pub fn modern_124m() -> Self {
        Self {
            n_heads: 6,
            norm_kind: NormKind::RmsNorm,
            embedding_norm: true,
            positions: Positions::Rotary,
            qk_norm: true,
            activation: Activation::ReluSquared.into(),
            bias: false,
            dropout: 0.0,
            attention_dropout: 0.0,
            tie_embeddings: TieEmbeddings::None,
            ..Self::gpt2_124m()
        }
    }

    /// A Llama in the shape of MobileLLM-125M (Liu et al. 2024), deep and thin, with three query heads per key/value head:
    /// 124,635,456 parameters with its 32,000 tokens.
    pub fn llama_125m() -> Self {
        Self {
            architecture: Architecture::DecoderOnly,
            d_model: 576,
            n_heads: 9,
            n_kv_heads: 3,
            d_ff: 1536,
            n_encoder_layers: 0,
            n_decoder_layers: 30,
            max_positions: 2048,
            norm_kind: NormKind::RmsNorm,
            scale_embedding: false,
            positions: Positions::Rotary,
            activation: FeedForwardActivation::SWIGLU,
            bias: false,
            dropout: 0.0,
            init: InitScheme::SmallNormal,
            ..Self::default()
        }
    }

    /// A Llama in the shape of TinyLlama (Zhang et al. 2024), with eight query heads per key/value head: 1,100,048,384 parameters with
    /// its 32,000 tokens.
    pub fn llama_1b() -> Self {
        Self {
            d_model: 2048,
            n_heads: 32,
            n_kv_heads: 4,
            d_ff: 5632,
            n_decoder_layers: 22,
            tie_embeddings: TieEmbeddings::None,
            ..Self::llama_125m()
        }
    }

    /// BERT base (Devlin et al. 2019; 12 layers of 768 features, 12 heads): 109,514,298 parameters with its 30,522 tokens and the
    /// head for masked tokens, without the pooler.
    pub fn bert_base() -> Self {
        Self { d_model: 768, n_heads: 12, d_ff: 3072, n_encoder_layers: 12, ..Self::bert_small() }
    }

    /// BERT small (Turc et al. 2019; 4 layers of 512 features, 8 heads), for training from scratch: with the head for masked
    /// tokens and without the pooler it has 28,795,194 parameters with its 30,522 tokens. The published model has the pooler
    /// instead of the head, and 28,763,648 parameters.
    pub fn bert_small() -> Self {
        Self {
            architecture: Architecture::EncoderOnly,
            d_model: 512,
            n_heads: 8,
            d_ff: 2048,
            n_encoder_layers: 4,
            n_decoder_layers: 0,
            norm: NormPlacement::Post,
            norm_eps: 1e-12,
            embedding_norm: true,
            scale_embedding: false,
            positions: Positions::Learned,
            activation: Activation::Gelu.into(),
            n_token_types: 2,
            activation_dropout: Some(0.0),
            attention_dropout: 0.1,
            tie_embeddings: TieEmbeddings::Output,
            init: InitScheme::SmallNormal,
            ..Self::default()
        }
    }
}
