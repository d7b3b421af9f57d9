//! Texts to which somebody has replied, where the reply lies inside of an object or most texts lack one: reviews with the answer of a shop.

use std::path::Path;

use serde_json::{Map, Value};

use super::RowReader;
use super::parts::{leaves, left_out};
use super::said::without;
use crate::corpus::columns::{Column, columns_of};
use crate::corpus::fields::words_of;
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::roles::is_reply;
use crate::corpus::text::TextFormat;
use crate::formats::FileFormat;

/// Words that end the name of any text.
const TEXTS: [&str; 7] = ["body", "text", "content", "value", "message", "comment", "msg"];
/// Words of names of a text to which somebody replies, best first.
const ASKING: [&str; 9] =
    ["review", "question", "comment", "complaint", "feedback", "message", "content", "body", "text"];
/// Words of names of what stands above such a text.
const HEADS: [&str; 3] = ["title", "subject", "headline"];

/// A text and the reply to it.
pub(super) struct Replied {
    text: String,
    reply: String,
    program: String,
    left_out: Vec<String>,
}

fn last_word(name: &str) -> String {
    words_of(name).pop().unwrap_or_default()
}

/// Recognizes rows with one text and one reply that [`TEXTS`] names as one, as `developer_response.body`.
pub(super) fn of(rows: &[Map<String, Value>]) -> Option<Replied> {
    let columns = columns_of(rows);
    let is_text =
        |column: &Column| column.is_string && column.has_words() && !column.has_no_texts() && !column.has_references();
    let texts = || columns.iter().filter(|(_, column)| is_text(column));
    let replies = |name: &String| is_reply(name) && TEXTS.contains(&last_word(name).as_str());
    let mut found = texts().filter(|(name, _)| replies(name));
    let (reply, column) = found.next().filter(|_| found.next().is_none())?;
    // Replies to all texts are questions and answers, unless they lie inside of objects.
    let (n, n_rows) = (column.n, rows.len());
    let row = rows.iter().find(|row| leaves(row).iter().any(|(path, _)| path.join(".") == *reply))?;
    let path = leaves(row).into_iter().map(|(path, _)| path).find(|path| path.join(".") == *reply)?;
    if path.len() == 1 && 10 * n > 9 * n_rows {
        return None;
    }

    let asks = |word: &str| {
        let named =
            |name: &String| words_of(name).iter().any(|other| other == word) && !is_reply(name) && !name.contains('.');
        texts()
            .filter(|(name, column)| named(name) && !column.is_constant() && column.n >= n)
            .max_by_key(|(_, column)| column.n_bytes)
    };
    let (text, _) = ASKING.iter().find_map(|word| asks(word))?;
    let head = texts()
        .map(|(name, _)| name)
        .find(|name| *name != text && !name.contains('.') && HEADS.contains(&last_word(name).as_str()));
    let in_jq = |name: &String| path_in_jq(std::slice::from_ref(name));
    let prompt = match head {
        Some(head) => {
            format!("([{}, {}] | map(strings | select(. != \"\")) | join(\"\\n\"))", in_jq(head), in_jq(text))
        }
        None => in_jq(text),
    };
    let used: Vec<Vec<String>> =
        [Some(text), head].into_iter().flatten().map(|name| vec![name.clone()]).chain([path.clone()]).collect();
    Some(Replied {
        text: text.clone(),
        reply: reply.clone(),
        program: format!(
            "{{prompt: {prompt}, completion: {}}} | select((.completion | strings | . != \"\") and (.prompt | strings | . != \"\"))",
            path_in_jq(&path)
        ),
        left_out: left_out(row, &used),
    })
}

impl RowReader<'_> {
    /// Says how texts and replies become prompts and completions.
    pub(super) fn of_replied(&self, found: &Replied, (file, format): (&Path, FileFormat), they_have: &str) -> String {
        format!(
            "{}: its rows are texts in \"{}\" with the reply to each in \"{}\"{they_have}\nto make prompts and completions of them, without texts \
             that have no reply: {}{}\n{}",
            file.display(),
            found.text,
            found.reply,
            jq::command(file, format, &found.program),
            without(&found.left_out),
            self.read_with("chat", TextFormat::Chat)
        )
    }
}
