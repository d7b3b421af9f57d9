//! The size of a vocabulary for words that are spelled, such as a dictionary of pronunciations or a table of forms, and for many characters.

use std::collections::HashSet;
use std::fs;

use kiln_data::{CorpusConfig, Example, PairCorpus, Task};

use super::Config;
use super::set_keys::SetKeys;

/// Larger files are texts rather than lists of words, and take long to read.
const MOST_BYTES: u64 = 32 << 20;
/// Most words of a text that is a single word, in the mean. A vocabulary made for sentences knows each such word as a whole and spells none.
const MOST_WORDS: f64 = 1.3;
/// Most characters of a short text, in the mean. Some scripts put no spaces between words.
const MOST_CHARACTERS: f64 = 64.0;
/// Most words of a source whose target is a single word: a word with its tags, or a date.
const MOST_WORDS_OF_SOURCE: f64 = 8.0;
/// Most words of a target that is a form of its source (`ausmachen`, `mache aus`).
const MOST_WORDS_OF_FORM: f64 = 3.0;
/// The share of a form's pairs of neighboring letters that its source has, too. Translations share a fifth.
const ALIKE: f64 = 0.4;
/// Signs of an expression without spaces (a regular expression, a formula), as a share of its characters, at least.
const SIGNS: f64 = 0.2;
/// Most words of a source whose target is an expression.
const MOST_WORDS_OF_DESCRIPTION: f64 = 40.0;
/// The share of targets that differ from all others, at least: the names of a few classes recur.
const DISTINCT: f64 = 0.5;
/// Entries that every vocabulary has: bytes and special tokens.
const ALWAYS: usize = 300;
/// Rows that say what the text is.
const ENOUGH: usize = 5000;

/// Lowers the default size of the vocabulary where sources or targets are single words, so that tokens are letters and short parts of words,
/// and raises it where the text has more characters than entries. Looks at the texts as the model gets them. Changes `config` and the
/// defaults `base`. Returns a sentence about it.
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

    let letters: HashSet<char> =
        examples.iter().flat_map(|example| example.source.chars().chain(example.target.chars())).collect();
    let size = (ALWAYS + 2 * letters.len()).next_multiple_of(100);
    let before = config.tokenizer.vocab_size;
    let why = if before < ALWAYS + letters.len() {
        format!("the text has {} different characters", letters.len())
    } else {
        let why = reason(&examples[..examples.len().min(ENOUGH)]).filter(|_| size < before)?;
        format!("{why}, which are to be spelled")
    };
    for config in [config, base] {
        config.tokenizer.vocab_size = size;
    }
    Some(format!(
        "tokenizer.vocab_size {size} instead of {before}, because {why} (--set tokenizer.vocab_size=... decides otherwise)"
    ))
}

/// Returns why the words of these texts are to be spelled; `None` for sentences and for targets that recur.
fn reason(examples: &[Example]) -> Option<&'static str> {
    let mean = |count: &dyn Fn(&Example) -> usize| {
        examples.iter().map(count).sum::<usize>() as f64 / examples.len().max(1) as f64
    };
    let n_words = |text: &str| text.split_whitespace().count();
    let [of_source, of_target] = [mean(&|pair| n_words(&pair.source)), mean(&|pair| n_words(&pair.target))];
    let is_short = mean(&|pair| pair.source.chars().count()) <= MOST_CHARACTERS;
    let targets: HashSet<&str> = examples.iter().map(|pair| pair.target.as_str()).collect();
    let are_distinct = targets.len() as f64 >= DISTINCT * examples.len() as f64;
    let has_short_sources = is_short && of_source <= MOST_WORDS_OF_SOURCE && are_distinct;

    let n_signs = |text: &str| text.chars().filter(|c| !c.is_alphanumeric() && !c.is_whitespace()).count();
    let n_characters = mean(&|pair| pair.target.chars().count());
    let are_expressions = of_target <= MOST_WORDS && mean(&|pair| n_signs(&pair.target)) >= SIGNS * n_characters;
    let are_forms = || {
        let [shared, all] = examples.iter().map(shared_letters).fold([0, 0], |sum, n| [sum[0] + n[0], sum[1] + n[1]]);
        shared as f64 >= ALIKE * all as f64
    };
    match () {
        () if examples.is_empty() => None,
        () if is_short && of_source <= MOST_WORDS => Some("sources are single words"),
        () if has_short_sources && of_target <= MOST_WORDS => Some("targets are single words"),
        () if are_expressions && are_distinct && of_source <= MOST_WORDS_OF_DESCRIPTION => {
            Some("targets are expressions without spaces")
        }
        () if has_short_sources && of_target <= MOST_WORDS_OF_FORM && are_forms() => {
            Some("targets are forms of their sources")
        }
        () => None,
    }
}

