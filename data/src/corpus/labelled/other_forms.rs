//! Labelled rows in a form that the run does not read: tables with other names or none, CoNLL by another name, and fastText.

mod exported;
mod guess;
mod marked_lines;
mod slashed;
mod unnamed;
mod words;

use std::path::Path;

use self::guess::{are_names, cells, guess, left_out, other_classes, texts, unclear_class};
use super::several::Several;
use super::{FAST_TEXT, LabelConfig};
use crate::corpus::jq::{piped, with_other_output};
use crate::corpus::one_hot;
use crate::corpus::pairs::{check_delimiter, flag, refuse_further_headers, refuse_lines_above, rows_above};
use crate::corpus::scores;
use crate::corpus::table_lines::ending_of_table;
use crate::corpus::text::Task;
use crate::error::{Error, Result};
use crate::formats::{CsvRows, FileFormat, LineReader, WordColumns, WordForm, is_conll, way_of_lossy};

/// Lines that show the form of a file.
const LINES: usize = 200;

/// Refuses a file whose first lines show that it has another form. JSON and binary files are left to their readers.
///
/// # Errors
///
/// If the file cannot be read, or has another form; the error says what reads it.
pub(super) fn check_form(path: &Path, task: Task, config: &LabelConfig) -> Result<()> {
    find_form(path, task, config).map_err(with_other_output)
}

fn find_form(path: &Path, task: Task, config: &LabelConfig) -> Result<()> {
    let format = FileFormat::by_name(path);
    let is_table = format.is_some_and(|format| [FileFormat::CSV, FileFormat::TSV].contains(&format));
    let is_of_lines = is_table || format.is_none_or(FileFormat::has_tags);
    if task == Task::Tagging && is_of_lines {
        let lines = first_lines(path)?;
        let tagged = || exported::advice(path, &lines, task).filter(|_| !is_table);
        if let Some(found) = slashed::advice(path, &lines).or_else(tagged) {
            return Err(Error::corpus(path, found));
        }
    }
    if format.is_some() && !is_table {
        return Ok(());
    }
    let table = if is_table { Some(CsvRows::first_rows_by_name(path)?.1) } else { None };
    let columns = columns(task, config);
    let refuse = |found: String| Err(Error::corpus(path, found));
    let of_words = table.as_ref().filter(|_| task == Task::Tagging).and_then(|rows| words::of(rows, config));
    if let Some(found) = &of_words {
        let lines = first_lines(path)?;
        return refuse(match is_conll(&lines) {
            true => format!(
                "each line has one word, and blank lines divide sentences, as in CoNLL files: leave out the first row, with {} > rows.conll",
                piped(path, "tail -n +2")
            ),
            false => found.advice(path, &lines),
        });
    }
    if table.as_ref().is_some_and(|rows| rows.is_empty() || lacking(&rows[0], &columns).is_empty()) {
        return Ok(());
    }

    let lines = first_lines(path)?;
    if lines.iter().find(|line| !line.trim().is_empty()).is_some_and(|line| line.starts_with(FAST_TEXT)) {
        return refuse(of_fast_text(path, &lines, config));
    }
    if let Some(found) = conll(&lines, task) {
        return refuse(found);
    }
    if let Some(found) =
        marked_lines::advice(path, &lines, config).filter(|_| !is_table && task == Task::Classification)
    {
        return refuse(found);
    }
    if let Some(found) = exported::advice(path, &lines, task).filter(|_| !is_table) {
        return refuse(found);
    }
    if !is_table && let Some(ending) = ending_of_table(&lines) {
        return refuse(format!(
            "its lines are the rows of a table, which its name does not tell: let its name end in .{ending}"
        ));
    }
    if let Some(rows) = &table {
        check_delimiter(path, rows)?;
        refuse_further_headers(path, rows)?;
        let n_above = rows_above(rows);
        if n_above > 0 {
            return Err(refuse_lines_above(path, rows, n_above));
        }
    }
    table.map_or(Ok(()), |rows| refuse(other_names(path, &rows, task, &columns)))
}

/// Says how lines of fastText become a table. A text may have several classes, of which the table has the first.
fn of_fast_text(path: &Path, lines: &[String], config: &LabelConfig) -> String {
    let n_classes = |line: &&String| line.split_whitespace().filter(|word| word.starts_with(FAST_TEXT)).count();
    let n_several = lines.iter().filter(|line| n_classes(line) > 1).count();
    let several = match n_several {
        0 => String::new(),
        n => format!(
            "\n{n} of its first {} lines have several classes, which are not supported: that keeps the first one of each line",
            lines.len()
        ),
    };
    let program = format!(
        "awk 'BEGIN {{print \"{}\\t{}\"}} {{text = \"\"; for (i = 2; i <= NF; i++) if (index($i, \"{FAST_TEXT}\") != 1) text = text (text == \
         \"\" ? \"\" : \" \") $i; print substr($1, 10) \"\\t\" text}}'",
        config.label_field, config.text_field
    );
    format!(
        "its lines begin with a class, as in files of fastText ({FAST_TEXT}...): make a table of them, with {} > rows.tsv{several}",
        piped(path, &program)
    )
}

