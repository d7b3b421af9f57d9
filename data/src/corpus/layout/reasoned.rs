//! Questions whose answer has a field of its own, next to the reasoning that leads to it: rationales and chains of thought.

use std::path::Path;

use serde_json::{Map, Value};

use super::RowReader;
use super::parts::{Part, contexts_of, left_out, question_of};
use super::said::without;
use crate::corpus::asked::is_answer;
use crate::corpus::columns::{Column, columns_of};
use crate::corpus::fields::{ANSWERS, words_of};
use crate::corpus::jq::{self, in_jq};
use crate::corpus::roles::{Role, is_of};
use crate::corpus::text::{Task, TextFormat};
use crate::formats::FileFormat;

/// Words of names of the reasoning.
const REASONS: [&str; 12] = [
    "rationale",
    "rationales",
    "reasoning",
    "cot",
    "thought",
    "thoughts",
    "thinking",
    "think",
    "explanation",
    "justification",
    "reason",
    "reasons",
];
/// Names of a question that usual names of questions lack.
const SOURCES: [&str; 4] = ["source", "src", "text", "task"];

/// A question, the reasoning and the answer.
pub(super) struct Reasoned {
    reason: String,
    answer: String,
    question: Part,
    /// Whether the question has all that is asked.
    is_alone: bool,
    program: String,
    left_out: Vec<String>,
}

fn is_reason(name: &str) -> bool {
    let words = words_of(name);
    words.iter().any(|word| REASONS.contains(&word.as_str())) || words.join("_") == "chain_of_thought"
}

/// Recognizes rows with a question, one text of reasoning and one answer.
pub(super) fn of(rows: &[Map<String, Value>]) -> Option<Reasoned> {
    let columns = columns_of(rows);
    let is_top = |(name, _): &(&String, &Column)| !name.contains('.');
    let only = |fits: &dyn Fn(&String, &Column) -> bool| {
        let mut found =
            columns.iter().filter(is_top).filter(|(name, column)| 2 * column.n > rows.len() && fits(name, column));
        found.next().filter(|_| found.next().is_none()).map(|(name, _)| name.clone())
    };
    let reason = only(&|name, column| column.is_string && column.has_words() && is_reason(name))?;
    let is_other = |name: &str| is_reason(name) || is_of(Role::Guess, name) || is_of(Role::Wrong, name);
    let answers = |name: &String, column: &Column| {
        !is_other(name) && !column.is_constant() && (is_answer(name) || is_of(Role::Answer, name))
    };
    let answer = only(&answers)?;

    let row = rows.first()?;
    let is_free = |path: &[String]| path.len() == 1 && path[0] != reason && path[0] != answer && !is_other(&path[0]);
    let source = || {
        let name = SOURCES
            .iter()
            .find(|name| columns.get(**name).is_some_and(|column| column.is_string && column.has_words()))?;
        Some(Part::of_text(name))
    };
    let question = question_of(row, &is_free).or_else(source)?;
    let contexts = contexts_of(row, &|path| is_free(path) && path != question.path);
    let parts: Vec<&Part> = contexts.iter().chain([&question]).collect();
    let texts: Vec<String> = parts.iter().map(|part| part.bracketed()).collect();
    let prompt = match texts.as_slice() {
        [question] => question.clone(),
        texts => format!("([{}] | map(strings | select(. != \"\")) | join(\"\\n\\n\"))", texts.join(", ")),
    };
    let used: Vec<Vec<String>> =
        parts.iter().map(|part| part.path.clone()).chain([vec![reason.clone()], vec![answer.clone()]]).collect();
    Some(Reasoned {
        program: format!(
            "{{prompt: {prompt}, completion: ([{}, {}] | map(select(. != null and . != \"\") | tostring) | join(\"\\n\\n\"))}} | select(.completion \
             != \"\")",
            in_jq(&reason),
            in_jq(&answer)
        ),
        left_out: left_out(row, &used),
        is_alone: contexts.is_empty(),
        reason,
        answer,
        question,
    })
}

impl RowReader<'_> {
    /// Says how the model learns the reasoning and the answer, and how it learns the answer alone.
    pub(super) fn of_reasoned(&self, found: &Reasoned, (file, format): (&Path, FileFormat), they_have: &str) -> String {
        let (question, answer) = (found.question.name(), &found.answer);
        let is_chat = self.task == Task::Lm && self.text.format == TextFormat::Chat;
        let alone = match (is_chat, found.is_alone) {
            (_, false) => String::new(),
            (true, _) if ANSWERS.contains(&[question.as_str(), answer.as_str()]) => String::new(),
            (true, _) => {
                format!("\nto learn the answer alone: --set data.text.field={question},{answer}")
            }
            (false, _) if self.task == Task::Translation => {
                format!(
                    "\nto learn the answer alone, read them as pairs with {}",
                    self.pair_flags(&question, answer).join(" ")
                )
            }
            (false, _) => String::new(),
        };

        format!(
            "{}: its rows are questions with the answer in \"{answer}\" and the reasoning before it in \"{}\"{they_have}\nto make prompts, and \
             completions of the reasoning and the answer: {}{}\n{}{alone}",
            file.display(),
            found.reason,
            jq::command(file, format, &found.program),
            without(&found.left_out),
            self.read_with("chat", TextFormat::Chat)
        )
    }
}
