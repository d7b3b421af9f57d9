//! Files that are not quite JSON lines: objects over several lines, with commas between them, as Python writes them, or texts alone.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::RowReader;
use crate::corpus::jq::{fed, piped};
use crate::corpus::text::{Task, TextFormat};
use crate::files::read_text;
use crate::formats::{LineReader, ending};
use crate::terminal::shell_path;

/// Lines that show how a file is spelled.
const LINES: usize = 200;
/// Files that are looked at.
const FILES: usize = 3;
/// A script that writes the objects of Python as JSON.
const PYTHON: &str =
    r#"python3 -c 'import ast, json; [print(json.dumps(ast.literal_eval(line))) for line in open(0) if line.strip()]'"#;

impl RowReader<'_> {
    /// Whether the file holds JSON lines for this reader.
    pub(super) fn reads_json(&self, file: &Path) -> bool {
        let name = file.to_string_lossy().to_ascii_lowercase();
        let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
        let by_name = [".jsonl", ".ndjson", ".json"].iter().any(|ending| name.ends_with(ending));
        let is_text = matches!(self.task, Task::Lm | Task::Mlm);
        by_name
            && !(is_text && matches!(self.text.format, TextFormat::Lines | TextFormat::Files | TextFormat::BlankLines))
    }

    /// Says how a file becomes JSON lines that has none among its first ones. `rows`: the objects among these. `None` for other files.
    pub(super) fn other_spelling(&self, file: &Path, rows: &[Map<String, Value>]) -> Option<String> {
        let lines = first_lines(file).filter(|lines| 4 * rows.len() < lines.len() || rows.is_empty())?;
        let first = lines.first()?;
        let is_object = |line: &str| serde_json::from_str::<Map<String, Value>>(line).is_ok();
        let most = |is_one: &dyn Fn(&str) -> bool| {
            lines.len() > 1 && 2 * lines.iter().filter(|line| is_one(line)).count() > lines.len()
        };
        let is_text = |line: &str| serde_json::from_str::<String>(line.trim_end_matches(',')).is_ok();
        let reads_texts = matches!(self.task, Task::Lm | Task::Mlm)
            && matches!(self.text.format, TextFormat::Auto | TextFormat::Jsonl | TextFormat::Records);

        let (what, command, then) = match () {
            () if most(&|line| line.strip_suffix(',').is_some_and(is_object)) => {
                ("objects with commas between them", piped(file, "sed -E 's/,[[:space:]]*$//'"), "")
            }
            () if most(&|line| line.starts_with("{'") && line.ends_with('}')) => {
                ("objects as Python writes them", fed(file, PYTHON), "")
            }
            () if first.starts_with('{') && !is_object(first) && is_stream(&lines) => {
                ("objects over several lines each", piped(file, "jq -c ."), "")
            }
            () if reads_texts && (is_array_of_texts(&lines) || most(&is_text)) => {
                let program = if is_array_of_texts(&lines) { "jq -c '.[] | {text: .}'" } else { "jq -c '{text: .}'" };
                let other = self.text.field != "text";
                let then = if other { " and --set data.text.field=text" } else { "" };
                ("texts without names", piped(file, program), then)
            }
            () => return None,
        };
        Some(format!(
            "{}: it has {what}, and an object per line is wanted\nto write them so: {command} > rows.jsonl\nand read rows.jsonl with the same \
             flags{then}",
            file.display()
        ))
    }
}

/// Says how files become JSON lines of which each has one object over several lines. `None` for other files.
pub(super) fn one_in_each(files: &[PathBuf]) -> Option<String> {
    let is_one = |file: &PathBuf| {
        let text = read_text(file).unwrap_or_default();
        text.trim().lines().count() > 1 && serde_json::from_str::<Map<String, Value>>(&text).is_ok()
    };
    let is_json = |file: &PathBuf| ending(file) == "json";
    if files.len() < 2 || !files.iter().all(is_json) || !files.iter().take(FILES).all(is_one) {
        return None;
    }
    let mut folder = files[0].parent()?;
    while !files.iter().all(|file| file.starts_with(folder)) {
        folder = folder.parent()?;
    }
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    Some(format!(
        "{}: each of its {} files has one object over several lines, and an object per line is wanted\nto write them so: find {} -name \
         '*.json' -exec jq -c . {{}} + > rows.jsonl\nand read rows.jsonl with the same flags",
        here.display(),
        files.len(),
        shell_path(here)
    ))
}

/// Returns the first lines that are not blank, without the spaces around them. `None` if the file cannot be read.
fn first_lines(file: &Path) -> Option<Vec<String>> {
    let trimmed = |line: String| line.trim_start_matches('\u{feff}').trim().to_owned();
    let texts = LineReader::texts(file).ok()?.map(|line| line.map(trimmed));
    texts.filter(|text| !matches!(text, Ok(text) if text.is_empty())).take(LINES).collect::<Result<_, _>>().ok()
}

/// Whether the lines are several objects, each over several lines. The last one may go on behind them.
fn is_stream(lines: &[String]) -> bool {
    let text = lines.join("\n");
    let objects = serde_json::Deserializer::from_str(&text).into_iter::<Map<String, Value>>();
    let (mut n, mut is_whole) = (0, true);
    for object in objects {
        match object {
            Ok(_) => n += 1,
            Err(error) => is_whole = error.is_eof() && lines.len() == LINES,
        }
    }
    n > 1 && is_whole
}

/// Whether the lines are one list of texts. It may go on behind them.
fn is_array_of_texts(lines: &[String]) -> bool {
    let text = lines.join("\n");
    let Some(inside) = text.trim_start().strip_prefix('[') else { return false };
    let mut rest = inside.trim_start();
    let mut n = 0;
    while rest.starts_with('"') {
        let mut texts = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        match texts.next() {
            Some(Ok(_)) => n += 1,
            _ => return n > 1,
        }
        rest = rest[texts.byte_offset()..].trim_start();
        rest = rest.strip_prefix(',').map_or(rest, str::trim_start);
    }
    n > 1 && rest.strip_prefix(']').unwrap_or(rest).trim().is_empty()
}
