//! Text files where conversations are asked for: logs of chats and minutes of meetings, and other text.

use std::path::Path;

use regex::Regex;

use super::RowReader;
use super::foreign::{MESSAGES, READ_ROW, names_of, what};
use crate::corpus::anki;
use crate::corpus::jq::{fed, piped};
use crate::corpus::text::Task;
use crate::error::{Error, Result};
use crate::formats::{FileFormat, LineReader};
use crate::terminal::shell_word;

/// Lines that show what a file is.
const LINES: usize = 200;
/// What stands in front of a message, as Rust and Python read it: something with a digit in brackets, or a time, perhaps with a date.
const TIME: &str = concat!(
    r"(?:\[[^\]]*\d[^\]]*\]\s*|\d.{0,20}?\d[:.]\d{2}.{0,12}?\s[-\u2013]\s+",
    r"|(?:\d{1,4}[./-]\d{1,2}[./-]\d{1,4}[,T]?\s*)?\d{1,2}[:.]\d{2}(?:[:.]\d{2})?(?:[.,]\d+)?(?:\s*[AaPp]\.?\s?[Mm]\.?)?\s+(?:[-\u2013]\s+)?)",
);
/// The name of a person and what was said, behind a time. The name may be the number of a telephone.
const SAID: &str = r"<?([^:<>\[\]]{1,60})(?:>|:)(?:\s+(.*)|$)";
/// The same without a time, where the name has a letter first.
const PLAIN: &str = r"<?([^\W\d_][^:<>\[\]]{0,29})(?:>|:) +(.*)";
/// Marks of the direction of writing, and of the order of bytes. Logs have them around names, numbers and notes.
const MARKS: &str = r"[\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]";
/// Messages that the program wrote in the place of a picture, a call or a message that was deleted.
const NOTE: &str = concat!(
    r"(?i)(?:<[^<>]*>|\S+\.\w{2,4} \([^()]*\)|(?:image|video|audio|sticker|gif|document|media|contact card|voice message) omitted",
    r"|(?:this message was|you) deleted(?: this message)?\.?|missed (?:group )?(?:voice|video) call.*|null)$",
);

/// What stands between the turns of a conversation in one line, as data sets have it.
const TURN_MARKS: [&str; 8] = ["__eou__", "__EOU__", "<eou>", "<EOU>", "</s>", "[SEP]", " EOS ", "\t"];

impl RowReader<'_> {
    /// Refuses files of markup, and a text file where this reader wants rows with conversations.
    pub(super) fn check_text_file(&self, file: &Path) -> Result<()> {
        self.check_markup(file)?;
        if self.task != Task::Lm || !self.text.is_chat() || FileFormat::by_name(file).is_some() {
            return Ok(());
        }
        let lines = LineReader::texts(file)?.take(LINES).collect::<Result<Vec<_>>>()?;
        let Some(first) = lines.iter().map(|line| line.trim()).find(|line| !line.is_empty()) else { return Ok(()) };
        // What is wrong with JSON is said when it is read. A time may stand in brackets, too.
        let in_list = first.strip_prefix('[').map(str::trim_start);
        if first.starts_with('{') || in_list.is_some_and(|rest| rest.is_empty() || rest.starts_with(['{', '['])) {
            return Ok(());
        }

        if let Some(found) = anki::advice(file, ["prompt", "completion"]) {
            return Err(Error::corpus(file, found));
        }
        let rows_are = match of_chat(&lines) {
            Some((names, message)) => {
                let command = fed(file, &script(&names[1], &message));
                format!(
                    "its lines are messages of persons, and rows with conversations are wanted\n{}: {command} > rows.jsonl\nand train on \
                     rows.jsonl",
                    what(&names)
                )
            }
            None if let Some(mark) = mark_of(&lines) => format!(
                "its lines are conversations, whose turns {mark:?} divides, and rows with them are wanted\nto make rows of them, in which each \
                 second turn is an answer: {} > rows.jsonl\nand train on rows.jsonl",
                piped(file, &format!("jq -Rc {}", shell_word(&of_marked(mark))))
            ),
            None => format!(
                "its lines are plain text, and rows with conversations are wanted: make rows of it such as {READ_ROW}, or learn it as plain \
                 text with --set data.text.format=auto"
            ),
        };
        Err(Error::corpus(file, rows_are))
    }
}

/// Returns what divides the turns of nearly all lines.
fn mark_of(lines: &[String]) -> Option<&'static str> {
    let filled = || lines.iter().filter(|line| !line.trim().is_empty());
    let n_divided = |mark: &str| filled().filter(|line| line.trim().trim_end_matches(mark).contains(mark)).count();
    TURN_MARKS.into_iter().find(|mark| 10 * n_divided(mark) >= 9 * filled().count())
}

