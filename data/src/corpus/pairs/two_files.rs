//! Two files with translations whose lines are not texts, such as JSON: the command that makes rows of them.

use std::path::Path;

use serde_json::Value;

use super::named_texts::NamedTexts;
use crate::formats::{LineReader, ending};
use crate::terminal::shell_path;

/// Larger files are not looked at.
const MOST_BYTES: usize = 256 << 20;
/// Lines of a file that are looked at.
const LINES: usize = 20;
/// The beginning of a script, which reads the texts of a JSON file by their keys. Elements of lists are known by their `id` or `key`.
const OF_JSON: &str = r#"import json, sys
def texts(value, path=()):
  if isinstance(value, str): yield path, value
  inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
  for key, one in inside:
    name = [one[key] for key in ("id", "key", "name") if isinstance(one, dict) and isinstance(value, list) and key in one][:1]
    yield from texts(one, (*path, json.dumps(name[0]) if name else key))
def read(name):
  whole = open(name, encoding="utf-8-sig").read()
  try: return dict(texts(json.loads(whole)))
  except ValueError: return dict(texts([json.loads(line) for line in whole.splitlines() if line.strip()]))"#;
/// The end of a script, which joins the texts of two files that have the same keys.
const JOIN: &str = r#"one, other = map(read, sys.argv[1:])
both = [key for key in one if key in other and one[key].strip() and other[key].strip()]
rows = [key for key in both if one[key] != other[key]]
for key in rows: print(json.dumps({"src": one[key], "trg": other[key]}))
print("texts left out: in one of the files alone:", len(one) + len(other) - 2 * len(both), "- the same in both:", len(both) - len(rows), file=sys.stderr)"#;

/// How a file has JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Json {
    /// As one value in several lines.
    Whole,
    /// As an object or a list in each line.
    Lines,
}

/// Returns how the file has JSON. `None` for other text, and for files that cannot be read.
fn json_in(path: &Path) -> Option<Json> {
    let is_one =
        |text: &[u8]| serde_json::from_slice::<Value>(text).is_ok_and(|value| value.is_object() || value.is_array());
    let (mut reader, mut line, mut text, mut n, mut n_json) =
        (LineReader::open(path).ok()?, Vec::new(), Vec::new(), 0, 0);
    while text.len() < MOST_BYTES && reader.read_line(&mut line).ok()? {
        let begins = text.is_empty() && !line.trim_ascii().is_empty();
        let part = line.strip_prefix("\u{feff}".as_bytes()).filter(|_| begins).unwrap_or(&line);
        if begins && !part.trim_ascii().starts_with(b"{") && !part.trim_ascii().starts_with(b"[") {
            return None;
        }
        if n < LINES && !part.trim_ascii().is_empty() {
            (n, n_json) = (n + 1, n_json + usize::from(is_one(part)));
        }
        if n == LINES && n == n_json {
            return Some(Json::Lines);
        }
        text.extend_from_slice(part.trim_ascii_end());
        text.push(b'\n');
        line.clear();
    }

    match () {
        () if n > 0 && n == n_json => Some(Json::Lines),
        () if is_one(&text) => Some(Json::Whole),
        () => None,
    }
}

/// Returns what to say of two files whose lines are not texts; `None` for other files. Lines of JSON in one of the files alone may be
/// what a model is to write.
pub(super) fn refusal([source, target]: [&Path; 2]) -> Option<String> {
    if let Some((form, key)) = NamedTexts::of([source, target]) {
        let found = format!("their lines have names in front of the texts, such as {key:?}");
        return Some(joined(&found, &form.script(), [source, target]));
    }
    let found = [source, target].map(json_in);
    if !found.contains(&Some(Json::Whole)) && found != [Some(Json::Lines); 2] {
        return None;
    }
    if found.contains(&None) {
        return Some(format!(
            "one of them is JSON, whose lines are not texts: write both in the same form\n{AS_LINES}"
        ));
    }
    Some(joined("they are JSON, whose lines have names and brackets, too", OF_JSON, [source, target]))
}

/// What takes lines for texts.
const AS_LINES: &str = "to take their lines as texts all the same: --set data.corpus.format=parallel";

