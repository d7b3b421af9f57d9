//! Whole conversations in one string, with a mark in front of each turn: `USER: ...`, `### Response:`, `<|assistant|>`, `[INST]`.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Value, json};

use super::{Foreign, WayOut, meaning};
use crate::corpus::jq::in_jq;

/// What stands before and behind the name of a role, as regular expressions; the most particular first.
const MARKS: [[&str; 2]; 11] = [
    ["\\[\\|", "\\|\\]"],
    ["<\\|im_start\\|> *", ""],
    ["<start_of_turn> *", ""],
    ["<\\|start_header_id\\|>", "<\\|end_header_id\\|>"],
    ["<\\|", "\\|>"],
    ["#+ *", ":?"],
    ["\\*\\*", ":\\*\\*"],
    ["\\*\\*", "\\*\\*:"],
    ["\\[", "\\]:?"],
    ["<", ">:?"],
    ["", ":"],
];
/// Marks that stand within lines, too.
const WITHIN: [[&str; 2]; 4] = [["\\[\\|", "\\|\\]"], ["<\\|", "\\|>"], ["###+ *", ":"], ["<", ">:?"]];
/// Marks without names, for the question and the answer.
const INST: [&str; 2] = ["[INST]", "[/INST]"];
/// Names of tools that answer, as their marks have them.
const TOOLS: [&str; 9] = [
    "function response",
    "function_response",
    "tool response",
    "tool_response",
    "function",
    "tool",
    "observation",
    "ipython",
    "result",
];
/// Names of persons who have a number.
const PERSONS: [&str; 6] = ["user", "speaker", "person", "participant", "human", "agent"];
/// Tokens that end turns and texts.
const ENDS: [&str; 8] =
    ["<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<bos>", "</s>", "<s>"];

/// The marks of transcripts.
struct Style {
    before: &'static str,
    behind: &'static str,
    /// Whether the marks stand at the beginnings of lines alone.
    begins_line: bool,
    /// Whether some texts have something in front of the first mark: instructions.
    has_preamble: bool,
    /// Names as they are written, with what they mean.
    names: BTreeMap<String, &'static str>,
}

/// A conversation in one string.
pub(super) fn transcripts(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let row = rows.first()?;
    let found = row.iter().filter(|(_, value)| value.is_string()).filter_map(|(field, _)| {
        let texts: Vec<&str> = rows.iter().filter_map(|row| row.get(field)?.as_str()).collect();
        Some((texts.iter().map(|text| text.len()).sum::<usize>(), field, style_of(&texts)?, texts))
    });
    let (_, field, style, texts) = found.max_by_key(|(n_bytes, ..)| *n_bytes)?;
    let program =
        format!("{}del({}) + {{messages: [{}]}}", system(row, &style), in_jq(field), style.messages(field, &texts));
    Some(Foreign {
        name: format!("conversations whose turns stand in one string, \"{field}\""),
        way_out: WayOut::Program("to make messages of the turns".into(), program),
    })
}

/// Finds the marks that most of the texts have: of a question and of an answer, the first of which begins the text.
fn style_of(texts: &[&str]) -> Option<Style> {
    let is_inst = |text: &&&str| INST.iter().all(|mark| text.contains(mark));
    if !texts.is_empty() && texts.iter().filter(is_inst).count() * 2 > texts.len() {
        let names = [(INST[0].to_owned(), "user"), (INST[1].to_owned(), "assistant")].into();
        return Some(Style { before: "", behind: "", begins_line: false, has_preamble: false, names });
    }
    let in_lines = MARKS.into_iter().map(|marks| (marks, true));
    let mut styles = in_lines.chain(WITHIN.into_iter().map(|marks| (marks, false)));
    styles.find_map(|([before, behind], begins_line)| {
        let start = if begins_line { r"(?m)^[ \t]*(?:<bos>|<s>)?" } else { "" };
        let mark = Regex::new(&format!("{start}{before}([A-Za-z][A-Za-z_ ]{{0,20}}[12]?){behind}")).ok()?;
        let mut names: BTreeMap<String, &'static str> = BTreeMap::new();
        let (mut n_conversations, mut has_preamble) = (0, false);

        for text in texts {
            let marks = mark.captures_iter(text).filter_map(|found| {
                let name = found.get(1)?.as_str().trim_end();
                let is_line = !behind.is_empty() || text[found.get(0)?.end()..].starts_with(['\n', '\r']);
                Some((found.get(0)?.start(), name, role_of(name).filter(|_| is_line)?))
            });
            let marks: Vec<(usize, &str, &'static str)> = marks.collect();
            let has = |role: &str| marks.iter().any(|(.., other)| *other == role);
            // A plain text may have such words in its middle.
            let ahead = marks.first().map_or(0, |(start, ..)| text[..*start].trim().chars().count());
            if has("user") && has("assistant") && 3 * ahead <= text.chars().count() {
                n_conversations += 1;
                has_preamble |= ahead > 8;
                names.extend(marks.iter().map(|(_, name, role)| ((*name).to_owned(), *role)));
            }
        }
        let found = Style { before, behind, begins_line, has_preamble, names };
        (2 * n_conversations > texts.len()).then_some(found)
    })
}

/// Returns what the name of a role means; a tool is one of its own.
fn role_of(name: &str) -> Option<&'static str> {
    let is_tool = TOOLS.contains(&name.to_lowercase().as_str());
    let other = match name.to_lowercase().as_str() {
        "q" | "input" => Some("user"),
        "a" | "output" => Some("assistant"),
        _ => None,
    };
    meaning(name).or(other).or_else(|| numbered(name)).or(is_tool.then_some("tool"))
}

