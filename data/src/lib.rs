//! Text to host batches: corpora, tokenizers, a memory-mapped token cache and a deterministic multi-worker loader.
//!
//! Nothing here knows of tensors or devices; a [`HostBatch`] is one contiguous buffer of padded token rows that any
//! framework can upload in one copy.
//!
//! ```text
//! pairs -corpus-> Example  -tokenizer-> ids -cache-> memory map -sampler-> bucket -collate-> HostBatch
//! text  -corpus-> document -tokenizer-> ids -cache-> memory map -sampler-> rows   -pack----> HostBatch
//!                                               worker pool ------------------------'
//! ```
//!
//! [`CachedSource`] makes batches of pairs for an encoder-decoder, [`TextSource`] batches of plain text for a language
//! model; a [`Loader`] or [`OnePass`] takes them from either. What a model writes is read with
//! [`TextTokenizer::decode_stream`].
//!
//! # Invariants
//!
//! 1. The order of the data is a pure function of seed, epoch and position: the same batches whatever the number of
//!    workers or ranks.
//! 2. Every row, and every token of a text, is in exactly one batch of an epoch. What cannot be used is counted and shown
//!    with file and line.
//! 3. A token cache is complete or invisible, and never trusted: every count and offset is checked when it is opened.
//! 4. Host memory is bounded by the prefetch depth and does not grow with epochs.

mod bucket;
mod cache;
mod collate;
mod corpus;
mod direct;
mod document_order;
mod error;
#[cfg(test)]
mod fixtures;
mod host_batch;
mod loader;
pub mod numbers;
mod plan;
mod reorder;
mod sampler;
mod text;
mod tokenizer;

pub use bucket::{Buckets, round_up};
pub use cache::{Prepared, TokenCache, prepare, prepare_text};
pub use corpus::{
    BadRow, BadRowKind, Corpus, CorpusConfig, CorpusFormat, CorpusInput, Example, Packing, RowReport, Task, TextConfig,
    TextCorpus, TextFormat,
};
pub use direct::DirectSource;
pub use error::{Error, Result, panic_text};
pub use host_batch::{HostBatch, Layout, Position, Shape};
pub use loader::{BatchSource, BatchWorker, CachedSource, Loader, LoaderConfig, OnePass, Rank};
pub use plan::EpochPlan;
pub use sampler::Order;
pub use text::TextSource;
pub use tokenizer::{
    DecodeStream, Encoder, Normalization, SpecialIds, TextEncoder, TextSpecialIds, TextTokenizer, TokenizerConfig,
    TokenizerKind, Tokenizers,
};
