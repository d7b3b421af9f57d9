//! Text files where conversations are asked for: logs of chats and minutes of meetings, and other text.

use std::path::Path;

use regex::Regex;

use super::RowReader;
use super::foreign::{MESSAGES, READ_ROW, names_of, what};
use crate::corpus::jq::fed;
use crate::corpus::text::Task;
use crate::error::{Error, Result};
use crate::formats::{FileFormat, LineReader};

/// Lines that show what a file is.
const LINES: usize = 200;
/// A time, the name of a person and what was said, as Rust and Python read it.
const MESSAGE: &str =
    r"(?:\[[^\]]*\] *|[0-9][0-9:.,/\s-]*(?:[AaPp]\.?[Mm]\.?)?\s*(?:- *)?)?<?([^\W\d_][^:<>\[\]]{0,29})(?:>|:) +(.*)";

impl RowReader<'_> {
    /// Refuses a text file where this reader wants rows with conversations.
    pub(super) fn check_text_file(&self, file: &Path) -> Result<()> {
        if self.task != Task::Lm || !self.text.is_chat() || FileFormat::by_name(file).is_some() {
            return Ok(());
        }
        let lines = first_lines(file)?;
        let Some(first) = lines.iter().map(|line| line.trim()).find(|line| !line.is_empty()) else { return Ok(()) };
        // What is wrong with JSON is said when it is read. A time may stand in brackets, too.
        let in_list = first.strip_prefix('[').map(str::trim_start);
        if first.starts_with('{') || in_list.is_some_and(|rest| rest.is_empty() || rest.starts_with(['{', '['])) {
            return Ok(());
        }

        let rows_are = match of_chat(&lines) {
            Some(names) => {
                let command = fed(file, &script(&names[1]));
                format!(
                    "its lines are messages of persons, and rows with conversations are wanted\n{}: {command} > rows.jsonl\nand train on \
                     rows.jsonl",
                    what(&names)
                )
            }
            None => format!(
                "its lines are plain text, and rows with conversations are wanted: make rows of it such as {READ_ROW}, or learn it as plain \
                 text with --set data.text.format=auto"
            ),
        };
        Err(Error::corpus(file, rows_are))
    }
}

fn first_lines(file: &Path) -> Result<Vec<String>> {
    let (mut reader, mut line, mut lines) = (LineReader::open(file)?, Vec::new(), Vec::new());
    while lines.len() < LINES && reader.read_line(&mut line)? {
        lines.push(String::from_utf8_lossy(&line).into_owned());
        line.clear();
    }
    Ok(lines)
}

/// Returns the names of the persons if most lines are messages.
fn of_chat(lines: &[String]) -> Option<Vec<String>> {
    let message = Regex::new(&format!("^{MESSAGE}")).ok()?;
    let filled: Vec<&String> = lines.iter().filter(|line| !line.trim().is_empty()).collect();
    let names: Vec<&str> =
        filled.iter().filter_map(|line| Some(message.captures(line)?.get(1)?.as_str().trim())).collect();
    (2 * names.len() > filled.len()).then(|| names_of(names.into_iter())).flatten()
}

/// Returns the script that makes conversations of messages. Lines without a name go on with the message before.
fn script(name: &str) -> String {
    let name = serde_json::Value::from(name).to_string().replace('\'', "\\u0027");
    format!(
        "python3 -c 'import json, re, sys\nturns = []\nfor line in sys.stdin:\n  said = \
         re.match(r\"{MESSAGE}\", line)\n  if said: \
         turns.append({{\"role\": \"assistant\" if said[1].strip() == {name} else \"user\", \"content\": said[2].strip()}})\n  elif turns and not \
         re.match(r\"[\\[0-9]\", line): turns[-1][\"content\"] += \"\\n\" + line.strip()\nturns = [turn for turn in turns if turn[\"content\"] \
         and \"omitted>\" not in turn[\"content\"]]\nfor n in range(0, len(turns), {MESSAGES}): print(json.dumps({{\"messages\": turns[n:n + \
         {MESSAGES}]}}))'"
    )
}