/// Counts the pairs of neighboring letters of a target that its source has, and all of them.
fn shared_letters(pair: &Example) -> [usize; 2] {
    let pairs_of = |text: &str| -> Vec<(char, char)> {
        let words = text.split_whitespace();
        words.flat_map(|word| word.chars().zip(word.chars().skip(1)).collect::<Vec<_>>()).collect()
    };
    let (known, all) = (HashSet::<(char, char)>::from_iter(pairs_of(&pair.source)), pairs_of(&pair.target));
    [all.iter().filter(|letters| known.contains(letters)).count(), all.len()]
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

        let form = |i: usize| format!("w{}rd{i} V.PST;{}\tw{}rd{i}ed\n", i % 10, i % 3, i % 10);
        assert_eq!(size("forms.tsv", form, false), (400, true), "targets are words, and sources have more");
        let parted = |i: usize| format!("aus{0}en{i} V;{1}\t{0}e{i} aus\n", ["mach", "putz", "leb"][i % 3], i % 4);
        assert_eq!(size("parted.tsv", parted, false), (400, true), "targets are made of their sources");
        let expression = |i: usize| {
            let word = ["lake", "door", "book"][i % 3];
            format!(
                "lines that have the string \"{word}\" {i} or more times before a vowel and then a digit\t(({word}){{{i},}}).*[aeiou].*\n"
            )
        };
        assert_eq!(size("expressions.tsv", expression, false), (400, true), "targets are expressions");
        let link = |i: usize| format!("the page about number {i} of the list of all the pages we have\tpage{i}\n");
        assert_eq!(size("links.tsv", link, false), (4000, false), "words without signs, of long sources");
        let sign = |i: usize| (0..10).filter_map(|k| char::from_u32(0x4e00 + (10 * i + k) as u32)).collect::<String>();
        fs::write(
            folder.path().join("signs.tsv"),
            (0..450).map(|i| format!("{}\tthe sign {i}\n", sign(i))).collect::<String>(),
        )
        .expect("writable");
        let mut many = presets::tiny();
        many.data.train = vec![folder.path().join("signs.tsv")];
        let note = spell(&mut many, &mut presets::tiny(), &SetKeys::default()).expect("characters have entries");
        assert!(many.tokenizer.vocab_size > 9000 && note.contains("45"), "{note}");
        let phrases = |i: usize| format!("good morning {i}\tbuongiorno signora {i}\n");
        assert_eq!(size("phrases.tsv", phrases, false), (4000, false), "short sentences");
        let class = |i: usize| format!("w{}rd{i} V.PST\t{}\n", i % 10, ["good", "bad"][i % 2]);
        assert_eq!(size("classes.tsv", class, false), (4000, false), "targets recur");
        let unspaced = |i: usize| format!("{}{i}\tuna frase {i}\n", "ประโยคที่ไม่มีช่องว่างเลย".repeat(4));
        assert_eq!(size("unspaced.tsv", unspaced, false), (4000, false), "a sentence without spaces");
        assert_eq!(
            size("sentences.tsv", |i| format!("a sentence of words {i}\tuna frase {i}\n"), false),
            (4000, false)
        );
    }
}
