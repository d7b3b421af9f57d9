//! Notes that Anki has exported as plain text: lines at the top name its separator and the columns that are not fields.

use std::path::Path;

use super::jq::fed;
use crate::formats::LineReader;

/// Lines that are looked at.
const LINES: usize = 50;
/// The names of separators, and how Python spells them.
const SEPARATORS: [(&str, &str); 6] =
    [("tab", "\\t"), ("comma", ","), ("semicolon", ";"), ("pipe", "|"), ("colon", ":"), ("space", " ")];

/// Says how the first two fields of notes become rows with two `names`, without HTML and sounds; `None` for other files.
pub(super) fn advice(path: &Path, [first, second]: [&str; 2]) -> Option<String> {
    let lines: Vec<String> = LineReader::texts(path).ok()?.take(LINES).map_while(Result::ok).collect();
    let top =
        || lines.iter().map(|line| line.trim_start_matches('\u{feff}').trim()).filter(|line| line.starts_with('#'));
    let value = |key: &str| top().find_map(|line| line.strip_prefix(key).map(str::trim));
    let separator = value("#separator:")?.to_lowercase();
    let named = SEPARATORS.into_iter().find(|(name, _)| *name == separator);
    let separator = named.map_or(separator.as_str(), |(_, spelled)| spelled);

    // `#deck column:3` counts from 1.
    let others: Vec<usize> = top().filter_map(|line| line.split_once(" column:")?.1.trim().parse().ok()).collect();
    let mut fields = (0..).filter(|at| !others.contains(&(at + 1)));
    let (front, back) = (fields.next()?, fields.next()?);
    let script = format!(
        "python3 -c 'import csv, html, json, re\ntext = lambda cell: html.unescape(re.sub(r\"<[^>]*>|\\[sound:[^]]*\\]\", \" \", cell)).strip()\n\
         lines = (line for line in open(0, encoding=\"utf-8-sig\", newline=\"\") if not line.startswith(\"#\"))\nfor row in csv.reader(lines, \
         delimiter=\"{separator}\"):\n  if len(row) > {back}: print(json.dumps({{\"{first}\": text(row[{front}]), \"{second}\": \
         text(row[{back}])}}, ensure_ascii=False))'"
    );
    Some(format!(
        "its lines are notes of Anki, and rows are wanted\nto make rows of their first two fields: {} > rows.jsonl\nand train on rows.jsonl",
        fed(path, &script)
    ))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn fields_of_notes_become_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("notes.txt");
        let top = "#separator:tab\n#html:true\n#guid column:1\n#notetype column:2\n#deck column:3\n#tags column:6\n";
        let note = "2b7c\tBasic\tDeutsch::A1\tA cat.\t\"<b>Eine Katze.</b><br>[sound:a0.mp3]\"\tverbs\n";
        std::fs::write(&file, top.to_owned() + &note.repeat(9)).expect("writable");
        let said = advice(&file, ["prompt", "completion"]).expect("notes");
        let (_, command) = said.split_once("two fields: ").expect("a command");
        let (command, _) = command.split_once(" > rows.jsonl").expect("a command");
        let Ok(ran) = Command::new("sh").args(["-c", command]).output() else { return };
        let rows = String::from_utf8_lossy(&ran.stdout).into_owned();
        if ran.status.code() == Some(127) {
            return;
        }
        assert_eq!(rows.lines().next(), Some(r#"{"prompt": "A cat.", "completion": "Eine Katze."}"#), "{said}");

        std::fs::write(&file, "# a heading\na text\n").expect("writable");
        assert_eq!(advice(&file, ["src", "trg"]), None);
    }
}
