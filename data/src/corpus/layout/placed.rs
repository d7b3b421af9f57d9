//! Answers at the numbers of their words in a document, as Natural Questions has them, and answers by language, as MKQA has them: how they
//! become prompts and completions.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::extractive::{Extractive, first_text};
use super::parts::{leaves, question_of};
use crate::corpus::jq::{in_jq, path_in_jq};
use crate::corpus::roles::{Role, is_of};

/// Words of a document, at least.
const FEWEST_WORDS: usize = 20;
/// The fields of the first word of an answer, and of the one behind its last.
const PLACES: [&str; 2] = ["start_token", "end_token"];

/// Recognizes either layout.
pub(super) fn of(rows: &[Map<String, Value>]) -> Option<Extractive> {
    rows.iter().find_map(|row| by_places(row).or_else(|| by_language(row)))
}

/// Recognizes places of answers in the words of a document.
fn by_places(row: &Map<String, Value>) -> Option<Extractive> {
    let mut names = BTreeSet::new();
    row.values().for_each(|value| names_of_places(value, None, &mut names));
    let answer =
        names.iter().find(|name| name.contains("short")).or_else(|| names.iter().find(|name| !is_long(name)))?;
    let question = question_of(row, &|_| true)?;
    let words = words_in_jq(row, &question.path)?;

    // Tags of HTML are words of these documents.
    let places = format!(
        "def places(f): [.. | objects | f? // empty | .. | objects | select(has(\"{0}\")) | [.{0}, .{1}] | if .[0] | type == \"array\" then \
         transpose[] else . end | select(.[0] >= 0) | $words[.[0]:.[1]] | map(select(test(\"^<[^>]*>$\") | not)) | join(\" \")]",
        PLACES[0], PLACES[1]
    );
    let around = names.iter().find(|name| is_long(name));
    let prompt = match around {
        Some(around) => {
            let texts = format!("[places({})[0], {}]", in_jq(around), question.jq);
            format!("({texts} | map(strings | select(. != \"\")) | join(\"\\n\\n\"))")
        }
        None => question.jq.clone(),
    };
    let answers = format!("places({})[0]", in_jq(answer));
    Some(Extractive {
        fields: vec![question.name(), (*answer).to_owned()],
        program: format!(
            "{words} as $words | {places}; {{prompt: {prompt}, completion: {answers}}} | select(.completion | strings | length > 0)"
        ),
        left_out: Vec::new(),
    })
}

fn is_long(name: &str) -> bool {
    name.contains("long")
}

/// Collects the names of fields that hold places, the innermost ones. Candidates do not count.
fn names_of_places<'r>(value: &'r Value, name: Option<&'r str>, found: &mut BTreeSet<&'r str>) {
    match value {
        Value::Array(list) => list.iter().for_each(|value| names_of_places(value, name, found)),
        Value::Object(fields) if PLACES.iter().all(|place| fields.contains_key(*place)) => {
            found.extend(name.filter(|name| !name.contains("candidate")));
        }
        Value::Object(fields) => fields.iter().for_each(|(name, value)| names_of_places(value, Some(name), found)),
        _ => {}
    }
}

/// Returns the expression of jq for the words of the longest text that is not the question.
fn words_in_jq(row: &Map<String, Value>, question: &[String]) -> Option<String> {
    let of_question = |path: &[String]| path.first() == question.first();
    let is_markup = |path: &[String]| path.last().is_some_and(|name| name == "html");
    let n_words = |value: &Value| match value {
        Value::String(text) => text.split(' ').count(),
        Value::Array(list) if list.iter().all(Value::is_string) => list.len(),
        _ => 0,
    };
    let leaves = leaves(row).into_iter().filter(|(path, _)| !of_question(path) && !is_markup(path));
    let (path, value) =
        leaves.max_by_key(|(_, value)| n_words(value)).filter(|(_, value)| n_words(value) >= FEWEST_WORDS)?;
    let path = path_in_jq(&path);
    Some(if value.is_string() { format!("({path} | split(\" \"))") } else { path })
}

/// Recognizes an object with the answers of each language, next to one with the question in as many.
fn by_language(row: &Map<String, Value>) -> Option<Extractive> {
    let objects =
        || row.iter().filter_map(|(name, value)| Some((name, value.as_object().filter(|inside| inside.len() > 1)?)));
    let (answers, inside, by_language) =
        objects().filter(|(name, _)| is_of(Role::Answer, name)).find_map(|(name, found)| {
            let inside = found.values().find_map(first_text).filter(|inside| !inside.is_empty())?;
            Some((name, inside, found))
        })?;
    let are_questions = |inside: &Map<String, Value>| {
        inside.len() == by_language.len()
            && inside.iter().all(|(name, text)| text.is_string() && by_language.contains_key(name))
    };
    let (questions, _) = objects().find(|(_, inside)| are_questions(inside))?;
    Some(Extractive {
        fields: vec![questions.clone(), answers.clone()],
        program: format!(
            "{} as $questions | {} | to_entries[] | {{prompt: $questions[.key], completion: .value{inside}, language: .key}} | \
             select(all(.prompt, .completion; type == \"string\"))",
            in_jq(questions),
            in_jq(answers)
        ),
        left_out: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(row: &Value) -> Option<Extractive> {
        of(&[row.as_object().expect("an object").clone()])
    }

    #[test]
    fn a_document_with_places_has_its_answer_by_name() {
        let text = "a b c ".repeat(20);
        let words: Vec<&str> = text.split(' ').collect();
        let place = json!({"start_token": 3, "end_token": 5});
        let lists = json!({"start_token": [3], "end_token": [5], "text": ["x"]});
        for (row, wanted) in [
            (
                json!({"question_text": "where?", "document_text": text, "annotations": [{"long_answer": place, "short_answers": [place]}]}),
                "(.document_text | split(\" \")) as $words",
            ),
            (
                json!({"question": {"text": "where?", "tokens": words}, "document": {"title": "a title", "html": text.repeat(2), "tokens": {"token": words}},
                    "annotations": {"short_answers": [lists], "long_answer": [place]}}),
                ".document.tokens.token as $words",
            ),
        ] {
            let found = found(&row).expect("places of answers");
            assert!(found.program.starts_with(wanted), "{}", found.program);
            assert!(found.program.contains("completion: places(.short_answers)[0]"), "{}", found.program);
            assert!(found.program.contains("[places(.long_answer)[0], "), "{}", found.program);
        }
    }

    #[test]
    fn answers_by_language_need_questions_in_the_same_ones() {
        let answers = json!({"en": [{"text": "one"}], "it": [{"text": "uno"}]});
        let row = json!({"query": "how many?", "queries": {"en": "how many?", "it": "quanti?"}, "answers": answers});
        let found_row = found(&row).expect("answers by language");
        assert!(found_row.program.contains("completion: .value[0].text, language: .key"), "{}", found_row.program);
        assert!(found(&json!({"query": "how many?", "answers": answers})).is_none());
        assert!(
            found(&json!({"query": "how many?", "queries": {"en": "how many?", "de": "?"}, "answers": answers}))
                .is_none()
        );
        assert!(found(&json!({"question": "how many?", "answers": {"text": ["a"], "answer_start": [1]}})).is_none());
    }
}
