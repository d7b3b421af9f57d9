//! Training a vocabulary: words are counted in parallel, then `tokenizers` trains on the counts.
//!
//! BPE and unigram vocabularies from here belong to the Metaspace family of SentencePiece: normalization, `▁` for the
//! space in front of a word, separate digits as an option, and bytes for characters outside the vocabulary. Byte-level
//! BPE follows GPT-2, WordPiece follows BERT.

mod models;
mod parts;
mod words;

use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

use self::words::{Counts, WordCounts, count_documents, count_examples, count_labelled, count_pairs, count_texts};
use super::{TokenizerConfig, TokenizerKind};
use crate::corpus::{Example, LabelledText, PairCorpus, TextCorpus};
use crate::error::{Error, Result};

/// Trains the `tokenizer.json` of both sides on a corpus; no second one if they share it.
pub(super) fn train_on_pairs(
    config: &TokenizerConfig,
    corpus: &PairCorpus,
    num_threads: usize,
) -> Result<(String, Option<String>)> {
    train_sides(config, count_pairs(config, corpus, num_threads)?, num_threads)
}

/// Does the same for pairs in memory.
pub(super) fn train_on_examples(
    config: &TokenizerConfig,
    examples: &[Example],
    num_threads: usize,
) -> Result<(String, Option<String>)> {
    train_sides(config, count_examples(config, examples)?, num_threads)
}

fn train_sides(
    config: &TokenizerConfig,
    (source, target): (Counts, Option<Counts>),
    num_threads: usize,
) -> Result<(String, Option<String>)> {
    let controls = [&config.pad_token, &config.bos_token, &config.eos_token, &config.unk_token].map(Clone::clone);
    let train = |counts| train_one(config, &controls, WordCounts::new(config, &controls, counts, num_threads)?, true);
    Ok((train(source)?, target.map(train).transpose()?))
}

/// Trains the `tokenizer.json` of a language model.
pub(super) fn train_on_text(config: &TokenizerConfig, corpus: &TextCorpus, num_threads: usize) -> Result<String> {
    let controls = config.text_controls();
    let counts = count_documents(config, corpus, num_threads)?;
    train_one(config, &controls, WordCounts::new(config, &controls, counts, num_threads)?, false)
}

/// Does the same for documents in memory.
pub(super) fn train_on_documents(config: &TokenizerConfig, documents: &[String], num_threads: usize) -> Result<String> {
    let controls = config.text_controls();
    let counts = count_texts(config, documents)?;
    train_one(config, &controls, WordCounts::new(config, &controls, counts, num_threads)?, false)
}

/// Does the same for labelled rows.
pub(super) fn train_on_labelled(config: &TokenizerConfig, text: &LabelledText, num_threads: usize) -> Result<String> {
    let controls = config.text_controls();
    let counts = count_labelled(config, text, num_threads)?;
    train_one(config, &controls, WordCounts::new(config, &controls, counts, num_threads)?, false)
}

/// Returns the unknown token among the control tokens.
fn unknown<'a>(config: &'a TokenizerConfig, controls: &'a [String]) -> &'a str {
    controls.iter().find(|token| **token == config.unk_token).map_or("[UNK]", String::as_str)
}

fn train_one(config: &TokenizerConfig, controls: &[String], words: WordCounts, for_pairs: bool) -> Result<String> {
    check_size(config, controls, &words)?;
    let reserved = reserved(config, controls);
    let unk = unknown(config, controls);
    let model: ModelWrapper = match config.kind {
        TokenizerKind::Bpe => models::train_bpe(config, reserved, unk, words)?.into(),
        TokenizerKind::Unigram => models::train_unigram(config, reserved, unk, words)?.into(),
        TokenizerKind::ByteLevelBpe => models::train_byte_level(config, reserved, words)?.into(),
        TokenizerKind::WordPiece => models::train_word_piece(config, reserved, unk, words)?.into(),
    };

    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(parts::normalizer(config));
    tokenizer.with_pre_tokenizer(Some(parts::pre_tokenizer(config)?));
    tokenizer.with_decoder(Some(parts::decoder(config)));
    tokenizer.add_special_tokens(&controls.iter().map(|t| AddedToken::from(t, true)).collect::<Vec<_>>());
    let extra: Vec<_> = config.extra_tokens.iter().map(|t| AddedToken::from(t, false).normalized(false)).collect();
    tokenizer.add_tokens(&extra);

    // Other libraries that load the file then add the special tokens that Kiln's rows have.
    let around = match config.kind {
        _ if for_pairs => parts::template(&tokenizer, &["$A", &config.eos_token], 0),
        TokenizerKind::WordPiece => parts::template(&tokenizer, &[&controls[2], "$A", &controls[3]], 1),
        _ => None,
    };
    tokenizer.with_post_processor(around);
    tokenizer.to_string(true).map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::tokenizer(None, format!("training failed: {error}"))
}

/// Entries of `byte_fallback`.
const BYTES: usize = 256;

/// Refuses a vocabulary size that does not leave an entry for each character of the text.
fn check_size(config: &TokenizerConfig, controls: &[String], words: &WordCounts) -> Result<()> {
    let reserved = config.reserved_tokens(controls.len());
    let characters = match config.kind {
        // All bytes are reserved.
        TokenizerKind::ByteLevelBpe => 0,
        // One entry at the start of a word and one inside it.
        TokenizerKind::WordPiece => 2 * words.alphabet.len(),
        TokenizerKind::Bpe | TokenizerKind::Unigram => words.alphabet.len(),
    };
    let needed = reserved + characters;
    if config.vocab_size >= needed {
        return Ok(());
    }

    let has_bytes = config.byte_fallback && matches!(config.kind, TokenizerKind::Bpe | TokenizerKind::Unigram);
    let fits_without = has_bytes && config.vocab_size >= needed - BYTES;
    let roomy = (needed + characters).next_multiple_of(100);
    Err(Error::tokenizer(
        None,
        format!(
            "tokenizer.vocab_size = {} is too small: the text has {} different characters and {reserved} entries are \
             reserved; set it to at least {needed}, {roomy} to have room for words (or lower tokenizer.character_coverage{})",
            config.vocab_size,
            words.alphabet.len(),
            if fits_without { ", or set tokenizer.byte_fallback = false" } else { "" }
        ),
    ))
}

/// Returns the first tokens of the vocabulary, in the order of their ids: the control tokens, the extra tokens of the
/// configuration, and the bytes of `byte_fallback`.
fn reserved(config: &TokenizerConfig, controls: &[String]) -> Vec<String> {
    let fallback = config.byte_fallback && matches!(config.kind, TokenizerKind::Bpe | TokenizerKind::Unigram);
    let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")).filter(|_| fallback);
    controls.iter().cloned().chain(config.extra_tokens.iter().cloned()).chain(bytes).collect()
}
