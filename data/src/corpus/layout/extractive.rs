//! Questions about a text, with the places of the answers in it: how they become prompts and completions.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::parts::{Part, contexts_of, leaves, left_out, question_of};
use crate::corpus::columns::ENOUGH_ROWS;
use crate::corpus::fields::{ANSWERS, is_analysis, names_behind};
use crate::corpus::jq::{in_jq, path_in_jq};
use crate::corpus::path::value_at;
use crate::corpus::roles::{Role, is_aside, is_changed_into, is_of};

/// Fields of the text in an object with an answer.
const TEXTS: [&str; 7] = ["text", "answer", "answers", "span", "value", "aliases", "answer_text"];

/// Questions about a text, and the program of jq that makes prompts and completions of them.
pub(super) struct Extractive {
    pub(super) fields: Vec<String>,
    pub(super) program: String,
    /// Fields that are in neither prompt nor completion.
    pub(super) left_out: Vec<String>,
}

/// Recognizes rows with a question and answers that are not a plain text, or with a text that [`ANSWERS`] would lose.
pub(super) fn of(rows: &[Map<String, Value>]) -> Option<Extractive> {
    rows.iter().take(20).find_map(|row| of_row(row, rows).or_else(|| of_two_lists(row)).or_else(|| of_paragraphs(row)))
}

/// Recognizes such a row, which is one of `rows`.
fn of_row(row: &Map<String, Value>, rows: &[Map<String, Value>]) -> Option<Extractive> {
    let question = question_of(row, &|_| true)?;
    let mut contexts = contexts_of(row, &|path| path != question.path);
    let is_context = |path: &[String]| contexts.iter().any(|part| part.path == path);
    let of_answers = |(path, _): &(Vec<String>, &Value)| {
        let name = path.last().map_or("", String::as_str);
        *path != question.path
            && (is_of(Role::Answer, name) || is_changed_into(&question.name(), name) == Some(true))
            && !is_of(Role::Guess, name)
            && !is_aside(name)
            && !is_analysis(name)
            && !is_context(path)
    };

    let answers = answers_in(row).into_iter().filter(of_answers);
    let found = answers.filter_map(|(path, value)| Some((path, first_text(value)?, value)));
    let found = found.filter(|(path, inside, value)| {
        let path = format!("{}{inside}", path.join("."));
        !are_words_of_text(row, value) && !is_always_the_same(rows, &question.name(), &path)
    });
    // A text of several words tells more than a list or an object, and these more than a word.
    let (answer, inside, _) = found.max_by_key(|(path, inside, value)| {
        let name = path.last().map_or("", String::as_str);
        let is_long = value.as_str().is_some_and(|text| text.split_whitespace().nth(1).is_some());
        (is_long, !inside.is_empty(), name.starts_with("answer"))
    })?;

    let names = [question.name(), answer.join(".")];
    let is_known = ANSWERS.contains(&[names[0].as_str(), names[1].as_str()]);
    let behind = names_behind(&names[0]);
    let are_kept = || contexts.iter().all(|part| part.is_text() && behind.contains(&part.name().as_str()));
    if inside.is_empty() && (contexts.is_empty() || is_known && are_kept()) {
        return None;
    }

    let mut used: Vec<Vec<String>> = contexts.iter().map(|part| part.path.clone()).collect();
    used.extend([question.path.clone(), answer.clone()]);
    let is_blank = |part: &Part, row: &Map<String, Value>| {
        value_at(row, &part.name())
            .is_none_or(|value| value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty()))
    };
    let may_lack = rows.iter().any(|row| contexts.iter().any(|part| part.is_text() && is_blank(part, row)));
    contexts.push(question);
    let texts: Vec<String> = contexts.iter().map(Part::bracketed).collect();
    let prompt = match texts.as_slice() {
        [question] => question.clone(),
        texts if may_lack => format!("([{}] | map(strings | select(. != \"\")) | join(\"\\n\\n\"))", texts.join(", ")),
        texts => format!("({})", texts.join(" + \"\\n\\n\" + ")),
    };
    Some(Extractive {
        fields: contexts.iter().map(Part::name).chain([answer.join(".")]).collect(),
        program: format!(
            "{{prompt: {prompt}, completion: {}{inside}}} | select(.completion | strings | length > 0)",
            path_in_jq(&answer)
        ),
        left_out: left_out(row, &used),
    })
}

