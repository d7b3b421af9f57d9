//! Transformers for Burn, built from the fused operators of `kiln-kernels` and checked against PyTorch.
//!
//! The crate's README has a first example. Here an encoder-decoder decodes one token:
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
//! The configuration chooses one of three architectures, which share their layers:
//!
//! | model | architecture of | batch | presets |
//! |---|---|---|---|
//! | [`EncoderDecoder`] | Vaswani et al. 2017, Marian, BART, T5 | [`PairBatch`] | `tiny`, `small`, `base`, `big`, `transformer_base`, `transformer_big` |
//! | [`DecoderOnly`] | GPT-2, Llama, Gemma | [`TextBatch`] | `gpt2_124m`, `gpt2_350m`, `llama_125m`, `llama_1b` |
//! | [`EncoderOnly`] | BERT | [`TextBatch`], masked by [`mlm::mask_tokens`] | `bert_small` |
//!
//! ```
//! use burn::tensor::{DType, Device};
//! use kiln_model::{Prompts, TransformerConfig};
//!
//! let device = Device::flex();
//! let config = TransformerConfig { n_decoder_layers: 1, ..TransformerConfig::llama_125m() }.with_vocab_size(50);
//! let model = config.init_decoder_only(1, DType::F32, &device);
//! // Prompts may differ in length: each row of the batch counts its own positions.
//! let prompts = Prompts::new(&[vec![7, 8, 9], vec![3]], &config, &device)?;
//! let (logits, mut cache) = model.prefill(prompts.ids, prompts.lengths);
//! let next = logits.argmax(1).reshape([2]);
//! assert_eq!(model.decode_step(next, &mut cache).dims(), [2, 50]);
//! # Ok::<(), kiln_model::PromptError>(())
//! ```
//!
//! Reading order: [`TransformerConfig`], [`Batch`], one of the models, then its layers. [`Transformer`] is an enum of the
//! three models. [`hf`] reads and writes the weights of Hugging Face models. The programs in `examples/` train without
//! Kiln's trainer. This crate opens no files; Rayon's threads initialize weights.
//!
//! Legend of shapes: B batch, S source length, T target length, D `d_model`, H heads, G heads of keys and values, K head
//! dimension, F `d_ff`, V vocabulary, C classes, P tokens of a learned prompt, M any number of rows. Activations are two-dimensional,
//! `[B * T, features]`, batch outermost.
//!
//! The modules by layer, lowest first; a module imports only from layers below it:
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `config` shape of a model · `checkpointing` memory or time · `fp8` layers in eight bits · `named_tensor` parameters on the host |
//! | 1 | `rows` lengths, documents, positions · `places` of keys and values · `init` first weights · `lora` merged adapters · `loss` · `prompts` checked prompts |
//! | 2 | `batch` · `kv_cache` keys and values of earlier positions · `linear` · `norm` · `relative` positions · `learned_prompt` |
//! | 3 | `classifier` classes of rows and tokens · `attention` · `feed_forward` · `position` · `mlm` masking · `stack` layers, with what they keep for backward |
//! | 4 | `embedding` · `encoder` · `decoder` · `hiding` of what is only read · `flops` cost · `int8` weights for searches on the CPU |
//! | 5 | `encoder_decoder` · `decoder_only` · `encoder_only` |
//! | 6 | `preference` which of two answers is better |
//! | 7 | `transformer` any of the three |
//! | 8 | `hf` Hugging Face families |

mod attention;
mod batch;
mod checkpointing;
mod classifier;
mod config;
mod decoder;
mod decoder_only;
mod embedding;
mod encoder;
mod encoder_decoder;
mod encoder_only;
mod feed_forward;
pub mod flops;
mod fp8;
pub mod hf;
pub mod hiding;
mod init;
mod int8;
mod kv_cache;
mod learned_prompt;
mod linear;
mod lora;
mod loss;
pub mod mlm;
mod named_tensor;
mod norm;
mod places;
mod position;
mod preference;
mod prompts;
mod relative;
mod rows;
mod stack;
mod transformer;

pub use attention::{CrossAttention, SelfAttention};
pub use batch::{Batch, PairBatch, TextBatch};
pub use checkpointing::ActivationCheckpointing;
pub use classifier::Classifier;
pub use config::{
    Architecture, ClassHead, FeedForwardActivation, InitScheme, LoraConfig, LoraTarget, NormKind, NormPlacement,
    Positions, RopeScaling, TieEmbeddings, TransformerConfig,
};
pub use decoder::{Decoder, DecoderLayer};
pub use decoder_only::DecoderOnly;
pub use embedding::TokenEmbedding;
pub use encoder::{Encoder, EncoderLayer};
pub use encoder_decoder::EncoderDecoder;
pub use encoder_only::{EncoderOnly, MaskedHead};
pub use feed_forward::FeedForward;
pub use fp8::Fp8Layers;
pub use kiln_kernels::{Activation, DropoutStream};
pub use kv_cache::{DecoderCache, Memory};
pub use learned_prompt::{Insertion, LearnedPrompt, is_learned_prompt, prompt_of_tokens};
pub use linear::{Adapter, Linear};
pub use lora::{is_adapter, merge_adapters};
pub use loss::{EvalSums, LossSums, PreferenceSums, RowSums};
pub use named_tensor::{Elements, FloatType, LazyTensor, NamedTensor};
pub use norm::Norm;
pub use position::PositionEncoding;
pub use prompts::{PromptError, Prompts};
pub use relative::RelativePositions;
pub use rows::Rows;
pub use transformer::Transformer;

/// The example of the README, compiled and run by the doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
