//! The parts of a prompt in a row: what is asked, and the texts that the question is about, wherever they lie.

use serde_json::{Map, Value};

use crate::corpus::fields;
use crate::corpus::jq::{in_jq, path_in_jq};
use crate::corpus::roles::{Role, is_aside, is_of, parts_of, rank};

/// Words of a text, on average, rather than of a name.
const WORDS_OF_TEXT: usize = 3;

/// Names of the text in an object with a question.
const TEXTS: [&str; 4] = ["text", "full_text", "content", "body"];

/// A text of a row, and the expression of jq for it.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) path: Vec<String>,
    pub(super) jq: String,
    /// Whether the expression needs no brackets.
    is_plain: bool,
}

impl Part {
    /// Returns a text of the row itself.
    pub(super) fn of_text(name: &str) -> Self {
        Self { path: vec![name.to_owned()], jq: in_jq(name), is_plain: true }
    }

    pub(super) fn name(&self) -> String {
        self.path.join(".")
    }

    /// Whether it is one text rather than a list.
    pub(super) fn is_text(&self) -> bool {
        self.is_plain
    }

    /// Returns the expression, in brackets if it has operators.
    pub(super) fn bracketed(&self) -> String {
        if self.is_plain { self.jq.clone() } else { format!("({})", self.jq) }
    }
}

/// A field of a row without objects around: a text, a number or a list.
pub(super) fn leaves(row: &Map<String, Value>) -> Vec<(Vec<String>, &Value)> {
    fn collect<'r>(path: &mut Vec<String>, row: &'r Map<String, Value>, found: &mut Vec<(Vec<String>, &'r Value)>) {
        for (name, value) in row {
            path.push(name.clone());
            match value {
                Value::Object(inside) => collect(path, inside, found),
                value => found.push((path.clone(), value)),
            }
            path.pop();
        }
    }
    let mut found = Vec::new();
    collect(&mut Vec::new(), row, &mut found);
    found
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.trim().is_empty())
}

fn n_words(text: &str) -> usize {
    text.split_whitespace().count()
}

/// Returns the field with the question of a row, if `is_free`.
pub(super) fn question_of(row: &Map<String, Value>, is_free: &dyn Fn(&[String]) -> bool) -> Option<Part> {
    let asks = |path: &[String], value: &Value| {
        let name = path.last().map_or("", String::as_str);
        // The text in an object is what the object is called.
        let name = match path {
            [.., outer, inner] if TEXTS.contains(&inner.as_str()) => outer,
            _ => name,
        };
        (is_free(path) && is_text(value) && !is_aside(name)).then(|| rank(Role::Question, name)).flatten()
    };
    let found = leaves(row).into_iter().filter_map(|(path, value)| Some((asks(&path, value)?, path)));
    // `question` stands before `formatted_question`.
    let n_words = |path: &[String]| path.last().map_or(0, |name| parts_of(name).len());
    let (_, path) = found.min_by_key(|(rank, path)| (path.len(), *rank, n_words(path)))?;
    Some(Part { jq: path_in_jq(&path), path, is_plain: true })
}

/// Returns the texts that a question is about: fields with such a name, or inside of an object with one.
pub(super) fn contexts_of(row: &Map<String, Value>, is_free: &dyn Fn(&[String]) -> bool) -> Vec<Part> {
    let found = leaves(row).into_iter().filter_map(|(path, value)| context(path, value, is_free));
    without_parts(row, found.collect())
}

/// Leaves out texts that other ones contain.
fn without_parts(row: &Map<String, Value>, parts: Vec<Part>) -> Vec<Part> {
    let text = |part: &Part| {
        let (first, rest) = part.path.split_first()?;
        rest.iter().try_fold(row.get(first)?, |value, name| value.get(name))?.as_str().map(str::trim)
    };
    let is_contained = |part: &Part| {
        let others = parts.iter().filter(|other| other.path != part.path).filter_map(text);
        text(part).is_some_and(|text| others.into_iter().any(|other| other.len() > text.len() && other.contains(text)))
    };
    let kept: Vec<bool> = parts.iter().map(|part| !is_contained(part)).collect();
    parts.into_iter().zip(kept).filter(|(_, is_kept)| *is_kept).map(|(part, _)| part).collect()
}

