//! Texts of several languages in one column, with a row for each language: how the rows of one text are joined.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::json;

use super::OR_REVERSED;
use super::header::{flag, is_language};
use crate::corpus::columns::Column;
use crate::corpus::fields::{is_id_name, words_of};
use crate::corpus::jq::{command_of_all, fed, in_jq};
use crate::formats::{CsvRows, FileFormat};
use crate::terminal::shell_word;

/// Words of names of columns with a language.
const NAMES: [&str; 10] =
    ["lang", "language", "locale", "lng", "languages", "sprache", "langue", "lingua", "idioma", "iso"];
/// Rows that are enough to tell.
const ENOUGH_ROWS: usize = 6;
/// Different languages that are not chance.
const ENOUGH_KNOWN: usize = 5;
/// Letters of a language's name, at most.
const LONGEST_NAME: usize = 20;

/// Where a table with a row for each language has what.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::corpus) struct ByLanguage {
    /// What the rows of one text share.
    key: Option<usize>,
    /// Names or numbers each row.
    id: Option<usize>,
    language: usize,
    text: usize,
    /// The most frequent ones first.
    languages: Vec<String>,
}

/// Returns the different cells of a column with their numbers, the most frequent first.
fn by_frequency(rows: &[Vec<String>], at: usize) -> Vec<(String, usize)> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for cell in rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.trim()).filter(|cell| !cell.is_empty()) {
        match counts.iter_mut().find(|(known, _)| known == cell) {
            Some((_, n)) => *n += 1,
            None => counts.push((cell.to_owned(), 1)),
        }
    }
    counts.sort_by_key(|(_, n)| Reverse(*n));
    counts
}

/// Whether most cells are known languages, or enough of them that are codes. The code of a country has capitals.
fn are_known(found: &[(String, usize)]) -> bool {
    let is_known = |cell: &str| is_language(cell) && (cell.len() > 3 || !cell.contains(char::is_uppercase));
    let n: usize = found.iter().map(|(_, n)| n).sum();
    let known = || found.iter().filter(|(cell, _)| is_known(cell));
    let n_known: usize = known().map(|(_, n)| n).sum();
    2 * n_known > n || known().count() >= ENOUGH_KNOWN && found.iter().all(|(cell, _)| is_code(cell))
}

/// Whether a cell may be the code of a language.
fn is_code(cell: &str) -> bool {
    (2..=3).contains(&cell.len()) && cell.bytes().all(|byte| byte.is_ascii_lowercase())
}

fn is_named(name: &str) -> bool {
    words_of(name).iter().any(|word| NAMES.contains(&word.as_str()))
}

/// Returns the column of `rows` that has one language in all of them, so that others may follow.
pub(super) fn one_language_in(names: Option<&[&str]>, rows: &[Vec<String>]) -> Option<usize> {
    let is_one = |at: &usize| match by_frequency(rows, *at).as_slice() {
        [(cell, n)] => {
            *n == rows.len() && names.map_or(is_language(cell) || is_code(cell), |names| is_named(names[*at]))
        }
        _ => false,
    };
    (0..rows.iter().map(Vec::len).min()?).find(is_one)
}

/// Returns the languages of a column with their numbers, if it has several and nothing else. In a table without names most must be known.
fn languages_in(name: Option<&str>, rows: &[Vec<String>], at: usize) -> Option<Vec<(String, usize)>> {
    let found = by_frequency(rows, at);
    let n: usize = found.iter().map(|(_, n)| n).sum();
    let is_name =
        |cell: &str| cell.len() <= LONGEST_NAME && cell.chars().all(|c| c.is_alphabetic() || "-_".contains(c));
    let are_languages = found.iter().all(|(cell, _)| is_name(cell)) && name.map_or(are_known(&found), is_named);
    let recurs = found.len() > 1 && 2 * found.len() <= n;
    (2 * n > rows.len() && are_languages && recurs).then_some(found)
}

impl ByLanguage {
    /// Finds one column with languages and one with texts among the cells of `rows`, which `names` call so, if they have names.
    pub(in crate::corpus) fn of(names: Option<&[&str]>, rows: &[Vec<String>]) -> Option<Self> {
        let n_columns = rows.iter().map(Vec::len).min()?;
        if rows.len() < ENOUGH_ROWS || n_columns < 2 {
            return None;
        }
        let name = |at: usize| names.and_then(|names| names.get(at).copied());
        let mut languages = (0..n_columns).filter_map(|at| Some((at, languages_in(name(at), rows, at)?)));
        let (language, languages) = languages.next()?;
        let column = |at: usize| Column::of_cells(rows.iter().filter_map(|row| row.get(at)).map(String::as_str));
        let columns: Vec<Column> = (0..n_columns).map(column).collect();

        let is_number = |cell: &str| !cell.contains(char::is_alphabetic);
        let key = (0..n_columns).find(|at| *at != language && is_shared(rows, *at, language));
        let is_text = |at: &usize| {
            let column = &columns[*at];
            let is_other = *at == language || Some(*at) == key || column.recurs() || column.is_constant();
            !is_other
                && !column.has_no_texts()
                && !column.values().all(is_number)
                && !is_id_name(name(*at).unwrap_or(""))
        };
        let mut texts: Vec<usize> = (0..n_columns).filter(is_text).collect();
        if texts.iter().any(|at| columns[*at].has_words()) {
            texts.retain(|at| columns[*at].has_words());
        }
        // Programs have languages, too.
        if key.is_none() && !are_known(&languages) {
            return None;
        }
        // Two texts in a row are a pair, whatever languages stand next to them.
        let [text] = texts[..] else { return None };
        let is_id = |at: &usize| *at != text && *at != language && columns[*at].is_unique();
        let languages = languages.into_iter().map(|(cell, _)| cell).collect();
        Some(Self { key, id: (0..n_columns).find(is_id), language, text, languages })
    }