/// Whether a list has most words of another field of its row, one by one: no answer in other words.
fn are_words_of_text(row: &Map<String, Value>, list: &Value) -> bool {
    let words: Option<Vec<&str>> = list.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    let Some(words) = words.filter(|words| words.len() > 2 && !words.iter().any(|word| word.trim().contains(' ')))
    else {
        return false;
    };
    let n_letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).count();
    let n_in_words: usize = words.iter().map(|word| n_letters(word)).sum();
    let has_them = |text: &str| {
        let lower = text.to_lowercase();
        let n_found = words.iter().filter(|word| lower.contains(&word.to_lowercase())).count();
        4 * n_found >= 3 * words.len() && 2 * n_in_words >= n_letters(text)
    };
    leaves(row).iter().any(|(_, value)| value.as_str().is_some_and(has_them))
}

/// Whether nearly all rows have the same text at the path of an answer, to different questions: nothing to learn.
fn is_always_the_same(rows: &[Map<String, Value>], question: &str, answer: &str) -> bool {
    let answer = answer.replace('[', ".").replace(']', "");
    let counts = |path: &str| {
        let mut counts = BTreeMap::<&str, usize>::new();
        for text in rows.iter().filter_map(|row| value_at(row, path)?.as_str()) {
            *counts.entry(text.trim()).or_default() += 1;
        }
        counts
    };
    let answers = counts(&answer);
    let n: usize = answers.values().sum();
    n >= ENOUGH_ROWS && answers.values().any(|same| 10 * same >= 9 * n) && counts(question).len() > 1
}

/// Returns the fields of a row, and of its objects without answers.
fn answers_in(row: &Map<String, Value>) -> Vec<(Vec<String>, &Value)> {
    row.iter().map(|(name, value)| (vec![name.clone()], value)).collect()
}

/// Paragraphs with lists of questions, as the files of SQuAD have them.
fn of_paragraphs(row: &Map<String, Value>) -> Option<Extractive> {
    let first = |value: &'_ Value| value.as_array().and_then(|list| list.first()).and_then(Value::as_object).cloned();
    let questions = |row: &Map<String, Value>| {
        let context = row
            .iter()
            .find(|(name, value)| is_of(Role::Context, name) && value.is_string())
            .map(|(name, _)| name.clone())?;
        let (list, question) = row.iter().find_map(|(name, value)| Some((name.clone(), first(value)?)))?;
        let of_question = of_row(&question, &[]).or_else(|| {
            let mut whole = question.clone();
            whole.insert(context.clone(), "a text".into());
            of_row(&whole, &[])
        })?;
        Some((context, list, of_question))
    };

    let (outer, (context, list, inner)) = match questions(row) {
        Some(found) => (String::new(), found),
        None => {
            row.iter().find_map(|(name, value)| Some((format!("{}[] | ", in_jq(name)), questions(&first(value)?)?)))?
        }
    };
    let with_context = inner.program.replacen("{prompt: ", "{prompt: ($context + \"\\n\\n\" + ", 1);
    let with_context = match inner.fields.contains(&context) {
        true => inner.program.replace(&format!("({} + ", in_jq(&context)), "($context + "),
        false => with_context.replacen(", completion: ", "), completion: ", 1),
    };
    Some(Extractive {
        fields: vec![context.clone(), list.clone()],
        left_out: Vec::new(),
        program: format!("{outer}{} as $context | {}[] | {with_context}", in_jq(&context), in_jq(&list)),
    })
}

/// A text with a list of questions about it and another list with their answers, as CoQA has them: a conversation, because a question may be
/// about the answers before. The objects of both lists have their text under the same name.
fn of_two_lists(row: &Map<String, Value>) -> Option<Extractive> {
    let found = |row: &Map<String, Value>| {
        let context = row.iter().find(|(name, value)| is_of(Role::Context, name) && value.is_string())?.0.clone();
        // Their names are plural.
        let list = |role: Role| {
            let is_list = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(Value::is_object));
            row.iter()
                .find(|(name, value)| is_of(role, name.trim_end_matches('s')) && is_list(value))
                .map(|(name, _)| name)
        };
        let (questions, answers) = (list(Role::Question)?, list(Role::Answer)?);
        let [first, second] = [questions, answers].map(|name| row[name].as_array());
        let (first, second) = (first?, second?);
        let is_text = |(name, value): &(&String, &Value)| {
            value.is_string() && second.first().is_some_and(|answer| answer.get(*name).is_some_and(Value::is_string))
        };
        let text = first.first()?.as_object()?.iter().find(is_text)?.0.clone();
        (first.len() == second.len()).then(|| (context, [questions.clone(), answers.clone()], text))
    };
    let inside = |(name, value): (&String, &Value)| {
        Some((format!("{}[] | ", in_jq(name)), found(value.as_array()?.first()?.as_object()?)?))
    };
    let (outer, (context, [questions, answers], text)) =
        found(row).map(|found| (String::new(), found)).or_else(|| row.iter().find_map(inside))?;

    let text = in_jq(&text);
    let program = format!(
        "{outer}{} as $context | {{messages: [[{}, {}] | transpose | to_entries[] | {{role: \"user\", content: ((if .key == 0 then $context + \
         \"\\n\\n\" else \"\" end) + .value[0]{text})}}, {{role: \"assistant\", content: .value[1]{text}}}]}}",
        in_jq(&context),
        in_jq(&questions),
        in_jq(&answers)
    );
    Some(Extractive { fields: vec![context, questions, answers], left_out: Vec::new(), program })
}

