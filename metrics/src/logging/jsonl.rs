//! `metrics.jsonl`: one JSON object per line. Each line is written in one call, so that the file holds whole lines however
//! the run ends.
//!
//! `kind` is `start`, `step`, `window`, `validation`, `sample`, `note` or `end`, and `time` is in seconds since 1970. [`crate`]
//! has the other fields and the version of the schema. Numbers that are not finite are written as `null`, because JSON cannot
//! express them.

use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::path::Path;

use anyhow::Result;
use kiln_data::files::{MOST_LINE_BYTES, create_fresh, open_file, open_own, read_line};
use serde::Serialize;
use serde_json::Value;

use super::{Record, Sink, unix_secs};

/// The sink to `metrics.jsonl`.
pub struct Jsonl {
    file: File,
    line: Vec<u8>,
}

#[derive(Serialize)]
struct Line<'a, T: Serialize> {
    kind: &'a str,
    time: f64,
    #[serde(flatten)]
    fields: T,
}

#[derive(Serialize)]
struct NoteFields<'a> {
    note: &'a str,
}

impl Jsonl {
    /// Opens `path` for appending. It first removes the lines of steps after `start_step`, and an unfinished last line of a
    /// killed run.
    pub fn open(path: &Path, start_step: u64) -> Result<Self> {
        if path.exists() {
            keep_until(path, start_step)?;
        }
        let file = open_own(path)?;
        Ok(Self { file, line: Vec::new() })
    }

    fn write_line(&mut self, kind: &str, fields: impl Serialize) -> Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, &Line { kind, time: unix_secs(), fields })?;
        self.line.push(b'\n');
        // One call writes the whole line, so that a reader never sees a part of it.
        self.file.write_all(&self.line)?;
        Ok(())
    }
}

impl Sink for Jsonl {
    fn write(&mut self, record: &Record<'_>) -> Result<()> {
        match record {
            Record::Start(start) => self.write_line("start", start),
            Record::Step(step) => self.write_line("step", step),
            Record::Window(window) => self.write_line("window", window),
            Record::Validation(validation) => self.write_line("validation", validation),
            Record::Sample(sample) => self.write_line("sample", sample),
            Record::Preparing(..) | Record::Begin(_) => Ok(()),
            Record::Note(note) => self.write_line("note", NoteFields { note }),
            Record::End(run) => self.write_line("end", run),
            Record::Finished => Ok(self.file.sync_all()?),
        }
    }
}

/// Rewrites the file without the lines of later steps.
fn keep_until(path: &Path, step: u64) -> Result<()> {
    let rewritten = path.with_extension("jsonl.tmp");
    let mut out = std::io::BufWriter::new(create_fresh(&rewritten)?);
    let (mut lines, mut line) = (BufReader::new(open_file(path)?), Vec::new());
    while read_line(&mut lines, &mut line, MOST_LINE_BYTES)? {
        let Ok(value) = serde_json::from_slice::<Value>(&line) else { continue };
        if value.get("step").and_then(Value::as_u64).is_none_or(|at| at <= step) {
            out.write_all(line.trim_ascii_end())?;
            out.write_all(b"\n")?;
        }
    }
    out.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    fs::rename(&rewritten, path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::super::samples;
    use super::*;

    fn lines(path: &Path) -> Vec<Value> {
        let text = fs::read_to_string(path).expect("written");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    #[test]
    fn every_record_is_a_line_that_can_be_read_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("metrics.jsonl");
        let mut sink = Jsonl::open(&path, 0).expect("writable");
        sink.write(&Record::Step(&samples::step(1))).expect("written");
        assert_eq!(lines(&path).len(), 1, "flushed without closing");
        sink.write(&Record::Window(&samples::window(1))).expect("written");
        sink.write(&Record::Validation(&samples::validation(1))).expect("written");
        sink.write(&Record::Note("saved")).expect("written");
        sink.write(&Record::Finished).expect("written");
        let lines = lines(&path);
        let kinds: Vec<_> = lines.iter().map(|line| line["kind"].as_str().expect("a kind")).collect();
        assert_eq!(kinds, ["step", "window", "validation", "note"]);
        assert_eq!((&lines[0]["loss"], &lines[0]["target_tokens"]), (&2.5.into(), &1200.into()));
        assert_eq!(lines[1]["tokens_per_sec"], 1234567.8, "flattened next to the losses");
        assert_eq!(lines[2]["bleu"], 51.234);
        assert!(lines[2].get("chrf").is_none());
    }

    /// The names between backquotes in the first column of the page's tables, without the parents of nested ones.
    fn documented() -> std::collections::BTreeSet<String> {
        let page = include_str!("../../../docs/metrics.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
        let names = rows.flat_map(|cell| cell.split('`').step_by(2));
        names.flat_map(|name| name.split('.')).map(str::to_owned).collect()
    }

    fn keys(value: &Value, found: &mut std::collections::BTreeSet<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| {
                found.insert(key.clone());
                keys(value, found);
            }),
            Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_page_on_the_schema_has_exactly_the_fields_that_are_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("metrics.jsonl");
        let mut sink = Jsonl::open(&path, 0).expect("writable");
        samples::complete(|record| sink.write(record).expect("written"));
        let mut written = std::collections::BTreeSet::new();
        lines(&path).iter().for_each(|line| keys(line, &mut written));
        assert!(["kind", "time"].iter().all(|key| written.remove(*key)));
        assert_eq!(written, documented());
        assert!(include_str!("../../../docs/metrics.md").contains(&format!("version {} of", crate::SCHEMA)));
    }

    #[test]
    fn a_loss_that_is_not_finite_stays_valid_json() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("metrics.jsonl");
        let step = crate::StepMetrics { loss: f64::NAN, ..samples::step(1) };
        Jsonl::open(&path, 0).expect("writable").write(&Record::Step(&step)).expect("written");
        assert_eq!(lines(&path)[0]["loss"], Value::Null);
    }

    #[test]
    fn resuming_takes_back_what_will_happen_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("metrics.jsonl");
        let mut sink = Jsonl::open(&path, 0).expect("writable");
        for step in 1..=6 {
            sink.write(&Record::Step(&samples::step(step))).expect("written");
        }
        drop(sink);
        OpenOptions::new().append(true).open(&path).expect("there").write_all(b"{\"kind\":\"st").expect("torn line");
        let mut sink = Jsonl::open(&path, 4).expect("readable");
        sink.write(&Record::Step(&samples::step(5))).expect("written");
        let steps: Vec<_> = lines(&path).iter().map(|line| line["step"].as_u64().expect("a step")).collect();
        assert_eq!(steps, [1, 2, 3, 4, 5]);
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 1, "no temporary file is left");
    }
}
