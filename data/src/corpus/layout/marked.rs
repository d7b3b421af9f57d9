//! Several answers to a question, with a list of marks that says which ones are right.

use serde_json::{Map, Value};

use super::parts::{Part, contexts_of, leaves, left_out, question_of};
use crate::corpus::jq::path_in_jq;
use crate::corpus::path::value_at;
use crate::corpus::text::rates;

/// Answers with marks, and the program of jq that makes prompts and completions of the right ones.
pub(super) struct Marked {
    pub(super) answers: String,
    pub(super) marks: String,
    pub(super) program: String,
    /// Fields that are in neither prompt nor completion.
    pub(super) left_out: Vec<String>,
}

/// Recognizes a list of texts next to a list of as many Booleans. With the name of a rating, marks of 0 and 1 count, too.
pub(super) fn of(rows: &[Map<String, Value>]) -> Option<Marked> {
    let row = rows.iter().find(|row| answers_in(row, rows).is_some())?;
    let (answers, marks) = answers_in(row, rows)?;
    let is_free = |path: &[String]| *path != answers && *path != marks;
    let question = question_of(row, &is_free)?;
    let mut parts = contexts_of(row, &|path| is_free(path) && path != question.path);
    let mut used = vec![answers.clone(), marks.clone(), question.path.clone()];
    used.extend(parts.iter().map(|part| part.path.clone()));
    parts.push(question);

    let texts: Vec<String> = parts.iter().map(Part::bracketed).collect();
    let is_set = value_at(row, &marks.join(".")).and_then(|list| list.get(0)).is_some_and(Value::is_boolean);
    let program = format!(
        "({}) as $prompt | [{}, {}] | transpose[] | select(.[1] == {} and .[0] != \"\") | {{prompt: $prompt, completion: .[0]}}",
        texts.join(" + \"\\n\\n\" + "),
        path_in_jq(&answers),
        path_in_jq(&marks),
        if is_set { "true" } else { "1" }
    );
    Some(Marked { answers: answers.join("."), marks: marks.join("."), program, left_out: left_out(row, &used) })
}

/// Returns the paths of answers and their marks in a row, if they fit in all rows that have both.
fn answers_in(row: &Map<String, Value>, rows: &[Map<String, Value>]) -> Option<(Vec<String>, Vec<String>)> {
    let lists: Vec<(Vec<String>, &Value)> =
        leaves(row).into_iter().filter(|(_, value)| value.as_array().is_some_and(|list| list.len() > 1)).collect();
    let all = |value: &Value, fits: &dyn Fn(&Value) -> bool| value.as_array().is_some_and(|list| list.iter().all(fits));
    let is_text = |value: &Value| value.as_str().is_some_and(|text| text.trim().contains(char::is_whitespace));
    let are_marks = |path: &[String], value: &Value| {
        let is_rating = || path.last().is_some_and(|name| rates(name));
        all(value, &Value::is_boolean) || all(value, &|value| matches!(value.as_u64(), Some(0 | 1))) && is_rating()
    };
    let n = |row: &Map<String, Value>, path: &[String]| Some(value_at(row, &path.join("."))?.as_array()?.len());
    let fit = |answers: &[String], marks: &[String]| {
        rows.iter().all(|row| n(row, answers).zip(n(row, marks)).is_none_or(|(answers, marks)| answers == marks))
    };
    lists
        .iter()
        .filter(|(_, value)| {
            all(value, &Value::is_string) && value[0].as_str().is_some_and(|_| all_texts(value, &is_text))
        })
        .find_map(|(answers, _)| {
            let (marks, _) = lists.iter().find(|(path, value)| are_marks(path, value) && fit(answers, path))?;
            Some((answers.clone(), marks.clone()))
        })
}

/// Whether most elements of a list are texts.
fn all_texts(list: &Value, is_text: &dyn Fn(&Value) -> bool) -> bool {
    list.as_array().is_some_and(|list| 2 * list.iter().filter(|value| is_text(value)).count() > list.len())
}
