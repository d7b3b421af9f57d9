//! The steps of a trained tokenizer before and after its model.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::wordpiece::WordPiece;
use tokenizers::normalizers::{BertNormalizer, NFC, NFKC, NormalizerWrapper};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::metaspace::Metaspace;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

use super::super::pieces::GPT2_PATTERN;
use super::super::{Normalization, TokenizerConfig, TokenizerKind};
use super::failed;
use crate::error::Result;

pub(super) fn normalizer(config: &TokenizerConfig) -> Option<NormalizerWrapper> {
    if config.kind == TokenizerKind::WordPiece {
        return Some(BertNormalizer::new(true, true, None, config.lowercase).into());
    }
    match config.normalization {
        Normalization::Nfc => Some(NFC.into()),
        Normalization::Nfkc => Some(NFKC.into()),
        Normalization::None => None,
    }
}

pub(super) fn pre_tokenizer(config: &TokenizerConfig) -> Result<PreTokenizerWrapper> {
    let byte_level = |use_regex| ByteLevel::new(false, true, use_regex);
    Ok(match (config.kind, config.split_digits) {
        (TokenizerKind::Bpe | TokenizerKind::Unigram, false) => Metaspace::default().into(),
        (TokenizerKind::Bpe | TokenizerKind::Unigram, true) => {
            Sequence::new(vec![Metaspace::default().into(), Digits::new(true).into()]).into()
        }
        (TokenizerKind::ByteLevelBpe, false) => byte_level(true).into(),
        (TokenizerKind::ByteLevelBpe, true) => {
            let pattern = SplitPattern::Regex(word_pattern(config));
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(failed)?;
            Sequence::new(vec![split.into(), byte_level(false).into()]).into()
        }
        (TokenizerKind::WordPiece, false) => BertPreTokenizer.into(),
        (TokenizerKind::WordPiece, true) => {
            Sequence::new(vec![BertPreTokenizer.into(), Digits::new(true).into()]).into()
        }
    })
}

/// Returns the pattern with which byte-level BPE divides texts.
pub(super) fn word_pattern(config: &TokenizerConfig) -> String {
    if config.split_digits { GPT2_PATTERN.replace(r" ?\p{N}+", r"\p{N}") } else { GPT2_PATTERN.into() }
}

pub(super) fn decoder(config: &TokenizerConfig) -> DecoderWrapper {
    match config.kind {
        TokenizerKind::ByteLevelBpe => ByteLevel::default().into(),
        TokenizerKind::WordPiece => WordPiece::default().into(),
        TokenizerKind::Bpe | TokenizerKind::Unigram if config.byte_fallback => {
            DecoderSequence::new(vec![ByteFallback::new().into(), Metaspace::default().into()]).into()
        }
        TokenizerKind::Bpe | TokenizerKind::Unigram => Metaspace::default().into(),
    }
}

/// Returns the post-processor that puts special tokens around a text, `$A`. The second text of a pair has type `second`.
pub(super) fn template(tokenizer: &Tokenizer, single: &[&str], second: u8) -> Option<PostProcessorWrapper> {
    let pieces: Vec<String> = single.iter().map(|piece| (*piece).to_owned()).collect();
    // The second text of a pair follows, with the same ending as the first.
    let behind = single.iter().skip_while(|piece| **piece != "$A").skip(1);
    let more = ["$B"].iter().chain(behind).map(|piece| format!("{piece}:{second}"));
    let pair: Vec<String> = pieces.iter().cloned().chain(more).collect();
    let ids = single
        .iter()
        .filter(|piece| **piece != "$A")
        .map(|piece| Some(((*piece).to_owned(), tokenizer.token_to_id(piece)?)));
    let builder = TemplateProcessing::builder()
        .try_single(pieces)
        .and_then(|builder| builder.try_pair(pair))
        .map(|builder| builder.special_tokens(ids.collect::<Option<Vec<_>>>().unwrap_or_default()).build());
    builder.ok()?.ok().map(Into::into)
}
