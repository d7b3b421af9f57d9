//! Text to token ids and back, through Hugging Face `tokenizers`.
//!
//! [`PairTokenizers`] holds the vocabularies of both sides of pairs (one if they share it), [`TextTokenizer`] the
//! vocabulary of a language model. Threads that encode a lot of text take a [`PairEncoder`] or a [`TextEncoder`] each,
//! which remembers whole words.

mod around;
mod chat;
mod config;
mod conversations;
mod encoder;
mod folder;
mod guard;
mod labelled;
mod labels;
mod m2m100;
mod marian;
mod masked;
mod pair;
mod pieces;
mod sentencepiece;
mod special;
mod spm_file;
mod stream;
mod text;
mod train;
mod vocabulary;
mod words;

pub use around::tokens_around;
pub(crate) use chat::{ChatEncoder, Encoded, FLAG};
pub use chat::{ChatTemplate, SpecialEncoder, TemplateError, chat_template_next_to, read_chat_template};
pub use config::{Normalization, TokenizerConfig, TokenizerKind};
pub use folder::FolderTokenizer;
pub use labelled::{LabelledEncoder, LabelledRow};
pub use labels::LabelledShape;
pub use m2m100::M2m100Files;
pub use marian::MarianFiles;
pub use masked::MaskedEncoder;
pub use pair::{PairEncoder, PairTokenizers};
pub use special::{SpecialIds, TextSpecialIds};
pub use spm_file::{read_sentencepiece, sentencepiece_json};
pub use stream::DecodeStream;
pub use text::{TextEncoder, TextTokenizer};

use crate::error::{Error, Result};

/// The vocabulary, or the vocabulary that both sides share.
const JOINT_FILE: &str = "tokenizer.json";
/// The vocabulary of the sources, where each side has its own tokenizer.
const SOURCE_FILE: &str = "source.tokenizer.json";
/// The vocabulary of the targets.
const TARGET_FILE: &str = "target.tokenizer.json";
/// Spellings of the special tokens.
const NAMES_FILE: &str = "tokenizer_config.json";
/// Its key for what a published tokenizer says to other programs.
const PUBLISHED: &str = "published";
/// The key there of the tokens that the chat template calls by names.
const TOKENS_OF_TEMPLATE: &str = "tokens_of_template";

/// Fails with all `problems`, if there are any.
fn refuse(problems: Vec<String>) -> Result<()> {
    if problems.is_empty() { Ok(()) } else { Err(Error::Invalid(problems.join("\n"))) }
}
