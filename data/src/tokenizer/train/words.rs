//! Counting the words of a corpus.

use std::thread;

use ahash::{AHashMap, AHashSet};
use tokenizers::utils::SysRegex;
use tokenizers::{
    NormalizedString, Normalizer as _, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _,
};

use super::super::pieces::matches_and_gaps;
use super::super::{TokenizerConfig, TokenizerKind};
use crate::corpus::{
    BlockStart, DocumentPart, Example, LabelledText, PairCorpus, RowParser, RowReport, TextCorpus, for_each_block,
};
use crate::error::{Error, Result};

/// Longest word in characters that a vocabulary is trained on. The trainers take quadratic time in the longest word, so a longer
/// one (base64, a text without spaces) counts as several words: no piece is learned across their borders.
const MAX_WORD: usize = 4096;

/// Words as the model sees them (normalized, `▁` for the space in front), sorted, with their counts.
pub(super) struct WordCounts {
    pub(super) words: Vec<(String, u64)>,
    /// All characters of the words.
    pub(super) alphabet: AHashSet<char>,
}

pub(super) type Counts = AHashMap<Box<str>, u64>;

/// Counts the words of pairs, of both sides together if they share a vocabulary. Skips bad rows, and fails if there are
/// too many.
pub(super) fn count_pairs(
    config: &TokenizerConfig,
    corpus: &PairCorpus,
    num_threads: usize,
) -> Result<(Counts, Option<Counts>)> {
    let parser = RowParser::new(corpus.config());
    let divider = Divider::new(config)?;

    let mut report = RowReport::default();
    let (mut source, mut target) = (Counts::new(), Counts::new());
    for_each_block(
        corpus.blocks(),
        num_threads,
        || (),
        |(), block| {
            let (mut source, mut target) = (Counts::new(), Counts::new());
            let mut report = RowReport::default();
            let path = corpus.inputs()[block.input].main_file();
            for (line, row) in block.rows(&parser) {
                match row {
                    Ok(pair) => {
                        report.add_kept(1);
                        divider.add_words(&mut source, &pair.source);
                        divider.add_words(if config.joint { &mut source } else { &mut target }, &pair.target);
                    }
                    Err(problem) => report.add_bad(path, line, &problem),
                }
            }
            Ok((source, target, report))
        },
        |(block_source, block_target, block_report)| {
            merge(&mut source, block_source);
            merge(&mut target, block_target);
            report.merge(block_report);
            Ok(())
        },
    )?;
    corpus.check(&report)?;
    Ok((source, (!config.joint).then_some(target)))
}

/// Counts the words of pairs in memory, of both sides together if they share a vocabulary.
pub(super) fn count_examples(config: &TokenizerConfig, examples: &[Example]) -> Result<(Counts, Option<Counts>)> {
    let divider = Divider::new(config)?;
    let (mut source, mut target) = (Counts::new(), Counts::new());
    for example in examples {
        divider.add_words(&mut source, &example.source);
        divider.add_words(if config.joint { &mut source } else { &mut target }, &example.target);
    }
    Ok((source, (!config.joint).then_some(target)))
}

/// Counts the words of plain text.
pub(super) fn count_documents(config: &TokenizerConfig, corpus: &TextCorpus, num_threads: usize) -> Result<Counts> {
    let divider = Divider::new(config)?;

    let mut report = RowReport::default();
    let mut counts = Counts::new();
    for_each_block(
        corpus.blocks(),
        num_threads,
        || (),
        |(), block| {
            let (mut counts, mut report) = (Counts::new(), RowReport::default());
            for part in block.document_parts(corpus) {
                let DocumentPart { line, continues, text, .. } = part?;
                match text {
                    Ok(text) => {
                        divider.add_words(&mut counts, &text);
                        report.add_kept(u64::from(!continues));
                    }
                    Err(problem) => report.add_bad(corpus.path_of(&block), line, &problem),
                }
            }
            Ok((counts, report))
        },
        |(block_counts, block_report)| {
            merge(&mut counts, block_counts);
            report.merge(block_report);
            Ok(())
        },
    )?;
    corpus.check(&report)?;
    Ok(counts)
}

