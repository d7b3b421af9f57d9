//! Models from word counts, reproducible on every run.

use std::cmp::Reverse;

use ahash::AHashMap;
use compact_str::CompactString;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, BpeTrainer, BpeTrainerBuilder};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::utils::parallelism::{get_parallelism, set_parallelism};

use super::super::TokenizerConfig;
use super::failed;
use super::words::WordCounts;
use crate::error::Result;

pub(super) fn train_bpe(config: &TokenizerConfig, reserved: Vec<String>, unk: &str, words: WordCounts) -> Result<BPE> {
    let builder = BPE::builder().unk_token(unk.into()).byte_fallback(config.byte_fallback);
    train_merges(config, reserved, builder.build().map_err(failed)?, |trainer| trainer, &words)
}

/// Without an unknown token: all bytes are in the vocabulary, also those that the text lacks.
pub(super) fn train_byte_level(config: &TokenizerConfig, reserved: Vec<String>, words: WordCounts) -> Result<BPE> {
    let alphabet = ByteLevel::alphabet().into_iter().collect();
    train_merges(config, reserved, BPE::default(), |trainer| trainer.initial_alphabet(alphabet), &words)
}

/// Merges pairs as BPE does and marks pieces inside words, which is probably how BERT's vocabulary was made.
pub(super) fn train_word_piece(
    config: &TokenizerConfig,
    reserved: Vec<String>,
    unk: &str,
    words: WordCounts,
) -> Result<WordPiece> {
    let builder = BPE::builder().unk_token(unk.into()).continuing_subword_prefix("##".into());
    let mark = |trainer: BpeTrainerBuilder| trainer.continuing_subword_prefix("##".into());
    // The trainer would number pieces inside words in the order of a hash table.
    let mut inside: Vec<String> = words.alphabet.iter().map(|c| format!("##{c}")).collect();
    inside.sort_unstable();
    let reserved = reserved.into_iter().chain(inside).collect();
    let merges = train_merges(config, reserved, builder.build().map_err(failed)?, mark, &words)?;
    Ok(WordPiece::from_bpe(&merges))
}

fn train_merges(
    config: &TokenizerConfig,
    reserved: Vec<String>,
    mut model: BPE,
    with: impl FnOnce(BpeTrainerBuilder) -> BpeTrainerBuilder,
    words: &WordCounts,
) -> Result<BPE> {
    let scale = scale_down(words);
    let counts: AHashMap<CompactString, u64> =
        words.words.iter().map(|(word, count)| (CompactString::from(word), scale(*count))).collect();
    let trainer = BpeTrainer::builder()
        .vocab_size(config.vocab_size)
        .show_progress(false)
        .special_tokens(reserved.iter().map(|t| AddedToken::from(t, true)).collect());
    with(trainer).build().do_train(&counts, &mut model).map_err(failed)?;
    Ok(model)
}

pub(super) fn train_unigram(
    config: &TokenizerConfig,
    reserved: Vec<String>,
    unk: &str,
    words: WordCounts,
) -> Result<Unigram> {
    let scale = scale_down(&words);
    let sentences: Vec<(String, u32)> =
        words.words.iter().map(|(word, count)| (word.clone(), scale(*count) as u32)).collect();
    let trainer = UnigramTrainer::builder()
        .show_progress(false)
        .vocab_size((config.vocab_size - reserved.len()) as u32)
        .build()
        .map_err(failed)?;

    // The trainer adds floating-point sums in the order in which its threads finish. One thread always adds in the same
    // order.
    let parallel = get_parallelism();
    set_parallelism(false);
    let mut trained = Unigram::default();
    let result = trainer.do_train(sentences, &mut trained);
    set_parallelism(parallel);
    result.map_err(failed)?;

    let pieces = in_fixed_order(trained.iter().cloned().collect());
    let unk = reserved.iter().position(|token| token == unk);
    // With so low a score, a reserved token is never the best spelling of a text, even of one that contains it.
    let reserved = reserved.into_iter().map(|token| (token, -1000.0));
    Unigram::from(reserved.chain(pieces).collect(), unk, config.byte_fallback).map_err(failed)
}

/// Scales down the counts of very large corpora, since the trainers count pairs in 32 bits. Keeps rare words.
fn scale_down(words: &WordCounts) -> impl Fn(u64) -> u64 + use<> {
    let divisor = words.n_characters().div_ceil(i32::MAX as u64).max(1);
    move |count| count.div_ceil(divisor)
}

/// Makes the trained pieces independent of hash order. The trainer gives the lowest scores to single characters that it
/// had pruned, in the order of a hash set; this function distributes these scores by character. Scores keep six
/// decimals, which any JSON reader restores exactly.
fn in_fixed_order(mut pieces: Vec<(String, f64)>) -> Vec<(String, f64)> {
    for (_, score) in &mut pieces {
        *score = (*score * 1e6).round() / 1e6;
    }
    let lowest = pieces.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
    let single = |piece: &str| piece.chars().nth(1).is_none();
    let n_single = pieces.iter().filter(|(piece, _)| single(piece)).count();
    let ceiling = lowest + 1e-4 * n_single as f64 + 1e-6;

    let (mut low, mut rest): (Vec<_>, Vec<_>) =
        pieces.into_iter().partition(|(piece, score)| single(piece) && *score <= ceiling);
    let mut scores: Vec<f64> = low.iter().map(|(_, score)| *score).collect();
    scores.sort_by(|a, b| b.total_cmp(a));
    low.sort_by(|(a, _), (b, _)| a.cmp(b));
    rest.extend(low.into_iter().zip(scores).map(|((piece, _), score)| (piece, score)));
    rest.sort_by(|(a, x), (b, y)| y.total_cmp(x).then_with(|| Reverse(b).cmp(&Reverse(a))));
    rest
}
