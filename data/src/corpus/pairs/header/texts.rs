//! Which columns of a table hold texts, by the cells of its first rows.

use std::path::Path;

use super::Columns;
use crate::corpus::asked::{Asked, is_answer};
use crate::corpus::columns::{Column, with_examples};
use crate::corpus::fields::{is_about, is_id_name, words_of};
use crate::corpus::values;
use crate::error::Error;
use crate::terminal::shell_path;

/// Rows that show that a column has one word only, such as the name of a language.
const ENOUGH_ROWS: usize = 5;
/// Rows from which numbers in all of them are not chance.
const MANY_ROWS: usize = 9;
/// Different words of a column that are the names of something.
const FEW_WORDS: usize = 8;
/// Options of a question.
const FEWEST_OPTIONS: usize = 3;
/// Columns that a note names.
const SHOWN: usize = 6;

/// Returns the columns that can be texts: most of their cells are neither numbers, dates, addresses, names of files nor identifiers, and they
/// are not the same word in all rows, or one of a few.
pub(super) fn columns_of_texts(rows: &[Vec<String>], n_columns: usize) -> Vec<usize> {
    // The first row may have names.
    let below = if rows.len() > ENOUGH_ROWS { &rows[1..] } else { rows };
    let columns: Vec<Column> = (0..n_columns).map(|at| column(below, at)).collect();
    let cells = |at: usize| below.iter().filter_map(move |row| row.get(at)).map(|cell| cell.trim());
    let is_enough = below.len() >= ENOUGH_ROWS;
    let has_text = |at: usize| {
        let n_texts = cells(at).filter(|cell| is_text(cell)).count();
        let is_one_of_few = columns[at].recurs() && columns[at].n_distinct() <= FEW_WORDS;
        let is_same = is_enough && columns[at].n_distinct() == 1 && (n_columns > 2 || !columns[at].has_words());
        let is_word = !columns[at].has_words() && is_one_of_few;
        2 * n_texts > columns[at].n && !is_same && !is_word && !columns[at].numbers_rows()
    };
    if n_columns < 3 || !is_enough {
        return (0..n_columns).filter(|at| has_text(*at)).collect();
    }

    // In a wider table, other columns may have ids of comments, or names of those who wrote them.
    let is_token = |at: usize| cells(at).all(|cell| cell.is_ascii() && !cell.contains(char::is_whitespace));
    let is_code = |at: usize| {
        let has_digit = |cell: &&str| cell.contains(|c: char| c.is_ascii_digit());
        is_token(at) && 4 * cells(at).filter(has_digit).count() > 3 * columns[at].n
    };
    let is_of_records = columns.iter().any(|column| column.has_dates() || column.n_distinct() == 1);
    let is_name = |at: usize| is_token(at) && (is_of_records || columns[at].recurs());
    let texts: Vec<usize> = (0..n_columns).filter(|at| has_text(*at)).collect();
    let has_words = texts.iter().any(|at| columns[*at].has_words());
    texts.into_iter().filter(|at| !has_words || !is_code(*at) && !is_name(*at)).collect()
}

/// Returns the names of the columns that can be the two texts of a pair, by the cells of the `rows` below them: those with texts, else
/// dates, too, else also those whose values recur. All names, if fewer than two columns remain.
pub(super) fn candidates<'n>(names: &[&'n str], rows: &[Vec<String>]) -> Vec<&'n str> {
    let columns: Vec<Column> = (0..names.len()).map(|at| column(rows, at)).collect();
    let is_other = |at: usize| {
        let column = &columns[at];
        names[at].is_empty() || column.has_no_texts() || column.is_constant() || column.is_id(names[at])
    };
    let is_varied = |at: usize| !is_about(names[at]) && !columns[at].recurs();
    let has_text = |at: usize| columns[at].values().any(is_text);
    let is_number =
        |at: usize| columns[at].values().all(|cell| cell.parse::<f64>().is_ok() || cell.starts_with("http"));
    let tiers: [&dyn Fn(usize) -> bool; 3] =
        [&|at| is_varied(at) && has_text(at), &|at| is_varied(at) && !is_number(at), &|at| !is_number(at)];
    let of_tier = |tier: &&dyn Fn(usize) -> bool| {
        let found: Vec<&str> = (0..names.len()).filter(|at| !is_other(*at) && tier(*at)).map(|at| names[at]).collect();
        (found.len() > 1).then_some(found)
    };
    tiers.iter().find_map(of_tier).unwrap_or_else(|| names.to_vec())
}

