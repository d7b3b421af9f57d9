//! CoNLL columns: one word per line with its tags, and blank lines between sentences.
//!
//! A record has the words of a sentence as `tokens`, their tags as `tags`, all words joined by spaces as `text`, and each column under
//! its number, counted from 0. CoNLL-U has the universal parts of speech as `tags`: its ten columns show it, whatever its name. OntoNotes'
//! columns (CoNLL-2012) have parts of speech, too. Where tags of spans stand in front of words, they are the tags.

use std::path::{Path, PathBuf};

use super::conll_lines::{LINES, UNIVERSAL, WordColumns, WordForm, columns_of, is_comment};
use super::line_reader::LineReader;
use super::{Format, Place, Records, RowProblem, way_to_utf8, write_string};
use crate::error::{Error, Result};

/// The word first and its tag last.
pub(super) const CONLL: Format = Format {
    name: "conll",
    endings: &["conll", "iob", "iob2", "bio"],
    is_binary: false,
    is_all_text: true,
    open: |path, _| open(path, false),
};
/// Ten columns of Universal Dependencies.
pub(super) const CONLLU: Format = Format {
    name: "conllu",
    endings: &["conllu"],
    is_binary: false,
    is_all_text: true,
    open: |path, _| open(path, true),
};

/// A sentence with more words is a sign of a file without blank lines. Refusing it bounds the memory.
const MAX_WORDS: usize = 1 << 16;
/// The most columns of a line.
const MAX_COLUMNS: usize = 64;

/// Opens a file, and looks at its first lines for its form: CoNLL-U, words behind their numbers, or words in the first column.
fn open(path: &Path, is_called_universal: bool) -> Result<Box<dyn Records>> {
    let (mut lines, mut line, mut first) = (LineReader::open(path)?, Vec::new(), Vec::new());
    while first.len() < LINES && lines.read_line(&mut line)? {
        first.push(String::from_utf8_lossy(&line).into_owned());
        line.clear();
    }

    let mut columns = WordColumns::of(&first);
    if let (true, Some(WordColumns { n, form, .. })) = (is_called_universal, columns)
        && form != WordForm::Universal
        && n != UNIVERSAL
    {
        let found = format!(
            "its first lines have {n} column{}, and CoNLL-U has ten: let its name end in .conll, which has the word first and its tag last",
            if n == 1 { "" } else { "s" }
        );
        return Err(Error::corpus(path, found));
    }
    if is_called_universal {
        columns = Some(WordColumns { has_tabs: true, n: UNIVERSAL, form: WordForm::Universal });
    }
    let form = columns.map_or(WordForm::WordFirst, |columns| columns.form);
    let lines = LineReader::open(path)?;
    Ok(Box::new(Sentences { path: path.into(), lines, form, columns, line: Vec::new() }))
}

struct Sentences {
    path: PathBuf,
    lines: LineReader,
    form: WordForm,
    /// The columns of most lines.
    columns: Option<WordColumns>,
    line: Vec<u8>,
}

/// The words of one sentence, each with its columns.
#[derive(Default)]
struct Sentence {
    words: Vec<Vec<String>>,
    /// Number of its first line.
    line: u64,
    problem: Option<RowProblem>,
}

impl Sentences {
    /// Reads the lines up to the next blank one. Returns an empty sentence at the end of the file.
    fn read_sentence(&mut self) -> Result<Sentence> {
        let mut sentence = Sentence::default();
        loop {
            self.line.clear();
            if !self.lines.read_line(&mut self.line)? {
                return Ok(sentence);
            }
            let number = self.lines.line;
            if self.line.trim_ascii().is_empty() {
                match sentence.words.is_empty() && sentence.problem.is_none() {
                    true => continue,
                    false => return Ok(sentence),
                }
            }

            if sentence.words.is_empty() && sentence.problem.is_none() {
                sentence.line = number;
            }
            match self.columns(sentence.words.is_empty()) {
                Ok(None) => {}
                Ok(Some(columns)) => sentence.push(columns, number),
                Err(found) => sentence.refuse(format!("line {number}: {found}")),
            }
            if sentence.words.len() > MAX_WORDS {
                let found = format!(
                    "the sentence from line {} on has more than {MAX_WORDS} words: blank lines must divide sentences",
                    sentence.line
                );
                return Err(Error::corpus(&self.path, found));
            }
        }
    }

