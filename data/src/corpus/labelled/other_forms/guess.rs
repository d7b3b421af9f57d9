//! Which columns of a table are probably the text, its class, a second text, words and tags.

use std::collections::HashSet;

use crate::corpus::class_texts::{Strings, has_partner, is_part_of, texts_of_class};
use crate::corpus::columns::{self, Column, ENOUGH_ROWS, choose_class, rank_of_class};
use crate::corpus::compared::compared_among;
use crate::corpus::fields::{
    has_label_word, has_word_of_class, is_about, is_analysis, is_label, is_likely_label, is_of_measure, is_of_persons,
    words_of,
};
use crate::corpus::roles::{Role, is_of, is_reply};
use crate::corpus::text::Task;
use crate::corpus::values::{is_annotated, is_time, number};
use crate::formats::words_of_cell;

/// Words of the names of columns with tags that are more than parts of speech.
const TAGS: [&str; 9] = ["tag", "tags", "label", "labels", "ner", "entity", "entities", "slots", "iob"];

/// The cells of a column, without its name.
pub(super) fn cells(rows: &[Vec<String>], at: usize) -> impl Iterator<Item = &String> + Clone {
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
    cells(rows, at).all(|cell| number(cell).is_some() || is_time(cell))
}

/// Whether the first row surely has names: a usual one, or a word above numbers.
pub(super) fn are_names(rows: &[Vec<String>]) -> bool {
    let is_name = |(at, cell): (usize, &String)| {
        let (cell, is_filled) = (cell.trim(), rows.len() > 2 && !cell.trim().is_empty());
        is_about(cell) || is_label(cell) || is_filled && cell.parse::<f64>().is_err() && are_numbers(rows, at)
    };
    rows[0].iter().enumerate().any(is_name)
}