/// Says how lines in CoNLL columns are read.
fn conll(lines: &[String], task: Task) -> Option<String> {
    let is_universal = WordColumns::of(lines).is_some_and(|columns| columns.form == WordForm::Universal);
    let read = match task {
        Task::Tagging => "let its name end in",
        _ => "--task tagging reads them from a file whose name ends in",
    };
    match (is_universal, is_conll(lines)) {
        (true, _) => Some(format!("its lines have the ten columns of CoNLL-U: {read} .conllu")),
        (false, true) => Some(format!(
            "its lines are words with their tags, and blank lines divide sentences, as in CoNLL files: {read} .conll"
        )),
        (false, false) => None,
    }
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

fn first_lines(path: &Path) -> Result<Vec<String>> {
    let mut found = LineReader::texts(path)?.take(LINES).collect::<Result<Vec<_>>>()?;
    // Blank lines at the end divide nothing.
    let n = found.iter().rposition(|line| !line.trim().is_empty()).map_or(0, |last| last + 1);
    found.truncate(n);
    Ok(found)
}

/// Says what is wrong with the first row of a table, with the flags or the row that mend it.
fn other_names(path: &Path, rows: &[Vec<String>], task: Task, columns: &[(&'static str, String)]) -> String {
    let (first, others) = (&rows[0], &rows[1..]);
    let shown: Vec<String> = first.iter().take(12).map(|name| format!("\"{}\"", name.trim())).collect();
    let recurs = |at: &usize| {
        let is_same = |row: &Vec<String>| row.get(*at).is_some_and(|cell| *cell == first[*at]);
        !first[*at].trim().is_empty() && others.iter().any(is_same)
    };

    if let Some(at) = (0..first.len()).find(recurs) {
        return unnamed::advice(path, rows, task, columns, at);
    }

    let missing: Vec<String> = lacking(first, columns).iter().map(|name| format!("\"{name}\"")).collect();
    let mut known = columns.to_vec();
    let mut meant = guess(rows, task, columns);
    if task == Task::Classification {
        let texts = texts(rows, &meant, columns);
        if let Some(text) = texts.first() {
            meant[0] = Some(*text);
        }
        if let Some(second) = texts.get(1) {
            match meant.get_mut(2) {
                Some(named) => *named = named.or(Some(*second)),
                None => meant.push(Some(*second)),
            }
            known.push(("data.labels.pair_field", LabelConfig::default().pair_field));
            known.truncate(3);
        }
    }

    let marks = || {
        let cells_of = |name: &str| -> Vec<String> {
            let at = first.iter().position(|cell| cell.trim() == name);
            at.map_or_else(Vec::new, |at| cells(rows, at).map(|cell| cell.trim().to_owned()).collect())
        };
        let label = &columns.get(1)?.1;
        one_hot::advice(first.iter().map(|name| name.trim()), &cells_of, label, (path, FileFormat::by_name(path)?))
    };
    let unclear = unclear_class(rows, task, &meant, columns).map(|found| marks().unwrap_or(found));
    let is_class = |at: usize| unclear.is_some() && meant[1] == Some(at);
    let name = |at: &Option<usize>| at.filter(|at| !is_class(*at)).map_or("NAME", |at| first[at].trim());
    let wrong =
        known.iter().zip(&meant).filter(|((_, now), at)| (name(at) != now || now == "NAME") && !now.contains('{'));
    let flags: Vec<String> = wrong.map(|((key, _), at)| flag(key, name(at))).collect();
    let or_classes = match (&unclear, other_classes(rows, task, &meant)) {
        (Some(found), _) => format!("\n  {found}"),
        (None, found) if found.is_empty() => String::new(),
        (None, found) => format!("\n  other columns that can be the class: {}", found.join(", ")),
    };
    let several = meant[1].filter(|_| task == Task::Classification).and_then(|at| several_labels(path, rows, at));
    let scored = meant[1].filter(|at| task == Task::Classification && !is_class(*at));
    // The commands read UTF-8.
    let wrong_bytes = rows.iter().flatten().find(|cell| cell.contains(char::REPLACEMENT_CHARACTER));
    let first_convert = wrong_bytes
        .map_or(String::new(), |cell| format!("\n  first of all, it is not in UTF-8: {}", way_of_lossy(cell)));
    let or_classes = or_classes + &left_out(rows, task, &meant);
    let or_data = if are_names(rows) { "" } else { "\n  if the first row is data: add one with names above it" };
    format!(
        "the first row names the columns, and none of them is {}: it has {}{first_convert}\n  to name the columns: {}{or_classes}{or_data}{}",
        missing.join(" or "),
        shown.join(", "),
        flags.join(" "),
        several.or_else(|| scores_of(path, rows, scored, &flags)).unwrap_or_default()
    )
}

/// Says that the cells of a column are numbers on a scale, and how a few classes are made of them.
fn scores_of(path: &Path, rows: &[Vec<String>], at: Option<usize>, flags: &[String]) -> Option<String> {
    let (at, format) = (at?, FileFormat::by_name(path)?);
    let flags = format!("--task classification {}", flags.join(" "));
    let filled = cells(rows, at).map(|cell| cell.trim()).filter(|cell| !cell.is_empty());
    scores::note(rows[0][at].trim(), filled, &flags, (path, format)).map(|found| format!("\n{found}"))
}

/// Says that the cells of a column have several labels each, and how to keep the first one.
fn several_labels(path: &Path, rows: &[Vec<String>], at: usize) -> Option<String> {
    let found = Several::of(cells(rows, at).map(String::as_str))?;
    let name = rows[0][at].trim();
    let command = found.to_first_label(path, name);
    let command = command.map_or(String::new(), |command| format!("\nto keep the first label of each row: {command}"));
    Some(format!(
        "\n  the cells of \"{name}\" {}: each combination would be a class, because several labels of one text are not supported{command}",
        found.what()
    ))
}

#[cfg(test)]
mod tests;
