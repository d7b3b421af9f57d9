//! Labelled rows in a form that the run does not read: tables with other names or none, CoNLL by another name, and fastText.

use std::collections::HashSet;
use std::path::Path;

use super::LabelConfig;
use crate::corpus::fields::{are_alike, is_about, is_label};
use crate::corpus::pairs::{check_delimiter, flag};
use crate::corpus::text::Task;
use crate::error::{Error, Result};
use crate::formats::{CsvRows, FileFormat, LineReader};

/// Lines that show the form of a file.
const LINES: usize = 200;
/// What fastText puts in front of a class.
const FAST_TEXT: &str = "__label__";

/// Refuses a file whose first lines show that it has another form. JSON and binary files are left to their readers.
///
/// # Errors
///
/// If the file cannot be read, or has another form; the error says what reads it.
pub(super) fn check_form(path: &Path, task: Task, config: &LabelConfig) -> Result<()> {
    let format = FileFormat::by_name(path);
    let is_table = format.is_some_and(|format| [FileFormat::CSV, FileFormat::TSV].contains(&format));
    if format.is_some() && !is_table {
        return Ok(());
    }
    let table = if is_table { Some(first_rows(path)?) } else { None };
    let columns = columns(task, config);
    if table.as_ref().is_some_and(|rows| rows.is_empty() || lacking(&rows[0], &columns).is_empty()) {
        return Ok(());
    }

    let lines = first_lines(path)?;
    let refuse = |found: String| Err(Error::corpus(path, found));
    if lines.iter().find(|line| !line.trim().is_empty()).is_some_and(|line| line.starts_with(FAST_TEXT)) {
        return refuse(format!(
            "its lines begin with a class, as in files of fastText ({FAST_TEXT}...): make a table of them, with awk 'BEGIN {{print \
             \"{label}\\t{text}\"}} {{label = substr($1, 10); $1 = \"\"; print label \"\\t\" substr($0, 2)}}' {} > rows.tsv",
            path.display(),
            label = config.label_field,
            text = config.text_field
        ));
    }
    if task == Task::Tagging && is_conll(&lines) {
        return refuse(
            "its lines are words with their tags, and blank lines divide sentences, as in CoNLL files: let its name end in .conll"
                .to_owned(),
        );
    }
    if let Some(rows) = &table {
        check_delimiter(path, rows)?;
    }
    table.map_or(Ok(()), |rows| refuse(other_names(path, &rows, task, &columns)))
}

/// Returns the keys of the columns that rows must have, and the names that the run gives them.
fn columns(task: Task, config: &LabelConfig) -> Vec<(&'static str, String)> {
    let LabelConfig { text_field, pair_field, label_field, words_field, tags_field, .. } = config.clone();
    if task == Task::Tagging {
        return vec![("data.labels.words_field", words_field), ("data.labels.tags_field", tags_field)];
    }
    let mut columns = vec![("data.labels.text_field", text_field), ("data.labels.label_field", label_field)];
    // Rows may lack a second text, unless the user has named one.
    if pair_field != LabelConfig::default().pair_field {
        columns.push(("data.labels.pair_field", pair_field));
    }
    columns
}

