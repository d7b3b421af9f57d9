//! The size of a vocabulary for words that are spelled, such as a dictionary of pronunciations.

use std::collections::HashSet;
use std::fs;

use kiln_data::{CorpusConfig, PairCorpus, Task};

use super::Config;
use super::set_keys::SetKeys;

/// Larger files are texts rather than lists of words, and take long to read.
const MOST_BYTES: u64 = 32 << 20;
/// Most words of a source in the mean. A vocabulary made for sentences knows each such word as a whole and spells none.
const MOST_WORDS: f64 = 1.3;
/// Entries that every vocabulary has: bytes and special tokens.
const ALWAYS: usize = 300;
/// Sources that say what the text is.
const ENOUGH: usize = 5000;

/// Lowers the default size of the vocabulary where sources are single words, so that tokens are letters and short parts of words. Changes
/// `config` and the defaults `base`. Returns a sentence about it.
pub(super) fn spell(config: &mut Config, base: &mut Config, set: &SetKeys) -> Option<String> {
    let is_decided =
        ["tokenizer.vocab_size", "tokenizer.path", "tokenizer.kind"].into_iter().any(|key| set.contains(key));
    if config.task != Task::Translation || config.is_built_in_task() || is_decided {
        return None;
    }
    let n_bytes: u64 =
        config.data.train_files().iter().filter_map(|file| fs::metadata(file).ok()).map(|file| file.len()).sum();
    if n_bytes > MOST_BYTES {
        return None;
    }
    // Mistakes are reported elsewhere.
    let read_as = CorpusConfig { filter: config.train_filter().ok()?, ..config.data.corpus.clone() };
    let corpus = PairCorpus::open(&config.data.train_files(), &read_as).ok()?;
    let (examples, _) = corpus.read_all().ok()?;
    let sample = &examples[..examples.len().min(ENOUGH)];
    let n_words: usize = sample.iter().map(|example| example.source.split_whitespace().count()).sum();
    if sample.is_empty() || n_words as f64 > MOST_WORDS * sample.len() as f64 {
        return None;
    }

    let letters: HashSet<char> =
        examples.iter().flat_map(|example| example.source.chars().chain(example.target.chars())).collect();
    let size = (ALWAYS + 2 * letters.len()).next_multiple_of(100);
    let before = config.tokenizer.vocab_size;
    if size >= before {
        return None;
    }
    for config in [config, base] {
        config.tokenizer.vocab_size = size;
    }
    Some(format!(
        "tokenizer.vocab_size {size} instead of {before}, because sources are single words, which are to be spelled (--set \
         tokenizer.vocab_size=... decides otherwise)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::presets;

    #[test]
    fn words_are_spelled_and_sentences_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let size = |name: &str, row: fn(usize) -> String, set: bool| {
            let path = folder.path().join(name);
            fs::write(&path, (0..200).map(row).collect::<String>()).expect("writable");
            let mut config = presets::tiny();
            config.data.train = vec![path];
            let note = spell(
                &mut config,
                &mut presets::tiny(),
                &if set { SetKeys::of(["tokenizer.vocab_size"]) } else { SetKeys::default() },
            );
            (config.tokenizer.vocab_size, note.is_some())
        };
        let word = |i: usize| format!("w{}rd\tW {} R D\n", i % 10, i % 10);
        assert_eq!(size("words.tsv", word, false), (400, true));
        assert_eq!(size("words.tsv", word, true), (4000, false));
        assert_eq!(
            size("sentences.tsv", |i| format!("a sentence of words {i}\tuna frase {i}\n"), false),
            (4000, false)
        );
    }
}
