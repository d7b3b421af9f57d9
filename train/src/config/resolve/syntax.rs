//! Mistakes of TOML syntax, one for each broken line.

mod unquoted;

use std::path::Path;

use kiln_data::FileFormat;
use serde_json::{Map, Value};
use toml::de::{DeTable, Error};

/// More broken lines are counted, and not shown: the first ones tell what is wrong.
const MOST_SHOWN: usize = 20;

/// Returns the broken lines of `text`, counted from 1, each with its first mistake. Further mistakes of the same line follow
/// from the first, and so do all mistakes behind an array that is not closed.
pub(super) fn broken_lines(text: &str) -> Vec<(usize, String)> {
    let (_, mut errors) = DeTable::parse_recoverable(text);
    let line_of = |error: &Error| {
        let offset = error.span().map_or(0, |span| span.start.min(text.len()));
        1 + text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count()
    };
    errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
    let mut found: Vec<(usize, String)> = errors.iter().map(|error| (line_of(error), mistake(text, error))).collect();
    found.dedup_by_key(|(line, _)| *line);

    let unclosed = errors.iter().find(|error| error.message().starts_with("unclosed array"));
    if let (Some(unclosed), Some(line)) = (unclosed, open_array(text)) {
        found.retain(|(other, _)| *other < line);
        found.push((line, unclosed.message().to_owned()));
    }
    found
}

/// Shortens a long list of broken lines.
pub(super) fn first_broken(mut broken: Vec<(usize, String)>) -> Vec<(usize, String)> {
    let n_others = broken.len().saturating_sub(MOST_SHOWN);
    if let (1.., Some((line, mistake))) = (n_others, broken.get_mut(MOST_SHOWN)) {
        *mistake = format!("{mistake}; {n_others} lines from line {line} on are not TOML");
        broken.truncate(MOST_SHOWN + 1);
    }
    broken
}

/// Whether the name of a file says that it has data. A `.json` file may be a configuration in JSON.
pub(super) fn is_data_by_name(path: &Path) -> bool {
    FileFormat::by_name(path).is_some() && !has_ending(path, &["json"])
}

/// Whether a file that is not TOML has data: many JSON objects, or lines of text.
pub(super) fn is_data(path: &Path, text: &str, broken: &[(usize, String)]) -> bool {
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let is_object = |line: &str| serde_json::from_str::<Map<String, Value>>(line).is_ok();
    if text.trim_start().starts_with("[{") || lines().take(2).filter(|line| is_object(line)).count() == 2 {
        return true;
    }
    let is_text = !has_ending(path, &["toml", "json", "yaml", "yml"]) && other_language(path, text).is_none();
    is_text && 2 * broken.len() > lines().count() && lines().all(|line| !line.trim_start().starts_with('['))
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    endings.contains(&ending.as_str())
}

/// Returns the name of another language that the whole file is written in: none of its lines sets a value as TOML does.
pub(super) fn other_language(path: &Path, text: &str) -> Option<&'static str> {
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let is_value = |line: &&&str| line.split_once('=').is_some_and(|(key, _)| is_key(key.trim()));
    if lines.iter().any(|line| is_value(&line)) {
        return None;
    }
    let is_mapping =
        |line: &&&str| line.split_once(':').is_some_and(|(key, _)| is_key(key.trim().trim_start_matches("- ")));
    match lines.first() {
        Some(first) if first.starts_with('{') || has_ending(path, &["json"]) => Some("JSON"),
        Some(_) if has_ending(path, &["yaml", "yml"]) => Some("YAML"),
        Some(_) if lines.iter().filter(is_mapping).count() * 2 > lines.len() => Some("YAML"),
        _ => None,
    }
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c))
}