/// Returns the path to the first text of answers; an empty one for a text. Answers may be missing in the first row.
pub(super) fn first_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Some(String::new()),
        Value::Array(list) => match list.first()? {
            Value::String(_) => Some("[0]".to_owned()),
            first => first_text(first).filter(|path| !path.is_empty()).map(|path| format!("[0]{path}")),
        },
        Value::Object(fields) => TEXTS.into_iter().find_map(|name| {
            let path = first_text(fields.get(name)?)?;
            Some(format!(".{name}{path}"))
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_never_the_text_it_stands_in() {
        let context = r#""context": "a long text", "question": "who?""#;
        for (row, wanted) in [
            (format!(r#"{{{context}, "answers": {{"text": ["b"], "answer_start": [1]}}}}"#), ".answers.text[0]"),
            (format!(r#"{{{context}, "answers": [{{"text": "b", "start": 1}}]}}"#), ".answers[0].text"),
            (format!(r#"{{{context}, "answer": {{"text": "b"}}}}"#), ".answer.text"),
            (format!(r#"{{{context}, "answers": ["b", "c"]}}"#), ".answers[0]"),
            (
                format!(r#"{{{context}, "detected_answers": [{{"text": "b", "char_spans": [1]}}]}}"#),
                ".detected_answers[0].text",
            ),
            (format!(r#"{{{context}, "answer_text": "b", "answer_start": 2}}"#), ".answer_text"),
        ] {
            let row: Map<String, Value> = serde_json::from_str(&row).expect("an object");
            let found = of(&[row]).expect("questions about a text").program;
            let prompt = r#"{prompt: (.context + "\n\n" + .question), completion: "#;
            assert!(found.starts_with(&format!("{prompt}{wanted}}}")), "{found}");
        }
    }

    #[test]
    fn files_of_paragraphs_and_lists_of_texts_get_a_program_too() {
        for (row, wanted) in [
            (
                r#"{"title": "x", "paragraphs": [{"context": "t", "qas": [{"question": "q", "answers": [{"text": "b"}]}]}]}"#,
                r#".paragraphs[] | .context as $context | .qas[] | {prompt: ($context + "\n\n" + .question), completion: .answers[0].text}"#,
            ),
            (
                r#"{"query": "q", "passages": ["a", "b"], "answers": ["c"]}"#,
                r#"(.passages | join("\n\n")) + "\n\n" + .query"#,
            ),
            (r#"{"question": "q", "answers": ["c", "d"]}"#, "{prompt: .question, completion: .answers[0]}"),
            (
                r#"{"question": "q", "passage": "t", "answer": "c"}"#,
                r#"(.passage + "\n\n" + .question), completion: .answer}"#,
            ),
        ] {
            let row: Map<String, Value> = serde_json::from_str(row).expect("an object");
            let found = of(&[row]).expect("questions").program;
            assert!(found.contains(wanted), "{found}");
        }
    }

    #[test]
    fn rows_that_kiln_reads_and_other_rows_are_none() {
        for row in [
            r#"{"question": "q", "context": "t", "answer": "c"}"#,
            r#"{"question": "q", "answer": "c", "id": 3}"#,
            r#"{"question": "q", "passage": "t", "answer": true}"#,
            r#"{"question": "q", "context": "t", "label": "x"}"#,
            r#"{"text": "a", "answers": 3}"#,
        ] {
            let row: Map<String, Value> = serde_json::from_str(row).expect("an object");
            assert!(of(&[row]).is_none());
        }
    }
}
