//! Requests to a model and what it replied, as programs log them: lists of messages and answers anywhere in a row, also in strings with JSON.

use serde_json::{Map, Value};

use super::{Foreign, WayOut, meaning};
use crate::corpus::fields::{ANSWERS, words_of};
use crate::corpus::jq::in_jq;
use crate::corpus::text::{is_of_texts, rates};

/// Words of names around an answer.
const REPLIES: [&str; 14] = [
    "response",
    "responses",
    "output",
    "outputs",
    "completion",
    "completions",
    "reply",
    "answer",
    "result",
    "generation",
    "generations",
    "choices",
    "generated",
    "message",
];
/// Words of names around a question and its answer, where each has one text.
const SIDES: [&[&str]; 2] =
    [&["request", "input", "inputs"], &["response", "output", "outputs", "reply", "completion", "result"]];
/// Names of fields with the instructions of a request.
const SYSTEMS: [&str; 3] = ["system", "instructions", "system_prompt"];
/// Steps that lead to a value, at most.
const DEEPEST: usize = 8;
/// What the types of messages mean.
const TYPES: &str = r#"{"human":"user","ai":"assistant"}"#;
/// Makes a text of the content of a message.
const TEXT: &str = r#"(if type == "array" then map(.text? // empty) | join("") else . end)"#;

/// A value of a row, and how jq reaches it.
#[derive(Clone)]
struct Node {
    jq: String,
    /// The names that lead to it.
    path: Vec<String>,
    value: Value,
    /// Whether it lies inside of a string with JSON.
    is_written: bool,
}

impl Node {
    /// Whether it is a field of the row itself.
    fn is_plain(&self) -> bool {
        self.path.len() == 1 && !self.is_written
    }
}

fn collect(node: Node, found: &mut Vec<Node>) {
    let step = |jq: String, name: Option<&String>, value: &Value, is_written: bool| {
        let mut path = node.path.clone();
        path.extend(name.cloned());
        Node { jq, path, value: value.clone(), is_written }
    };
    let inside: Vec<Node> = match &node.value {
        _ if node.path.len() > DEEPEST => Vec::new(),
        Value::Object(fields) => {
            let jq = |name: &String| match in_jq(name) {
                quoted if quoted.starts_with(".[") && !node.jq.is_empty() => format!("{}{}", node.jq, &quoted[1..]),
                plain => format!("{}{plain}", node.jq),
            };
            fields.iter().map(|(name, value)| step(jq(name), Some(name), value, node.is_written)).collect()
        }
        Value::Array(list) => {
            let first = list.first().filter(|first| first.is_object() && message_of(first).is_none());
            first.map(|first| step(format!("{}[0]", node.jq), None, first, node.is_written)).into_iter().collect()
        }
        Value::String(text) if text.trim_start().starts_with(['{', '[', '"']) => {
            let value = serde_json::from_str::<Value>(text).ok();
            let value = value.filter(|value| value.is_object() || value.is_string() || is_list(value));
            value
                .map(|value| {
                    step(
                        format!("({} | if type == \"string\" then (fromjson? // null) else . end)", node.jq),
                        None,
                        &value,
                        true,
                    )
                })
                .into_iter()
                .collect()
        }
        _ => Vec::new(),
    };

    found.push(node);
    inside.into_iter().for_each(|node| collect(node, found));
}

fn is_list(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.first().is_some_and(Value::is_object))
}

/// Whether a text is the JSON of something else.
fn is_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[', '"']) && serde_json::from_str::<Value>(text).is_ok()
}

/// Returns the role and the content of a message. LangChain names the role by a `type`.
fn message_of(value: &Value) -> Option<(&str, &Value)> {
    let content = value.get("content");
    let content = content.filter(|content| content.is_string() || is_of_texts(content) || content.is_null())?;
    let kind = || value.get("type").and_then(Value::as_str).filter(|kind| meaning(kind).is_some());
    Some((value.get("role").and_then(Value::as_str).or_else(kind)?, content))
}

fn messages_of(value: &Value) -> Option<Vec<(&str, &Value)>> {
    value.as_array().filter(|list| !list.is_empty())?.iter().map(message_of).collect()
}

