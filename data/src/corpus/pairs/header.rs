//! The first row of a TSV or CSV file: the names of its columns, or already a pair.

mod role;

use std::path::Path;

use self::role::Role;
use super::{CorpusConfig, Header};
use crate::error::{Error, Result};

/// Where a file has its texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Columns {
    /// Counted from 0.
    pub(crate) source: usize,
    /// Counted from 0.
    pub(crate) target: usize,
    /// Whether the first row names the columns.
    pub(crate) header: bool,
}

/// Where a file has its texts, and what the user should know about how that was decided.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) columns: Columns,
    pub(super) notes: Vec<String>,
}

impl Columns {
    /// Finds the columns of the file at `path` by its first rows, as `config` says.
    ///
    /// # Errors
    ///
    /// If the header lacks a column, or if the first row looks like a header that `config` does not describe. The error
    /// has the flags to paste.
    pub(super) fn find(path: &Path, rows: &[Vec<String>], config: &CorpusConfig) -> Result<Found> {
        let defaults = CorpusConfig::default();
        let numbers_are_set =
            (config.source_column, config.target_column) != (defaults.source_column, defaults.target_column);
        let by_number = |header| Self { source: config.source_column, target: config.target_column, header };
        let without_notes = |columns| Ok(Found { columns, notes: Vec::new() });
        let Some((first_row, others)) = rows.split_first() else { return without_notes(by_number(false)) };

        let names: Vec<&str> = first_row.iter().map(|name| name.trim()).collect();
        let mut notes = Vec::new();
        if names.len() > 2 && !numbers_are_set {
            notes.push(format!(
                "{} has {} columns: {} is the source and {} the target, counted from 0; for the last two: --set \
                 data.corpus.source_column={} --set data.corpus.target_column={}",
                path.display(),
                names.len(),
                config.source_column,
                config.target_column,
                names.len() - 2,
                names.len() - 1
            ));
        }
        if config.header == Header::No {
            return Ok(Found { columns: by_number(false), notes });
        }

        let wanted = [&config.source_field, &config.target_field];
        let found = wanted.map(|field| names.iter().position(|name| name == field));
        let is_header = config.header == Header::Yes || found.iter().all(Option::is_some);
        match found {
            _ if is_header && numbers_are_set => without_notes(by_number(true)),
            [Some(source), Some(target)] => without_notes(Self { source, target, header: true }),
            _ if is_header => Err(lacks_a_column(path, &names, wanted, found)),
            _ if looks_like_header(&names, config)
                || differs_in_kind(&names, others)
                || (has_usual_name(&names) && may_be_names(&names, others)) =>
            {
                Err(ask(path, &names, numbers_are_set))
            }
            _ => {
                if may_be_names(&names, others) {
                    notes.push(format!(
                        "first row of {} ({}) is taken as a pair; if it names the columns: {}",
                        path.display(),
                        quoted(&names),
                        if_header(&names, numbers_are_set)
                    ));
                }
                Ok(Found { columns: by_number(false), notes })
            }
        }
    }
}

/// Following rows that show how the first one differs.
const ENOUGH_ROWS: usize = 5;

/// Whether the cells could be names of columns, and a column has a digit in each of the `others` but none in its name:
/// dates, amounts or numbers below a word.
fn differs_in_kind(names: &[&str], others: &[Vec<String>]) -> bool {
    let has_digit = |text: &str| text.contains(|c: char| c.is_numeric());
    let all_have_digits = |column: usize| others.iter().all(|row| row.get(column).is_some_and(|cell| has_digit(cell)));
    let is_name = |name: &&str| !has_digit(name) && name.split_whitespace().count() <= 3 && is_plain(name);
    others.len() >= ENOUGH_ROWS && names.iter().all(is_name) && (0..names.len()).any(all_have_digits)
}

/// Whether the cells are single short words, and no other row consists of such.
fn may_be_names(names: &[&str], others: &[Vec<String>]) -> bool {
    let is_word = |cell: &str| !cell.is_empty() && !cell.contains(char::is_whitespace) && is_plain(cell);
    let is_like_names = |row: &Vec<String>| row.iter().all(|cell| is_word(cell.trim()));
    others.len() >= ENOUGH_ROWS && names.iter().all(|name| is_word(name)) && !others.iter().any(is_like_names)
}

/// Whether a cell is short and has letters without punctuation, as names of columns have.
fn is_plain(cell: &str) -> bool {
    // A letter of another encoding is a letter, too.
    let is_usual = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_-.\u{fffd}".contains(c);
    cell.chars().count() <= 24 && cell.chars().all(is_usual) && !cell.ends_with('.')
}