/// Counts the words of labelled rows. Bad rows are reported when they are read for training.
pub(super) fn count_labelled(config: &TokenizerConfig, text: &LabelledText, num_threads: usize) -> Result<Counts> {
    let divider = Divider::new(config)?;
    let mut counts = Counts::new();
    for_each_block(
        text.blocks_from(BlockStart::default()),
        num_threads,
        || (),
        |(), block| {
            let mut counts = Counts::new();
            let texts = text.rows(&block).filter_map(|(_, row)| row.ok()).flat_map(|row| row.texts());
            texts.for_each(|text| divider.add_words(&mut counts, &text));
            Ok(counts)
        },
        |of_block| {
            merge(&mut counts, of_block);
            Ok(())
        },
    )?;
    Ok(counts)
}

/// Counts the words of documents in memory.
pub(super) fn count_texts(config: &TokenizerConfig, documents: &[String]) -> Result<Counts> {
    let (divider, mut counts) = (Divider::new(config)?, Counts::new());
    documents.iter().for_each(|document| divider.add_words(&mut counts, document));
    Ok(counts)
}

/// Divides texts coarsely, so that only few different strings must be normalized and divided exactly.
enum Divider {
    Spaces,
    WhiteSpace,
    Pattern(SysRegex),
}

impl Divider {
    fn new(config: &TokenizerConfig) -> Result<Self> {
        Ok(match config.kind {
            TokenizerKind::Bpe | TokenizerKind::Unigram => Self::Spaces,
            TokenizerKind::WordPiece => Self::WhiteSpace,
            TokenizerKind::ByteLevelBpe => {
                Self::Pattern(SysRegex::new(&super::parts::word_pattern(config)).map_err(super::failed)?)
            }
        })
    }

    fn add_words(&self, counts: &mut Counts, text: &str) {
        let mut add = |word: &str| match counts.get_mut(word) {
            Some(count) => *count += 1,
            None => {
                counts.insert(word.into(), 1);
            }
        };
        match self {
            Self::Spaces => text.split(' ').filter(|word| !word.is_empty()).for_each(add),
            Self::WhiteSpace => text.split([' ', '\t', '\n', '\r']).filter(|word| !word.is_empty()).for_each(add),
            Self::Pattern(pattern) => matches_and_gaps(pattern, text, &mut add),
        }
    }
}

fn merge(into: &mut Counts, from: Counts) {
    for (word, count) in from {
        *into.entry(word).or_default() += count;
    }
}

impl WordCounts {
    pub(super) fn new(config: &TokenizerConfig, controls: &[String], raw: Counts, num_threads: usize) -> Result<Self> {
        let raw: Vec<_> = raw.into_iter().collect();
        let share = raw.len().div_ceil(num_threads.max(1)).max(1);
        let mut counts = Counts::new();
        thread::scope(|scope| {
            let threads: Vec<_> = raw.chunks(share).map(|share| scope.spawn(|| pre_tokenize(config, share))).collect();
            for thread in threads {
                merge(&mut counts, thread.join().unwrap_or_else(|panic| Err(Error::from_panic(panic)))?);
            }
            Ok::<_, Error>(())
        })?;

        if config.kind == TokenizerKind::ByteLevelBpe {
            // Every byte is in the vocabulary, and no learned piece can spell a special token.
            let alphabet = counts.keys().flat_map(|word| word.chars()).collect();
            let mut words: Vec<_> = counts.into_iter().map(|(word, count)| (word.into_string(), count)).collect();
            words.sort_unstable();
            return Ok(Self { words, alphabet });
        }

        let mut alphabet = common_characters(&counts, config.character_coverage);
        let mut words: AHashMap<String, u64> = AHashMap::new();
        let reserved = super::reserved(config, controls);
        let reserved: Vec<&str> =
            reserved.iter().map(String::as_str).filter(|t| !t.starts_with("<0x")).chain(["<0x"]).collect();
        // A text may spell a reserved token, so its characters must be known ..
        for c in reserved.iter().flat_map(|token| token.chars()) {
            alphabet.insert(c);
            *words.entry(c.into()).or_default() += 1;
        }

        for (word, count) in counts {
            // Rare characters divide a word: the characters around one are never merged.
            for part in word.split(|c| !alphabet.contains(&c)).filter(|part| !part.is_empty()) {
                // .. but no learned piece may be spelled like one.
                if reserved.iter().any(|token| part.contains(token)) {
                    for c in part.chars() {
                        *words.entry(c.into()).or_default() += count;
                    }
                } else {
                    *words.entry(part.to_owned()).or_default() += count;
                }
            }
        }

        let mut words: Vec<_> = words.into_iter().collect();
        words.sort_unstable();
        Ok(Self { words, alphabet })
    }

