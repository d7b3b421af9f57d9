//! Rows with several answers of which one is better, under any names: how they become preferences.
//!
//! | rows | found by |
//! |---|---|
//! | a good and a bad answer | opposite words in their names (`preferred_output`, `non_preferred_output`) |
//! | a bad answer next to a conversation or an answer | a word in its name (`rejected_response`) |
//! | numbered answers | names that differ in a number or a letter (`response_a`, `response_b`) |
//! | a list of answers | a name of answers, and ratings of them, a mark, or the number of the best one |

mod listed;
mod names;
mod numbered;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

pub(super) use self::names::is_answer_word;
use self::names::{Side, side_of};
use super::foreign::names_facts;
use crate::corpus::fields::words_of;
use crate::corpus::jq::{in_jq, path_in_jq};
use crate::corpus::path::value_at;
use crate::corpus::text::is_system;
use crate::corpus::values;

/// Words of the fields with the question, best first.
const PROMPTS: [&str; 16] = [
    "prompt",
    "instruction",
    "question",
    "query",
    "input",
    "user",
    "human",
    "ask",
    "messages",
    "conversations",
    "conversation",
    "history",
    "context",
    "post",
    "request",
    "problem",
];
/// Words of a field that names the better answer.
const CHOICES: [&str; 22] = [
    "better",
    "best",
    "winner",
    "win",
    "wins",
    "preferred",
    "preference",
    "prefer",
    "prefers",
    "chosen",
    "choice",
    "selected",
    "select",
    "pick",
    "picked",
    "favored",
    "favorite",
    "verdict",
    "judgment",
    "judgement",
    "decision",
    "vote",
];

/// Rows with several answers.
pub(super) struct Preferred {
    /// The fields with the answers.
    pub(super) fields: Vec<String>,
    /// The program of jq that makes preferences of the rows.
    pub(super) program: Option<String>,
    /// What the user must know or do, where the names do not tell which answer is better.
    pub(super) open: Option<String>,
    /// New names of three columns, where these suffice.
    pub(super) renamed: Option<[String; 3]>,
}

/// A field of a row, perhaps inside of others.
#[derive(Clone)]
struct Field<'a> {
    path: Vec<String>,
    value: &'a Value,
}

impl Field<'_> {
    fn name(&self) -> String {
        self.path.join(".")
    }

    /// The words of its own name, with numbers as words.
    fn words(&self) -> Vec<String> {
        let words = words_of(self.path.last().map_or("", String::as_str));
        let split = |word: String| {
            let stem = word.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
            let number = word[stem.len()..].to_owned();
            [stem, number].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>()
        };
        words.into_iter().flat_map(split).collect()
    }

    fn jq(&self) -> String {
        path_in_jq(&self.path)
    }

    /// Whether it is a list of texts in a string, one for each turn.
    fn is_written(&self) -> bool {
        self.value.as_str().is_some_and(|text| values::written_texts(text).is_some())
    }

    /// Its text: of a written list the only one. Rows of several turns do not say which turn is better.
    fn jq_of_text(&self) -> String {
        match self.is_written() {
            true => format!("({} | fromjson? | select(length == 1)[0])", self.jq()),
            false => self.jq(),
        }
    }

    /// The path of the answer: of a list of texts, the first one.
    fn jq_of_answer(&self) -> String {
        let is_of_texts = self.value.as_array().is_some_and(|list| list.first().is_some_and(Value::is_string));
        if is_of_texts { format!("{}[0]", self.jq()) } else { self.jq_of_text() }
    }

    fn n_bytes(&self) -> usize {
        self.value.to_string().len()
    }

    fn parent(&self) -> &[String] {
        &self.path[..self.path.len() - 1]
    }
}

/// Returns the several answers of rows; `None` if they have one, or are preferences that Kiln reads.
pub(super) fn of(rows: &[Map<String, Value>]) -> Option<Preferred> {
    let is_read = |row: &Map<String, Value>| row.contains_key("chosen") && row.contains_key("rejected");
    if rows.iter().any(is_read) {
        return None;
    }
    rows.iter().take(20).find_map(|row| {
        let mut fields = Vec::new();
        collect(&mut Vec::new(), row, &mut fields);
        fields.retain(|field| !names_facts(&field.name()));
        let forms = [opposite, next_to_answer, numbered::of, listed::of];
        let mut found = forms.into_iter().find_map(|form| form(rows, row, &fields))?;
        let is_written = fields.iter().any(|field| field.is_written() && found.fields.contains(&field.name()));
        if is_written && found.open.is_none() {
            found.open = Some("rows whose lists have several texts, one for each turn, are left out".to_owned());
        }
        Some(found)
    })
}

