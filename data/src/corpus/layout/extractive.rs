//! Questions about a text, with the places of the answers in it: how they become prompts and completions.

use serde_json::{Map, Value};

use crate::corpus::fields::{ANSWERS, names_behind};
use crate::corpus::jq::in_jq;
use crate::corpus::text::words_of;

/// Words of fields with the question.
const QUESTIONS: [&str; 5] = ["question", "query", "prompt", "instruction", "ask"];
/// Words of fields with the text that has the answer.
const CONTEXTS: [&str; 13] = [
    "context",
    "contexts",
    "passage",
    "passages",
    "paragraph",
    "paragraphs",
    "document",
    "documents",
    "evidence",
    "background",
    "article",
    "story",
    "excerpt",
];
/// Words of fields with answers.
const OF_ANSWERS: [&str; 5] = ["answer", "answers", "span", "spans", "solution"];
/// Fields of the text in an object with an answer.
const TEXTS: [&str; 7] = ["text", "answer", "answers", "span", "value", "aliases", "answer_text"];

/// Whether a field has a text to look answers up in.
pub(super) fn is_context(name: &str) -> bool {
    words_of(name).iter().any(|word| CONTEXTS.contains(&word.as_str()))
}

/// Questions about a text, and the program of jq that makes prompts and completions of them.
pub(super) struct Extractive {
    pub(super) fields: Vec<String>,
    pub(super) program: String,
}

/// Recognizes rows with a question and answers that are not a plain text, or with a text that [`ANSWERS`] would lose.
pub(super) fn of(rows: &[Map<String, Value>]) -> Option<Extractive> {
    rows.iter().take(20).find_map(|row| of_row(row).or_else(|| of_paragraphs(row)))
}

fn of_row(row: &Map<String, Value>) -> Option<Extractive> {
    let has_word = |name: &str, list: &[&str]| words_of(name).iter().any(|word| list.contains(&word.as_str()));
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.trim().is_empty());
    let question = row.iter().find(|(name, value)| has_word(name, &QUESTIONS) && is_text(value) && !is_id(name));
    let (question, _) = question?;
    let context = row.iter().find_map(|(name, value)| {
        let of_texts = value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_string));
        let path = if of_texts { format!("({} | join(\"\\n\\n\"))", in_jq(name)) } else { in_jq(name) };
        (name != question && is_context(name) && !is_id(name) && (of_texts || is_text(value))).then_some((name, path))
    });
    let of_answers = |(name, _): &(&String, &Value)| {
        *name != question
            && has_word(name, &OF_ANSWERS)
            && !is_id(name)
            && Some(*name) != context.as_ref().map(|(name, _)| *name)
    };
    let found = row.iter().filter(of_answers).filter_map(|(name, value)| Some((name, first_text(value)?)));
    // A list or an object tells more than a text.
    let (answer, path) = found.max_by_key(|(name, path)| (!path.is_empty(), name.starts_with("answer")))?;

    let is_known = ANSWERS.contains(&[question.as_str(), answer.as_str()]);
    let keeps = |name: &str| names_behind(question).contains(&name);
    if path.is_empty() && (context.is_none() || is_known && context.as_ref().is_none_or(|(name, _)| keeps(name))) {
        return None;
    }
    let prompt = match &context {
        Some((_, context)) => format!("({context} + \"\\n\\n\" + {})", in_jq(question)),
        None => in_jq(question),
    };
    let names = context.into_iter().map(|(name, _)| name).chain([question, answer]);
    Some(Extractive {
        fields: names.cloned().collect(),
        program: format!(
            "{{prompt: {prompt}, completion: {}{path}}} | select(.completion | strings | length > 0)",
            in_jq(answer)
        ),
    })
}

/// Paragraphs with lists of questions, as the files of SQuAD have them.
fn of_paragraphs(row: &Map<String, Value>) -> Option<Extractive> {
    let first = |value: &'_ Value| value.as_array().and_then(|list| list.first()).and_then(Value::as_object).cloned();
    let questions = |row: &Map<String, Value>| {
        let context =
            row.iter().find(|(name, value)| is_context(name) && value.is_string()).map(|(name, _)| name.clone())?;
        let (list, question) = row.iter().find_map(|(name, value)| Some((name.clone(), first(value)?)))?;
        let of_question = of_row(&question).or_else(|| {
            let mut whole = question.clone();
            whole.insert(context.clone(), "a text".into());
            of_row(&whole)
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
        program: format!("{outer}{} as $context | {}[] | {with_context}", in_jq(&context), in_jq(&list)),
    })
}

fn is_id(name: &str) -> bool {
    words_of(name)
        .iter()
        .any(|word| ["id", "ids", "type", "types", "title", "start", "end", "key"].contains(&word.as_str()))
}

/// Returns the path to the first text of answers; an empty one for a text. Answers may be missing in the first row.
fn first_text(value: &Value) -> Option<String> {
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
