//! Whether the cells of a first row are names of columns: by their words, and by how the rows below differ.

use super::role::Role;

/// Following rows that show how the first one differs.
const ENOUGH_ROWS: usize = 5;
/// Following rows of which all differ from the first one by more than chance.
const MANY_ROWS: usize = 8;
/// The most words of a name, those in brackets included.
const MOST_WORDS: usize = 4;
/// The same of names like titles, which have units and remarks, and their longest one in bytes.
const MOST_WORDS_OF_TITLE: usize = 10;
const LONGEST: usize = 80;

/// Whether the cells could be names of columns, and a column has a digit in each of the `others` but none in its name:
/// dates, amounts or numbers below a word.
pub(super) fn differs_in_kind(names: &[&str], others: &[Vec<String>]) -> bool {
    let all_have_digits = |column: usize| others.iter().all(|row| row.get(column).is_some_and(|cell| has_digit(cell)));
    let is_name = |name: &&str| !has_digit(name) && name.split_whitespace().count() <= MOST_WORDS && is_plain(name);
    others.len() >= ENOUGH_ROWS && names.iter().all(is_name) && (0..names.len()).any(all_have_digits)
}

/// Whether a plain name stands above a column of numbers, dates or ids, all `others` of it. The cells next to it may be whole sentences,
/// as the questions of a survey are.
pub(super) fn is_above_numbers(names: &[&str], others: &[Vec<String>]) -> bool {
    let is_number = |cell: &str| has_digit(cell) && !cell.split_whitespace().any(is_long_word);
    let are_numbers = |at: usize| others.iter().all(|row| row.get(at).is_some_and(|cell| is_number(cell)));
    let is_name = |name: &str| {
        let stands_for_nothing = ["n/a", "na", "nan", "nil", "none", "null", "unknown"];
        let has_letter = name.contains(char::is_alphabetic);
        has_letter && !has_digit(name) && is_plain(name) && !stands_for_nothing.contains(&name.to_lowercase().as_str())
    };
    let numbered = || (0..names.len()).filter(|at| are_numbers(*at)).map(|at| names[at]);
    others.len() >= MANY_ROWS
        && numbered().any(is_name)
        && !numbered().any(|name| name.starts_with(|c: char| c.is_numeric()))
}

/// Whether the cells are sentences that end in a mark with which no other cell of their columns ends, as questions above answers do.
pub(super) fn end_differently(names: &[&str], others: &[Vec<String>]) -> bool {
    let mark = |cell: &str| cell.chars().next_back().filter(|c| "?!.:？。！：".contains(*c));
    let is_like = |at: usize, row: &Vec<String>| row.get(at).is_none_or(|cell| mark(cell.trim()) == mark(names[at]));
    let differs = |at: usize| mark(names[at]).is_some() && !others.iter().any(|row| is_like(at, row));
    let is_short = |at: usize| names[at].split_whitespace().count() <= MOST_WORDS && is_plain(names[at]);
    let at_most = |n: usize| names.iter().all(|name| name.len() <= n);
    let mut all = 0..names.len();
    others.len() >= MANY_ROWS
        && at_most(2 * LONGEST)
        && all.clone().any(differs)
        && all.all(|at| differs(at) || is_short(at))
}

/// Whether the cells are single short words, apart from a remark in brackets, and no other row consists of such.
pub(super) fn may_be_names(names: &[&str], others: &[Vec<String>]) -> bool {
    let is_word = |cell: &str| {
        let word = without_remark(cell);
        !word.is_empty() && !word.contains(char::is_whitespace) && is_plain(cell)
    };
    let is_like_names = |row: &Vec<String>| row.iter().all(|cell| is_word(cell.trim()));
    others.len() >= ENOUGH_ROWS && names.iter().all(|name| is_word(name)) && !others.iter().any(is_like_names)
}

