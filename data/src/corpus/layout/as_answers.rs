//! Texts with names of their own as questions and answers, where the names or the number of the texts tell which is which.

use std::path::Path;

use serde_json::{Map, Value};

use super::preferred::is_answer_word;
use super::recognize::{is_name_of_someone, texts_in};
use super::{Layout, RowReader};
use crate::corpus::columns::column_at;
use crate::corpus::fields::{is_about, is_id_name, words_of};
use crate::corpus::reviews::{is_reply, is_review};
use crate::corpus::roles::{Role, is_of, rank};
use crate::corpus::share::listed;
use crate::corpus::text::{Conversation, Rating, Task, TextFormat};
use crate::error::{Error, Result};

impl RowReader<'_> {
    /// Takes two texts with names of their own for a question and its answer, where a language model reads them. Of several texts the
    /// names must tell which two they are.
    ///
    /// # Errors
    ///
    /// If a conversation is wanted and the rows have several texts of which no name tells what they are.
    pub(super) fn as_answers(
        &self,
        file: &Path,
        layout: Layout,
        (rows, order): (&[Map<String, Value>], &[String]),
    ) -> Result<Layout> {
        let is_chat = self.text.format == TextFormat::Chat;
        let keeps_task = is_chat || !self.other_tasks.contains(&Task::Translation);
        if self.task != Task::Lm || !keeps_task {
            return Ok(layout);
        }
        // Numbers, of telephones say, answer nothing, unless they are called an answer.
        let is_text = |name: &String| {
            let is_called = is_of(Role::Answer, name) || is_of(Role::Question, name);
            is_called || !column_at(rows, name).has_numbers()
        };
        let texts: Vec<String> = texts_in(rows, order).into_iter().filter(is_text).collect();
        let layout = match layout {
            Layout::Pairs { source, target } if is_chat && !is_text(&source) => Layout::Texts { field: target },
            Layout::Pairs { source, target } if is_chat && !is_text(&target) => Layout::Texts { field: source },
            other => other,
        };
        let pair = match layout.clone() {
            Layout::Pairs { source, target } => Some([source, target]),
            Layout::Labelled { text, label } if is_chat => {
                let others = texts.iter().filter(|name| **name != label).count();
                // Marks, states and names answer nothing, unless they are called an answer.
                let column = column_at(rows, &label);
                let is_word = !column.has_words() && (column.recurs() || is_id_name(&label) || is_about(&label));
                let is_mark = column.has_no_texts() || is_word && !is_of(Role::Answer, &label);
                if others > 1 { two_of(&texts) } else { Some([text, label]).filter(|_| !is_mark) }
            }
            Layout::Texts { .. } if is_chat => two_of(&texts),
            _ => return Ok(layout),
        };

        let is_turned = |[one, other]: &[String; 2]| is_reply(one) && is_review(other);
        let pair = pair.map(|pair| if is_turned(&pair) { [pair[1].clone(), pair[0].clone()] } else { pair });
        let field = |[question, answer]: &[String; 2]| format!("{question},{answer}");
        if pair.as_ref().is_some_and(|pair| are_rated(rows, pair, &field(pair))) {
            return Ok(Layout::Rated);
        }
        let is_read = |pair: &[String; 2]| {
            let is_row =
                |row: &Map<String, Value>| Conversation::of(row, &field(pair)).is_ok() && Rating::of(row).is_none();
            !is_of(Role::Context, &pair[1]) && !is_name_of_someone(rows, &pair[1]) && rows.iter().any(is_row)
        };
        if let Some([question, answer]) = pair.filter(is_read) {
            return Ok(Layout::Answers { question, answer });
        }
        if !is_chat || texts.len() < 3 {
            return Ok(layout);
        }
        let names = listed(&texts.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>());
        Err(Error::BadRows(format!(
            "{}: its rows have texts in {names}, and their names do not say which one is the answer: name two of them with --set \
             data.text.field=QUESTION,ANSWER, or write rows with a prompt of several texts and its completion",
            file.display()
        )))
    }
}

/// Whether some rows rate the answer of a pair, in a field other than both. Others may have no rating.
fn are_rated(rows: &[Map<String, Value>], pair: &[String; 2], field: &str) -> bool {
    let is_rated = |row: &Map<String, Value>| {
        let mut rest = row.clone();
        rest.retain(|name, _| !pair.contains(name));
        // The names of both tell of what it is.
        Rating::of(row).is_some() && Rating::of(&rest).is_some() && Conversation::of(row, field).is_ok()
    };
    !is_name_of_someone(rows, &pair[1]) && rows.iter().any(is_rated)
}

/// Returns a question and its answer among texts: of two both, and of more those that are called so.
fn two_of(texts: &[String]) -> Option<[String; 2]> {
    if let [one, other] = texts {
        return Some([one.clone(), other.clone()]);
    }
    let is_answer = |name: &str| is_of(Role::Answer, name) || words_of(name).iter().any(|word| is_answer_word(word));
    let only = |fits: &dyn Fn(&str) -> bool| {
        let mut found = texts.iter().filter(|name| fits(name));
        found.next().filter(|_| found.next().is_none()).cloned()
    };
    let answer = only(&|name| is_answer(name) && !is_of(Role::Guess, name))?;
    // "question" says more than "input".
    let best = texts.iter().filter(|name| **name != answer).filter_map(|name| rank(Role::Question, name)).min()?;
    let question = only(&|name| rank(Role::Question, name) == Some(best) && *name != answer)?;
    Some([question, answer])
}