fn has_word(node: &Node, words: &[&str]) -> bool {
    node.path.iter().flat_map(|name| words_of(name)).any(|word| words.contains(&word.as_str()))
}

/// A conversation or a question in a row, and the answer to it elsewhere.
struct Logged {
    /// The expression of jq for the messages of the question.
    asked: String,
    /// The same for the messages of the answer; none if it is among the others.
    answer: Option<String>,
    fields: Vec<String>,
}

impl Logged {
    /// Returns the program of jq, which leaves rows out that lack one of both.
    fn program(&self) -> String {
        let asked = &self.asked;
        match &self.answer {
            Some(answer) => format!(
                "{asked} as $asked | {{messages: ($asked + {answer})}} | select(($asked | length > 0) and (.messages[-1].content // \"\") != \"\")"
            ),
            None => format!("{{messages: {asked}}} | select(.messages | length > 0)"),
        }
    }
}

/// Writes the list of messages at a node.
fn list_in_jq(node: &Node) -> String {
    let has_parts = messages_of(&node.value).into_iter().flatten().any(|(_, content)| is_of_texts(content));
    let path = if node.jq.starts_with('(') { node.jq.clone() } else { format!("({} // [])", node.jq) };
    let path = if has_parts { format!("({path} | map(.content |= {TEXT}))") } else { path };
    let has_types = node.value.as_array().into_iter().flatten().any(|one| one.get("role").is_none());
    match has_types {
        true => format!("({path} | map({{role: ({TYPES}[.role // .type] // .role // .type), content}}))"),
        false => path,
    }
}

/// Finds what is asked and answered in a row. Rows whose lists of messages have the answer in a field of their own are read as they are.
fn of_row(row: &Map<String, Value>) -> Option<Logged> {
    if row.contains_key("chosen") || row.contains_key("rejected") {
        return None;
    }
    let mut nodes = Vec::new();
    row.iter().for_each(|(name, value)| {
        let (jq, path) = (in_jq(name), vec![name.clone()]);
        collect(Node { jq, path, value: value.clone(), is_written: false }, &mut nodes);
    });
    let is_answer_list =
        |node: &&Node| messages_of(&node.value).is_some_and(|list| meaning(list[0].0) == Some("assistant"));
    let asks = |node: &&Node| {
        messages_of(&node.value).is_some_and(|list| list.iter().any(|(role, _)| meaning(role) == Some("user")))
    };
    let text_asked = || only_text(&nodes, SIDES[0]).filter(|node| !node.is_plain());
    let list = nodes.iter().find(|node| asks(node) && !is_answer_list(node)).or_else(text_asked)?;

    let is_elsewhere = |node: &&Node| !node.jq.starts_with(&list.jq);
    let message = |node: &&Node| {
        message_of(&node.value).is_some_and(|(role, content)| meaning(role) == Some("assistant") && !content.is_null())
    };
    let text = |node: &&Node| {
        let is_text = node.value.as_str().is_some_and(|text| !text.trim().is_empty() && !is_json(text));
        let last = node.path.last().map_or("", String::as_str);
        let is_content =
            ["content", "text", "output_text"].contains(&last) || REPLIES.contains(&last.to_lowercase().as_str());
        is_text && is_content && has_word(node, &REPLIES) && !has_word(node, &["error", "id"])
    };
    let others = || nodes.iter().filter(is_elsewhere);
    let answer = others().find(message).map(|node| {
        let content = format!("{}.content", node.jq);
        (node, if is_of_texts(&node.value["content"]) { format!("({content} | {TEXT})") } else { content })
    });
    // A question of one text has one answer below a field for it.
    let answer = answer.or_else(|| match list.value.is_string() {
        true => only_text(&nodes, SIDES[1]).filter(|node| !node.is_plain()).map(|node| (node, node.jq.clone())),
        false => others().find(text).map(|node| (node, node.jq.clone())),
    });
    let answers = others().find(is_answer_list);
    let said = messages_of(&list.value).unwrap_or_default();
    let is_answered = said.last().is_some_and(|(role, _)| meaning(role) == Some("assistant"));

    let system = system_of(row, list, &nodes);
    let is_usual = |node: &Node| {
        let names = [list.path[0].as_str(), node.path[0].as_str()];
        ANSWERS.contains(&names) && !row.contains_key("messages") && [list, node].iter().all(|node| node.is_plain())
    };
    let of_list = match list.value.is_string() {
        true => format!("[{} | strings | {{role: \"user\", content: .}}]", list.jq),
        false => list_in_jq(list),
    };
    let asked = format!("{system}{of_list}");
    let asked = if system.is_empty() { asked } else { format!("({asked})") };
    let of = |node: &Node, answer: String| Logged {
        asked: asked.clone(),
        answer: Some(answer),
        fields: vec![list.path.join("."), node.path.join(".")],
    };
    match (answers.filter(|_| !is_answered), answer.filter(|_| !is_answered)) {
        // A question and its answer in two fields of usual names are read as they are.
        (Some(node), _) if is_usual(node) => None,
        (None, Some((node, _))) if is_usual(node) && node.value.is_string() => None,
        (Some(node), _) => Some(of(node, list_in_jq(node))),
        (None, Some((node, content))) => Some(of(node, format!("[{{role: \"assistant\", content: {content}}}]"))),
        (None, None) if is_answered && list.path.len() > 1 => {
            Some(Logged { asked, answer: None, fields: vec![list.path.join(".")] })
        }
        (None, None) => None,
    }
}