/// Whether the cells could be names, perhaps with digits and units, and differ from all of the `others`: words above numbers, or two
/// properties of a text that no other cell of its column has.
pub(super) fn look_different(names: &[&str], others: &[Vec<String>]) -> bool {
    let is_name = |name: &&str| {
        let n_words = name.split_whitespace().count();
        let is_text = |c: char| ",;!?\"'“”".contains(c);
        let begins = name.chars().next().is_some_and(|c| c.is_alphabetic() || c == '#');
        begins
            && name.chars().count() > 1
            && n_words <= MOST_WORDS_OF_TITLE
            && name.len() <= LONGEST
            && !name.contains(is_text)
            && !(name.ends_with('.') && name.contains(' '))
    };
    let are_alike = |at: usize| (0..at).any(|other| names[other] == names[at]);
    if others.len() < MANY_ROWS || !names.iter().all(is_name) || (0..names.len()).any(are_alike) {
        return false;
    }

    let columns: Vec<Vec<&str>> = (0..names.len())
        .map(|at| {
            others
                .iter()
                .filter_map(|row| row.get(at))
                .map(|cell| cell.trim())
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect();
    let is_sentence = |name: &str, cells: &[&str]| name.ends_with('.') && cells.iter().any(|cell| cell.ends_with('.'));
    let recurs = |(name, cells): (&&str, &Vec<&str>)| cells.contains(name) || is_sentence(name, cells);
    let is_number = |cell: &&&str| cell.parse::<f64>().is_ok();
    let above_numbers = |cells: &Vec<&str>| cells.len() >= MANY_ROWS && cells.iter().all(|cell| is_number(&cell));
    if names.iter().zip(&columns).any(recurs) {
        return false;
    }
    let n_other =
        |(name, cells): (&&str, &Vec<&str>)| if cells.len() < MANY_ROWS { 0 } else { n_differences(name, cells) };
    columns.iter().any(above_numbers) || names.iter().zip(&columns).map(n_other).sum::<usize>() > 1
}

/// Counts the properties of a cell that all `others` lack, or that it lacks and all `others` have.
fn n_differences(name: &str, others: &[&str]) -> usize {
    let is_upper = |c: char| c.is_uppercase();
    let properties: [&dyn Fn(&str) -> bool; 5] = [
        &|cell| cell.contains(char::is_whitespace),
        &has_digit,
        &|cell| cell.starts_with(is_upper),
        &|cell| cell.contains(char::is_lowercase),
        &|cell| cell.contains(|c: char| !c.is_alphanumeric() && !c.is_whitespace()),
    ];
    let differs = |has: &&&dyn Fn(&str) -> bool| others.iter().all(|other| has(other) != has(name));
    let length = |cell: &str| cell.chars().count();
    let is_longer = others.iter().all(|other| length(name) > 2 * length(other));
    let is_shorter = others.iter().all(|other| 2 * length(name) < length(other));
    properties.iter().filter(differs).count() + usize::from(is_longer || is_shorter)
}

/// Whether the cells are short enough for names, and no column has digits in all rows, the first one included.
pub(super) fn can_be_names(names: &[&str], others: &[Vec<String>]) -> bool {
    let is_name = |name: &&str| name.split_whitespace().count() <= MOST_WORDS && is_plain(name);
    let have_digits = |column: usize| {
        has_digit(names[column])
            && !others.is_empty()
            && others.iter().all(|row| row.get(column).is_some_and(|cell| has_digit(cell)))
    };
    names.iter().all(is_name) && !(0..names.len()).any(have_digits)
}

/// Whether a cell is a name that columns usually have.
pub(super) fn has_usual_name(names: &[&str]) -> bool {
    names.iter().any(|name| Role::of(name) != Role::Unknown)
}

/// Whether two cells or more are names that columns usually have.
pub(super) fn looks_like_header(names: &[&str]) -> bool {
    names.iter().filter(|name| Role::of(name) != Role::Unknown).count() >= 2
}

/// Whether a word has letters only, and more than a month, a day or a time zone has.
fn is_long_word(word: &str) -> bool {
    word.chars().count() > 3 && word.chars().all(char::is_alphabetic)
}

fn has_digit(text: &str) -> bool {
    text.contains(|c: char| c.is_numeric())
}

/// Whether a cell is short and has letters without punctuation, as names of columns have. Spreadsheets add brackets, slashes and signs.
fn is_plain(cell: &str) -> bool {
    // A letter of another encoding is a letter, too.
    let is_usual = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_-.\u{fffd}()[]{}/&%#$€£+*°".contains(c);
    let is_abbreviation = cell.chars().count() <= 4 && !cell.contains(char::is_whitespace);
    cell.chars().count() <= 32 && cell.chars().all(is_usual) && (is_abbreviation || !cell.ends_with('.'))
}

/// Returns a cell without the brackets at its end: `Date` of `Date (text)`.
fn without_remark(cell: &str) -> &str {
    let remark = [('(', ')'), ('[', ']')].into_iter().find(|(_, close)| cell.ends_with(*close));
    remark.and_then(|(open, _)| cell.rsplit_once(open)).map_or(cell, |(name, _)| name.trim())
}