fn lacks_a_column(path: &Path, names: &[&str], wanted: [&String; 2], found: [Option<usize>; 2]) -> Error {
    let missing = wanted.iter().zip(found).find(|(_, found)| found.is_none()).map_or("", |(name, _)| name.as_str());
    Error::corpus(
        path,
        format!(
            "the header has no column \"{missing}\": it has {}\n  to name the columns: {}\n  if the first row is a pair: \
             --set data.corpus.header=no",
            quoted(names),
            kept_flags(names, wanted, found)
        ),
    )
}

fn ask(path: &Path, names: &[&str], numbers_are_set: bool) -> Error {
    Error::corpus(
        path,
        format!(
            "the first row looks like a header: {}{}\n  if it names the columns: {}\n  if it is a pair: --set \
             data.corpus.header=no",
            quoted(names),
            match names.iter().any(|name| name.contains('\u{fffd}')) {
                true => "; it is not UTF-8: convert the file, for example with `iconv -f cp1252 -t utf-8`",
                false => "",
            },
            if_header(names, numbers_are_set)
        ),
    )
}

/// Returns the flags for a first row that names the columns.
fn if_header(names: &[&str], numbers_are_set: bool) -> String {
    if numbers_are_set { "--set data.corpus.header=yes".to_owned() } else { field_flags(names) }
}