/// Returns the instructions next to a list of messages, as a list that is added in front.
fn system_of(row: &Map<String, Value>, list: &Node, nodes: &[Node]) -> String {
    let around = &list.path[..list.path.len() - 1];
    let is_one = |node: &&Node| {
        let (last, before) = node.path.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
        before == around && SYSTEMS.contains(&last) && node.value.as_str().is_some_and(|text| !text.trim().is_empty())
    };
    // The reader looks for the instructions of a row in its own fields, which new rows lack.
    let found = nodes.iter().find(is_one).filter(|node| row.len() > 1 || node.path.len() > 1);
    found.map_or(String::new(), |node| format!("[{} | strings | {{role: \"system\", content: .}}] + ", node.jq))
}

/// Returns the only text of several words below a field whose name has one of the words.
fn only_text<'n>(nodes: &'n [Node], words: &[&str]) -> Option<&'n Node> {
    let is_text = |node: &&Node| {
        let text = node.value.as_str().unwrap_or_default().trim();
        // One of several texts is not the whole question, and instructions are something else.
        let is_system = node.path.last().is_some_and(|name| SYSTEMS.contains(&name.as_str()));
        text.contains(' ') && !is_json(text) && !node.jq.contains("[0]") && !is_system
    };
    let has_word = |node: &&Node| {
        node.path.first().is_some_and(|name| words_of(name).iter().any(|word| words.contains(&word.as_str())))
    };
    let mut found = nodes.iter().filter(|node| is_text(node) && has_word(node));
    found.next().filter(|_| found.next().is_none())
}

/// Names the fields that may rate the replies, which the new rows lack.
fn rated_by(rows: &[Map<String, Value>]) -> String {
    let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    let has = |name: &str| rows.iter().any(|row| row.get(name).is_some_and(|value| !is_empty(value)));
    let found = rows[0].keys().filter(|name| rates(name) && has(name)).map(|name| format!("\"{name}\""));
    let found = found.collect::<Vec<_>>().join(", ");
    if found.is_empty() { found } else { format!(", without the ratings in {found}") }
}

/// Rows with requests and replies.
pub(super) fn logged(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let found = rows.iter().take(20).find_map(of_row)?;
    let names: Vec<String> = found.fields.iter().map(|name| format!("\"{name}\"")).collect();
    Some(Foreign {
        name: match &found.answer {
            Some(_) => format!("requests in {} with the reply in {}", names[0], names[1]),
            None => format!("conversations in {}", names[0]),
        },
        way_out: WayOut::Program(format!("to make messages of them{}", rated_by(rows)), found.program()),
    })
}

/// Returns what rows are whose list of messages is read as a conversation, while the answer to it stands in another field.
pub(in crate::corpus::layout) fn unread_answer(rows: &[Map<String, Value>]) -> Option<Foreign> {
    logged(rows).filter(|_| rows.iter().take(20).filter_map(of_row).any(|found| found.answer.is_some()))
}
