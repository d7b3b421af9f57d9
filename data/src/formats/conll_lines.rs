//! Lines in CoNLL columns: what the columns hold, and which lines are comments.

use std::collections::{BTreeMap, HashSet};

/// Lines that show the form of a file.
pub(super) const LINES: usize = 200;
/// Columns of CoNLL-U.
pub(super) const UNIVERSAL: usize = 10;
/// Fewer words may be sentences of as many words each.
const FEWEST_WORDS: usize = 3;
/// Words from which values that recur at the end of lines are tags, although they begin with small letters.
const ENOUGH_WORDS: usize = 20;

/// The columns of lines that have one word each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordColumns {
    /// Whether tabs divide them. Otherwise spaces do.
    pub has_tabs: bool,
    /// How many most lines have.
    pub n: usize,
    /// Which of them have the word and its tag.
    pub form: WordForm,
}

/// Which columns have the word and its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordForm {
    /// The word first and its tag last.
    WordFirst,
    /// The tag first and its word last.
    TagFirst,
    /// The number of the word, the word, and its tag last.
    Numbered,
    /// The ten columns of CoNLL-U.
    Universal,
    /// The columns of CoNLL-2012, as OntoNotes has them.
    OntoNotes,
}

impl WordForm {
    /// The column of OntoNotes with names, in brackets over several lines.
    pub const ENTITIES: usize = 10;

    /// The column with the word, counted from 0, of two columns or more.
    pub fn word(self) -> usize {
        match self {
            Self::WordFirst => 0,
            Self::TagFirst | Self::Numbered | Self::Universal => 1,
            Self::OntoNotes => 3,
        }
    }

    /// The column with the tag, counted from 0. `None`: the last one.
    pub(super) fn tag(self) -> Option<usize> {
        match self {
            Self::WordFirst | Self::Numbered => None,
            Self::TagFirst => Some(0),
            Self::Universal => Some(3),
            Self::OntoNotes => Some(4),
        }
    }

    /// The last column that a line must have.
    pub(super) fn last(self) -> usize {
        self.tag().unwrap_or(self.word() + 1).max(self.word())
    }

    /// Whether the first column numbers the words, perhaps with further lines for parts of them.
    pub(super) fn is_numbered(self) -> bool {
        matches!(self, Self::Numbered | Self::Universal)
    }
}

impl WordColumns {
    /// Looks at the first lines of a file. Returns `None` without words.
    pub fn of(lines: &[String]) -> Option<Self> {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        let words = || lines.iter().filter(|line| is_word(line));
        for line in words() {
            *counts.entry(columns_of(line).len()).or_default() += 1;
        }
        let (n, _) = counts.into_iter().max_by_key(|(n_columns, n_lines)| (*n_lines, *n_columns))?;
        let is_document = |line: &String| line.starts_with("#begin document");
        let form = match () {
            () if n > WordForm::ENTITIES && lines.iter().any(is_document) => WordForm::OntoNotes,
            () if n == UNIVERSAL && are_numbered(lines, 1) => WordForm::Universal,
            () if n > 2 && are_numbered(lines, FEWEST_WORDS) => WordForm::Numbered,
            () if n == 2 && are_spans(words(), 0) && !are_spans(words(), 1) => WordForm::TagFirst,
            () => WordForm::WordFirst,
        };
        Some(Self { has_tabs: words().next()?.contains('\t'), n, form })
    }
}

/// Whether a column has tags of spans alone: `O`, and at least one that begins with `B-` or `I-`.
fn are_spans<'l>(words: impl Iterator<Item = &'l String>, column: usize) -> bool {
    let tags: Vec<&str> = words.filter_map(|line| columns_of(line).get(column).copied()).collect();
    let begins = |tag: &&str| ["B-", "I-"].iter().any(|start| tag.starts_with(start));
    tags.iter().any(begins) && tags.iter().all(|tag| *tag == "O" || begins(tag))
}

/// Whether lines have a word each, with its tag in the last of equally many columns, and blank lines or comments between sentences.
pub fn is_conll(lines: &[String]) -> bool {
    let Some(columns) = WordColumns::of(lines).filter(|columns| (2..=UNIVERSAL).contains(&columns.n)) else {
        return false;
    };
    let (mut words, mut n_marks, mut is_first) = (Vec::new(), 0, true);
    for line in lines {
        let cells = columns_of(line);
        if line.trim().is_empty() {
            (n_marks, is_first) = (n_marks + 1, true);
        } else if is_comment(line, cells.len(), Some(columns), is_first) {
            n_marks += 1;
        } else {
            is_first = false;
            if cells.len() != columns.n || line.contains('\t') != columns.has_tabs || line.starts_with("{\"") {
                return false;
            }
            words.push(cells);
        }
    }

    // A cell of a table may hold a sentence, a cell of CoNLL a number with a space at most.
    let n_wide = words.iter().filter(|cells| cells.iter().any(|cell| cell.contains(' '))).count();
    // Spaces divide the words of sentences, too: then each line has to end as with a tag.
    let tags: HashSet<&str> = words.iter().filter_map(|cells| cells.last().copied()).collect();
    let are_named = || tags.iter().all(|tag| tag.starts_with(|c: char| !c.is_lowercase()));
    let recur = || words.len() >= ENOUGH_WORDS && 4 * tags.len() <= words.len();
    let have_tags = columns.has_tabs || are_named() || recur();
    n_marks > 0 && words.len() >= FEWEST_WORDS && 10 * n_wide <= words.len() && have_tags
}

