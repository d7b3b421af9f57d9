//! Training a vocabulary: words are counted in parallel, then `tokenizers` trains on the counts.
//!
//! Tokenizers made here belong to the Metaspace family of SentencePiece: normalization, spaces written as `▁` in front
//! of words, digits apart if wanted, then BPE or a unigram model; characters outside the vocabulary become bytes.

mod models;
mod words;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::normalizers::{NFC, NFKC, NormalizerWrapper};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::metaspace::Metaspace;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

use self::words::WordCounts;
use super::{Normalization, TokenizerConfig, TokenizerKind};
use crate::corpus::Corpus;
use crate::error::{Error, Result};

/// The `tokenizer.json` of both sides; no second one if they share it.
pub(super) fn train(config: &TokenizerConfig, corpus: &Corpus, num_threads: usize) -> Result<(String, Option<String>)> {
    let (source, target) = words::count_words(config, corpus, num_threads)?;
    let source = train_one(config, source)?;
    let target = target.map(|words| train_one(config, words)).transpose()?;
    Ok((source, target))
}

fn train_one(config: &TokenizerConfig, words: WordCounts) -> Result<String> {
    check_size(config, &words)?;
    let model: ModelWrapper = match config.kind {
        TokenizerKind::Bpe => models::train_bpe(config, words)?.into(),
        TokenizerKind::Unigram => models::train_unigram(config, words)?.into(),
    };
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(normalizer(config));
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer(config)));
    tokenizer.with_decoder(Some(decoder(config)));
    let controls = [&config.pad_token, &config.bos_token, &config.eos_token, &config.unk_token];
    tokenizer.add_special_tokens(&controls.map(|t| AddedToken::from(t, true)));
    let extra: Vec<_> = config.extra_tokens.iter().map(|t| AddedToken::from(t, false).normalized(false)).collect();
    tokenizer.add_tokens(&extra);
    // Other libraries that load the file append eos as our rows have it.
    let eos_id = tokenizer.token_to_id(&config.eos_token).expect("added above");
    let template = |pieces: &[&str]| pieces.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>();
    let ends = TemplateProcessing::builder()
        .try_single(template(&["$A", &config.eos_token]))
        .and_then(|b| b.try_pair(template(&["$A", &config.eos_token, "$B", &config.eos_token])))
        .map(|b| b.special_tokens(vec![(config.eos_token.clone(), eos_id)]).build());
    if let Ok(Ok(ends)) = ends {
        tokenizer.with_post_processor(Some(ends));
    }
    tokenizer.to_string(true).map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::tokenizer(None, format!("training failed: {error}"))
}

/// Every kind of character needs an entry, or the first merge would already be one too many.
fn check_size(config: &TokenizerConfig, words: &WordCounts) -> Result<()> {
    let needed = config.reserved_tokens() + words.alphabet.len();
    if config.vocab_size >= needed {
        return Ok(());
    }
    Err(Error::tokenizer(
        None,
        format!(
            "vocab_size = {} is too small: the text has {} different characters and {} entries are reserved; set \
             tokenizer.vocab_size to at least {} (or lower tokenizer.character_coverage{})",
            config.vocab_size,
            words.alphabet.len(),
            config.reserved_tokens(),
            needed,
            if config.byte_fallback { ", or set tokenizer.byte_fallback = false" } else { "" }
        ),
    ))
}

/// Tokens in front of the vocabulary, in the order of their ids: the four control tokens, the user's, the bytes.
fn reserved(config: &TokenizerConfig) -> Vec<String> {
    let controls = [&config.pad_token, &config.bos_token, &config.eos_token, &config.unk_token];
    let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")).filter(|_| config.byte_fallback);
    controls.into_iter().cloned().chain(config.extra_tokens.iter().cloned()).chain(bytes).collect()
}

fn normalizer(config: &TokenizerConfig) -> Option<NormalizerWrapper> {
    match config.normalization {
        Normalization::Nfc => Some(NFC.into()),
        Normalization::Nfkc => Some(NFKC.into()),
        Normalization::None => None,
    }
}

fn pre_tokenizer(config: &TokenizerConfig) -> PreTokenizerWrapper {
    if config.split_digits {
        Sequence::new(vec![Metaspace::default().into(), Digits::new(true).into()]).into()
    } else {
        Metaspace::default().into()
    }
}

fn decoder(config: &TokenizerConfig) -> DecoderWrapper {
    if config.byte_fallback {
        DecoderSequence::new(vec![ByteFallback::new().into(), Metaspace::default().into()]).into()
    } else {
        Metaspace::default().into()
    }
}