    /// Divides a line into columns. Returns `None` for a comment or a line that is not a word. `is_first`: no word of the sentence stands
    /// before it.
    fn columns(&self, is_first: bool) -> std::result::Result<Option<Vec<String>>, String> {
        let line = std::str::from_utf8(&self.line)
            .map_err(|_| format!("it is not valid UTF-8: {}", way_to_utf8(&self.line)))?;
        let columns = columns_of(line);
        // CoNLL-U adds lines for words that are written together (`1-2`) and for words that are not written (`1.1`).
        let is_added = self.form.is_numbered() && columns.first().is_some_and(|number| number.contains(['-', '.']));
        if is_comment(line, columns.len(), self.columns, is_first) || is_added {
            return Ok(None);
        }
        match columns.len() {
            n if n > MAX_COLUMNS => Err(format!("it has {n} columns, at most {MAX_COLUMNS} are read")),
            n if n <= self.form.last() => {
                let s = if n == 1 { "" } else { "s" };
                Err(format!("it has {n} column{s}, wanted a word and its tag, divided by tabs or spaces"))
            }
            _ => Ok(Some(columns.into_iter().map(str::to_owned).collect())),
        }
    }
}

impl Sentence {
    fn push(&mut self, columns: Vec<String>, number: u64) {
        match self.words.first() {
            Some(first) if first.len() != columns.len() => {
                self.refuse(format!(
                    "line {number} has {} columns, the first of the sentence has {}",
                    columns.len(),
                    first.len()
                ));
            }
            _ => self.words.push(columns),
        }
    }

    fn refuse(&mut self, found: String) {
        self.problem.get_or_insert(RowProblem::Malformed(found));
    }
}