/// Whether a line of `n` columns that has text is a comment, as the `columns` of most lines tell. `is_first`: no word of the sentence
/// stands before it.
pub(super) fn is_comment(line: &str, n: usize, columns: Option<WordColumns>, is_first: bool) -> bool {
    // CoNLL-U: every such line. Elsewhere `#` may be a word, if it has as many columns as others.
    let is_universal = columns.is_some_and(|columns| columns.form == WordForm::Universal);
    let is_other = || is_first && columns.is_some_and(|columns| columns.n != n);
    match line.starts_with('#') {
        true => is_universal || line.starts_with("# ") && line.contains('=') || is_other(),
        false => line.starts_with("-DOCSTART-"),
    }
}

/// Divides a line at its tabs, or else at white space.
pub(super) fn columns_of(line: &str) -> Vec<&str> {
    match line.contains('\t') {
        true => line.split('\t').map(str::trim).collect(),
        false => line.split_whitespace().collect(),
    }
}

/// Whether the first column counts the words of each sentence from 1, in lines with enough words. Words that are written together (`1-2`)
/// or not written (`1.1`) do not count.
fn are_numbered(lines: &[String], enough_words: usize) -> bool {
    let (mut wanted, mut n_words) = (1, 0);
    for line in lines {
        if line.trim().is_empty() {
            wanted = 1;
        } else if is_word(line) {
            let id = columns_of(line)[0];
            if id.split_once(['-', '.']).is_some_and(|(first, second)| is_number(first) && is_number(second)) {
                continue;
            }
            if id != wanted.to_string() {
                return false;
            }
            wanted += 1;
            n_words += 1;
        }
    }
    n_words >= enough_words
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether no reader takes the line for a comment.
fn is_word(line: &str) -> bool {
    !line.trim().is_empty() && !line.starts_with('#') && !line.starts_with("-DOCSTART-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn words_with_tags_are_conll_and_sentences_are_not() {
        let small: String = (0..30).map(|n| format!("w{n} {}\n", ["nn", "vb"][n % 2])).collect();
        for text in [
            "# id = 1\nIssue\tO\n#42\tB\nfixed\tO\n",
            "-DOCSTART- O\n\nIssue O\r\n#42 B\r\nfixed O\r\n",
            "# a plain comment\nEU NNP B\n\n#plain\nRome NNP B\nis VBZ O\n",
            &("Rome\tper\nis\to\n\n".repeat(4) + "10 000\to\nnow\to\n"),
            &format!("{small}\n{small}"),
        ] {
            assert!(is_conll(&lines(text)), "{text}");
        }
        for text in [
            "Two words\nAnd two\n\nOf each\n",
            "so good\nvery good\n\nso bad\nvery bad\n",
            "Issue O\n#42 B\nfixed O\n",
            "{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n\n{\"text\": \"c\"}\n",
            "good\tA fine film\n\nbad\tA bad film\n\ngood\tA good film\n",
            "EU NNP B\n# X\nRome NNP B\n\nis VBZ O\n",
            "",
        ] {
            assert!(!is_conll(&lines(text)), "{text}");
        }
    }

    #[test]
    fn words_behind_their_numbers_are_found() {
        let of = |text: &str| WordColumns::of(&lines(text));
        let columns = |has_tabs, n, form| Some(WordColumns { has_tabs, n, form });
        assert_eq!(of("1\tRome\tB\n2\tis\tO\n3\there\tO\n"), columns(true, 3, WordForm::Numbered));
        assert_eq!(of("# 7\nRome B\nis O\nhere O\n"), columns(false, 2, WordForm::WordFirst));
        assert_eq!(of("B-LOC\tRome\nO\tis\nO\there\n"), columns(true, 2, WordForm::TagFirst));
        // Words of one letter are words.
        assert_eq!(of("O\tO\nB-x\tI-y\n"), columns(true, 2, WordForm::WordFirst));
        assert_eq!(of("# 7\n\n"), None);
    }
}
