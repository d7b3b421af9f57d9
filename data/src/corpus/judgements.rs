//! Values that say how two texts belong together.

use super::columns::Column;
use super::fields::is_about;
use super::values::is_boolean;

/// Values that say that the second text follows from the first one, or does not.
const JUDGEMENTS: [&str; 6] = ["entailment", "neutral", "contradiction", "entails", "not_entailment", "contradicts"];

/// Whether all values are marks: 0 and 1, or true and false.
pub(super) fn are_marks<'v>(mut values: impl Iterator<Item = &'v str>) -> bool {
    values.all(|value| ["0", "1"].contains(&value.trim()) || is_boolean(value))
}

/// Whether one of the values says how two texts belong together.
pub(super) fn has_judgement<'v>(mut values: impl Iterator<Item = &'v str>) -> bool {
    values.any(|value| JUDGEMENTS.contains(&&*value.trim().to_lowercase()))
}

/// Whether a column with values that recur judges the two texts next to it. An unknown name is empty.
pub(super) fn judges(name: &str, column: &Column) -> bool {
    column.recurs() && !is_about(name) && (has_judgement(column.values()) || are_marks(column.values()))
}
