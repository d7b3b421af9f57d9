//! Texts with a tag behind each word, as in the Brown corpus (`The/at jury/nn`): how they become CoNLL.

use std::collections::HashSet;
use std::path::Path;

use crate::corpus::jq::piped;

/// Signs between a word and its tag.
const DIVIDERS: [char; 3] = ['/', '_', '|'];
/// Words from which it is not chance.
const ENOUGH_WORDS: usize = 12;
/// Words of a line, at least, in the mean. A file with a word per line has another form.
const WORDS_OF_LINE: usize = 2;
/// The share of words with a tag, in percent.
const TAGGED: usize = 95;

/// Splits a word from its tag.
fn split(word: &str, divider: char) -> Option<(&str, &str)> {
    word.rsplit_once(divider).filter(|(word, tag)| !word.is_empty() && !tag.is_empty())
}

/// Returns the sign that stands between words and their tags in these lines; `None` for other lines.
fn divider(lines: &[String]) -> Option<char> {
    let words: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
    let n_lines = lines.iter().filter(|line| !line.trim().is_empty()).count();
    if words.len() < ENOUGH_WORDS || words.len() < WORDS_OF_LINE * n_lines {
        return None;
    }
    DIVIDERS.into_iter().find(|divider| {
        let found: Vec<(&str, &str)> = words.iter().filter_map(|word| split(word, *divider)).collect();
        let n_tags = found.iter().map(|(_, tag)| tag).collect::<HashSet<_>>().len();
        let are_tags = n_tags > 1 && 2 * n_tags < words.len();
        are_tags && 100 * found.len() >= TAGGED * words.len()
    })
}

/// Says what the file is and how it becomes a CoNLL file. `None` for other files.
pub(super) fn advice(path: &Path, lines: &[String]) -> Option<String> {
    let divider = divider(lines)?;
    let word = lines.iter().flat_map(|line| line.split_whitespace()).find(|word| split(word, divider).is_some())?;
    let sign = if divider == '_' { "_".to_owned() } else { format!("\\{divider}") };
    // A part of speech may stand between a word and its tag.
    let words = || lines.iter().flat_map(|line| line.split_whitespace());
    let n_of_two = words().filter(|word| word.matches(divider).count() == 2).count();
    let end =
        if 100 * n_of_two >= TAGGED * words().count() { format!("index($i, \"{divider}\")") } else { "n".to_owned() };
    let program = format!(
        "awk '{{sub(/\\r$/, \"\")}} NF {{for (i = 1; i <= NF; i++) {{n = match($i, /{sign}[^{sign}]*$/); if (n > 1 && n < length($i)) print \
         substr($i, 1, {end} - 1) \"\\t\" substr($i, n + 1); else left++}} print \"\"}} END {{if (left) print \"words without a tag, left out: \" \
         left > \"/dev/stderr\"}}'"
    );
    Some(format!(
        "each word has its tag behind it, such as {word}, and a word with its tag per line is wanted\nto write them so: {} > rows.conll\nand \
         train on rows.conll",
        piped(path, &program)
    ))
}