fn collect<'a>(path: &mut Vec<String>, row: &'a Map<String, Value>, fields: &mut Vec<Field<'a>>) {
    for (name, value) in row {
        path.push(name.clone());
        match value {
            Value::Object(inside) if !is_message(value) => collect(path, inside, fields),
            value => fields.push(Field { path: path.clone(), value }),
        }
        path.pop();
    }
}

fn is_message(value: &Value) -> bool {
    let has = |name: &str| value.get(name).is_some();
    has("role") && has("content") || has("from") && has("value")
}

/// Whether a value is a text, a message, or a list of these.
fn is_answer(value: &Value) -> bool {
    match value {
        Value::String(text) => {
            !values::is_nothing(text) && text.trim().parse::<f64>().is_err() && !values::is_boolean(text)
        }
        Value::Array(list) => list
            .first()
            .is_some_and(|first| first.as_str().is_some_and(|text| !values::is_nothing(text)) || is_message(first)),
        value => is_message(value),
    }
}

/// Whether the answer has its question in front of it.
fn is_conversation(value: &Value) -> bool {
    let asks = |message: &Value| {
        let role = message.get("role").or_else(|| message.get("from")).and_then(Value::as_str);
        role.is_some_and(|role| ["user", "human"].contains(&&*role.to_lowercase()))
    };
    let is_transcript = value.as_str().is_some_and(|text| text.trim_start().starts_with("Human:"));
    is_transcript || value.as_array().is_some_and(|list| list.iter().any(asks))
}

/// Finds the question that the `answers` reply to.
fn prompt<'f, 'a>(fields: &'f [Field<'a>], answers: &[&Field<'a>]) -> Option<&'f Field<'a>> {
    let is_other = |field: &&Field<'a>| !answers.iter().any(|answer| answer.path == field.path);
    let can_ask = |field: &&Field<'a>| is_other(field) && is_answer(field.value) && !is_system(&field.name());
    let named = |word: &str| {
        fields.iter().filter(can_ask).find(|field| {
            let words = field.words();
            let is_about =
                words.iter().any(|word| ["id", "type", "source", "idx", "lang", "language"].contains(&&**word));
            !is_about && words.iter().any(|other| other.trim_end_matches('s') == word.trim_end_matches('s'))
        })
    };

    // An object with such a name has the question as its longest text.
    let within = |word: &str| {
        let has_word = |name: &String| words_of(name).iter().any(|other| other == word);
        let is_id = |field: &Field<'a>| field.words().iter().any(|word| ["id", "idx", "url"].contains(&&**word));
        let texts = fields.iter().filter(can_ask).filter(|field| field.parent().iter().any(has_word) && !is_id(field));
        texts.filter(|field| side_of(&field.words()).is_none()).max_by_key(|field| field.n_bytes())
    };
    // Without a usual name, the question is the longest other text of several words.
    let is_text = |field: &&Field<'a>| {
        field.value.as_str().is_some_and(|text| text.split_whitespace().count() > 2)
            && side_of(&field.words()).is_none()
    };
    let longest = || fields.iter().filter(can_ask).filter(is_text).max_by_key(|field| field.n_bytes());
    let by_name = PROMPTS.iter().find_map(|word| named(word));
    by_name.or_else(|| PROMPTS.iter().find_map(|word| within(word))).or_else(longest)
}

/// Writes the row of a preference, with the instructions of the old row.
fn row_in_jq(row: &Map<String, Value>, prompt: Option<&str>, [chosen, rejected]: [&str; 2]) -> String {
    let system = row.iter().find(|(name, value)| is_system(name) && value.is_string());
    let parts = [("system", system.map(|(name, _)| in_jq(name))), ("prompt", prompt.map(str::to_owned))].into_iter();
    let parts: String = parts.filter_map(|(name, path)| Some(format!("{name}: {}, ", path?))).collect();
    format!("{{{parts}chosen: {chosen}, rejected: {rejected}}}")
}