/// Returns the columns that say something of their row: neither names of rows, nor blank, nor the same in all rows.
pub(super) fn worth_reading<'n>(names: &[&'n str], rows: &[Vec<String>]) -> Vec<&'n str> {
    let is_one = |at: &usize| {
        let (name, column) = (names[*at], column(rows, *at));
        let is_other = name.is_empty() || name.contains(['{', '}']) || is_about(name) || is_id_name(name);
        !is_other && column.n > 0 && column.n_distinct() > 1
    };
    (0..names.len()).filter(is_one).map(|at| names[at]).collect()
}

/// Returns the last of the columns `left` that varies, if `two` others have values that recur, such as units: it depends on all of them.
pub(super) fn varied_target<'n>(
    left: &[&'n str],
    two: [&str; 2],
    names: &[&str],
    rows: &[Vec<String>],
) -> Option<&'n str> {
    let recurs = |name: &str| names.iter().position(|other| *other == name).is_some_and(|at| column(rows, at).recurs());
    let last = || left.iter().copied().rev().find(|name| !recurs(name));
    let named =
        || left.iter().copied().find(|name| is_answer(name) || words_of(name).iter().any(|word| word == "result"));
    two.into_iter().all(recurs).then(|| named().or_else(last)).flatten()
}

/// Returns a question in several of the columns with its answer, and the template that reads the question.
pub(super) fn asked(names: &[&str], rows: &[Vec<String>]) -> Option<(Asked, String)> {
    let columns: Vec<(&str, Column)> = (0..names.len()).map(|at| (names[at], column(rows, at))).collect();
    let found = Asked::among(columns.iter().map(|(name, column)| (*name, column)))?;
    let is_blank = |name: &str| columns.iter().any(|(other, column)| *other == name && column.n < rows.len());
    let template = found.template(is_blank);
    Some((found, template))
}

fn column(rows: &[Vec<String>], at: usize) -> Column {
    Column::of_cells(rows.iter().filter_map(|row| row.get(at)).map(String::as_str))
}

/// Names columns with an example of each.
pub(super) fn examples(names: &[&str], all: &[&str], rows: &[Vec<String>]) -> String {
    let at = |name: &&str| all.iter().position(|other| other == name);
    let columns: Vec<(&str, Column)> = names.iter().filter_map(|name| Some((*name, column(rows, at(name)?)))).collect();
    with_examples(columns.iter().map(|(name, column)| (*name, column)))
}

/// Whether a cell is more than a number, a date, an address, the name of a file or an identifier.
fn is_text(cell: &str) -> bool {
    let has_letter = cell.contains(char::is_alphabetic);
    let is_value = values::is_place(cell) || values::is_date(cell) || values::is_id(cell) || values::is_boolean(cell);
    has_letter && cell.parse::<f64>().is_err() && !is_value
}