/// Returns the program of jq that makes a conversation of a line with marks between turns.
fn of_marked(mark: &str) -> String {
    let mark = serde_json::Value::from(mark);
    let role = "(if .key % 2 == 0 then \"user\" else \"assistant\" end)";
    format!(
        "split({mark}) | map(gsub(\"^\\\\s+|\\\\s+$\"; \"\")) | map(select(. != \"\")) | select(length > 1) | {{messages: [to_entries[] | {{role: \
         {role}, content: .value}}]}}"
    )
}

/// Returns the names of the persons and the form of a message. `None` unless many lines have a time and a name, or most have a name.
fn of_chat(lines: &[String]) -> Option<(Vec<String>, String)> {
    let marks = Regex::new(MARKS).ok()?;
    let lines: Vec<_> = lines.iter().map(|line| marks.replace_all(line.trim_end(), "")).collect();
    let filled: Vec<&str> = lines.iter().map(|line| line.trim_start()).filter(|line| !line.is_empty()).collect();
    // A message may have several lines.
    [(format!("{TIME}{SAID}"), 4), (PLAIN.to_owned(), 2)].into_iter().find_map(|(form, part)| {
        let message = Regex::new(&format!("^{form}")).ok()?;
        let names: Vec<&str> =
            filled.iter().filter_map(|line| Some(message.captures(line)?.get(1)?.as_str().trim())).collect();
        let names = (part * names.len() > filled.len()).then(|| names_of(names.into_iter())).flatten()?;
        Some((names, form))
    })
}

/// Makes conversations of messages. Lines without a time and a name go on with the message before.
const SCRIPT: &str = r#"import json, re, sys
marks, form, time, note = (re.compile(form) for form in (r"MARKS", r"FORM", r"TIME", r"NOTE"))
turns, n_left = [], 0
for line in open(0, encoding="utf-8-sig"):
  line = re.sub(r"\u200e<[^<>]*>\s*$", "", line)
  plain = marks.sub("", line).strip()
  said = form.match(plain)
  if said:
    name, text = said[1].strip(), (said[2] or "").strip()
    if note.match(text) or not text or re.search(re.escape(name) + r"[^\w ]?: +\u200e", line): text, n_left = "", n_left + 1
    turns.append({"role": "assistant" if name == PERSON else "user", "content": text})
  elif time.match(plain): n_left += 1
  elif turns: turns[-1]["content"] += "\n" + plain
turns = [dict(turn, content=turn["content"].strip()) for turn in turns if turn["content"].strip()]
for n in range(0, len(turns), MESSAGES): print(json.dumps({"messages": turns[n:n + MESSAGES]}))
print("messages:", len(turns), "- left out what the program wrote, such as notes on media:", n_left, file=sys.stderr)"#;

/// Returns the script that makes conversations in which the person called `name` is the assistant. `form`: of a message.
fn script(name: &str, form: &str) -> String {
    let name = serde_json::Value::from(name).to_string().replace('\'', "\\u0027");
    let parts = [("MARKS", MARKS), ("FORM", form), ("TIME", TIME), ("NOTE", NOTE), ("PERSON", &name)];
    let script = parts.into_iter().fold(SCRIPT.to_owned(), |script, (part, text)| script.replace(part, text));
    format!("python3 -c '{}'", script.replace("MESSAGES", &MESSAGES.to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::corpus::followed;

    #[test]
    fn lines_with_marks_between_turns_become_conversations() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.txt");
        for (mark, end) in [(" __eou__ ", " __eou__"), ("\t", ""), (" [SEP] ", "")] {
            let line = |n: usize| format!("how is {n} ?{mark}it's fine .{mark}bye .{end}\r\n");
            std::fs::write(&file, (0..30).map(line).collect::<String>()).expect("writable");
            let (corpus, labels) = Default::default();
            let text = TextConfig { format: TextFormat::Chat, ..TextConfig::default() };
            let reader = RowReader { task: Task::Lm, other_tasks: &[], corpus: &corpus, text: &text, labels: &labels };
            let said = check_layout(std::slice::from_ref(&file), &reader).expect_err("lines").to_string();
            let Some(rows) = followed::rows_made(&said, folder.path()) else { return };
            let turns = serde_json::json!([
                {"role": "user", "content": "how is 0 ?"}, {"role": "assistant", "content": "it's fine ."}, {"role": "user", "content": "bye ."}
            ]);
            assert!(rows.len() == 30 && rows[0]["messages"] == turns, "{rows:?}");
        }
    }
}
