//! What `kiln classify` and `kiln translate` are given in place of texts: names of files, tables and JSON lines.

use std::io::BufReader;
use std::path::Path;

use kiln_data::files::{open_file, read_line};
use kiln_data::{FileFormat, LabelConfig, LabelledInput, Task, WordColumns, WordForm, delimiter_of, is_conll};
use kiln_metrics::logging::print::stderr_line;
use kiln_train::config::Config;
use kiln_train::config::task::{Classes, traits_of};
use serde_json::{Map, Value, json};

use super::error::Usage;
use super::line_breaks::{self, EXAMPLE};
use super::lines::{shell_path, shell_word};

/// Lines that show that a text is a table.
const FEWEST_LINES: usize = 3;
/// Lines of a file that are looked at.
const MOST_LINES: usize = 200;
/// Longest line of a file that is looked at, in bytes.
const MOST_BYTES: u64 = 1 << 16;

/// Refuses a text that is the name of a file, with the command that reads it.
///
/// # Errors
/// If there is such a file.
pub(super) fn check_names(texts: &[String], run: &Path) -> Result<(), Usage> {
    let Some(text) = texts.iter().find(|text| Path::new(text).is_file()) else { return Ok(()) };
    let (file, run) = (Path::new(text), shell_path(run));
    let word = shell_path(file);
    let lines = first_lines(file);
    let way = match FileFormat::by_name(file).map(FileFormat::name) {
        Some("jsonl") if lines.first().is_some_and(|line| is_array(line)) => as_lines_of_array(&run, Some(&word)),
        Some("conll" | "conllu") => as_sentences(&run, Some(&word), &lines),
        Some("jsonl") => format!("kiln classify {run} --jsonl < {word} reads its rows"),
        Some("csv") => as_rows(&run, Some(&word), delimiter_of(&lines)),
        Some("tsv") => as_rows(&run, Some(&word), '\t'),
        Some(_) => format!("make JSON lines of its rows, which kiln classify {run} --jsonl reads from stdin"),
        None => format!("kiln classify {run} < {word} reads its lines"),
    };
    let name = shell_word(text);
    Err(Usage(format!("{text} is a file: {way}; to classify its name: echo {name} | kiln classify {run}")))
}

/// Looks at the first lines of stdin. Refuses rows that have the fields of the training data, and says what other rows look like.
///
/// # Errors
/// If the lines are JSON objects or a table with a text in a field that the run reads.
pub(super) fn check_lines(lines: &[String], run: &Path, task: Task, labels: &LabelConfig) -> Result<(), Usage> {
    check_rows(lines, run)?;
    let Some(first) = lines.iter().find(|line| !line.trim().is_empty()) else { return Ok(()) };
    let run = shell_path(run);
    if serde_json::from_str::<Map<String, Value>>(first).is_ok() {
        if LabelledInput::from_json(first, task, labels).is_ok() {
            let text = format!(
                "stdin has JSON lines with the fields of the training data: kiln classify {run} --jsonl reads them"
            );
            return Err(Usage(text));
        }
        let name = field(task, labels);
        stderr_line!(
            "note: stdin seems to have JSON lines, and each is read as a text; --jsonl reads the field {name:?} of them"
        );
        return Ok(());
    }

    if traits_of(task).classes == Some(Classes::OfWords) && is_conll(lines) {
        return Err(Usage(format!("stdin has a word per line, in columns: {}", as_sentences(&run, None, lines))));
    }

    let delimiter = delimiter_of(lines);
    let names = cells(first, delimiter);
    let wanted = field(task, labels);
    let is_read = |name: &&str| *name == wanted || wanted.contains(&format!("{{{name}}}"));
    if names.len() > 1 && names.iter().any(is_read) {
        return Err(Usage(format!("stdin is a table with the column {wanted:?}: {}", as_rows(&run, None, delimiter))));
    }
    if names == [wanted] && lines.len() > 1 {
        stderr_line!("note: line 1 of stdin is the name of a column, and is read as a text; tail -n +2 leaves it out");
    } else if is_table(lines, delimiter) {
        let way = as_rows(&run, None, delimiter);
        stderr_line!(
            "note: stdin seems to be a table, and each line is read as a text, with all of its columns; {way}"
        );
    }
    Ok(())
}

