//! The first stage: reads the file and the command line into keys and values.

use std::path::Path;

use kiln_data::files::read_file;
use kiln_data::terminal::shell_path;
use toml::de::DeTable;
use toml::{Table, Value};

use super::dotted::{key_offsets, leaves};
use super::lists::{FILES, listed};
use super::report::{Origin, Report};
use super::sources::Sources;
use super::{file_paths, syntax};

/// The values from the file and the command line, later ones behind earlier ones.
#[derive(Default)]
pub(super) struct Given {
    pub(super) values: Vec<(String, Value)>,
    /// The file cannot be read or is not TOML.
    pub(super) file_is_broken: bool,
    pub(super) report: Report,
}

/// Reads the file, `--task` and each `--set`.
pub(super) fn read(sources: &Sources) -> Given {
    let mut given = Given::default();
    if let Some(file) = &sources.file {
        given.add_file(file);
    }
    if let Some(task) = &sources.task {
        given.report.origins.insert("task".into(), Origin::command_line(format!("--task {task}")));
        given.values.push(("task".into(), Value::String(task.clone())));
    }
    for assignment in &sources.set {
        given.add_assignment(assignment);
    }
    given
}

/// Reads `--set` alone.
pub(super) fn read_assignments(set: &[String]) -> Given {
    let mut given = Given::default();
    set.iter().for_each(|assignment| given.add_assignment(assignment));
    given
}

impl Given {
    fn add_file(&mut self, path: &Path) {
        let place = |line: usize| Origin { line, text: format!("{}:{line}", path.display()) };
        let whole = Origin { line: 0, text: path.display().to_string() };
        self.file_is_broken = true;
        if path.is_dir() {
            let text = "is a folder; name a TOML file, or continue or copy a run with kiln train --run RUN --resume or --from RUN";
            return self.report.problem(Some(&whole), text.into());
        }
        if path.is_file() && syntax::is_data_by_name(path) {
            return self.report.problem(Some(&whole), is_data(path));
        }

        let text = match read_file(path).map(String::from_utf8) {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => {
                let at = error.utf8_error().valid_up_to();
                return self
                    .report
                    .problem(Some(&whole), format!("byte {at} is not UTF-8; save the file as UTF-8 text"));
            }
            Err(error) => {
                return self
                    .report
                    .problem(Some(&whole), format!("cannot read the configuration: {error}; check --config"));
            }
        };

        let broken = syntax::broken_lines(&text);
        if !broken.is_empty() && syntax::is_data(path, &text, &broken) {
            return self.report.problem(Some(&whole), is_data(path));
        }
        if let (Some((line, _)), Some(other)) = (broken.first(), syntax::other_language(path, &text)) {
            let problem = format!(
                "this is {other}, and a configuration is TOML: `key = value` below sections such as [data]; kiln config prints a file \
                 with all keys"
            );
            return self.report.problem(Some(&place(*line)), problem);
        }
        if !broken.is_empty() {
            for (line, mistake) in syntax::first_broken(broken) {
                self.report.problem(Some(&place(line)), format!("this is not TOML: {mistake}"));
            }
            return;
        }

        let line_of = |offset: usize| 1 + text[..offset.min(text.len())].bytes().filter(|byte| *byte == b'\n').count();
        let (table, _) = DeTable::parse_recoverable(&text);
        let mut lines = Vec::new();
        key_offsets(table.get_ref(), "", &mut lines);
        for (key, offset) in lines {
            self.report.origins.insert(key, place(line_of(offset)));
        }

        // Only this reads numbers: a number too large for every type is still TOML syntax.
        let table: Table = match toml::from_str(&text) {
            Ok(table) => table,
            Err(error) => {
                let place = place(error.span().map_or(1, |span| line_of(span.start)));
                return self.report.problem(Some(&place), format!("this is not TOML: {}", error.message()));
            }
        };
        let mut given = Vec::new();
        leaves(&table, "", &mut given);
        self.values.extend(given.into_iter().map(|(key, value)| {
            let value = file_paths::relative_to(path, &key, value);
            (key, value)
        }));
        self.file_is_broken = false;
    }

    fn add_assignment(&mut self, assignment: &str) {
        let origin = Origin::command_line(format!("--set {assignment}"));
        let Some((key, text)) = assignment.split_once('=') else {
            let problem = "the `=` is missing; write key=value, for example --set optim.lr=3e-4";
            return self.report.problem(Some(&origin), problem.into());
        };

        let (key, text) = (key.trim(), text.trim());
        if key.is_empty() || key.split('.').any(|part| part.is_empty()) {
            return self
                .report
                .problem(Some(&origin), format!("{key:?} is not a key; write for example --set optim.lr=3e-4"));
        }
        if let Some(list) = item_of_list(key) {
            let problem =
                format!("items of a list cannot be changed one by one; set all of {list}, or change the file");
            return self.report.problem(Some(&origin), problem);
        }
        // Anything that is not a TOML value is text, so paths and names need no quotes.
        let parsed = toml::from_str::<Table>(&format!("value = {text}")).ok().filter(|table| table.len() == 1);
        let value = parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| Value::String(text.into()));
        let text = origin.text.clone();
        if let Some(before) = self.report.origins.insert(key.into(), origin).filter(|before| before.line == usize::MAX)
        {
            let earlier = self.values.iter_mut().rev().find(|(given, _)| given == key).map(|(_, value)| value);
            if let (Some(earlier), true) = (earlier, FILES.contains(&key)) {
                let (first, more) = (listed(key, earlier.clone()), listed(key, value));
                *earlier = Value::Array([first, more].concat());
                return;
            }
            self.report.notes.push(format!("{text} replaces {}", before.text));
        }
        self.values.push((key.into(), value));
    }
}

/// Says what reads a file of data.
fn is_data(path: &Path) -> String {
    format!(
        "this is data, and --config reads a configuration in TOML: kiln train {} reads data, kiln config prints a file with all keys",
        shell_path(path)
    )
}

/// Returns the list that a key such as `data.mix.0.weight` names an item of.
fn item_of_list(key: &str) -> Option<&str> {
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let mut dots = key.match_indices('.').map(|(at, _)| at);
    dots.find(|at| is_number(key[at + 1..].split('.').next().unwrap_or_default())).map(|at| &key[..at])
}
