//! What is known of the fields of rows and the columns of tables, by their names and their values.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use super::class_texts::Strings;
use super::fields::{
    has_label_word, has_word_of_class, is_about, is_analysis, is_id_name, is_label, is_of_measure, is_of_persons,
    is_predicted, is_someone,
};
use super::path::value_at;
use super::roles::{Role, is_of};
use super::values;

/// Rows from which a field whose values recur is a class.
pub(super) const ENOUGH_ROWS: usize = 8;
/// Longest name of a class, in bytes.
const LONGEST_LABEL: usize = 60;
/// Words of a text, on average, which the name of a class has not.
const WORDS_OF_TEXT: usize = 4;
/// Longest example of a value, in characters.
const LONGEST_EXAMPLE: usize = 40;

/// What is known of a field.
#[derive(Default)]
pub(super) struct Column {
    pub(super) n_bytes: usize,
    pub(super) n_words: usize,
    longest: usize,
    pub(super) n: usize,
    distinct: HashSet<String>,
    /// The first value that is not blank.
    first: String,
    /// Values that are not texts by themselves: identifiers, parse trees, tags, marks, or nothing.
    n_others: usize,
    /// Values that are addresses or names of files.
    n_places: usize,
    n_dates: usize,
    pub(super) is_string: bool,
    pub(super) is_bool: bool,
}

impl Column {
    /// Describes the cells of a table, which are texts.
    pub(super) fn of_cells<'c>(cells: impl Iterator<Item = &'c str>) -> Self {
        let mut column = Self { is_string: true, ..Self::default() };
        cells.map(str::trim).filter(|cell| !cell.is_empty()).for_each(|cell| column.add_text(cell));
        column
    }

    /// Returns its different values, in any order.
    pub(super) fn values(&self) -> impl Iterator<Item = &str> + Clone {
        self.distinct.iter().map(String::as_str)
    }

    pub(super) fn n_distinct(&self) -> usize {
        self.distinct.len()
    }

    /// Whether all rows have the same text, such as the name of a role.
    pub(super) fn is_constant(&self) -> bool {
        self.n >= ENOUGH_ROWS && self.distinct.len() == 1
    }

    /// Whether few values recur in many rows.
    pub(super) fn recurs(&self) -> bool {
        self.n >= ENOUGH_ROWS && self.distinct.len() > 1 && self.distinct.len() * 4 <= self.n
    }

    /// Whether each row has a value of its own.
    pub(super) fn is_unique(&self) -> bool {
        self.n >= ENOUGH_ROWS && self.distinct.len() == self.n
    }

    /// Whether nearly each row has a value of its own, as no class has: another one in each row, or another long text in most.
    pub(super) fn is_varied(&self) -> bool {
        let are_long = self.n_words >= WORDS_OF_TEXT * self.n;
        self.is_unique() || self.n >= ENOUGH_ROWS && are_long && 2 * self.distinct.len() > self.n
    }

    /// Whether its values have several words.
    pub(super) fn has_words(&self) -> bool {
        2 * self.n_words > 3 * self.n
    }

    /// Whether it has no texts, by its values: each one is an identifier, a parse tree, or the like.
    pub(super) fn has_no_texts(&self) -> bool {
        self.n_others == self.n
    }

    /// Whether it says where or when something is: nearly all its values are addresses or names of files, or dates.
    pub(super) fn has_references(&self) -> bool {
        self.has_places() || self.has_dates()
    }

    /// Whether nearly all its values are addresses or names of files.
    pub(super) fn has_places(&self) -> bool {
        self.n > 0 && 10 * self.n_places >= 9 * self.n
    }

    /// Whether all its values are short and have two numbers or more, as dates have in any language.
    pub(super) fn can_be_dates(&self) -> bool {
        let n_numbers =
            |text: &String| text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()).count();
        self.is_short() && self.distinct.iter().all(|text| n_numbers(text) > 1)
    }

    /// Whether nearly all its values are dates.
    pub(super) fn has_dates(&self) -> bool {
        self.n > 0 && 10 * self.n_dates >= 9 * self.n
    }

    /// Whether it has texts or words to read: neither references nor numbers, and not the same in all rows.
    pub(super) fn can_be_read(&self, name: &str) -> bool {
        let is_value = self.has_no_texts() || self.has_references() || self.has_numbers() || self.numbers_rows();
        let is_other = is_value || self.is_constant();
        self.is_string && self.n > 0 && !is_other && !self.is_id(name)
    }

    /// Whether it says who wrote the text next to it: by its name, with values of one word.
    pub(super) fn names_someone(&self, name: &str) -> bool {
        // A name of something stands in one row.
        is_someone(name) && self.n_words < 2 * self.n && !self.is_unique()
    }

    /// Whether its values number their rows: one word with a number of its own, such as `US17`, or the number alone.
    pub(super) fn numbers_rows(&self) -> bool {
        let stem = |text: &'_ str| text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let first = &self.first[..stem(&self.first)];
        let is_number = |text: &String| text.len() > stem(text) && &text[..stem(text)] == first;
        self.is_unique() && !first.contains(char::is_whitespace) && self.distinct.iter().all(is_number)
    }

    /// Whether it has numbers alone.
    pub(super) fn has_numbers(&self) -> bool {
        self.n > 0 && self.distinct.iter().all(|text| values::number(text).is_some())
    }

    /// Whether the field called `name` numbers or names its row.
    pub(super) fn is_id(&self, name: &str) -> bool {
        self.distinct.iter().all(|text| values::is_id(text)) || is_id_name(name) && 2 * self.n_words < 3 * self.n
    }

    /// Whether its values are tags of words.
    pub(super) fn are_tags(&self) -> bool {
        self.n > 0 && self.distinct.iter().all(|text| values::are_tags(text))
    }

    /// Returns its first value, cut if it is long.
    pub(super) fn example(&self) -> String {
        let text = self.first.split_whitespace().collect::<Vec<_>>().join(" ");
        match text.char_indices().nth(LONGEST_EXAMPLE) {
            Some((end, _)) => format!("{:?}", format!("{} ...", &text[..end])),
            None => format!("{text:?}"),
        }
    }

    /// Whether its values are short enough for names of classes.
    pub(super) fn is_short(&self) -> bool {
        self.n > 0 && self.longest <= LONGEST_LABEL
    }

    /// Describes the field `name` as a column of strings.
    pub(super) fn strings<'a>(&self, name: &'a str) -> Strings<'a> {
        Strings { name, n_bytes: self.n_bytes, n_words: self.n_words, n: self.n, recurs: self.recurs() }
    }

    fn add(&mut self, text: &str, value: &Value) {
        // A blank cell says nothing of the others.
        if text.trim().is_empty() {
            return;
        }
        self.add_text(text);
        (self.is_string, self.is_bool) = (value.is_string(), value.is_boolean());
    }

    fn add_text(&mut self, text: &str) {
        self.n_bytes += text.len();
        self.n_words += text.split_whitespace().count();
        self.longest = self.longest.max(text.len());
        self.n += 1;
        let is_other = [values::is_nothing, values::is_boolean, values::is_id, values::is_parse, values::are_tags]
            .iter()
            .any(|is_other| is_other(text));
        self.n_others += usize::from(is_other);
        self.n_places += usize::from(values::is_place(text));
        self.n_dates += usize::from(values::is_date(text));
        if self.first.is_empty() {
            text.clone_into(&mut self.first);
        }
        self.distinct.insert(text.to_owned());
    }
}