/// Refuses rows that have the source field of the run in place of lines to translate, and says what other rows look like. `has_rows`: lines
/// have texts in JSON objects.
///
/// # Errors
/// If the lines are JSON objects with that field, or a table with that column.
pub(super) fn check_sources(lines: &[String], run: &Path, config: &Config, has_rows: bool) -> Result<(), Usage> {
    let Some(first) = lines.iter().find(|line| !line.trim().is_empty()) else { return Ok(()) };
    let source_field = config.data.corpus.source_field.as_str();
    let run = shell_path(run);
    let word = python_word(source_field);
    // Python prints a text with line breaks as several lines.
    let printed = |row: &str| match line_breaks::are_learned(config) {
        true => format!("print(json.dumps({{\"source\": {row}[{word}]}}))"),
        false => format!("print({row}[{word}])"),
    };
    let row: Option<Map<String, Value>> = serde_json::from_str(first).ok();
    if source_field != "source" && row.as_ref().is_some_and(|row| row.contains_key(source_field)) {
        return Err(Usage(format!(
            "stdin has JSON lines with the field {word}; to translate it: python3 -c 'import json; [{} for line in open(0)]' \
             | kiln translate {run}",
            printed("json.loads(line)")
        )));
    }
    if has_rows {
        return Ok(());
    }
    if row.is_some() {
        stderr_line!(
            "note: stdin seems to have JSON lines, and each is translated as it stands, with its names; a text comes as {}",
            json!({ "source": "..." })
        );
        return Ok(());
    }

    let delimiter = delimiter_of(lines);
    let names = cells(first, delimiter);
    if names.len() > 1 && names.contains(&source_field) {
        let reader = csv_reader(delimiter);
        return Err(Usage(format!(
            "stdin is a table with the column {word}; to translate it: python3 -c 'import csv, json; [{} for row in {reader}]' \
             | kiln translate {run}",
            printed("row")
        )));
    }
    let has_tab = |line: &String| line.contains('\t') || line.trim().is_empty();
    if lines.len() >= FEWEST_LINES && lines.iter().all(has_tab) {
        stderr_line!("note: each line has a tab and is translated as it stands; cut -f1 passes its first column on");
    } else if is_table(lines, delimiter) {
        stderr_line!(
            "note: stdin seems to be a table, and each line is translated as it stands, with all of its columns"
        );
    } else {
        let example = json!({ "source": EXAMPLE });
        line_breaks::note(config, "texts", &format!("a text with line breaks is a line of JSON, such as {example}"));
    }
    Ok(())
}

/// Says how `kiln translate` reads a file whose name was given in place of a text.
pub(super) fn way_of_sources(file: &Path, run: &Path) -> String {
    let (word, run) = (shell_path(file), shell_path(run));
    match FileFormat::by_name(file) {
        Some(_) => format!(
            "the file has rows: kiln evaluate {run} --data {word} --hypotheses translations.txt translates and scores them"
        ),
        None => format!("pass the file on stdin: kiln translate {run} < {word}"),
    }
}

/// Refuses an array in place of JSON lines.
///
/// # Errors
/// If the first line begins one.
pub(super) fn check_rows(lines: &[String], run: &Path) -> Result<(), Usage> {
    match lines.iter().find(|line| !line.trim().is_empty()) {
        Some(first) if is_array(first) => {
            Err(Usage(format!("stdin is a JSON array: {}", as_lines_of_array(&shell_path(run), None))))
        }
        _ => Ok(()),
    }
}

/// Returns the command that gives a JSON object the field of the training data, if another of its fields can stand for it. Empty otherwise.
pub(super) fn way_of_field(line: &str, task: Task, labels: &LabelConfig, run: &Path) -> String {
    let Some(path) = LabelledInput::other_field(line, task, labels) else { return String::new() };
    let (wanted, run) = (python_word(field(task, labels)), shell_path(run));
    let keys: String = path.iter().map(|key| format!("[{}]", python_word(key))).collect();
    format!(
        "; its field {:?} is read with python3 -c 'import json; [print(json.dumps({{{wanted}: json.loads(line){keys}}})) for line in open(0)]' \
         | kiln classify {run} --jsonl",
        path.join(".")
    )
}

/// Quotes a text for Python within single quotes of a shell.
fn python_word(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default().replace('\'', "\\u0027")
}

