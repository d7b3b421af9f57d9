//! Rows with several ways to say the same in a list: all of a class, as the intents of a chatbot, or all with the same answers.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::RowReader;
use super::lists::lists_in;
use super::wrapped::WrappedList;
use crate::corpus::columns::{Column, columns_of};
use crate::corpus::fields::{has_label_word, is_about, is_label, words_of};
use crate::corpus::jq::{self, in_jq, path_in_jq};
use crate::corpus::text::{Task, TextFormat};
use crate::formats::FileFormat;

/// Words of names of lists with ways to say the same, whatever stands next to them.
const WAYS: [&str; 9] =
    ["patterns", "phrases", "phrasings", "variants", "variations", "paraphrases", "samples", "training", "synonyms"];
/// The same for lists that may also have the parts of a text.
const MORE_WAYS: [&str; 9] =
    ["examples", "utterances", "questions", "queries", "prompts", "inputs", "sentences", "texts", "instructions"];
/// Words of names of lists with the answers to them.
const REPLIES: [&str; 9] =
    ["responses", "response", "answers", "answer", "replies", "reply", "outputs", "completions", "reactions"];
/// Words of names of lists with several questions that have one answer.
const QUESTIONS: [&str; 5] = ["questions", "queries", "prompts", "utterances", "inputs"];
/// Rows from which a class of its own in each row is not chance.
const ENOUGH_ROWS: usize = 3;

/// Rows with such a list.
pub(super) struct Alternatives {
    texts: String,
    replies: Option<String>,
    /// Whether one reply, which is a text rather than a list, belongs to all texts.
    is_one_reply: bool,
    label: Option<String>,
    /// Whether each reply belongs to the text at the same place.
    is_aligned: bool,
}

/// Whether the name has one of the words.
pub(super) fn has_word(name: &str, words: &[&str]) -> bool {
    words_of(name).iter().any(|word| words.contains(&word.as_str()))
}

/// Whether a list of this name has texts that do not follow each other in a talk.
pub(super) fn is_of_alternatives(name: &str) -> bool {
    has_word(name, &WAYS) || has_word(name, &MORE_WAYS) || has_word(name, &REPLIES)
}

/// Recognizes rows with a list of ways to say the same, next to replies or a class.
pub(super) fn of(rows: &[Map<String, Value>]) -> Option<Alternatives> {
    let fields = || rows.first().into_iter().flat_map(Map::keys);
    let find = |words: &[&str]| fields().find(|name| has_word(name, words) && !lists_in(rows, name).is_empty());
    let columns = columns_of(rows);
    let is_class = |(name, column): &(&String, &Column)| {
        column.is_string && column.is_short() && (is_label(name) || has_label_word(name))
    };
    let is_own = |column: &Column| column.n >= ENOUGH_ROWS && column.n_distinct() == column.n;
    let label = columns.iter().find(is_class).map(|(name, column)| (name.clone(), is_own(column)));

    let certain = find(&WAYS);
    let listed = find(&REPLIES).filter(|name| Some(*name) != certain);
    let is_text =
        |name: &&String| columns.get(*name).is_some_and(|column| column.is_string && 2 * column.n > rows.len());
    let one = || fields().filter(is_text).find(|name| has_word(name, &REPLIES) && !is_about(name));
    // A list of several texts next to one answer has several questions.
    let asks = |name: &&String| lists_in(rows, name).iter().any(|list| list.len() > 1);
    let has_questions = certain.into_iter().chain(find(&QUESTIONS)).any(|name| asks(&name));
    let replies = listed.or_else(|| one().filter(|_| has_questions));
    let is_one_reply = listed.is_none() && replies.is_some();
    let texts = certain.or_else(|| find(&MORE_WAYS).filter(|name| Some(*name) != replies));
    // Where each row is a class of its own, a list under any other name has examples of it, too.
    let is_own_class = label.as_ref().is_some_and(|(_, is_own)| *is_own);
    let other =
        || fields().find(|name| Some(*name) != replies && lists_in(rows, name).iter().any(|list| list.len() > 1));
    let texts = texts.or_else(|| other().filter(|_| is_own_class))?;

    // The text that all of them are about belongs to each.
    let has_text = columns.iter().any(|(name, column)| {
        let is_label = label.as_ref().is_some_and(|(label, _)| label == name);
        let is_reply = replies == Some(name);
        column.is_string && column.has_words() && !column.is_constant() && !is_label && !is_reply && !is_about(name)
    });
    let is_sure = certain.is_some() && label.is_some() || is_own_class || replies.is_some();
    let lengths = |name: &String| -> Vec<usize> {
        rows.iter().map(|row| row.get(name).and_then(Value::as_array).map_or(0, Vec::len)).collect()
    };
    let is_aligned = replies.is_some_and(|replies| {
        let varies = lengths(texts).into_iter().collect::<HashSet<_>>().len() > 1;
        certain.is_none() && lengths(texts) == lengths(replies) && (varies || !is_own_class)
    });
    (is_sure && !has_text).then(|| Alternatives {
        texts: texts.clone(),
        replies: replies.cloned(),
        is_one_reply,
        label: label.map(|(name, _)| name),
        is_aligned,
    })
}