    /// Whether a column says which rows have the same text.
    pub(in crate::corpus) fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Says what the rows of a file are, and how the rows of one text are joined.
    pub(in crate::corpus) fn advice(&self, path: &Path, format: FileFormat, names: Option<&[&str]>) -> String {
        let field = |at: usize| names.map_or(format!(".[{at}]"), |names| in_jq(names[at]));
        let said = |at: usize| names.map_or(format!("column {at}"), |names| format!("\"{}\"", names[at]));
        let (language, text) = (field(self.language), field(self.text));
        let [one, other] = [&self.languages[0], &self.languages[1]];
        let shown = self.languages.iter().take(8).map(String::as_str).collect::<Vec<_>>().join(", ");
        let rows_are = format!(
            "has one row for each language ({shown} in {}), with the text in {}, and a row with both texts is wanted",
            said(self.language),
            said(self.text)
        );
        let read = format!(
            "and read rows.jsonl with {} {}{OR_REVERSED}{}",
            flag("data.corpus.source_field", one),
            flag("data.corpus.target_field", other),
            if self.languages.len() > 2 { "; for other languages, write their names in both" } else { "" }
        );

        let Some(key) = self.key else { return self.without_key(path, &rows_are, &read) };
        let of = |name: &String| format!("{}: (.[] | select({language} == {}) | {text})", json!(name), json!(name));
        let program = format!("group_by({})[] | {{{}, {}}}", field(key), of(one), of(other));
        let command = match names {
            Some(_) => command_of_all(path, format, &program),
            None => format!("{} | jq -cs {} > rows.jsonl", as_lists(path), shell_word(&program)),
        };
        format!("{rows_are}\nto join the rows with the same {}: {command}\n{read}", said(key))
    }

    /// Says what else joins the rows of one text.
    fn without_key(&self, path: &Path, rows_are: &str, read: &str) -> String {
        let nothing = format!(
            "{rows_are}: no column says which rows have the same text; --task classification learns the language, and --task lm the texts"
        );
        let Some(id) = self.id else { return nothing };
        let [one, other] = [&self.languages[0], &self.languages[1]];
        let delimiter = delimiter_in_python(path);
        let script = format!(
            "python3 -c 'import csv, json\nrows = {{row[{id}]: row for row in csv.reader(open(0, encoding=\"utf-8-sig\", \
             newline=\"\"){delimiter}) if row}}\nfor a, b in csv.reader(open(\"links.csv\"), delimiter=\"\\t\"):\n  \
             if a in rows and b in rows and [rows[a][{language}], rows[b][{language}]] == [{one}, {other}]:\n    \
             print(json.dumps({{{one}: rows[a][{text}], {other}: rows[b][{text}]}}))'",
            language = self.language,
            text = self.text,
            one = json!(one),
            other = json!(other)
        );
        format!(
            "{nothing}\nto join them by a file with two identifiers per line, such as links.csv of Tatoeba:\n{} > rows.jsonl\n{read}",
            fed(path, &script)
        )
    }
}

/// Whether rows of different languages, one of each, share the cell of a column.
fn is_shared(rows: &[Vec<String>], at: usize, language: usize) -> bool {
    let mut groups = HashMap::<&str, Vec<&str>>::new();
    for (key, language) in rows.iter().filter_map(|row| Some((row.get(at)?, row.get(language)?))) {
        groups.entry(key.trim()).or_default().push(language.trim());
    }
    groups.remove("");
    let several = groups.values().filter(|group| group.len() > 1);
    let is_even = |group: &&Vec<&str>| group.iter().collect::<HashSet<_>>().len() == group.len();
    // The last group of the first rows may be cut.
    let n_even = several.filter(is_even).count();
    n_even > 1 && 2 * n_even >= groups.len()
}

/// Returns what csv.reader needs to know of a table apart from its text.
fn delimiter_in_python(path: &Path) -> String {
    match CsvRows::first_rows_by_name(path).map_or(b',', |(delimiter, _)| delimiter) {
        b',' => String::new(),
        b'\t' => ", delimiter=\"\\t\", quoting=csv.QUOTE_NONE".to_owned(),
        other => format!(", delimiter=\"{}\"", char::from(other)),
    }
}

/// Returns the command that writes the cells of each row of a table as a list of JSON.
fn as_lists(path: &Path) -> String {
    let read = format!(
        "python3 -c 'import csv, json; [print(json.dumps(row)) for row in csv.reader(open(0, encoding=\"utf-8-sig\", \
         newline=\"\"){})]'",
        delimiter_in_python(path)
    );
    fed(path, &read)
}
