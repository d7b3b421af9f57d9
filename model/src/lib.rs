//! Transformers for Burn that train: built from the fused operators of `kiln-kernels`, checked against PyTorch.
//!
//! ```
//! use burn::tensor::{DType, Device, Int, Tensor};
//! use kiln_model::TransformerConfig;
//!
//! let device = Device::flex();
//! let config = TransformerConfig { source_vocab_size: 50, target_vocab_size: 50, ..TransformerConfig::tiny() };
//! let model = config.init_encoder_decoder(1, DType::F32, &device);
//!
//! let source = Tensor::<1, Int>::from_data([7, 8, 9, 2], (&device, DType::I32));
//! let lengths = Tensor::<1, Int>::from_data([4], (&device, DType::I32));
//! let memory = model.encode(source, lengths, 1, None);
//! let mut cache = model.start(&memory);
//! let start = Tensor::<1, Int>::from_data([1], (&device, DType::I32));
//! let logits = model.decode_step(start, &mut cache);
//! assert_eq!(logits.dims(), [1, 50]);
//! ```
//!
//! Three architectures are built from the same parts, as the configuration says:
//!
//! | model | in the shape of | reads | presets |
//! |---|---|---|---|
//! | [`EncoderDecoder`] | Vaswani et al. 2017, Marian, BART | [`PairBatch`] | `tiny`, `small`, `base`, `big`, `transformer_base`, `transformer_big` |
//! | [`DecoderOnly`] | GPT-2, Llama | [`TextBatch`] | `gpt2_124m`, `gpt2_350m`, `llama_125m` |
//! | [`EncoderOnly`] | BERT | [`TextBatch`] through [`mlm::mask_tokens`] | `bert_small` |
//!
//! ```
//! use burn::tensor::{DType, Device};
//! use kiln_model::{Prompts, TransformerConfig};
//!
//! let device = Device::flex();
//! let config = TransformerConfig { n_decoder_layers: 1, ..TransformerConfig::llama_125m() }.with_vocab_size(50);
//! let model = config.init_decoder_only(1, DType::F32, &device);
//! // Prompts of unequal length; each row has positions of its own.
//! let prompts = Prompts::new(&[vec![7, 8, 9], vec![3]], &config, &device)?;
//! let (logits, mut cache) = model.prefill(prompts.ids, prompts.lengths);
//! let next = logits.argmax(1).reshape([2]);
//! assert_eq!(model.decode_step(next, &mut cache).dims(), [2, 50]);
//! # Ok::<(), kiln_model::PromptError>(())
//! ```
//!
//! Reading order: [`TransformerConfig`], [`Batch`], one of the models, then the parts; [`Transformer`] is any of the three,
//! [`hf`] knows the weight files of Hugging Face, `examples/` trains without the trainer. This crate opens no file and starts
//! no thread.
//!
//! Legend of shapes: B batch, S source length, T target length, D `d_model`, H heads, G heads of keys and values, K head
//! dimension, F `d_ff`, V vocabulary, P tokens of a learned prompt, M any number of rows. Activations are two-dimensional,
//! `[B * T, features]`, batch outermost.

mod attention;
mod batch;
mod config;
mod decoder;
mod decoder_only;
mod embedding;
mod encoder;
mod encoder_decoder;
mod encoder_only;
mod feed_forward;
pub mod flops;
pub mod hf;
mod init;
mod kv_cache;
mod learned_prompt;
mod linear;
mod loss;
pub mod mlm;
mod norm;
mod position;
mod prompts;
mod rows;
mod transformer;

pub use attention::{CrossAttention, SelfAttention};
pub use batch::{Batch, PairBatch, TextBatch};
pub use config::{
    Activation, Architecture, InitScheme, NormKind, NormPlacement, Positions, TieEmbeddings, TransformerConfig,
};
pub use decoder::{Decoder, DecoderLayer};
pub use decoder_only::DecoderOnly;
pub use embedding::TokenEmbedding;
pub use encoder::{Encoder, EncoderLayer};
pub use encoder_decoder::EncoderDecoder;
pub use encoder_only::{EncoderOnly, MaskedHead};
pub use feed_forward::FeedForward;
pub use kiln_kernels::DropoutStream;
pub use kv_cache::{DecoderCache, Memory};
pub use learned_prompt::{Insertion, LearnedPrompt};
pub use linear::Linear;
pub use loss::{EvalSums, LossSums};
pub use norm::Norm;
pub use position::PositionEncoding;
pub use prompts::{PromptError, Prompts};
pub use rows::Rows;
pub use transformer::Transformer;