impl RowReader<'_> {
    /// Says how such rows become a row for each text, where this reader does not read them. They may lie in a list inside of one object.
    pub(super) fn advice_for_alternatives(
        &self,
        (file, format): (&Path, FileFormat),
        rows: &[Map<String, Value>],
        wrapped: Option<&WrappedList>,
        is_read: bool,
    ) -> Option<String> {
        // A template that the user has set reads a list.
        if is_read && !lists_in(rows, &self.labels.text_field).iter().any(|list| list.len() > 1) {
            return None;
        }
        let inside = wrapped.map(WrappedList::rows).filter(|rows| !rows.is_empty());
        let found = of(inside.unwrap_or(rows))?;
        let begin = wrapped.filter(|_| inside.is_some()).map_or(String::new(), |list| format!("{} | ", list.in_jq()));
        let command = |program: &str| jq::command(file, format, &format!("{begin}{program}"));

        let Alternatives { texts, replies, is_one_reply, label, is_aligned } = &found;
        let path = path_in_jq(std::slice::from_ref(texts));
        let classify = label.as_ref().map(|label| {
            let program = format!("{{text: {path}[], label: {}}}", in_jq(label));
            let read = match self.task {
                Task::Classification => self.read_classes(),
                _ => "and read rows.jsonl with --task classification".to_owned(),
            };
            format!("to make a row of each text with \"{label}\" as its class: {}\n{read}", command(&program))
        });
        let answer = replies.as_ref().map(|replies| {
            let replies = in_jq(replies);
            let program = match is_aligned {
                _ if *is_one_reply => {
                    format!("{{prompt: {path}[]?, completion: {replies}}} | select((.prompt | strings | . != \"\") and .completion)")
                }
                true => format!(
                    "[{path}, {replies}] | transpose[] | select(.[0] and .[1]) | {{prompt: .[0], completion: .[1]}}"
                ),
                false => format!("{{prompt: {path}[], completion: {replies}[]}}"),
            };
            let first = match is_aligned {
                _ if *is_one_reply => String::new(),
                true => String::new(),
                false => format!(" (to keep the first answer alone, write {replies}[0] for {replies}[])"),
            };
            let read = self.read_with("chat", TextFormat::Chat);
            format!("to make prompts and completions of them{first}: {}\n{read}", command(&program))
        });

        let can_classify = self.task == Task::Classification || self.other_tasks.contains(&Task::Classification);
        let classify = classify.filter(|_| can_classify);
        let lines: Vec<String> = match self.task {
            Task::Classification => classify.into_iter().collect(),
            Task::Lm | Task::Translation => answer.into_iter().chain(classify).collect(),
            Task::Mlm | Task::Tagging => return None,
        };
        // A language model that has no answers to learn may read the texts as they are.
        if lines.is_empty() || self.task == Task::Lm && replies.is_none() {
            return None;
        }
        let with = [replies, label].into_iter().flatten().map(|name| format!("\"{name}\"")).collect::<Vec<_>>();
        Some(format!(
            "{}: its rows have lists of texts in \"{texts}\" that belong to the same {}, and a row for each text is wanted\n{}",
            file.display(),
            with.join(" and "),
            lines.join("\n")
        ))
    }
}