/// Whether a text begins with an array of objects.
fn is_array(text: &str) -> bool {
    let inner = text.trim_start_matches('\u{feff}').trim().strip_prefix('[');
    inner.is_some_and(|inner| inner.trim_start().is_empty() || inner.trim_start().starts_with('{'))
}

/// Returns the command that passes the objects of an array on as JSON lines.
fn as_lines_of_array(run: &str, file: Option<&str>) -> String {
    let from = file.map_or(String::new(), |file| format!(" < {file}"));
    format!(
        "its objects as JSON lines are read with --jsonl: python3 -c 'import json; [print(json.dumps(row)) for row in json.load(open(0))]'{from} \
         | kiln classify {run} --jsonl"
    )
}

/// Returns the command that passes the words of a CoNLL file on, a sentence per line.
fn as_sentences(run: &str, file: Option<&str>, lines: &[String]) -> String {
    let usual = WordColumns { has_tabs: true, n: 2, form: WordForm::WordFirst };
    let WordColumns { has_tabs, n, form } = WordColumns::of(lines).unwrap_or(usual);
    let delimiter = if has_tabs { "\\t" } else { " +" };
    let wanted = match form {
        WordForm::WordFirst | WordForm::TagFirst => format!("NF == {n} && !/^(# .*=|-DOCSTART-)/"),
        WordForm::Numbered | WordForm::Universal => format!("NF == {n} && $1 ~ /^[0-9]+$/"),
        // Each sentence has as many columns as it has verbs, and some more.
        WordForm::OntoNotes => format!("NF > {} && !/^#/", WordForm::ENTITIES),
    };
    let (column, from) = (form.word() + 1, file.map_or(String::new(), |file| format!(" {file}")));
    format!(
        "its sentences are read from lines: awk -F '{delimiter}' '{{ sub(/\\r$/, \"\") }} {wanted} {{ printf \"%s \", ${column}; n = 1 }} \
         !NF && n {{ print \"\"; n = 0 }}'{from} | kiln classify {run}"
    )
}

/// Returns the field of a row that the model reads first.
fn field(task: Task, labels: &LabelConfig) -> &str {
    if traits_of(task).classes == Some(Classes::OfWords) { &labels.words_field } else { &labels.text_field }
}

/// Returns the command that passes the rows of a table on as JSON lines.
fn as_rows(run: &str, file: Option<&str>, delimiter: char) -> String {
    let from = file.map_or(String::new(), |file| format!(" < {file}"));
    let reader = csv_reader(delimiter);
    format!(
        "its rows as JSON lines are read with --jsonl: python3 -c 'import csv, json; [print(json.dumps(row)) for row in {reader}]'{from} \
         | kiln classify {run} --jsonl"
    )
}

/// Returns what reads the rows of a table in Python.
fn csv_reader(delimiter: char) -> String {
    let delimiter = match delimiter {
        ',' => String::new(),
        '\t' => ", delimiter=\"\\t\"".to_owned(),
        other => format!(", delimiter=\"{other}\""),
    };
    format!("csv.DictReader(open(0, encoding=\"utf-8-sig\", newline=\"\"){delimiter})")
}

fn first_lines(file: &Path) -> Vec<String> {
    let Ok(file) = open_file(file) else { return Vec::new() };
    let (mut input, mut lines, mut line) = (BufReader::new(file), Vec::new(), Vec::new());
    while lines.len() < MOST_LINES && read_line(&mut input, &mut line, MOST_BYTES).is_ok_and(|is_line| is_line) {
        lines.push(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned());
        line.clear();
    }
    lines
}

fn cells(line: &str, delimiter: char) -> Vec<&str> {
    line.trim_start_matches('\u{feff}').split(delimiter).map(|cell| cell.trim().trim_matches('"')).collect()
}