fn context(path: Vec<String>, value: &Value, is_free: &dyn Fn(&[String]) -> bool) -> Option<Part> {
    let (last, around) = path.split_last()?;
    let is_named = is_of(Role::Context, last) || around.is_empty() && fields::is_text(last);
    // A text inside of an unknown object is one, too.
    let is_unknown = !around.is_empty() && value.is_string() && !path.iter().any(|name| has_other_role(name));
    let is_within = around.iter().any(|name| is_of(Role::Context, name)) || is_unknown;
    if !is_free(&path) || !is_named && !is_within || is_aside(last) && !(is_within && last == "title") {
        return None;
    }

    let jq = path_in_jq(&path);
    let are_long = |n_words: usize, n: usize| is_named || n_words >= WORDS_OF_TEXT * n.max(1);
    match value {
        Value::String(text) if !text.trim().is_empty() && (are_long(n_words(text), 1) || last == "title") => {
            Some(Part { path, jq, is_plain: true })
        }
        Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_string) => {
            let words = list.iter().filter_map(Value::as_str).map(n_words).sum();
            let jq = format!("{jq} | join(\"\\n\\n\")");
            are_long(words, list.len()).then_some(Part { path, jq, is_plain: false })
        }
        // Titles with lists of sentences, as HotpotQA has them.
        Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_array) => {
            let has_text = n_words(&value.to_string()) >= WORDS_OF_TEXT * list.len();
            let jq = format!("{jq} | map(flatten | map(strings) | join(\" \")) | join(\"\\n\\n\")");
            has_text.then_some(Part { path, jq, is_plain: false })
        }
        Value::Array(list) => {
            let first = list.first()?.as_object()?;
            let is_read = |(name, value): &(&String, &Value)| is_text(value) && (!is_aside(name) || *name == "title");
            let mut names: Vec<&String> = first.iter().filter(is_read).map(|(name, _)| name).collect();
            names.sort_by_key(|name| *name != "title");
            let has_text =
                first.iter().any(|(_, value)| value.as_str().is_some_and(|text| n_words(text) >= WORDS_OF_TEXT));
            let texts: Vec<String> = names.iter().map(|name| in_jq(name)).collect();
            let jq = format!("{jq} | map({} | strings) | join(\"\\n\\n\")", texts.join(", "));
            has_text.then_some(Part { path, jq, is_plain: false })
        }
        _ => None,
    }
}

/// Whether a name says that the field is a question or an answer, or about the row.
fn has_other_role(name: &str) -> bool {
    const OTHERS: [&str; 14] = [
        "meta",
        "metadata",
        "info",
        "source",
        "provenance",
        "annotation",
        "annotations",
        "extra",
        "explanation",
        "rationale",
        "reasoning",
        "cot",
        "feedback",
        "translation",
    ];
    let roles = [Role::Question, Role::Option, Role::Key, Role::Answer, Role::Right, Role::Wrong, Role::Guess];
    roles.into_iter().any(|role| is_of(role, name)) || parts_of(name).iter().any(|word| OTHERS.contains(&word.as_str()))
}

/// Returns the fields of a row that no path of `used` leads into, without what only describes it.
pub(super) fn left_out(row: &Map<String, Value>, used: &[Vec<String>]) -> Vec<String> {
    let is_used = |path: &[String]| used.iter().any(|other| path.starts_with(other) || other.starts_with(path));
    let has_letters =
        |value: &Value| value.to_string().contains(char::is_alphabetic) && !value.is_boolean() && !value.is_null();
    let found = leaves(row).into_iter().filter(|(path, value)| {
        let name = path.last().map_or("", String::as_str);
        !is_used(path) && has_letters(value) && !fields::is_about(name) && !is_aside(name)
    });
    found.map(|(path, _)| path.join(".")).collect()
}

/// Returns the texts of several words in a row without usual names, such as a sentence with a gap.
pub(super) fn sentences_of(row: &Map<String, Value>, is_free: &dyn Fn(&[String]) -> bool) -> Vec<Part> {
    let is_sentence = |(path, value): &(Vec<String>, &Value)| {
        let is_long = value.as_str().is_some_and(|text| n_words(text) >= WORDS_OF_TEXT);
        is_free(path) && is_long && !is_aside(path.last().map_or("", String::as_str))
    };
    let found = leaves(row).into_iter().filter(is_sentence);
    without_parts(row, found.map(|(path, _)| Part { jq: path_in_jq(&path), path, is_plain: true }).collect())
}