/// Makes what is said of two answers whose names tell which one is better.
fn of_two(row: &Map<String, Value>, asked: Option<&Field<'_>>, [good, bad]: [&Field<'_>; 2]) -> Preferred {
    let columns = [asked, Some(good), Some(bad)].map(|field| field.filter(|field| field.path.len() == 1));
    let renamed = match columns {
        [Some(asked), Some(good), Some(bad)] => Some([asked, good, bad].map(Field::name)),
        _ => None,
    };
    let program = row_in_jq(row, asked.map(Field::jq_of_text).as_deref(), [&good.jq_of_answer(), &bad.jq_of_answer()]);
    Preferred { fields: vec![good.name(), bad.name()], program: Some(program), open: None, renamed }
}

/// A good and a bad answer, with opposite words in their names.
fn opposite(rows: &[Map<String, Value>], row: &Map<String, Value>, fields: &[Field<'_>]) -> Option<Preferred> {
    // Few rows may have such answers, next to a better list of them in all rows.
    let is_usual = |field: &Field<'_>| {
        let answers = rows.iter().filter(|row| value_at(row, &field.name()).is_some_and(is_answer));
        2 * answers.count() >= rows.len()
    };
    let sided: Vec<(&Field<'_>, Side, Vec<String>)> = fields
        .iter()
        .filter(|field| is_answer(field.value) && is_usual(field))
        .filter_map(|field| side_of(&field.words()).map(|(side, stem)| (field, side, stem)))
        .collect();
    let mut pairs = Vec::new();
    for (good, _, good_stem) in sided.iter().filter(|(_, side, _)| *side == Side::Good) {
        for (bad, _, bad_stem) in sided.iter().filter(|(_, side, _)| *side == Side::Bad) {
            let is_alike = good_stem == bad_stem || good_stem.is_empty() || bad_stem.is_empty();
            if is_alike && good.parent() == bad.parent() {
                pairs.push((good_stem == bad_stem, good.n_bytes() + bad.n_bytes(), [*good, *bad]));
            }
        }
    }

    let (.., pair) = pairs.into_iter().max_by_key(|(is_same, n_bytes, _)| (*is_same, *n_bytes))?;
    let asked = prompt(fields, &pair);
    let is_whole = pair.iter().all(|field| is_conversation(field.value));
    (asked.is_some() || is_whole).then(|| of_two(row, asked, pair))
}

/// A bad answer next to a conversation that ends with a good one, or next to an answer without a word of this kind.
fn next_to_answer(_: &[Map<String, Value>], row: &Map<String, Value>, fields: &[Field<'_>]) -> Option<Preferred> {
    let bad = fields.iter().filter(|field| is_answer(field.value));
    let bad =
        bad.filter_map(|field| Some((field, side_of(&field.words())?))).filter(|(_, (side, _))| *side == Side::Bad);
    let (bad, (_, stem)) = bad.max_by_key(|(field, _)| field.n_bytes())?;
    let is_plain = |field: &&Field<'_>| {
        let words: Vec<String> = field.words().iter().map(|word| names::singular(word)).collect();
        let is_same = words == stem || stem.is_empty() && words.iter().any(|word| is_answer_word(word));
        field.path != bad.path && is_answer(field.value) && is_same
    };
    if let Some(good) = fields.iter().find(is_plain).filter(|good| !is_conversation(good.value)) {
        let asked = prompt(fields, &[good, bad])?;
        return Some(of_two(row, Some(asked), [good, bad]));
    }

    let messages =
        fields.iter().find(|field| field.path != bad.path && field.value.is_array() && is_conversation(field.value))?;
    let last = messages.value.as_array()?.last()?;
    let role = last.get("role").or_else(|| last.get("from"))?.as_str()?;
    if ["user", "human", "system"].contains(&role) {
        return None;
    }
    let path = messages.jq();
    let program = row_in_jq(row, Some(&format!("{path}[:-1]")), [&format!("[{path}[-1]]"), &bad.jq_of_answer()]);
    Some(Preferred { fields: vec![messages.name(), bad.name()], program: Some(program), open: None, renamed: None })
}