/// Whether lines have a row of names on top, and as many cells in the rows below it. The first name may be blank, above row numbers.
fn is_table(lines: &[String], delimiter: char) -> bool {
    let filled = || lines.iter().filter(|line| !line.trim().is_empty());
    let Some(first) = filled().next() else { return false };
    let is_name = |name: &str| {
        name.len() <= 30
            && name
                .split(' ')
                .all(|word| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c)))
    };
    let names: Vec<&str> =
        first.trim_start_matches('\u{feff}').split(delimiter).map(|name| name.trim_matches('"')).collect();
    let n = names.len() - 1;
    let are_names = names.iter().enumerate().all(|(at, name)| is_name(name) || (at == 0 && n > 1 && name.is_empty()));
    if n == 0 || !are_names || lines.len() < FEWEST_LINES {
        return false;
    }

    let has_spaces = first.contains(' ');
    let is_even = || counts(filled().map(String::as_str), delimiter).iter().all(|count| *count == n);
    // Lists of words in texts have spaces, too.
    let is_surely_even = || (n > 1 || filled().any(|line| line.contains('"'))) && is_even();
    let are_enough = || filled().all(|line| line.matches(delimiter).count() >= n);
    if has_spaces { is_surely_even() } else { are_enough() || is_even() }
}

/// Counts the delimiters of each row outside of quotes. A row ends where its quotes are closed.
fn counts<'a>(lines: impl Iterator<Item = &'a str>, delimiter: char) -> Vec<usize> {
    let (mut counts, mut count, mut is_open) = (Vec::new(), 0, false);
    for line in lines {
        for c in line.chars() {
            is_open ^= c == '"' && delimiter != '\t';
            count += usize::from(c == delimiter && !is_open);
        }
        if !is_open {
            counts.push(std::mem::take(&mut count));
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    fn found(text: &str, labels: &LabelConfig) -> Result<(), String> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        check_lines(&lines, Path::new("runs/a"), Task::Classification, labels).map_err(|problem| problem.to_string())
    }

    #[test]
    fn rows_with_the_fields_of_the_run_are_refused_and_texts_are_not() {
        let default = LabelConfig::default();
        for text in ["a text\nanother one, with a comma\n", "", "\n\n", "{not JSON}\n", "yes, no\nno, yes\n", "text\n"]
        {
            assert_eq!(found(text, &default), Ok(()), "{text}");
        }
        let json = found("{\"text\": \"a\"}\n", &default).expect_err("a row");
        assert!(json.contains("training data: kiln classify runs/a --jsonl reads"), "{json}");
        assert_eq!(found("{\"other\": \"a\"}\n", &default), Ok(()), "it may be a text");
        let table = found("\u{feff}id;\"text\";label\n1;a;b\n", &default).expect_err("a table");
        assert!(table.contains("the column \"text\"") && table.contains("delimiter=\";\""), "{table}");
        let several = LabelConfig { text_field: "{Subject}: {Body}".into(), ..default };
        let table = found("Subject,Body\na,b\n", &several).expect_err("a table");
        assert!(table.contains("csv.DictReader") && table.ends_with("| kiln classify runs/a --jsonl"), "{table}");
    }

    #[test]
    fn the_command_for_words_in_columns_makes_no_blank_lines() {
        let text = "-DOCSTART- O\n\n\nAda B\nran O\n\n\nIt O\n\n";
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let command = as_sentences("runs/a", None, &lines);
        let (_, script) = command.split_once("awk -F ' +' '").expect("a script");
        let script = script.split_once("' |").expect("its end").0;

        let piped = || Stdio::piped();
        let Ok(mut awk) = Command::new("awk").args(["-F", " +", script]).stdin(piped()).stdout(piped()).spawn() else {
            return;
        };
        awk.stdin.take().expect("piped").write_all(text.as_bytes()).expect("writable");
        let output = awk.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "Ada ran \nIt \n", "{script}");
    }

    #[test]
    fn a_table_has_names_on_top() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert!(is_table(&lines("id,body\n1,a\n2,\"b, c\"\n"), ','));
        for (text, what) in [
            (",Category,Message\n0,spam,\"a, b\"\n1,ham,c\n", "numbers of rows, as pandas writes them"),
            ("Review Text,Label\n\"a, b\",good\nc,bad\n", "names of two words"),
            ("id,body\n1,\"two\nlines, or more\"\n2,b\n", "a cell of two lines"),
        ] {
            assert!(is_table(&lines(text), ','), "{what}");
        }
        for text in [
            "Well, yes\nNo, never, not\nNo, no\n",
            "red, green, blue\none, two, three\na, b, c\n",
            "So it is,Fred\nNo,Anne\nYes,Jo\n",
        ] {
            assert!(!is_table(&lines(text), ','), "sentences have spaces: {text}");
        }
        assert!(!is_table(&lines("yes,no\nno\nperhaps\n"), ','));
    }
}
