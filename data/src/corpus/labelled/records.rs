//! Labelled rows as lines of JSON, which say the same as their file.

use std::path::Path;

use serde_json::Value;

use super::config::LabelConfig;
use super::row::read_row;
use super::{LabelledCorpus, wanted};
use crate::corpus::text::Task;
use crate::error::Result;
use crate::formats::FileFormat;

impl LabelledCorpus {
    /// Returns the rows of a file that can be used, each with its line and as a line of JSON. A file of JSON lines with them has the same
    /// texts, words and labels.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn records(path: &Path, task: Task, config: &LabelConfig) -> Result<Vec<(u64, String)>> {
        let format = FileFormat::by_name(path).unwrap_or(FileFormat::JSON);
        let mut records = format.open(path, &wanted(task, config))?;
        let (mut rows, mut json) = (Vec::new(), Vec::new());
        while let Some(place) = records.next(&mut json)? {
            if place.problem.is_none()
                && read_row(&json, task, config).is_ok()
                && let Some(row) = record_of(&json, format, task, config)
            {
                rows.push((place.line, row));
            }
            json.clear();
        }
        Ok(rows)
    }
}

/// Returns a row of a file in this format as a line of JSON.
pub(super) fn record_of(json: &[u8], format: FileFormat, task: Task, config: &LabelConfig) -> Option<String> {
    let mut row = serde_json::from_slice::<Value>(json).ok()?;
    if format.is_all_text() {
        number_labels(&mut row, task, config);
    }
    Some(row.to_string())
}

/// Makes numbers of the labels that are texts of digits, as rows of a format without numbers are read.
fn number_labels(row: &mut Value, task: Task, config: &LabelConfig) {
    let field = if task == Task::Tagging { &config.tags_field } else { &config.label_field };
    match row.get_mut(field) {
        Some(Value::Array(labels)) => labels.iter_mut().for_each(|label| number(label, &config.names)),
        Some(label) => number(label, &config.names),
        None => {}
    }
}

/// Makes a number of a text of digits. One with zeros in front, such as `03`, stays a name unless the `names` of the classes lack it.
fn number(label: &mut Value, names: &[String]) {
    let parsed = label.as_str().and_then(|text| Some((text, text.parse::<u32>().ok()?)));
    if let Some((text, value)) = parsed
        && (value.to_string() == text || !names.is_empty() && !names.iter().any(|name| name == text))
    {
        *label = value.into();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn rows_of_every_format_say_the_same_as_lines_of_json() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = LabelConfig::default();
        let tags = LabelConfig { names: vec!["O".into(), "B".into(), "7".into()], ..LabelConfig::default() };
        let files = [
            ("a.csv", Task::Classification, "text,label\n\"two\nlines\",3\nplain,good\n,bad\n", 2),
            ("b.tsv", Task::Classification, "label\ttext\n5\tx\n4\ty\n", 2),
            (
                "c.csv",
                Task::Tagging,
                "tokens,tags\n\"[\"\"a\"\", \"\"b\"\"]\",\"[\"\"O\"\", \"\"B\"\"]\"\nx y,O 7\n",
                2,
            ),
            ("d.conll", Task::Tagging, "a O\nb B\n\nc 7\n", 2),
            ("e.jsonl", Task::Classification, "{\"text\": \"a\", \"label\": \"3\"}\n{\"text\": \"b\"}\n", 1),
        ];
        for (name, task, content, n) in files {
            let (path, config) = (folder.path().join(name), if task == Task::Tagging { &tags } else { &config });
            fs::write(&path, content).expect("writable");
            let rows = LabelledCorpus::records(&path, task, config).expect("readable");
            assert_eq!(rows.len(), n, "{name}: {rows:?}");

            let lines: Vec<String> = rows.into_iter().map(|(_, row)| row).collect();
            let copy = folder.path().join("copy.jsonl");
            fs::write(&copy, lines.join("\n") + "\n").expect("writable");

            let most = LabelConfig { max_bad_rows: 0.9, ..config.clone() };
            let read = |path: &Path| {
                let mut found = Vec::new();
                let (mut report, mut seen) = Default::default();
                super::super::read_file(path, task, &most, &mut report, &mut seen, &mut |_, row| {
                    found.push(format!("{row:?}"));
                })
                .expect("readable");
                found
            };
            assert_eq!(read(&copy), read(&path), "{name}");
        }
    }
}