/// Returns the role of one of two persons with a number: the second one answers the first.
fn numbered(name: &str) -> Option<&'static str> {
    let stem = name.trim_end_matches(['1', '2']);
    let is_person = PERSONS.contains(&stem.trim_end_matches([' ', '_']).to_lowercase().as_str());
    match &name[stem.len()..] {
        "1" if is_person => Some("user"),
        "2" if is_person => Some("assistant"),
        _ => None,
    }
}

impl Style {
    /// Returns the expression of jq for the messages in a field.
    fn messages(&self, field: &str, texts: &[&str]) -> String {
        // A name may begin with another one.
        let mut names: Vec<String> = self.names.keys().map(|name| regex::escape(name)).collect();
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        let names = names.join("|");
        let (start, next) = match self.begins_line {
            false => ("()".to_owned(), String::new()),
            true => ("(\\A\\s*(?:<bos>|<s>)?|\\n)\\s*".to_owned(), "\\n\\s*".to_owned()),
        };
        let (before, behind) = (self.before, self.behind);
        let pattern =
            format!("{start}{before}({names}){behind}\\s*((?:(?!{next}{before}(?:{names}){behind})[\\s\\S])*)");

        let ends: Vec<String> =
            ENDS.into_iter().filter(|end| texts.iter().any(|text| text.contains(end))).map(regex::escape).collect();
        let without_ends = match ends.as_slice() {
            [] => String::new(),
            ends => format!(" | gsub({}; \"\")", Value::from(ends.join("|"))),
        };
        let said = format!("(.[2].string{without_ends} | gsub(\"\\\\A\\\\s+|\\\\s+\\\\z\"; \"\"))");
        let role = |role: &str| if role == "tool" { "user" } else { role }.to_owned();
        let roles: BTreeMap<&String, String> = self.names.iter().map(|(name, other)| (name, role(other))).collect();
        let tools: Vec<&String> =
            self.names.iter().filter(|(_, role)| **role == "tool").map(|(name, _)| name).collect();
        let content = match tools.as_slice() {
            [] => said,
            // The model reads from whom an answer of a tool comes.
            tools => format!("(if {} | index([$n]) then $n + \": \" else \"\" end) + {said}", json!(tools)),
        };
        let field = in_jq(field);
        let instructions = match self.has_preamble {
            true => {
                let rest = Value::from(format!("{start}{before}(?:{names}){behind}[\\s\\S]*"));
                let text =
                    format!("{field} | sub({rest}; \"\"){without_ends} | gsub(\"\\\\A\\\\s+|\\\\s+\\\\z\"; \"\")");
                format!("({text} | select(. != \"\") | {{role: \"system\", content: .}}), ")
            }
            false => String::new(),
        };
        format!(
            "{instructions}({field} | match({}; \"g\").captures | .[1].string as $n | {{role: {}[$n], content: ({content})}} | select(.content != \
             \"\"))",
            Value::from(pattern),
            json!(roles)
        )
    }
}

/// Returns the program of jq that takes the mark from instructions in a field of their own.
fn system(row: &Map<String, Value>, style: &Style) -> String {
    let begins = |text: &str| {
        let mark = Regex::new(&format!(r"^\s*{}([A-Za-z]+){}", style.before, style.behind)).ok();
        let name = mark.and_then(|mark| Some(mark.captures(text)?.get(1)?.as_str().to_owned()));
        name.filter(|name| meaning(name) == Some("system"))
    };
    let found = row.iter().find_map(|(field, value)| {
        let name = begins(value.as_str()?)?;
        (meaning(field) == Some("system")).then_some((field, name))
    });
    found.map_or(String::new(), |(field, name)| {
        let pattern = format!("\\A\\s*{}{name}{}\\s*", style.before, style.behind);
        format!("{} |= sub({}; \"\") | ", in_jq(field), Value::from(pattern))
    })
}