/// Describes what rows have in one field.
pub(super) fn column_at(rows: &[Map<String, Value>], path: &str) -> Column {
    let mut column = Column::default();
    for value in rows.iter().filter_map(|row| value_at(row, path)) {
        match value {
            Value::String(text) => column.add(text, value),
            Value::Bool(_) | Value::Number(_) => column.add(&value.to_string(), value),
            _ => {}
        }
    }
    column
}

pub(super) fn columns_of(rows: &[Map<String, Value>]) -> BTreeMap<String, Column> {
    let mut columns = BTreeMap::new();
    rows.iter().for_each(|row| collect("", row, &mut columns));
    columns
}

fn collect(prefix: &str, row: &Map<String, Value>, columns: &mut BTreeMap<String, Column>) {
    for (key, value) in row {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        let text = match value {
            Value::Object(inner) => {
                collect(&name, inner, columns);
                continue;
            }
            Value::String(text) => text.clone(),
            Value::Bool(_) | Value::Number(_) if value.as_f64().is_none_or(|number| number.fract() == 0.0) => {
                value.to_string()
            }
            _ => continue,
        };
        columns.entry(name).or_default().add(&text, value);
    }
}

/// Says how sure it is that a field is the class; 0 for any other one.
pub(super) fn rank_of_class(name: &str, column: &Column) -> u8 {
    match name.rsplit('.').next().unwrap_or(name) {
        last if is_about(name) || is_of_measure(last) || is_of(Role::Context, last) || !column.is_short() => 0,
        _ if column.is_id(name) || column.are_tags() || column.has_references() => 0,
        _ if column.is_varied() && column.has_words() && !has_word_of_class(name) => 0,
        last if is_label(last) => 4,
        last if has_label_word(last) || name.split('.').any(is_label) => 3,
        _ if column.recurs() && !is_predicted(name) => 2,
        _ if column.recurs() => 1,
        _ => u8::from(column.is_bool),
    }
}

/// Different values from which a field of several words that recur is not a class.
const ENOUGH_VALUES: usize = 10;

/// Names the columns with texts that are not `read`, with an example of each; `None` if there are none.
pub(super) fn left_out<'c>(columns: impl Iterator<Item = (&'c str, &'c Column)>, read: &[&str]) -> Option<String> {
    let can_be = |name: &str, column: &Column| {
        let is_title = name.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case("title"));
        let is_other =
            is_about(name) && !is_title || is_of_persons(name) || column.names_someone(name) || is_analysis(name);
        // One word of one row says nothing.
        let is_text = column.has_words() || column.n_distinct() > 1;
        let recurs = column.recurs() && (!column.has_words() || column.n_distinct() < ENOUGH_VALUES);
        column.can_be_read(name) && is_text && !is_other && !recurs && !read.contains(&name)
    };
    let found: Vec<(&str, &Column)> = columns.filter(|(name, column)| can_be(name, column)).collect();
    (!found.is_empty()).then(|| with_examples(found.into_iter()))
}

/// Names fields with an example of each: `"a" ("the cat ...")`.
pub(super) fn with_examples<'c>(columns: impl Iterator<Item = (&'c str, &'c Column)>) -> String {
    columns.map(|(name, column)| format!("\"{name}\" ({})", column.example())).collect::<Vec<_>>().join(", ")
}

/// Says that one of three fields or more can be the class, with an example of each. `None` for fewer.
pub(super) fn choose_class(found: &[(&str, &Column)]) -> Option<String> {
    let is_mark = |value: &str| ["0", "1"].contains(&value) || values::is_boolean(value);
    let are_marks = found.iter().all(|(_, column)| column.values().all(is_mark));
    let several = if are_marks { "; several labels of one text are not supported" } else { "" };
    (found.len() > 2).then(|| {
        format!(
            "write for NAME the field with the class, which the names do not tell: {}{several}",
            with_examples(found.iter().copied())
        )
    })
}
