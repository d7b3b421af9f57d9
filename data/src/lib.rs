//! Text to host batches: corpora, tokenizers, a memory-mapped token cache and a deterministic multi-worker loader.
//!
//! This crate knows nothing of tensors or devices. A [`HostBatch`] is one contiguous buffer of token rows that any
//! framework can upload in one copy.
//!
//! ```text
//! pairs -corpus-> Example  -tokenizer-> ids -cache-> memory map -sampler-> buckets -Collator--> HostBatch
//! text  -corpus-> document -tokenizer-> ids -cache-> memory map -sampler-> rows    -RowWriter-> HostBatch
//!                                               worker pool ------------------------'
//! ```
//!
//! A [`PairSource`] makes batches of pairs for an encoder-decoder; a [`TextSource`] makes batches of plain text for a
//! language model. A [`StreamedSource`] does so for text that is larger than its token cache may be; a [`StreamedRows`] is for rows that are
//! not packed, and a [`StreamedMix`] mixes several of either. A [`Loader`] produces the batches
//! of each in an endless sequence, a [`OnePass`] each batch once.
//! A [`ChatSource`]
//! makes batches of conversations. [`TextTokenizer::decode_stream`] turns the ids that a model generates into text as they arrive.
//!
//! By layer, lowest first; a module imports only from layers below it:
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `error` · [`files`] opening and replacing files in folders of strangers · `terminal` text without control characters · `host_batch` the batch and its buffer · `loader_config` · `sampler` the order of rows, from seed and epoch · `reorder` · [`jobs`] when threads worked |
//! | 1 | `formats` files as records |
//! | 2 | `corpus` records and text as rows of a task |
//! | 3 | `tokenizer` text to ids and back |
//! | 4 | `cache` ids in a memory-mapped file · `built_in` the trainer's built-in task |
//! | 5 | `batch` which rows a batch has, and how they are written |
//! | 6 | `source` data sets that can be cut into batches |
//! | 7 | `loader` batches in order from worker threads |
//!
//! # Invariants
//!
//! 1. The order of the data is a pure function of seed, epoch and position: the batches are the same for any number of
//!    workers or ranks.
//! 2. Every row, and every token of a text, is in exactly one batch of an epoch. Unusable rows are counted and shown with
//!    file and line.
//! 3. A token cache is complete or invisible, and never trusted: every count and offset is checked when it is opened.
//! 4. Host memory is bounded by the prefetch depth and does not grow with epochs.

mod batch;
pub mod built_in;
mod cache;
mod corpus;
mod error;
pub mod files;
#[cfg(test)]
mod fixtures;
mod formats;
mod host_batch;
pub mod jobs;
mod loader;
mod loader_config;
mod reorder;
mod sampler;
mod source;
#[doc(hidden)]
pub mod terminal;
mod tokenizer;

pub use batch::{Buckets, Collator, EpochPlan};
pub use cache::{
    CachedRow, Lengths, Prepared, Shards, SharedRows, TokenCache, find_classes, prepare_chat, prepare_pairs,
    prepare_text, verify_file_record, verify_record_of, verify_shard_index,
};
pub use corpus::{
    BadRow, BadRowKind, CharacterCounts, ChatMessage, Classes, CorpusConfig, CorpusFormat, CorpusInput, DroppedRows,
    Example, FilterConfig, FilteredRows, Header, HeldOut, LabelConfig, Labelled, LabelledCorpus, LabelledInput,
    LabelledText, Learn, LengthUnit, Origins, Packing, PairCorpus, Role, RowFilter, RowReader, RowReport, Table, Task,
    TextConfig, TextCorpus, TextFormat, Unknown, check_layout, count_pairs, count_words, count_words_in, files_in,
    layout_notes, spelled_tokens,
};
pub use error::{Error, Result, panic_text};
pub use formats::{
    FileFormat, Split, WordColumns, WordForm, delimiter_of, find_files, is_conll, records_of, way_to_utf8,
};
pub use host_batch::{BatchLayout, HostBatch, PairParts, Position, Shape, SourceCount, TextParts};
pub use loader::{Loader, OnePass, Rank};
pub use loader_config::{LoaderConfig, round_up};
pub use sampler::Order;
pub use source::{
    BatchEstimate, BatchSource, BatchWorker, ChatSource, LabelledSource, MixPart, MixParts, MixShares, MixSource,
    MixedPart, PairSource, PreferenceSource, SharesFrom, StreamedInOrder, StreamedMix, StreamedParts, StreamedRows,
    StreamedSource, TextSource,
};
pub use tokenizer::{
    ChatTemplate, DecodeStream, FolderTokenizer, LabelledEncoder, LabelledRow, LabelledShape, M2m100Files, MarianFiles,
    MaskedEncoder, Normalization, PairEncoder, PairTokenizers, SpecialEncoder, SpecialIds, TemplateError, TextEncoder,
    TextSpecialIds, TextTokenizer, TokenizerConfig, TokenizerKind, chat_template_next_to, read_chat_template,
    read_sentencepiece, sentencepiece_json, tokens_around,
};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