/// Says what is wrong, and of a key that is there twice which one and where.
fn mistake(text: &str, error: &Error) -> String {
    let message = error.message();
    let line = error.span().and_then(|span| line_at(text, span.start));
    if let Some(hint) = line.and_then(unquoted::hint) {
        return hint;
    }
    let Some(at) = error.span().filter(|_| message == "duplicate key").map(|span| span.start.min(text.len())) else {
        return message.to_owned();
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let last = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
    let is_section = |line: &str| line.starts_with('[');
    let name =
        |line: &str| line.split(if is_section(line) { '#' } else { '=' }).next().unwrap_or_default().trim().to_owned();
    let Some(key) = lines.get(last).map(|line| name(line)) else { return message.to_owned() };
    // A key is of the section that was opened last, and a section is unique in the file.
    let section = lines[..last].iter().rposition(|line| is_section(line)).filter(|_| !is_section(&key)).unwrap_or(0);
    match (section..last).find(|line| name(lines[*line]) == key) {
        Some(first) => format!("{key} is here and in line {}: keep one of them", first + 1),
        None => format!("{message} {key}"),
    }
}

/// Returns the line with the byte `at`.
fn line_at(text: &str, at: usize) -> Option<&str> {
    let before = text.get(..at.min(text.len()))?;
    text.lines().nth(before.bytes().filter(|byte| *byte == b'\n').count())
}

/// Returns the line of the first bracket that is not closed.
fn open_array(text: &str) -> Option<usize> {
    let mut open = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut quote = None;
        for c in line.chars() {
            match (quote, c) {
                (Some(open_quote), c) if c == open_quote => quote = None,
                (Some(_), _) => {}
                (None, '#') => break,
                (None, '"' | '\'') => quote = Some(c),
                (None, '[') => open.push(number),
                (None, ']') => _ = open.pop(),
                _ => {}
            }
        }
    }
    open.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        broken_lines(text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn a_file_in_another_language_is_called_so() {
        for (name, text, wanted) in [
            ("a.yaml", "base: x\ndatasets:\n  - path: a.jsonl\n    type: chat\n", Some("YAML")),
            ("a.toml", "# what\nbase: x\nsteps: 3\n", Some("YAML")),
            ("a.json", "{\n  \"lr\": 1\n}\n", Some("JSON")),
            ("a.toml", "[optim]\nlr = 1\nsteps: 3\n", None),
            ("a.toml", "[optim\n", None),
        ] {
            assert_eq!(other_language(Path::new(name), text), wanted, "{text}");
        }
    }

    #[test]
    fn data_is_not_taken_for_a_configuration_with_mistakes() {
        let rows = "{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
        let found = |name: &str, text: &str| is_data(Path::new(name), text, &broken_lines(text));
        for (name, text) in
            [("a.json", rows), ("a.json", "[{\"text\": \"a\"}]"), ("a.en", "A text.\nx = 1\nAnother text.\n")]
        {
            assert!(found(name, text), "{name}: {text}");
        }
        for (name, text) in [
            ("a.json", "{\n  \"lr\": 1\n}\n"),
            ("a.toml", "A text.\nAnother text.\n"),
            ("a.conf", "[optim]\nlr = 1\nsteps 5\n"),
            ("a.yaml", "a: b\nc: d\n"),
        ] {
            assert!(!found(name, text), "{name}: {text}");
        }
        assert!(["a.csv", "a.jsonl", "a.parquet", "a.tsv.gz"].iter().all(|name| is_data_by_name(Path::new(name))));
        assert!(!["a.json", "a.toml", "a.txt"].iter().any(|name| is_data_by_name(Path::new(name))));
    }

    #[test]
    fn many_broken_lines_are_counted() {
        let broken = first_broken(broken_lines(&"steps: 5\n".repeat(3000)));
        assert_eq!(broken.len(), MOST_SHOWN + 1);
        assert!(broken[MOST_SHOWN].1.ends_with("; 2980 lines from line 21 on are not TOML"), "{broken:?}");
        assert_eq!(first_broken(broken_lines("steps: 5\n")).len(), 1);
    }

    #[test]
    fn one_broken_line_is_one_problem() {
        for (text, wanted) in [
            ("[data]\ntrain = [\"a.jsonl\"\nvalid = [\"b.jsonl\"]\n[optim]\nlr = 1e-3\n", 2),
            ("[data]\ntrain = \"a.jsonl\nvalid = \"b.jsonl\"\n", 2),
            ("lr = 1e-3 warmup = 5\nseed = 1\n", 1),
            ("[optim\nlr = 1\n[train]\nsteps = 5\n", 1),
            ("[train]\nsteps = 1,000\n", 2),
            ("[train]\nprecision = bf16\nsteps = 5\n", 2),
        ] {
            assert_eq!(lines(text), [wanted], "{text}{:?}", broken_lines(text));
        }
    }

    #[test]
    fn a_key_that_is_there_twice_is_named_with_both_lines() {
        for (text, wanted) in [
            ("seed = 1\n[optim]\nlr = 1\n[train]\nlr = 2\nsteps = 3\nlr = 4\n", (7, "lr is here and in line 5")),
            ("seed = 1\nseed = 2\n", (2, "seed is here and in line 1")),
            ("[optim]\nlr = 1\n[train]\n[optim] # again\nbeta = 2\n", (4, "[optim] is here and in line 1")),
        ] {
            let found = broken_lines(text);
            assert!(found.len() == 1 && found[0].0 == wanted.0 && found[0].1.starts_with(wanted.1), "{text}{found:?}");
        }
    }

    #[test]
    fn every_broken_line_is_a_problem() {
        assert_eq!(lines("seed = \n[optim\nlr = 1\n"), [1, 2]);
        assert_eq!(lines("[train]\nsteps: 500\nlog_every: 5\n"), [2, 3]);
        assert_eq!(lines("seed: 1\n[data]\ntrain = [\"a\" # ]\nvalid = []\n"), [1, 3]);
        assert!(lines("[data]\ntrain = [\"a#]\", 'b\"']\n").is_empty());
    }
}