fn quoted(names: &[&str]) -> String {
    names.iter().take(12).map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

/// Returns the flags that name the two fields with the texts, as far as `names` tell which these are.
pub(super) fn field_flags(names: &[&str]) -> String {
    let [source, target] = texts_of(names).map(|at| at.map_or("NAME", |at| names[at]));
    format!("{} {}", flag("data.corpus.source_field", source), flag("data.corpus.target_field", target))
}

/// Returns `--set KEY=VALUE`, quoted for the shell if necessary.
pub(crate) fn flag(key: &str, value: &str) -> String {
    let is_plain = value.chars().all(|c| c.is_ascii_alphanumeric() || "_-.,".contains(c));
    let quote = if is_plain { "" } else { "'" };
    format!("--set {quote}{key}={}{quote}", value.replace('\'', r"'\''"))
}

/// Returns the flags that keep the column that was found, and name the nearest one for the other.
fn kept_flags(names: &[&str], wanted: [&String; 2], found: [Option<usize>; 2]) -> String {
    let (lacking, kept) = match found {
        [Some(kept), None] => (1, kept),
        [None, Some(kept)] => (0, kept),
        _ => return field_flags(names),
    };
    let begins_alike = |name: &&&str| {
        let (name, wanted) = (name.to_lowercase(), wanted[lacking].to_lowercase());
        !name.is_empty() && (wanted.starts_with(&name) || name.starts_with(&wanted))
    };
    let others = || names.iter().enumerate().filter(|(at, _)| *at != kept).map(|(_, name)| name);
    let only = if names.len() == 2 { others().next() } else { None };
    let meant = others().find(begins_alike).or(only).copied().unwrap_or("NAME");
    let [mut source, mut target] = [names[kept]; 2];
    *(if lacking == 0 { &mut source } else { &mut target }) = meant;
    [("source_field", source), ("target_field", target)]
        .map(|(key, name)| flag(&format!("data.corpus.{key}"), name))
        .join(" ")
}

/// Returns which names probably stand for the source and the target.
pub(crate) fn texts_of(names: &[&str]) -> [Option<usize>; 2] {
    let roles: Vec<Role> = names.iter().map(|name| Role::of(name)).collect();
    let first =
        |role: Role, except: Option<usize>| (0..roles.len()).find(|at| roles[*at] == role && Some(*at) != except);
    let target = first(Role::Target, None);
    let source = first(Role::Source, None).or_else(|| first(Role::Text, target));
    let target = target.or_else(|| first(Role::Text, source));
    match (source, target, names.len()) {
        (None, None, 2) => [Some(0), Some(1)],
        (Some(one), None, 2) | (None, Some(one), 2) if source.is_some() => [Some(one), Some(1 - one)],
        (None, Some(one), 2) => [Some(1 - one), Some(one)],
        _ => [source, target],
    }
}

/// Whether a cell is a name that columns usually have.
fn has_usual_name(names: &[&str]) -> bool {
    names.iter().any(|name| Role::of(name) != Role::Unknown)
}

/// Whether two cells or more are names that columns usually have, or one is a field that the user named.
fn looks_like_header(names: &[&str], config: &CorpusConfig) -> bool {
    let defaults = CorpusConfig::default();
    let is_named = |name: &&str| {
        (*name == config.source_field && config.source_field != defaults.source_field)
            || (*name == config.target_field && config.target_field != defaults.target_field)
    };
    names.iter().any(is_named) || names.iter().filter(|name| Role::of(name) != Role::Unknown).count() >= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_in(rows: &[&[&str]], config: &CorpusConfig) -> Result<Found> {
        let row = |row: &&[&str]| row.iter().map(|cell| (*cell).to_owned()).collect();
        Columns::find(Path::new("a.tsv"), &rows.iter().map(row).collect::<Vec<Vec<String>>>(), config)
    }

    fn find(row: &[&str], config: &CorpusConfig) -> Result<Columns> {
        let rows = [row];
        Ok(find_in(&rows[usize::from(row.is_empty())..], config)?.columns)
    }

    fn columns(source: usize, target: usize, header: bool) -> Columns {
        Columns { source, target, header }
    }

    #[test]
    fn a_header_with_the_named_fields_is_used() {
        let config = CorpusConfig::default();
        assert_eq!(find(&["id", "trg", " src "], &config).expect("found"), columns(2, 1, true));
        let named = CorpusConfig { source_field: "domanda".into(), target_field: "risposta".into(), ..config.clone() };
        assert_eq!(find(&["risposta", "domanda"], &named).expect("found"), columns(1, 0, true));
        let by_number = CorpusConfig { source_column: 1, target_column: 0, ..config };
        assert_eq!(find(&["src", "trg"], &by_number).expect("found"), columns(1, 0, true));
    }

    #[test]
    fn what_looks_like_a_header_is_asked_about_with_flags_to_paste() {
        let flags = |row: &[&str]| find(row, &CorpusConfig::default()).expect_err("asked").to_string();
        for (row, source, target) in [
            (["english", "italian"].as_slice(), "english", "italian"),
            (&["id", "Source", "Target"], "Source", "Target"),
            (&["", "en", "it"], "en", "it"),
            (&["target_text", "source_text"], "source_text", "target_text"),
            (&["en-US", "it_IT", "score"], "en-US", "it_IT"),
            (&["translation", "sentence"], "sentence", "translation"),
        ] {
            let text = flags(row);
            let wanted = format!("--set data.corpus.source_field={source} --set data.corpus.target_field={target}");
            assert!(text.contains("looks like a header") && text.contains(&wanted), "{text}");
            assert!(text.contains("if it is a pair: --set data.corpus.header=no"), "{text}");
        }
        assert!(flags(&["source text", "target text"]).contains("--set 'data.corpus.source_field=source text'"));
        let numbered = CorpusConfig { source_column: 1, target_column: 2, ..CorpusConfig::default() };
        let text = find(&["id", "en", "it"], &numbered).expect_err("asked").to_string();
        assert!(text.contains("if it names the columns: --set data.corpus.header=yes"), "{text}");
        // One of the fields that the user named is there, the other has a typo.
        let typo =
            CorpusConfig { source_field: "frase".into(), target_field: "resa".into(), ..CorpusConfig::default() };
        assert!(find(&["frase", "reso"], &typo).is_err());
    }

    #[test]
    fn one_usual_name_above_sentences_is_enough_to_ask() {
        let sentences: Vec<&[&str]> = vec![&["The cat sleeps.", "Il gatto dorme."]; 6];
        let with =
            |first: &'static [&'static str]| find_in(&[&[first], &sentences[..]].concat(), &CorpusConfig::default());
        let text = with(&["english", "italiano"]).expect_err("asked").to_string();
        assert!(text.contains("source_field=english --set data.corpus.target_field=italiano"), "{text}");
        // Words above words may be a pair of a dictionary.
        let words: Vec<&[&str]> = vec![&["dog", "cane"]; 6];
        assert!(find_in(&[&[&["it", "esso"] as &[&str]], &words[..]].concat(), &CorpusConfig::default()).is_ok());
    }

    #[test]
    fn ordinary_rows_are_pairs() {
        for row in [
            ["Good morning.", "Buongiorno."],
            ["dog", "cane"],
            ["742105", "seven hundred forty-two thousand one hundred five"],
            ["ab", "ba"],
            ["The source", "La fonte"],
            ["it", "esso"],
            ["", ""],
        ] {
            assert_eq!(find(&row, &CorpusConfig::default()).expect("a pair"), columns(0, 1, false), "{row:?}");
        }
        assert_eq!(find(&[], &CorpusConfig::default()).expect("an empty file"), columns(0, 1, false));
    }

    #[test]
    fn a_word_above_dates_or_numbers_is_asked_about() {
        let config = CorpusConfig::default();
        let dates = [["3 May 1999", "the third of May"]; 5];
        let rows = |first: [&'static str; 2]| -> Vec<[&str; 2]> { [&[first][..], &dates].concat() };
        let found = |rows: &[[&str; 2]]| {
            let rows: Vec<&[&str]> = rows.iter().map(<[&str; 2]>::as_slice).collect();
            find_in(&rows, &config)
        };
        let text = found(&rows(["date", "words"])).expect_err("asked").to_string();
        let flags = "--set data.corpus.source_field=date --set data.corpus.target_field=words";
        assert!(text.contains("looks like a header: \"date\", \"words\"") && text.contains(flags), "{text}");
        for first in [["May 4", "the fourth of May"], ["today", "the day on which it is said, not any other"]] {
            assert!(found(&rows(first)).expect("a pair").notes.is_empty(), "{first:?}");
        }
        assert!(found(&rows(["date", "words"])[..4]).is_ok(), "too few rows to be sure");
        let no = CorpusConfig { header: Header::No, ..config.clone() };
        let all = rows(["date", "words"]);
        let all: Vec<&[&str]> = all.iter().map(<[&str; 2]>::as_slice).collect();
        assert_eq!(find_in(&all, &no).expect("a pair").notes, Vec::<String>::new());
    }

    #[test]
    fn what_was_decided_without_being_sure_is_said() {
        let config = CorpusConfig::default();
        let sentences: [&[&str]; 5] = [&["How are you?", "Come stai?"]; 5];
        let note = |first: &[&str], others: &[&[&str]]| {
            let rows = [&[first][..], others].concat();
            find_in(&rows, &config).expect("a pair").notes
        };
        let notes = note(&["domanda", "risposta"], &sentences);
        assert_eq!(
            notes,
            ["first row of a.tsv (\"domanda\", \"risposta\") is taken as a pair; if it names the columns: --set \
              data.corpus.source_field=domanda --set data.corpus.target_field=risposta"]
        );
        assert!(note(&["Good morning.", "Buongiorno."], &sentences).is_empty());
        // A dictionary consists of words.
        let words: [&[&str]; 5] = [&["cat", "gatto"]; 5];
        assert!(note(&["dog", "cane"], &words).is_empty());
        let mixed = [&sentences[..], &words[..1]].concat();
        assert!(note(&["dog", "cane"], &mixed).is_empty());
    }

    #[test]
    fn further_columns_are_said_unless_some_are_chosen() {
        let config = CorpusConfig::default();
        let rows: [&[&str]; 2] = [&["17", "Good morning.", "Buongiorno."], &["18", "Thanks.", "Grazie."]];
        let notes = find_in(&rows, &config).expect("a pair").notes;
        let wanted = "a.tsv has 3 columns: 0 is the source and 1 the target, counted from 0; for the last two: --set data.corpus.source_column=1 --set ";
        assert!(notes.len() == 1 && notes[0].starts_with(wanted), "{notes:?}");
        let chosen = CorpusConfig { source_column: 1, target_column: 2, ..config.clone() };
        assert!(find_in(&rows, &chosen).expect("a pair").notes.is_empty());
        assert!(find_in(&[&["id", "src", "trg"]], &config).expect("named").notes.is_empty());
    }

    #[test]
    fn the_configuration_decides_if_it_says_yes_or_no() {
        let no = CorpusConfig { header: Header::No, ..CorpusConfig::default() };
        assert_eq!(find(&["src", "trg"], &no).expect("a pair"), columns(0, 1, false));
        let yes = CorpusConfig { header: Header::Yes, ..CorpusConfig::default() };
        let text = find(&["domanda", "risposta"], &yes).expect_err("no such columns").to_string();
        assert!(
            text.starts_with("a.tsv: the header has no column \"src\": it has \"domanda\", \"risposta\""),
            "{text}"
        );
        assert!(
            text.contains("--set data.corpus.source_field=domanda --set data.corpus.target_field=risposta"),
            "{text}"
        );
        let numbered = CorpusConfig { source_column: 1, target_column: 0, ..yes };
        assert_eq!(find(&["domanda", "risposta"], &numbered).expect("by number"), columns(1, 0, true));
    }
}
