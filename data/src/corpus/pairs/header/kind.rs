//! Whether the cells of a first row are names of columns: by their words, and by how the rows below differ.

use super::role::Role;

/// Following rows that show how the first one differs.
const ENOUGH_ROWS: usize = 5;
/// The most words of a name, those in brackets included.
const MOST_WORDS: usize = 4;

/// Whether the cells could be names of columns, and a column has a digit in each of the `others` but none in its name:
/// dates, amounts or numbers below a word.
pub(super) fn differs_in_kind(names: &[&str], others: &[Vec<String>]) -> bool {
    let all_have_digits = |column: usize| others.iter().all(|row| row.get(column).is_some_and(|cell| has_digit(cell)));
    let is_name = |name: &&str| !has_digit(name) && name.split_whitespace().count() <= MOST_WORDS && is_plain(name);
    others.len() >= ENOUGH_ROWS && names.iter().all(is_name) && (0..names.len()).any(all_have_digits)
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