impl Records for Sentences {
    fn next(&mut self, json: &mut Vec<u8>) -> Result<Option<Place>> {
        let sentence = self.read_sentence()?;
        if sentence.words.is_empty() && sentence.problem.is_none() {
            return Ok(None);
        }
        let n_columns = sentence.words.first().map_or(0, Vec::len);
        let column = |at: usize| sentence.words.iter().filter_map(move |word| word.get(at));
        let (words, tags) = (self.form.word(), self.form.tag().unwrap_or(n_columns.saturating_sub(1)));

        json.extend_from_slice(b"{\"text\":");
        let text: Vec<&str> = column(words).map(String::as_str).collect();
        write_string(json, &text.join(" "));
        let named = [("tokens".to_owned(), words), ("tags".to_owned(), tags)];
        for (name, at) in named.into_iter().chain((0..n_columns).map(|at| (at.to_string(), at))) {
            json.push(b',');
            write_string(json, &name);
            json.push(b':');
            serde_json::to_writer(&mut *json, &column(at).collect::<Vec<_>>()).expect("memory");
        }
        json.push(b'}');
        Ok(Some(Place { problem: sentence.problem, ..Place::at(sentence.line) }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::FileFormat;
    use super::*;
    use crate::formats::Wanted;

    fn read(name: &str, text: &str) -> Result<Vec<(String, Place)>> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        fs::write(&path, text).expect("writable");
        let mut records = FileFormat::by_name(&path).expect("a known ending").open(&path, &Wanted::all())?;
        let mut found = Vec::new();
        loop {
            let mut json = Vec::new();
            let Some(place) = records.next(&mut json)? else { return Ok(found) };
            found.push((String::from_utf8(json).expect("text"), place));
        }
    }

    #[test]
    fn words_and_tags_of_sentences() {
        let text = "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\r\nrejects VBZ I-VP O\r\n\r\n\n# id 7 domain=en\n";
        let found = read("train.conll", text).expect("sentences");
        assert_eq!(
            found[0],
            (
                r#"{"text":"EU rejects","tokens":["EU","rejects"],"tags":["B-ORG","O"],"0":["EU","rejects"],"1":["NNP","VBZ"],"2":["I-NP","I-VP"],"3":["B-ORG","O"]}"#
                    .to_owned(),
                Place::at(3)
            )
        );
        assert_eq!(found.len(), 1, "a comment");
        let found = read("a.iob2", "# O\nRome\tB-LOC\n").expect("sentences");
        assert!(found[0].0.starts_with(r##"{"text":"# Rome","##), "{found:?}");
    }

    #[test]
    fn universal_dependencies() {
        let word = |id: &str, form: &str, tag: &str| format!("{id}\t{form}\t_\t{tag}\t_\t_\t0\troot\t_\t_\n");
        let words = [word("1-2", "della", "_"), word("1", "di", "ADP"), word("2", "la", "DET"), word("2.1", "x", "X")];
        let found = read("a.conllu", &format!("# sent_id = 1\n{}", words.concat())).expect("a sentence");
        assert!(found[0].0.starts_with(r#"{"text":"di la","tokens":["di","la"],"tags":["ADP","DET"],"#), "{found:?}");
    }

    #[test]
    fn universal_dependencies_are_recognized_whatever_their_name() {
        let word = |id: &str, form: &str, tag: &str| format!("{id}\t{form}\t_\t{tag}\t_\t_\t0\troot\t_\t_\n");
        let words = [word("1-2", "della", "_"), word("1", "di", "ADP"), word("2", "la", "DET"), word("2.1", "x", "X")];
        let sentence = format!("# sent_id = 1\n#plain\n# a comment without the sign\n{}\n", words.concat());
        for name in ["a.conll", "a.iob2", "a.bio"] {
            let found = read(name, &sentence.repeat(3)).expect("sentences");
            assert_eq!(found.len(), 3);
            assert!(
                found[2].0.starts_with(r#"{"text":"di la","tokens":["di","la"],"tags":["ADP","DET"],"#),
                "{found:?}"
            );
            assert!(found.iter().all(|(_, place)| place.problem.is_none()), "{found:?}");
        }
        let lines: Vec<String> = sentence.lines().map(str::to_owned).collect();
        assert!(WordColumns::of(&lines).is_some_and(|columns| columns.form == WordForm::Universal));
        let other = read("a.conllu", "EU NNP I-NP B-ORG\nrejects VBZ I-VP O\n").expect_err("not CoNLL-U").to_string();
        assert!(other.contains("have 4 columns, and CoNLL-U has ten: let its name end in .conll"), "{other}");
    }

    #[test]
    fn numbers_of_words_are_not_words_and_lines_with_other_columns_are_comments() {
        let sentence = "#\thttp://a.org [2009]\n# no sign\n1\tRome\tB-LOC\tO\n2\tsleeps\tO\tO\n\n";
        let found = read("a.conll", &sentence.repeat(2)).expect("sentences");
        assert!(
            found[1].0.starts_with(r#"{"text":"Rome sleeps","tokens":["Rome","sleeps"],"tags":["O","O"],"#),
            "{found:?}"
        );
        assert_eq!(found[1].1, Place::at(8), "{found:?}");
        let numbers = read("a.conll", "1 CD\n2 CD\n3 CD\n").expect("a sentence of numbers");
        assert!(numbers[0].0.contains(r#""tokens":["1","2","3"]"#), "{numbers:?}");
        // Within a sentence, such a line is damaged.
        let found = read("a.conll", "a X Y\n# X\nb X Y\n").expect("a sentence");
        assert!(found[0].1.problem.is_some(), "{found:?}");
    }

    #[test]
    fn damaged_sentences_are_named_with_their_line() {
        let found = read("a.conll", "a X\nb\nc Y\n\nd Z\n\ne Z\nf Z Z\n").expect("sentences");
        let problems: Vec<_> = found.iter().map(|(_, place)| place.problem.as_ref().map(ToString::to_string)).collect();
        assert_eq!(found.iter().map(|(_, place)| place.line).collect::<Vec<_>>(), [1, 5, 7]);
        assert_eq!(
            problems[0].as_deref(),
            Some("line 2: it has 1 column, wanted a word and its tag, divided by tabs or spaces")
        );
        assert_eq!(problems[1], None);
        assert_eq!(problems[2].as_deref(), Some("line 8 has 3 columns, the first of the sentence has 2"));
        let endless = read("a.conll", &"a X\n".repeat(MAX_WORDS + 1)).expect_err("too long").to_string();
        assert!(endless.contains("blank lines must divide sentences"), "{endless}");
    }
}