/// Refuses a table without names whose last column has the letter of one of the columns before it: a question with its options, as MMLU has
/// them. `None` for others.
pub(super) fn of_options(path: &Path, rows: &[Vec<String>]) -> Option<Error> {
    let n_columns = rows.first()?.len();
    let letters: Vec<char> = ('A'..='Z').take(n_columns.checked_sub(2)?).collect();
    let key = |row: &Vec<String>| row.last().and_then(|cell| cell.trim().parse::<char>().ok());
    let is_key = |row: &Vec<String>| key(row).is_some_and(|letter| letters.contains(&letter));
    if letters.len() < FEWEST_OPTIONS || rows.len() < ENOUGH_ROWS || !rows.iter().all(is_key) {
        return None;
    }
    let options: Vec<String> = letters.iter().map(char::to_string).collect();
    let found = format!(
        "the last of its {n_columns} columns has letters of the {} before it: a question with its options and the letter of the right one\n  to name \
         the columns: printf 'question,{},answer\\n' | cat - {} > rows.csv\n  and train on rows.csv",
        options.len(),
        options.join(","),
        shell_path(path)
    );
    // Commas divide the printed names.
    (crate::formats::ending(path) == "csv").then(|| Error::corpus(path, found))
}

/// Refuses a table of which one column has texts, and either it is not read, or the other one that is read has numbers, or values that recur,
/// as classes do. `None` for others. A first row that may have names comes first.
pub(super) fn lacks_a_text(
    path: &Path,
    rows: &[Vec<String>],
    read: Columns,
    (texts, may_have_names): (&[usize], bool),
) -> Option<Error> {
    let [only] = texts else { return None };
    let n_columns = rows.first().map_or(0, Vec::len);
    let is_other = n_columns > 2 && ![read.source, read.target].contains(only);
    let other = if read.source == *only { read.target } else { read.source };
    let has_class = || {
        let (class, text) = (column(&rows[1..], other), column(&rows[1..], *only));
        class.recurs() && class.is_short() && !class.has_words() && text.has_words() && !text.recurs()
    };
    let is_many = n_columns > 2 && rows.len() >= MANY_ROWS && !may_have_names;
    let is_number = is_many && column(&rows[1..], other).has_numbers();

    (is_other || is_number || has_class()).then(|| {
        Error::corpus(
            path,
            format!(
                "column {only} alone of its {n_columns} columns has texts, counted from 0, and a pair has two\n  to learn a class of the texts: \
                 --task classification\n  if other columns are texts, too: --set data.corpus.source_column=N --set data.corpus.target_column=N\n  \
                 if columns {} and {} are: --set data.corpus.header=no",
                read.source, read.target
            ),
        )
    })
}

/// Returns the first two columns with texts if `columns` are the usual ones and one of them has none.
pub(super) fn in_place_of(columns: Columns, texts: &[usize]) -> Option<Columns> {
    let [source, target, ..] = *texts else { return None };
    let is_text = |column| texts.contains(&column);
    let stands = is_text(columns.source) && is_text(columns.target);
    (!stands).then_some(Columns { source, target, ..columns })
}

/// Says which of more than two columns are read, and how others are.
pub(super) fn note(path: &Path, n_columns: usize, read: Columns, usual: Columns, texts: &[usize]) -> String {
    let Columns { source, target, .. } = read;
    let shown = format!(
        "{} has {n_columns} columns: {source} is the source and {target} the target, counted from 0",
        path.display()
    );
    if read != usual {
        let others = (0..n_columns).filter(|column| !texts.contains(column)).take(SHOWN);
        let others: Vec<String> = others.map(|column| column.to_string()).collect();
        return format!(
            "{shown}, because {} {}; to read {} and {}: --set data.corpus.header=no",
            others.join(", "),
            if others.len() == 1 { "has no texts" } else { "have no texts" },
            usual.source,
            usual.target
        );
    }

    let (what, [first, second]) = match *texts {
        [first, second] => ("those with texts", [first, second]),
        [.., first, second] => ("the last two with texts", [first, second]),
        _ => ("the last two", [n_columns - 2, n_columns - 1]),
    };
    if [first, second] == [source, target] {
        return shown;
    }
    format!("{shown}; for {what}: --set data.corpus.source_column={first} --set data.corpus.target_column={second}")
}
