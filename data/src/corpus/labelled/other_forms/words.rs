//! Tables with a word and its tag in each row, which make no sentences: how they become CoNLL.

use std::collections::HashSet;
use std::path::Path;

use super::{LabelConfig, cells};
use crate::corpus::jq::fed;
use crate::formats::CsvRows;

/// Rows with one word each from which it is not chance.
const ENOUGH_ROWS: usize = 8;
/// Usual names of columns with one word.
const WORDS: [&str; 6] = ["word", "words", "token", "tokens", "form", "text"];
/// Usual names of columns with its tag, best first.
const TAGS: [&str; 8] = ["tag", "tags", "ner", "ner_tag", "ner_tags", "label", "labels", "pos"];

/// The columns of such a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WordRows {
    word: usize,
    tag: usize,
    /// Says which sentence a word is in.
    sentence: Option<usize>,
}

/// Returns the columns of a table whose first rows have one word each. `None` for any other table.
pub(super) fn of(rows: &[Vec<String>], config: &LabelConfig) -> Option<WordRows> {
    let first = rows.first().filter(|_| rows.len() > ENOUGH_ROWS)?;
    let position = |name: &str| first.iter().position(|cell| cell.trim().eq_ignore_ascii_case(name));
    let one_of = |named: &str, usual: &[&str]| position(named).or_else(|| usual.iter().find_map(|name| position(name)));
    let has_one_word = |at: usize| {
        let is_word =
            |cell: &String| cell.split_whitespace().count() <= 1 && !(cell.len() > 1 && cell.starts_with('['));
        cells(rows, at).all(is_word) && cells(rows, at).any(|cell| !cell.trim().is_empty())
    };
    let n_distinct = |at: &usize| cells(rows, *at).collect::<HashSet<_>>().len();

    let word = one_of(&config.words_field, &WORDS)?;
    let others = || (0..first.len()).filter(|at| *at != word);
    let tag = one_of(&config.tags_field, &TAGS).filter(|at| *at != word);
    let tag = tag.or_else(|| others().filter(|at| has_one_word(*at)).min_by_key(n_distinct))?;
    if !has_one_word(word) || !has_one_word(tag) {
        return None;
    }
    let named = |at: &usize| ["sent", "sid"].iter().any(|part| first[*at].to_lowercase().contains(part));
    let candidates = || others().filter(|at| *at != tag);
    let sentence = candidates().find(named).or_else(|| candidates().find(|at| has_runs(rows, *at)));
    Some(WordRows { word, tag, sentence })
}

/// Whether each value of a column stands in rows that follow each other, a few for most values. A blank cell repeats the one above it.
fn has_runs(rows: &[Vec<String>], at: usize) -> bool {
    let mut starts: Vec<&String> = Vec::new();
    for cell in cells(rows, at).filter(|cell| !cell.trim().is_empty()) {
        if starts.last() != Some(&cell) {
            starts.push(cell);
        }
    }
    let n_distinct = starts.iter().collect::<HashSet<_>>().len();
    n_distinct == starts.len() && n_distinct > 1 && 2 * n_distinct < rows.len()
}

/// Whether rows without a word divide the others.
fn are_divided(lines: &[String]) -> bool {
    let is_blank = |line: &String| line.chars().all(|c| c.is_whitespace() || ",;\t\"".contains(c));
    let rows: Vec<bool> = lines.iter().map(is_blank).collect();
    rows.windows(2).skip(1).any(|pair| pair == [true, false])
}

impl WordRows {
    /// Says what the table is and how it becomes a CoNLL file. `lines` are its first ones.
    pub(super) fn advice(&self, path: &Path, lines: &[String]) -> String {
        let each_row = "each row has one word, and a row must have the words of a sentence";
        let why = match self.sentence {
            Some(_) => "rows cannot be joined by a column, so make a CoNLL file of it",
            None if are_divided(lines) => "rows without a word divide sentences, as in CoNLL files, so make one of it",
            None => {
                return format!(
                    "{each_row}: add a column with the number of the sentence, or write one word and its tag per line, with blank lines \
                     between sentences, into a file whose name ends in .conll; a row that is meant to be one word has a list: [\"word\"]"
                );
            }
        };
        format!("{each_row}; {why}:\n{} > rows.conll", fed(path, &self.script(path)))
    }

    /// Returns the program that writes words and tags into lines, and a blank line behind each sentence.
    fn script(&self, path: &Path) -> String {
        let options = CsvRows::options_of_python(path);
        let (word, tag) = (self.word, self.tag);
        match self.sentence {
            None => format!(
                "python3 -c 'import csv, sys\nfor row in list(csv.reader(sys.stdin{options}))[1:]:\n  has_word = row and \
                 row[{word}].strip()\n  print(*([row[{word}], row[{tag}]] if has_word else []), sep=\"\\t\")'"
            ),
            Some(sentence) => format!(
                "python3 -c 'import csv, sys\nlast = \"\"\nfor row \
                 in [row for row in csv.reader(sys.stdin{options}) if row][1:]:\n  if last and row[{sentence}] not in (\"\", \
                 last): print()\n  last = row[{sentence}] or last\n  if row[{word}].strip(): print(row[{word}], row[{tag}], \
                 sep=\"\\t\")'"
            ),
        }
    }
}