/// Adds to what was found the command that joins the texts of two files, which a script reads by their names.
fn joined(found: &str, script: &str, [source, target]: [&Path; 2]) -> String {
    if [source, target].iter().any(|path| ["gz", "zst", "xz"].contains(&ending(path).as_str())) {
        return format!(
            "{found}: unpack them, and name the unpacked files to get the command that joins them\n{AS_LINES}"
        );
    }
    let [source, target] = [source, target].map(shell_path);
    format!(
        "{found}\nto join the texts that have the same names: python3 -c '{script}\n{JOIN}' {source} {target} > rows.jsonl\nand train on \
         rows.jsonl\n{AS_LINES}"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Returns the rows that the command of a refusal makes; `None` without Python.
    fn rows_of(source: &str, target: &str) -> Option<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, other] = ["it's.json", "b.json"].map(|name| folder.path().join(name));
        std::fs::write(&one, source).expect("writable");
        std::fs::write(&other, target).expect("writable");
        let said = refusal([&one, &other]).expect("names");
        let (_, command) = said.split_once("same names: ").expect("a command");
        let (command, _) = command.split_once("\nand train").expect("a command");
        let ran = Command::new("sh").args(["-c", command]).current_dir(folder.path()).output().ok()?;
        assert!(ran.status.success() || ran.status.code() == Some(127), "{ran:?}");
        ran.status.success().then(|| std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("written"))
    }

    #[test]
    fn texts_of_two_json_files_are_joined_by_their_names() {
        let rows = [
            rows_of(
                "{\n  \"menu\": {\"open\": \"Open\", \"save\": \"Save\", \"ok\": \"OK\"},\n  \"more\": [\"a cat\", \"\"]\n}\n",
                "{\n  \"menu\": {\"save\": \"Speichern\", \"open\": \"Öffnen\", \"ok\": \"OK\"},\n  \"more\": [\"eine Katze\", \"x\"]\n}\n",
            ),
            rows_of(
                "\u{feff}[{\"id\": 1, \"text\": \"Open\"}, {\"id\": 2, \"text\": \"Save\"},\n {\"id\": 7, \"text\": \"a cat\"}]\n",
                "[{\"id\": 2, \"text\": \"Speichern\"}, {\"id\": 1, \"text\": \"Öffnen\"},\n {\"id\": 7, \"text\": \"eine Katze\"}]\n",
            ),
            rows_of(
                "{\"t\": \"Open\"}\n{\"t\": \"Save\"}\n{\"t\": \"a cat\"}\n",
                "{\"t\": \"Öffnen\"}\n{\"t\": \"Speichern\"}\n{\"t\": \"eine Katze\"}\n",
            ),
        ];
        for rows in rows {
            let Some(rows) = rows else { return };
            let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
            let pairs: Vec<[&str; 2]> =
                rows.iter().map(|row| ["src", "trg"].map(|side| row[side].as_str().expect("a text"))).collect();
            assert_eq!(pairs, [["Open", "Öffnen"], ["Save", "Speichern"], ["a cat", "eine Katze"]]);
        }
    }

    #[test]
    fn texts_behind_their_names_are_joined_without_the_names() {
        let names = |n: usize| format!("btn.{n}_a");
        let strings = |text: &str| {
            let row = |n: usize| format!("\"{}\" = \"{text} {n}\\n\\\"x\\\"\";\n", names(n));
            format!("/* a comment */\n{}\n// more\n", (0..30).map(row).collect::<String>())
        };
        let properties = |sign: &str, text: &str| {
            let row = |n: usize| format!("{}{sign}{text} {n}\\n\\u0022x\\\n   \"\n", names(n));
            format!("# a comment\n\n{}", (0..30).map(row).collect::<String>())
        };
        let xml = |text: &str| {
            let row = |n: usize| format!("  <string name=\"{}\">{text} {n}&#10;&quot;x\\\"</string>\n", names(n));
            format!("<resources>\n{}</resources>\n", (0..30).map(row).collect::<String>())
        };

        // The other file has another order, and lacks some.
        let turned = |text: String| {
            let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
            if !text.contains("\\\n") {
                lines.reverse();
            }
            lines.concat().replace("btn.7_a", "other.7")
        };
        for [source, target] in [
            [strings("Save"), turned(strings("Speichern"))],
            [properties("=", "Save"), properties(" = ", "Speichern").replace("btn.7_a", "other.7")],
            [properties(": ", "Save"), properties(":", "Speichern").replace("btn.7_a", "other.7")],
            [xml("Save"), turned(xml("Speichern"))],
        ] {
            let Some(rows) = rows_of(&source, &target) else { return };
            let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
            assert_eq!(rows.len(), 29, "{source}{target}");
            assert_eq!(rows[3], serde_json::json!({"src": "Save 3\n\"x\"", "trg": "Speichern 3\n\"x\""}), "{source}");
        }
    }

    #[test]
    fn texts_and_json_to_write_are_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, other] = ["a", "b"].map(|name| folder.path().join(name));
        for (source, target) in [
            ("a line\nand another\n", "{\"a\": 1}\n{\"a\": 2}\n"),
            ("[Verse]\nshe went\n", "{sic} he went\n\n"),
            (&"x=3\n".repeat(20), &"x=4\n".repeat(20)),
            (&"Anna: she went\nBob: he went\n".repeat(9), &"Anna: è andata\nBob: è andato\n".repeat(9)),
            ("", ""),
        ] {
            std::fs::write(&one, source).expect("writable");
            std::fs::write(&other, target).expect("writable");
            assert_eq!(refusal([&one, &other]), None, "{source} {target}");
        }
    }
}
