//! Tables without names of columns: the first row that names the texts and their class.

use std::path::Path;

use super::guess::{are_decimals, can_be_class, cells, column, guess, texts};
use crate::corpus::columns::{Column, with_examples};
use crate::corpus::jq::piped;
use crate::corpus::labelled::LabelConfig;
use crate::corpus::scores;
use crate::corpus::text::Task;
use crate::formats::{CsvRows, FileFormat};
use crate::terminal::{shell_path, shell_word};

/// Columns of numbers that recur from which they count something.
const ENOUGH_COUNTS: usize = 3;
/// Names of classes that say by themselves what they are, next to columns about a text.
const KNOWN_CLASSES: [&str; 22] = [
    "true",
    "false",
    "half-true",
    "mostly-true",
    "barely-true",
    "positive",
    "negative",
    "neutral",
    "pos",
    "neg",
    "spam",
    "ham",
    "entailment",
    "contradiction",
    "not_entailment",
    "fake",
    "real",
    "toxic",
    "hate",
    "offensive",
    "favor",
    "against",
];
/// Columns that a message shows.
const SHOWN: usize = 12;

/// Says that the first row has a cell that stands again below it, and which names a first row can give to the columns.
pub(super) fn advice(
    path: &Path,
    rows: &[Vec<String>],
    task: Task,
    columns: &[(&'static str, String)],
    at: usize,
) -> String {
    let width = usual_width(rows);
    // The cells of the first row do not name the columns, so their words say nothing of the others.
    let neutral = (0..width).map(|at| format!("column {at} of")).collect();
    let all: Vec<Vec<String>> = std::iter::once(neutral).chain(rows.iter().cloned()).collect();
    let meant = if task == Task::Classification { of_class(&all, columns) } else { guess(&all, task, columns) };
    let mut keys: Vec<String> = columns.iter().map(|(_, name)| name.clone()).collect();
    if keys.len() < meant.len() {
        keys.push(LabelConfig::default().pair_field);
    }

    let name = |at: usize| {
        let of_key = meant.iter().position(|column| *column == Some(at));
        of_key.map_or_else(|| format!("column_{at}"), |key| keys[key].clone())
    };
    // Columns that few rows have need no name.
    let widest = rows.iter().map(Vec::len).max().unwrap_or(width);
    let names: Vec<String> = (0..widest).map(|at| if at < width { name(at) } else { String::new() }).collect();
    let is_tsv = FileFormat::by_name(path) == Some(FileFormat::TSV);
    let delimiter = CsvRows::first_rows_by_name(path).map_or(b',', |(delimiter, _)| delimiter);
    let delimiter = if delimiter == b'\t' { "\\t".to_owned() } else { char::from(delimiter).to_string() };
    let file = if is_tsv { "rows.tsv" } else { "rows.csv" };
    let shown: Vec<String> =
        rows[0].iter().take(SHOWN).map(|cell| Column::of_cells(std::iter::once(cell.as_str())).example()).collect();
    format!(
        "the first row ({}) is read as the names of the columns, but {} stands again below it: it seems to be data\n  to add a \
         first row with names: (printf {}; {}) > {file}{}",
        shown.join(", "),
        shown.get(at).map_or("a cell", String::as_str),
        shell_word(&format!("{}\\n", names.join(&delimiter))),
        piped(path, "cat"),
        not_read(&all, &meant, &name)
            + &scale(path, &all, meant[1].filter(|_| task == Task::Classification), (&keys[1], file))
    )
}

/// Says how a few classes are made of numbers on a scale, once the columns of the new `file` have names.
fn scale(path: &Path, rows: &[Vec<String>], at: Option<usize>, (label, file): (&str, &str)) -> String {
    let (Some(at), Some(format)) = (at, FileFormat::by_name(path)) else { return String::new() };
    let filled = cells(rows, at).map(|cell| cell.trim()).filter(|cell| !cell.is_empty());
    let found = scores::note(label, filled, "the same flags", (path, format));
    found.map_or_else(String::new, |found| format!("\n{}", found.replace(&shell_path(path), file)))
}

/// Returns the number of columns that most rows have.
fn usual_width(rows: &[Vec<String>]) -> usize {
    let count = |width: usize| rows.iter().filter(|row| row.len() == width).count();
    rows.iter().map(Vec::len).max_by_key(|width| (count(*width), *width)).unwrap_or(0)
}

/// Returns the columns of the text, of its class and of a second text, as their cells show.
fn of_class(rows: &[Vec<String>], columns: &[(&'static str, String)]) -> Vec<Option<usize>> {
    let nothing = vec![None; columns.len()];
    let found = texts(rows, &nothing, columns);
    let are_two = found.len() > 1;
    let is_number = |at: &usize| {
        let column = column(rows, *at);
        column.has_numbers() && 2 * column.n_distinct() <= column.n
    };
    let are_counts = (0..rows[0].len()).filter(is_number).count() >= ENOUGH_COUNTS;

    let rank = |at: &usize| {
        let column = column(rows, *at);
        // Two texts are compared on a scale.
        let is_scale = are_two && are_decimals(rows, *at);
        let is_own = !is_scale && column.n_distinct() == column.n && column.n > 2;
        let is_varied = !is_scale && 2 * column.n_distinct() > column.n;
        let is_one = column.n_distinct() == 1;
        let is_count = are_counts && column.has_numbers();
        let n_known = column.values().filter(|value| is_known_class(value)).count();
        let is_known = 2 * n_known > column.n_distinct();
        let by_values = (!is_scale, !is_known, is_count, is_one && !column.has_numbers());
        (is_own, is_varied, is_one, column.has_words(), by_values, column.n_distinct())
    };

    let free = |at: &usize| !found.contains(at) && can_be_class(rows, *at);
    let label = (0..rows[0].len()).filter(free).min_by_key(rank);
    let texts = texts(rows, &[None, label], columns);
    let mut meant = vec![texts.first().copied(), label];
    if texts.len() > 1 || columns.len() > 2 {
        meant.push(texts.get(1).copied());
    }
    meant
}

fn is_known_class(value: &str) -> bool {
    KNOWN_CLASSES.contains(&value.trim().to_lowercase().as_str())
}

/// Names the columns that no key names, with an example of each.
fn not_read(rows: &[Vec<String>], meant: &[Option<usize>], name: &dyn Fn(usize) -> String) -> String {
    let others = (0..rows[0].len()).filter(|at| !meant.contains(&Some(*at)));
    let others: Vec<(String, Column)> =
        others.map(|at| (name(at), column(rows, at))).filter(|(_, column)| column.n > 0).take(SHOWN).collect();
    if others.is_empty() {
        return String::new();
    }
    let examples = with_examples(others.iter().map(|(name, column)| (name.as_str(), column)));
    format!(
        "\n  with these names, {examples} {} not read; write other names if they are wrong",
        if others.len() == 1 { "is" } else { "are" }
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;
    use crate::corpus::labelled::LabelledCorpus;

    /// Returns the names that the printed first row has, and the whole message.
    fn named(file: &str, row: &dyn Fn(usize) -> String, n: usize) -> (Vec<String>, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(file);
        fs::write(&path, (0..n).map(|n| row(n) + "\n").collect::<String>()).expect("writable");
        let read = LabelledCorpus::read(&[path], Task::Classification, &LabelConfig::default());
        let said = read.expect_err("no names").to_string();
        let (_, rest) = said.split_once("(printf '").unwrap_or_else(|| panic!("no names: {said}"));
        let names = rest.split_once("\\n'").expect("a row").0;
        let divider = if names.contains("\\t") { "\\t" } else { "," };
        (names.split(divider).map(str::to_owned).collect(), said)
    }

    #[test]
    fn the_first_row_names_all_texts_and_the_class_and_says_what_is_not_read() {
        // News: a class, a title and a text, in which words of names stand.
        let news = |n: usize| {
            format!(
                "\"{}\",\"The class of {n} won (AP)\",\"Reuters - the label of the class {n} is here, and it goes on.\"",
                n % 4 + 1
            )
        };
        for n in [9, 30, 300] {
            let (names, said) = named("test.csv", &news, n);
            assert_eq!(names, ["label", "text", "text_pair"], "{said}");
            assert!(!said.contains("not read"), "{said}");
        }

        // Two sentences on a scale, next to columns about them, and addresses in a few rows.
        let scale = |n: usize| {
            let more = if n % 9 == 1 { "\thttp://a.org/1\thttp://b.org/2" } else { "" };
            format!(
                "main{}\tfile\t2012test\t{n:04}\t{}.{}50\tA man plays {n}.\tSomeone sings a song {n}.{more}",
                n % 2,
                n % 5,
                n % 3
            )
        };
        let (names, said) = named("sts.csv", &scale, 200);
        assert_eq!(
            names,
            ["column_0", "column_1", "column_2", "column_3", "label", "text", "text_pair", "", ""],
            "{said}"
        );
        assert!(said.contains("\"column_0\" (\"main0\")") && said.contains("are not read"), "{said}");
        assert!(said.contains("numbers on a scale (0.05 to 4.25") && said.contains("< rows.csv | jq"), "{said}");

        // Quotes that belong to the text.
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("quotes.csv");
        let quote = |is_there: bool| if is_there { "\"" } else { "" };
        let row = |n: usize| {
            let (first, inner) = (quote(n == 1), quote(n > 60));
            format!("{}\t{first}A man plays {n}.\tSomeone sings {inner}it{inner} {n}.\n", n % 3)
        };
        fs::write(&path, (0..80).map(row).collect::<String>()).expect("writable");
        let read = |path: &Path| LabelledCorpus::read(&[path.into()], Task::Classification, &LabelConfig::default());
        let said = read(&path).expect_err("no names").to_string();
        let (_, command) = said.split_once("with names: ").unwrap_or_else(|| panic!("{said}"));
        let command = command.lines().next().unwrap_or_default();
        let ran = Command::new("sh").args(["-c", command]).current_dir(folder.path()).status().expect("a shell");
        let rows = read(&folder.path().join("rows.csv")).expect("rows");
        let texts = rows.texts();
        assert!(ran.success() && texts.len() == 160 && texts[2] == "\"A man plays 1.", "{texts:?}");

        // Posts with dates, that all have one class at the beginning.
        let post = |n: usize| {
            format!(
                "\"4\",\"{}\",\"Mon Apr {:02} 22:19:45 PDT 2009\",\"NO_QUERY\",\"user{n}\",\"@ada it is {n}\"",
                1_467_810_000 + n,
                n % 28 + 1
            )
        };
        let (names, said) = named("posts.csv", &post, 100);
        assert_eq!(names, ["label", "column_1", "column_2", "column_3", "column_4", "text"], "{said}");
        assert!(said.contains("\"column_2\" (\"Mon Apr 01 22:19:45 PDT 2009\")"), "{said}");
    }
}