    /// Returns the total number of characters, counting each word as often as it occurs.
    pub(super) fn n_characters(&self) -> u64 {
        self.words.iter().map(|(word, count)| word.chars().count() as u64 * count).sum()
    }
}

/// Normalizes words and splits them as the tokenizer will.
fn pre_tokenize(config: &TokenizerConfig, raw: &[(Box<str>, u64)]) -> Result<Counts> {
    let (normalizer, pre_tokenizer) = (super::parts::normalizer(config), super::parts::pre_tokenizer(config)?);
    let mut counts = Counts::new();
    for (word, count) in raw {
        let mut normalized = NormalizedString::from(&**word);
        if let Some(normalizer) = &normalizer {
            normalizer.normalize(&mut normalized).map_err(super::failed)?;
        }
        let mut splits = PreTokenizedString::from(normalized);
        pre_tokenizer.pre_tokenize(&mut splits).map_err(super::failed)?;
        for (part, _, _) in splits.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            for piece in pieces_of(part) {
                *counts.entry(piece.into()).or_default() += count;
            }
        }
    }
    Ok(counts)
}

/// Cuts a word of more than [`MAX_WORD`] characters into words of at most as many.
fn pieces_of(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let end = rest.char_indices().nth(MAX_WORD).map_or(rest.len(), |(at, _)| at);
        let (piece, behind) = rest.split_at(end);
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Returns the most frequent characters that together make up `coverage` of the text.
fn common_characters(counts: &Counts, coverage: f64) -> AHashSet<char> {
    let mut characters: AHashMap<char, u64> = AHashMap::new();
    for (word, count) in counts {
        for c in word.chars() {
            *characters.entry(c).or_default() += count;
        }
    }
    let mut characters: Vec<_> = characters.into_iter().collect();
    characters.sort_unstable_by_key(|(c, count)| (std::cmp::Reverse(*count), *c));
    let wanted = coverage * characters.iter().map(|(_, count)| *count as f64).sum::<f64>();
    let mut covered = 0.0;
    characters
        .into_iter()
        .take_while(|(_, count)| {
            let more = covered < wanted;
            covered += *count as f64;
            more
        })
        .map(|(c, _)| c)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_without_end_is_counted_as_several() {
        let long: String = ('a'..='z').cycle().take(3 * MAX_WORD + 7).collect();
        let whole = "é".repeat(MAX_WORD);
        let documents = [format!("short {long}"), whole.clone(), "short".to_owned()];
        for kind in [TokenizerKind::Bpe, TokenizerKind::Unigram, TokenizerKind::ByteLevelBpe, TokenizerKind::WordPiece]
        {
            let config = TokenizerConfig { kind, ..TokenizerConfig::default() };
            let raw = count_texts(&config, &documents).expect("words");
            let counts = WordCounts::new(&config, &config.text_controls(), raw, 2).expect("words");
            let longest = counts.words.iter().map(|(word, _)| word.chars().count()).max();
            assert_eq!(longest, Some(MAX_WORD), "{kind:?}");
            assert!(counts.n_characters() >= (long.len() + MAX_WORD + 10) as u64, "{kind:?}: nothing is left out");
        }
        assert_eq!(pieces_of(&whole).collect::<Vec<_>>(), [whole.as_str()], "a word of the longest length stays whole");
        assert_eq!(pieces_of(&long).collect::<String>(), long);
        assert_eq!(pieces_of("").count(), 0);
    }
}
