//! A text with a list of questions about it and a list of as many answers: CoQA, QuAC and their relatives.

use serde_json::{Map, Value};

use super::super::lists::strings;
use super::{Foreign, WayOut};
use crate::corpus::fields::words_of;
use crate::corpus::jq::{in_jq, path_in_jq};
use crate::corpus::roles::{Role, is_of};

/// Fields of the text in an object with a question or an answer, best first.
const TEXTS: [&str; 6] = ["input_text", "text", "question", "answer", "span_text", "value"];

/// A list of texts in a row.
struct List {
    path: Vec<String>,
    /// How jq makes a text of one of them.
    text: &'static str,
    n: usize,
}

impl List {
    fn of(path: &[String], value: &Value) -> Option<Self> {
        let list = value.as_array().filter(|list| !list.is_empty())?;
        let found = |text| Some(Self { path: path.to_vec(), text, n: list.len() });
        if strings(value).is_some() {
            return found("");
        }
        if list.iter().all(|one| strings(one).is_some()) {
            return found("[0]");
        }
        let name =
            TEXTS.into_iter().find(|name| list.iter().all(|one| one.get(*name).is_some_and(Value::is_string)))?;
        found(name)
    }

    fn jq(&self) -> String {
        let path = path_in_jq(&self.path);
        match self.text {
            "" => path,
            "[0]" => format!("({path} | map(.[0]))"),
            name => format!("({path} | map({}))", in_jq(name)),
        }
    }
}

/// Returns the lists of a row and of its objects whose names have one of the words.
fn lists_in(row: &Map<String, Value>, words: &[&str]) -> Vec<List> {
    let has = |name: &str| words_of(name).iter().any(|word| words.contains(&word.as_str()));
    let inner = row.iter().filter_map(|(name, value)| Some((name, value.as_object()?))).flat_map(|(name, object)| {
        let lists = object.iter().filter(move |(inside, _)| has(name) || has(inside));
        lists.filter_map(move |(inside, value)| List::of(&[name.clone(), inside.clone()], value))
    });
    let outer = row
        .iter()
        .filter(|(name, _)| has(name))
        .filter_map(|(name, value)| List::of(std::slice::from_ref(name), value));
    outer.chain(inner).collect()
}

/// Rows with a text, and with questions about it that have an answer each.
pub(in crate::corpus::layout) fn asked_in_turns(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let row = rows.first()?;
    let lists =
        |row: &Map<String, Value>| (lists_in(row, &["question", "questions"]), lists_in(row, &["answer", "answers"]));
    let (questions, answers) = lists(row);
    let is_text =
        |name: &str, value: &Value| is_of(Role::Context, name) && value.as_str().is_some_and(|text| text.contains(' '));
    let mut contexts: Vec<&String> =
        row.iter().filter(|(name, value)| is_text(name, value)).map(|(name, _)| name).collect();
    contexts.sort_by_key(|name| std::cmp::Reverse(row[*name].as_str().map_or(0, str::len)));
    let context = contexts.first()?;
    // In all rows, both have the same length, and some have several questions.
    let length = |row: &Map<String, Value>, path: &[String]| {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(row.get(first)?, |value, name| value.get(name))?.as_array().map(Vec::len)
    };
    let fits = |question: &List, answer: &List| {
        let is_even = |row: &Map<String, Value>| length(row, &question.path) == length(row, &answer.path);
        question.path != answer.path && question.n == answer.n && rows.iter().all(is_even)
    };
    let (question, answer) = questions.iter().find_map(|question| {
        // Plain texts stand before lists of several answers.
        let found = answers.iter().filter(|answer| fits(question, answer)).min_by_key(|answer| answer.text == "[0]");
        Some((question, found?))
    })?;
    if !rows.iter().any(|row| length(row, &question.path).is_some_and(|n| n > 1)) {
        return None;
    }

    let program = format!(
        "{} as $text | {{messages: [[{}, {}] | transpose | to_entries[] | {{role: \"user\", content: ((if .key == 0 then $text + \"\\n\\n\" else \"\" \
         end) + .value[0])}}, {{role: \"assistant\", content: .value[1]}}]}}",
        in_jq(context),
        question.jq(),
        answer.jq()
    );
    Some(Foreign {
        name: format!(
            "questions in \"{}\" about the text in \"{context}\", with their answers in \"{}\"",
            question.path.join("."),
            answer.path.join(".")
        ),
        way_out: WayOut::Program("to make a conversation of the questions of each text".into(), program),
    })
}