/// Returns the columns with the texts that a class belongs to. A column that the user has named stays the first.
pub(super) fn texts(rows: &[Vec<String>], meant: &[Option<usize>], columns: &[(&'static str, String)]) -> Vec<usize> {
    let name = |at: usize| rows[0][at].trim();
    let is_named = |at: &usize| columns.iter().any(|(_, wanted)| wanted == name(*at));
    let is_given = |at: usize| meant[0] == Some(at) && name(at) == columns[0].1;
    let is_text = |at: &usize| {
        let is_other = is_label(name(*at)) || !has_texts(rows, *at) || has_double(rows, *at);
        meant[1] != Some(*at) && !is_other && (!is_named(at) || is_given(*at))
    };
    let mut candidates: Vec<usize> = (0..rows[0].len()).filter(|at| is_given(*at) || is_text(at)).collect();
    // Nobody has the answer to a text when it is classified.
    let has_question = candidates.iter().any(|at| is_of(Role::Question, name(*at)));
    let is_asked = |at: &usize| !is_reply(name(*at)) && column(rows, *at).has_words();
    if candidates.iter().any(is_asked) && !has_question {
        let all = candidates.clone();
        candidates.retain(|at| {
            is_given(*at) || !is_reply(name(*at)) || has_partner(name(*at), all.iter().map(|at| name(*at)))
        });
    }
    let cell = |row: usize, at: usize| rows[row].get(at).map_or("", |cell| cell.trim());
    let is_part = |at: usize, whole: usize| is_part_of((1..rows.len()).map(|row| (cell(row, at), cell(row, whole))));
    let others = candidates.clone();
    // A copy has marks in it, such as the tags of HTML.
    let is_marked = |at: usize, text: usize| {
        let both = (1..rows.len()).map(|row| (cell(row, text), cell(row, at))).filter(|(text, _)| text.contains(' '));
        let n_marked = both.clone().filter(|(text, copy)| is_annotated(text, copy)).count();
        n_marked >= ENOUGH_ROWS && 10 * n_marked >= 9 * both.count()
    };
    candidates.retain(|at| {
        let is_copy = |other: &usize| is_part(*at, *other) && (other < at || !is_part(*other, *at));
        let is_copied = |other: &usize| other != at && (is_copy(other) || is_marked(*at, *other));
        is_given(*at) || !others.iter().any(is_copied)
    });
    if candidates.is_empty() {
        candidates.extend(meant[0]);
    }

    let strings = candidates.iter().map(|at| Strings {
        name: name(*at),
        n_bytes: n_bytes(rows, *at),
        n_words: cells(rows, *at).map(|cell| cell.split_whitespace().count()).sum(),
        n: cells(rows, *at).count(),
        recurs: recurs(rows, *at),
    });
    let given = candidates.iter().position(|at| is_given(*at));
    texts_of_class(&strings.collect::<Vec<_>>(), given).into_iter().map(|at| candidates[at]).collect()
}

/// Whether another column has the name of this one, so that the name says neither.
fn has_double(rows: &[Vec<String>], at: usize) -> bool {
    let name = rows[0][at].trim();
    !name.is_empty() && rows[0].iter().filter(|other| other.trim() == name).count() > 1
}

/// Describes the filled cells of a column.
pub(super) fn column(rows: &[Vec<String>], at: usize) -> Column {
    Column::of_cells(cells(rows, at).map(String::as_str))
}

/// Whether all cells of a column are numbers, and some have a fraction.
pub(super) fn are_decimals(rows: &[Vec<String>], at: usize) -> bool {
    let column = column(rows, at);
    column.has_numbers() && column.values().any(|value| value.contains(['.', ',']))
}

/// Whether a column can hold names of classes by its cells: neither identifiers, tags, addresses nor dates, and cells in most rows.
pub(super) fn can_be_class(rows: &[Vec<String>], at: usize) -> bool {
    let column = column(rows, at);
    let is_other = column.is_id(rows[0][at].trim()) || column.are_tags() || column.has_references();
    !is_other && column.is_short() && 2 * column.n > rows.len() - 1
}

/// Whether a column can hold texts: no numbers, no identifiers, and nothing about a text.
fn has_texts(rows: &[Vec<String>], at: usize) -> bool {
    let (name, column) = (rows[0][at].trim(), column(rows, at));
    // The first of two texts may be the same in many rows.
    let is_constant = column.is_constant() && !has_partner(name, rows[0].iter().map(|name| name.trim()));
    let is_value = column.has_no_texts() || column.has_references() || is_constant;
    let is_other = is_about(name) || is_of_persons(name) || column.is_id(name);
    !is_value && !is_other && !are_numbers(rows, at)
}

/// Whether each cell of a column is another text of several words.
fn are_all_texts(rows: &[Vec<String>], at: usize) -> bool {
    let column = column(rows, at);
    column.n >= ENOUGH_ROWS && column.has_words() && column.n_distinct() == column.n
}

/// Returns the column that says how two texts belong together.
fn mark_of_pair<'r>(rows: &'r [Vec<String>], columns: &[(&'static str, String)]) -> Option<usize> {
    let names: Vec<&'r str> = rows[0].iter().map(|name| name.trim()).collect();
    let can_be = |at: &usize| has_texts(rows, *at) && !is_analysis(names[*at]);
    let texts: Vec<&str> = (0..names.len()).filter(can_be).map(|at| names[at]).collect();
    let found: Vec<(&str, Column)> = (0..names.len()).map(|at| (names[at], column(rows, at))).collect();
    let marked = compared_among(&texts, found.iter().map(|(name, column)| (*name, column)))?;
    // Texts that the user has named are meant.
    let given = names.iter().find(|name| **name == columns[0].1);
    let mark = given.is_none_or(|given| marked[..2].contains(given)).then_some(marked[2])?;
    names.iter().position(|name| *name == mark)
}

/// Says which columns can be the class, if three or more can and no name tells which one it is.
pub(super) fn unclear_class(
    rows: &[Vec<String>],
    task: Task,
    meant: &[Option<usize>],
    columns: &[(&'static str, String)],
) -> Option<String> {
    let label = meant[1].filter(|at| task == Task::Classification && rows[0][*at].trim() != columns[1].1)?;
    let texts = [meant[0], meant.get(2).copied().flatten()];
    let rank = |at: usize, column: &Column| rank_of_class(rows[0][at].trim(), column);
    let can_be = |(at, column): &(usize, Column)| {
        let is_other = texts.contains(&Some(*at)) || has_double(rows, *at);
        !is_other && 2 * column.n >= rows.len() - 1 && rank(*at, column) > 0
    };
    let found: Vec<(usize, Column)> = (0..rows[0].len()).map(|at| (at, column(rows, at))).filter(can_be).collect();
    let is_sure = mark_of_pair(rows, columns) == Some(label) || found.iter().any(|(at, column)| rank(*at, column) > 2);
    let named: Vec<(&str, &Column)> = found.iter().map(|(at, column)| (rows[0][*at].trim(), column)).collect();
    if is_sure { None } else { choose_class(&named) }
}

/// Returns the names of the columns that look like a class and are not meant.
pub(super) fn other_classes(rows: &[Vec<String>], task: Task, meant: &[Option<usize>]) -> Vec<String> {
    let can_be = |at: &usize| {
        let name = rows[0][*at].trim();
        let is_other = meant.contains(&Some(*at)) || has_double(rows, *at);
        !is_other && !name.is_empty() && !is_about(name) && recurs(rows, *at)
    };
    let is_open = task == Task::Classification && meant[1].is_some_and(|at| !has_word_of_class(rows[0][at].trim()));
    let found = (0..rows[0].len()).filter(|at| is_open && can_be(at));
    found.map(|at| rows[0][at].trim().to_owned()).collect()
}

/// Names the columns with texts that are not meant, with an example of each; empty if there are none.
pub(super) fn left_out(rows: &[Vec<String>], task: Task, meant: &[Option<usize>]) -> String {
    let columns: Vec<(&str, Column)> = (0..rows[0].len()).map(|at| (rows[0][at].trim(), column(rows, at))).collect();
    let read: Vec<&str> = meant.iter().flatten().map(|at| rows[0][*at].trim()).collect();
    let named = columns.iter().map(|(name, column)| (*name, column)).filter(|(name, _)| !name.is_empty());
    let found = columns::left_out(named, &read).filter(|_| task == Task::Classification);
    found.map_or(String::new(), |found| format!("\n  that leaves out {found}"))
}

/// Returns which columns are probably meant. Those with the wanted names are. Else labels have a usual name or the values that recur most,
/// and the text is the longest column.
pub(super) fn guess(rows: &[Vec<String>], task: Task, columns: &[(&'static str, String)]) -> Vec<Option<usize>> {
    let first = &rows[0];
    let n_distinct = |at: &usize| match task {
        Task::Tagging => cells(rows, *at).flat_map(|cell| cell.split_whitespace()).collect::<HashSet<_>>().len(),
        _ => column(rows, *at).n_distinct(),
    };

    let mut meant: Vec<Option<usize>> =
        columns.iter().map(|(_, name)| first.iter().position(|cell| cell.trim() == name)).collect();
    let free = |meant: &[Option<usize>]| -> Vec<usize> {
        let is_free = |at: &usize| !meant.contains(&Some(*at)) && n_bytes(rows, *at) > 0 && !has_double(rows, *at);
        (0..first.len()).filter(is_free).collect()
    };

    if task == Task::Tagging
        && let Some(columns) = words_with_tags(rows, [meant[0], meant[1]])
    {
        meant[..2].copy_from_slice(&columns.map(Some));
    }
    if meant[1].is_none() && task == Task::Classification {
        meant[1] = mark_of_pair(rows, columns).filter(|at| free(&meant).contains(at));
    }
    if meant[1].is_none() {
        let free = free(&meant);

        // A single column is the text. Of two columns alike, the text stands first.
        if free.len() > 1 || meant[0].is_some() {
            let name = |at: usize| first[at].trim();
            let is_unlikely = |at: &usize| {
                let column = column(rows, *at);
                let is_other = column.is_id(name(*at)) || column.are_tags() || column.has_references();
                // A column with a few cells says something of a few rows.
                let is_told = is_of_measure(name(*at)) || is_of(Role::Context, name(*at)) || are_all_texts(rows, *at);
                let is_rare = 2 * column.n < rows.len() - 1;
                let is_no_class = task == Task::Classification && (is_other || is_told || is_rare);
                is_about(name(*at)) || is_no_class || n_distinct(at) == 1
            };
            let is_less_likely = |name: &str| task == Task::Classification && !is_likely_label(name);
            meant[1] = free
                .into_iter()
                .rev()
                .min_by_key(|at| {
                    let name = name(*at);
                    // Of several with numbers, such as `task_1` and `task_2`, the first counts.
                    let number = name.chars().last().and_then(|last| last.to_digit(10));
                    let by_name = (!is_label(name), !has_label_word(name), is_unlikely(at), is_less_likely(name));
                    (by_name, number, n_distinct(at))
                })
                .filter(|at| task == Task::Tagging || has_word_of_class(name(*at)) || !are_all_texts(rows, *at));
        }
    }
    if meant[0].is_none() {
        let is_text = |at: &usize| task == Task::Tagging || has_texts(rows, *at);
        meant[0] = free(&meant).into_iter().rev().max_by_key(|at| (is_text(at), n_bytes(rows, *at)));
    }
    meant
}

/// Returns the columns with the words of each row and with as many tags, of which fewer are different. Those that are `meant` stay.
fn words_with_tags(rows: &[Vec<String>], meant: [Option<usize>; 2]) -> Option<[usize; 2]> {
    let parts = |at: usize| -> Vec<Vec<String>> { cells(rows, at).map(|cell| words_of_cell(cell)).collect() };
    let columns: Vec<Vec<Vec<String>>> = (0..rows[0].len()).map(parts).collect();
    let n_distinct = |at: usize| columns[at].iter().flatten().collect::<HashSet<_>>().len();
    let fits = |word: usize, tag: usize| {
        let counts = || columns[word].iter().map(Vec::len).zip(columns[tag].iter().map(Vec::len));
        let are_several = 2 * counts().filter(|(words, _)| *words > 1).count() > counts().count();
        word != tag && are_several && counts().all(|(words, tags)| words == tags) && n_distinct(tag) < n_distinct(word)
    };
    let can_be = |column: usize, side: usize| meant[side].is_none_or(|meant| meant == column);
    let pairs = (0..columns.len()).flat_map(|word| (0..columns.len()).map(move |tag| [word, tag]));
    let found = pairs.filter(|[word, tag]| can_be(*word, 0) && can_be(*tag, 1) && fits(*word, *tag));
    let name = |at: usize| rows[0][at].trim();
    let is_named = |tag: usize| {
        is_label(name(tag))
            || !is_analysis(name(tag)) && words_of(name(tag)).iter().any(|word| TAGS.contains(&word.as_str()))
    };
    // Of several lists of tags, the one with most different ones says most. Parts of speech have fewer values than words.
    found.max_by_key(|[word, tag]| (is_named(*tag), n_distinct(*tag), n_distinct(*word)))
}