/// Returns the columns that a first row lacks. A template says by itself what it needs.
fn lacking<'a>(first_row: &[String], columns: &'a [(&'static str, String)]) -> Vec<&'a str> {
    let has = |name: &str| name.contains('{') || first_row.iter().any(|cell| cell.trim() == name);
    columns.iter().map(|(_, name)| name.as_str()).filter(|name| !has(name)).collect()
}

fn first_rows(path: &Path) -> Result<Vec<Vec<String>>> {
    let is_tsv = FileFormat::by_name(path) == Some(FileFormat::TSV);
    match is_tsv && CsvRows::named_delimiter(path)?.is_none() {
        true => CsvRows::first_rows_with(path, b'\t'),
        false => Ok(CsvRows::first_rows(path)?.1),
    }
}

fn first_lines(path: &Path) -> Result<Vec<String>> {
    let (mut lines, mut line, mut found) = (LineReader::open(path)?, Vec::new(), Vec::new());
    while found.len() < LINES && lines.read_line(&mut line)? {
        found.push(String::from_utf8_lossy(&line).into_owned());
        line.clear();
    }
    Ok(found)
}

/// Whether lines have equally many short columns, and blank lines or a mark of documents between them.
fn is_conll(lines: &[String]) -> bool {
    let is_word =
        |line: &&String| !line.trim().is_empty() && !line.starts_with("-DOCSTART-") && !line.starts_with("# ");
    let n_columns = |line: &String| match line.contains('\t') {
        true => line.split('\t').count(),
        false => line.split_whitespace().count(),
    };
    let counts: HashSet<usize> = lines.iter().filter(is_word).map(n_columns).collect();
    let is_even = counts.len() == 1 && counts.iter().all(|count| (2..=10).contains(count));
    let last = lines.iter().rposition(|line| !line.trim().is_empty()).unwrap_or(0);
    let has_marks = lines.iter().any(|line| line.starts_with("-DOCSTART-"));
    let is_json = lines.iter().any(|line| line.starts_with('{'));
    is_even && !is_json && (has_marks || lines[..last].iter().any(|line| line.trim().is_empty()))
}

/// Says what is wrong with the first row of a table, with the flags or the row that mend it.
fn other_names(path: &Path, rows: &[Vec<String>], task: Task, columns: &[(&'static str, String)]) -> String {
    let (first, others) = (&rows[0], &rows[1..]);
    let shown: Vec<String> = first.iter().take(12).map(|name| format!("\"{}\"", name.trim())).collect();
    let meant = guess(rows, task, columns);
    let recurs = |at: &usize| {
        let is_same = |row: &Vec<String>| row.get(*at).is_some_and(|cell| *cell == first[*at]);
        !first[*at].trim().is_empty() && others.iter().any(is_same)
    };

    if let Some(at) = (0..first.len()).find(recurs) {
        let name = |at: usize| {
            let of_key = meant.iter().position(|column| *column == Some(at));
            of_key.map_or_else(|| format!("column_{at}"), |key| columns[key].1.clone())
        };
        let names: Vec<String> = (0..first.len()).map(name).collect();
        let is_tsv = FileFormat::by_name(path) == Some(FileFormat::TSV);
        let delimiter = if is_tsv { b'\t' } else { CsvRows::first_rows(path).map_or(b',', |(delimiter, _)| delimiter) };
        let delimiter = if delimiter == b'\t' { "\\t".to_owned() } else { char::from(delimiter).to_string() };
        let file = if is_tsv { "rows.tsv" } else { "rows.csv" };
        return format!(
            "the first row ({}) is read as the names of the columns, but {} stands again below it: it seems to be data\n  to add a \
             first row with names: (printf '{}\\n'; cat {}) > {file}",
            shown.join(", "),
            shown.get(at).map_or("a cell", String::as_str),
            names.join(&delimiter),
            path.display()
        );
    }

    let missing: Vec<String> = lacking(first, columns).iter().map(|name| format!("\"{name}\"")).collect();
    let mut known = columns.to_vec();
    let mut meant = meant;
    if let (Some(second), Some(text)) = (second_text(rows, task, &meant, columns), meant[0]) {
        let is_free = first[text].trim() != columns[0].1;
        let [text, second] = if is_free { [text.min(second), text.max(second)] } else { [text, second] };
        meant[0] = Some(text);
        meant.push(Some(second));
        known.push(("data.labels.pair_field", LabelConfig::default().pair_field));
    }

    let name = |at: &Option<usize>| at.map_or("NAME", |at| first[at].trim());
    let wrong = known.iter().zip(&meant).filter(|((_, now), at)| name(at) != now && !now.contains('{'));
    let flags: Vec<String> = wrong.map(|((key, _), at)| flag(key, name(at))).collect();
    let or_classes = match other_classes(rows, task, &meant) {
        found if found.is_empty() => String::new(),
        found => format!("\n  other columns that can be the class: {}", found.join(", ")),
    };
    let or_data = if are_names(rows) { "" } else { "\n  if the first row is data: add one with names above it" };
    format!(
        "the first row names the columns, and none of them is {}: it has {}\n  to name the columns: {}{or_classes}{or_data}",
        missing.join(" or "),
        shown.join(", "),
        flags.join(" ")
    )
}

/// The cells of a column, without its name.
fn cells(rows: &[Vec<String>], at: usize) -> impl Iterator<Item = &String> {
    rows[1..].iter().filter_map(move |row| row.get(at))
}

fn n_bytes(rows: &[Vec<String>], at: usize) -> usize {
    cells(rows, at).map(String::len).sum()
}

/// Whether few values of a column recur in many rows.
fn recurs(rows: &[Vec<String>], at: usize) -> bool {
    let n_distinct = cells(rows, at).collect::<HashSet<_>>().len();
    n_distinct > 1 && n_distinct * 4 < rows.len()
}

fn are_numbers(rows: &[Vec<String>], at: usize) -> bool {
    cells(rows, at).all(|cell| cell.trim().parse::<f64>().is_ok())
}

/// Whether the first row surely has names: a usual one, or a word above numbers.
fn are_names(rows: &[Vec<String>]) -> bool {
    let is_name = |(at, cell): (usize, &String)| {
        let (cell, is_filled) = (cell.trim(), rows.len() > 2 && !cell.trim().is_empty());
        is_about(cell) || is_label(cell) || is_filled && cell.parse::<f64>().is_err() && are_numbers(rows, at)
    };
    rows[0].iter().enumerate().any(is_name)
}

/// Returns the only column with a second text, as long as the one that is meant.
fn second_text(
    rows: &[Vec<String>],
    task: Task,
    meant: &[Option<usize>],
    columns: &[(&'static str, String)],
) -> Option<usize> {
    let text = meant[0].filter(|_| task == Task::Classification && columns.len() == 2)?;
    let is_text = |at: &usize| {
        let name = rows[0][*at].trim();
        let is_other = is_about(name) || is_label(name) || recurs(rows, *at) || are_numbers(rows, *at);
        !meant.contains(&Some(*at)) && !is_other && are_alike([n_bytes(rows, *at), n_bytes(rows, text)])
    };
    let mut found = (0..rows[0].len()).filter(is_text);
    found.next().filter(|_| found.next().is_none())
}

/// Returns the names of the columns that look like a class and are not meant.
fn other_classes(rows: &[Vec<String>], task: Task, meant: &[Option<usize>]) -> Vec<String> {
    let can_be = |at: &usize| {
        let name = rows[0][*at].trim();
        !meant.contains(&Some(*at)) && !name.is_empty() && !is_about(name) && recurs(rows, *at)
    };
    let is_open = task == Task::Classification && meant[1].is_some_and(|at| !is_label(rows[0][at].trim()));
    let found = (0..rows[0].len()).filter(|at| is_open && can_be(at));
    found.map(|at| rows[0][at].trim().to_owned()).collect()
}

/// Returns which columns are probably meant. Those with the wanted names are. Else labels have a usual name or the values that recur most,
/// and the text is the longest column.
fn guess(rows: &[Vec<String>], task: Task, columns: &[(&'static str, String)]) -> Vec<Option<usize>> {
    let first = &rows[0];
    let n_distinct = |at: &usize| match task {
        Task::Tagging => cells(rows, *at).flat_map(|cell| cell.split_whitespace()).collect::<HashSet<_>>().len(),
        _ => cells(rows, *at).collect::<HashSet<_>>().len(),
    };

    let mut meant: Vec<Option<usize>> =
        columns.iter().map(|(_, name)| first.iter().position(|cell| cell.trim() == name)).collect();
    let free = |meant: &[Option<usize>]| -> Vec<usize> {
        (0..first.len()).filter(|at| !meant.contains(&Some(*at)) && n_bytes(rows, *at) > 0).collect()
    };
    if meant[1].is_none() {
        let free = free(&meant);
        // A single column is the text. Of two columns alike, the text stands first.
        if free.len() > 1 || meant[0].is_some() {
            meant[1] = free.into_iter().rev().min_by_key(|at| (!is_label(first[*at].trim()), n_distinct(at)));
        }
    }
    if meant[0].is_none() {
        meant[0] = free(&meant).into_iter().rev().max_by_key(|at| n_bytes(rows, *at));
    }
    meant
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str, task: Task, config: &LabelConfig) -> std::result::Result<(), String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("writable");
        check_form(&path, task, config).map_err(|error| error.to_string())
    }

    fn refused(name: &str, text: &str, task: Task) -> String {
        check(name, text, task, &LabelConfig::default()).expect_err("another form")
    }

    #[test]
    fn a_table_with_other_names_is_answered_with_flags_to_paste() {
        let rows: String = (0..20).map(|n| format!("{n},the message {n},{}\n", ["info", "error"][n % 2])).collect();
        let text = refused("a.csv", &format!("id,message,severity\n{rows}"), Task::Classification);
        let flags = "--set data.labels.text_field=message --set data.labels.label_field=severity";
        assert!(text.contains("none of them is \"text\" or \"label\": it has \"id\", \"message\""), "{text}");
        assert!(text.ends_with(flags), "a first row with an id has names: {text}");
        let one = refused("a.csv", &format!("id,text,severity\n{rows}"), Task::Classification);
        assert!(one.ends_with("to name the columns: --set data.labels.label_field=severity"), "{one}");

        let tagged = "words\tner\nin Rome now\tO LOC O\nto Paris\tO LOC\n";
        let text = refused("a.tsv", tagged, Task::Tagging);
        assert!(text.contains("--set data.labels.words_field=words --set data.labels.tags_field=ner"), "{text}");
        assert_eq!(check("a.csv", "text,label\na,b\n", Task::Classification, &LabelConfig::default()), Ok(()));
    }

    #[test]
    fn a_second_text_and_other_classes_are_offered() {
        let rows: String = (0..20)
            .map(|n| {
                format!("the first text {n},{},a second one {n},{}\n", ["low", "high"][n % 2], ["A", "B", "C"][n % 3])
            })
            .collect();
        let text = refused("a.csv", &format!("premise,priority,hypothesis,queue\n{rows}"), Task::Classification);
        let flags = "--set data.labels.text_field=premise --set data.labels.label_field=priority \
                     --set data.labels.pair_field=hypothesis\n  other columns that can be the class: queue\n  if the first";
        assert!(text.contains(flags), "{text}");
        let text = refused("a.csv", &format!("premise,priority,hypothesis,topic\n{rows}"), Task::Classification);
        let flags = "--set data.labels.text_field=premise --set data.labels.label_field=topic \
                     --set data.labels.pair_field=hypothesis";
        assert!(text.ends_with(flags), "{text}");
    }

    #[test]
    fn a_second_text_that_the_user_has_named_must_be_there() {
        let named = LabelConfig { pair_field: "answer".into(), ..LabelConfig::default() };
        let text = check("a.csv", "text,label\na,b\n", Task::Classification, &named).expect_err("no answer");
        assert!(text.contains("none of them is \"answer\"") && text.contains("data.labels.pair_field=NAME"), "{text}");
        assert_eq!(check("a.csv", "text,answer,label\na,b,c\n", Task::Classification, &named), Ok(()));
    }

    #[test]
    fn a_delimiter_that_no_table_has_is_named() {
        let rows: String = (0..20).map(|n| format!("the message {n}|{}\n", ["info", "error"][n % 2])).collect();
        for name in ["a.csv", "a.tsv"] {
            let text = refused(name, &format!("text|label\n{rows}"), Task::Classification);
            let ending = &name[1..];
            assert!(
                text.contains("`|` divides each of them evenly") && text.ends_with(&format!("> rows{ending}")),
                "{text}"
            );
            let named =
                check(name, &format!("sep=|\ntext|label\n{rows}"), Task::Classification, &LabelConfig::default());
            assert_eq!(named, Ok(()));
        }
    }

    #[test]
    fn rows_without_names_are_called_so() {
        let rows: String = (0..20).map(|n| format!("{}\tthe message {n}\n", ["info", "error"][n % 2])).collect();
        let text = refused("a.tsv", &rows, Task::Classification);
        assert!(text.contains("\"info\" stands again below it"), "{text}");
        assert!(text.contains("(printf 'label\\ttext\\n'; cat "), "{text}");
    }

    #[test]
    fn conll_by_another_name_and_fast_text_are_recognized() {
        let conll = "-DOCSTART- -X- O\n\nRome NNP B-LOC\nsleeps VBZ O\n\nParis NNP B-LOC\n";
        for name in ["a.tsv", "a.txt", "a.csv"] {
            let text = refused(name, conll, Task::Tagging);
            assert!(text.contains("let its name end in .conll"), "{text}");
            let text = refused(name, "__label__info Connection from here\n__label__error Gone\n", Task::Classification);
            assert!(text.contains("as in files of fastText") && text.contains("> rows.tsv"), "{text}");
        }
        let config = LabelConfig::default();
        let json = "{\"text\": \"a\", \"label\": \"b\"}\n\n{\"text\": \"a\", \"label\": \"b\"}\n";
        assert_eq!(check("a.txt", json, Task::Classification, &config), Ok(()));
        assert_eq!(check("a.txt", json, Task::Tagging, &config), Ok(()), "what is wrong is said of the rows");
    }
}
