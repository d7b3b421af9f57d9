//! Merges the layers of a configuration, preset < file < `--set`, and reports all mistakes at once.
//!
//! The layers are merged as TOML tables, and the result is read into [`Config`]. If a key cannot be read, the loader reports
//! it with the file and line (or the `--set`) it came from, removes it and starts again. One call thus finds all mistakes.

mod dotted;
mod epochs;
mod file_paths;
mod keys;
mod lines;
mod lists;
mod mistakes;
mod other_names;
mod sources;
mod syntax;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kiln_data::files::read_file;
use serde_path_to_error::Segment;
use toml::de::DeTable;
use toml::{Table, Value};

pub(super) use dotted::lookup;
use dotted::{insert, key_offsets, leaves, remove};
use lines::in_a_file;
use lists::{FILES, listed, with_all_targets};
use mistakes::explain;
pub use sources::{ConfigError, Resolved, Sources};

use super::give_way::give_way;
use super::length::shorten;
use super::machine::{Base, Machine, choose, too_large};
use super::spelling::spell;
use super::{Config, Preset, paths};

/// Merges the layers and validates the result.
///
/// # Errors
/// If a source cannot be read, or a key or value is wrong; the error lists all mistakes.
pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
    resolve(sources).map(|resolved| resolved.config)
}

/// Merges the layers, lets defaults give way to the keys that are set, and validates the result.
///
/// # Errors
/// As [`load`].
pub fn resolve(sources: &Sources) -> Result<Resolved, ConfigError> {
    let mut layers = Layers::default();
    if let Some(file) = &sources.file {
        layers.add_file(file);
    }
    if let Some(task) = &sources.task {
        layers.origins.insert("task".into(), Origin::command_line(format!("--task {task}")));
        layers.given.push(("task".into(), Value::String(task.clone())));
    }
    for assignment in &sources.set {
        layers.add_assignment(assignment);
    }

    let (mut base, mut origin) = layers.choose_base(sources);
    // Most of the values are missing if the file cannot be read, so that other problems would follow from that.
    let mut config = layers.read_over(&base).filter(|_| !layers.file_is_broken);
    let (has_weights, set) = (origin == Base::Run, layers.origins.clone());
    let is_set = |key: &str| {
        set.contains_key(key) || has_weights && (key.starts_with("model.") || key.starts_with("tokenizer."))
    };
    let mut spelled = None;
    if let (Some(config), Base::Chosen(chosen), Some(_)) = (&mut config, &mut origin, sources.machine)
        && layers.problems.is_empty()
    {
        spelled = spell(config, &mut base, &is_set);
        chosen.shortened = shorten(config, &mut base, &is_set);
    }
    let mut notes = std::mem::take(&mut layers.notes);
    notes.extend(spelled);
    notes.extend(config.as_mut().map_or(Vec::new(), |config| give_way(config, &base, &is_set)));

    layers.choose_length(config.as_mut());
    if sources.fine_tunes {
        notes.extend(config.as_mut().and_then(|config| config.take_fine_tuning_rate(&is_set)));
    }

    let machine = sources.machine.filter(|_| !sources.only_shown);
    for problem in config.iter().flat_map(|config| problems(config, machine, &is_set)) {
        // A problem begins with its key.
        let key = problem.split([' ', ':', '=', ',']).next().unwrap_or_default();
        let origin = layers.origins.get(key).cloned();
        layers.report(origin.as_ref(), problem);
    }

    layers.problems.sort_by_key(|(line, _)| *line);
    match config {
        Some(config) if layers.problems.is_empty() => {
            Ok(Resolved { config, base: origin, notes, set: set.into_keys().collect() })
        }
        _ => Err(ConfigError { problems: layers.problems.into_iter().map(|(_, problem)| problem).collect() }),
    }
}

/// Returns everything that is wrong with the configuration, also on the machine.
fn problems(config: &Config, machine: Option<Machine>, is_set: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut problems = config.validate();
    if let Some(machine) = machine {
        problems.extend(paths::missing(config));
        // Impossible sizes have been reported.
        if problems.iter().all(|problem| !problem.starts_with("model.")) {
            problems.extend(too_large(config, machine, is_set));
        }
    }
    problems
}

/// The values from the file and the command line, not yet validated.
#[derive(Default)]
struct Layers {
    given: Vec<(String, Value)>,
    origins: BTreeMap<String, Origin>,
    /// Each with its line, by which they are sorted.
    problems: Vec<(usize, String)>,
    /// The file cannot be read or is not TOML.
    file_is_broken: bool,
    /// Sentences about keys that were set twice.
    notes: Vec<String>,
}

/// The place where a key was given.
#[derive(Clone)]
struct Origin {
    /// Line of the file; `usize::MAX` for the command line.
    line: usize,
    /// `file:line` or `--set key=value`.
    text: String,
}

impl Origin {
    fn command_line(text: String) -> Self {
        Self { line: usize::MAX, text }
    }
}

impl Layers {
    fn report(&mut self, origin: Option<&Origin>, problem: String) {
        self.problems.push(match origin {
            Some(origin) if origin.line < usize::MAX => {
                (origin.line, format!("{}: {}", origin.text, in_a_file(&problem)))
            }
            Some(origin) => (origin.line, format!("{}: {problem}", origin.text)),
            None => (usize::MAX, problem),
        });
    }

    fn add_file(&mut self, path: &Path) {
        let place = |line: usize| Origin { line, text: format!("{}:{line}", path.display()) };
        let whole = Origin { line: 0, text: path.display().to_string() };
        self.file_is_broken = true;
        if path.is_dir() {
            let text = "is a folder; name a TOML file, or continue or copy a run with kiln train --run RUN --resume or --from RUN";
            return self.report(Some(&whole), text.into());
        }
        let text = match read_file(path).map(String::from_utf8) {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => {
                let at = error.utf8_error().valid_up_to();
                return self.report(Some(&whole), format!("byte {at} is not UTF-8; save the file as UTF-8 text"));
            }
            Err(error) => {
                return self.report(Some(&whole), format!("cannot read the configuration: {error}; check --config"));
            }
        };

        let broken = syntax::broken_lines(&text);
        for (line, mistake) in &broken {
            self.report(Some(&place(*line)), format!("this is not TOML: {mistake}"));
        }
        if !broken.is_empty() {
            return;
        }

        let line_of = |offset: usize| 1 + text[..offset.min(text.len())].bytes().filter(|byte| *byte == b'\n').count();
        let (table, _) = DeTable::parse_recoverable(&text);
        let mut lines = Vec::new();
        key_offsets(table.get_ref(), "", &mut lines);
        for (key, offset) in lines {
            self.origins.insert(key, place(line_of(offset)));
        }

        // Only this reads numbers: a number too large for every type is still TOML syntax.
        let table: Table = match toml::from_str(&text) {
            Ok(table) => table,
            Err(error) => {
                let place = place(error.span().map_or(1, |span| line_of(span.start)));
                return self.report(Some(&place), format!("this is not TOML: {}", error.message()));
            }
        };
        let mut given = Vec::new();
        leaves(&table, "", &mut given);
        self.given.extend(given.into_iter().map(|(key, value)| {
            let value = file_paths::relative_to(path, &key, value);
            (key, value)
        }));
        self.file_is_broken = false;
    }

    fn add_assignment(&mut self, assignment: &str) {
        let origin = Origin::command_line(format!("--set {assignment}"));
        let Some((key, text)) = assignment.split_once('=') else {
            let problem = "the `=` is missing; write key=value, for example --set optim.lr=3e-4";
            return self.report(Some(&origin), problem.into());
        };
        let (key, text) = (key.trim(), text.trim());
        if key.is_empty() || key.split('.').any(|part| part.is_empty()) {
            return self.report(Some(&origin), format!("{key:?} is not a key; write for example --set optim.lr=3e-4"));
        }
        // Anything that is not a TOML value is text, so paths and names need no quotes.
        let parsed = toml::from_str::<Table>(&format!("value = {text}")).ok().filter(|table| table.len() == 1);
        let value = parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| Value::String(text.into()));
        let text = origin.text.clone();
        if let Some(before) = self.origins.insert(key.into(), origin).filter(|before| before.line == usize::MAX) {
            let earlier = self.given.iter_mut().rev().find(|(given, _)| given == key).map(|(_, value)| value);
            if let (Some(earlier), true) = (earlier, FILES.contains(&key)) {
                let (first, more) = (listed(key, earlier.clone()), listed(key, value));
                *earlier = Value::Array([first, more].concat());
                return;
            }
            self.notes.push(format!("{text} replaces {}", before.text));
        }
        self.given.push((key.into(), value));
    }

    /// Returns the configuration of the preset of `--preset`, or of `preset = "..."` in the file, or of the run to start
    /// from, or of the usual preset for task, text and machine.
    fn choose_base(&mut self, sources: &Sources) -> (Config, Base) {
        let at = self.given.iter().rposition(|(key, _)| key == "preset");
        let of_file = at.map(|at| self.given.remove(at).1);
        let (name, origin) = match (&sources.preset, of_file) {
            (Some(name), _) => (name.clone(), Some(Origin::command_line(format!("--preset {name}")))),
            (None, Some(Value::String(name))) => (name, self.origins.get("preset").cloned()),
            (None, Some(other)) => (other.to_string(), self.origins.get("preset").cloned()),
            (None, None) => {
                if let Some(run) = &sources.base {
                    return (run.clone(), Base::Run);
                }
                let last =
                    |wanted: &str| self.given.iter().rev().find(|(key, _)| key == wanted).map(|(_, value)| value);
                // `read_over` reports an unknown task.
                let task = last("task").and_then(|task| task.clone().try_into().ok()).unwrap_or_default();
                let train = last("data.train").map(paths_in).or_else(|| last("data.mix").map(paths_of_sources));
                let chosen = choose(task, train.as_deref(), sources.machine);
                return (chosen.preset.config(), Base::Chosen(chosen));
            }
        };

        let preset = name.parse().unwrap_or_else(|problem| {
            self.report(origin.as_ref(), problem);
            Preset::Base
        });
        (preset.config(), Base::Named(preset))
    }

    /// Reads preset and layers into a configuration, and reports each key that cannot be read. Returns `None` if the other
    /// keys cannot be read either.
    fn read_over(&mut self, preset: &Config) -> Option<Config> {
        let preset = Table::try_from(preset).expect("a preset has string keys and plain values");
        let mut known = Vec::new();
        leaves(&preset, "", &mut known);

        let mut table = preset.clone();
        for (key, value) in self.given.clone() {
            let value = fitting(&key, value, lookup(&preset, &key), self.origins.get(&key));
            let value = with_all_targets(&key, value, &preset);
            insert(&mut table, &key, value);
        }

        let mut reported = BTreeSet::new();
        loop {
            let error = match serde_path_to_error::deserialize(Value::Table(table.clone())) {
                Ok(config) => return Some(config),
                Err(error) => error,
            };
            // A mistake in `data.train[0]` is reported for `data.train`.
            let keys: Vec<&str> = error.path().iter().map_while(key_of).collect();
            let key = keys.join(".");
            let problem = epochs::explain(&key, &table).unwrap_or_else(|| explain(&key, error.inner(), &known));
            let origin = self.origin(&key).cloned();
            self.report(origin.as_ref(), problem);
            // The same mistake again: its path is not the path of the key, so removing the key does not help.
            if !reported.insert(key.clone()) {
                return None;
            }
            remove(&mut table, &key)?;
            // The value of the preset replaces the wrong one, so that validation does not report the key again.
            if let Some(value) = lookup(&preset, &key) {
                insert(&mut table, &key, value.clone());
            }
        }
    }

    /// Returns the place where `key`, a part of it or its section was given.
    fn origin(&self, key: &str) -> Option<&Origin> {
        let below = format!("{key}.");
        self.origins
            .get(key)
            .or_else(|| self.origins.iter().find(|(given, _)| given.starts_with(&below)).map(|(_, origin)| origin))
            .or_else(|| self.origin(key.rsplit_once('.')?.0))
    }
}

/// Returns the paths in a value of `data.train`, which may be one string.
fn paths_in(value: &Value) -> Vec<PathBuf> {
    let texts = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    texts.iter().filter_map(Value::as_str).map(PathBuf::from).collect()
}

/// Returns the paths of the training text in a value of `data.mix`.
fn paths_of_sources(value: &Value) -> Vec<PathBuf> {
    let sources = value.as_array().map_or(&[][..], Vec::as_slice);
    sources.iter().filter_map(|source| source.get("train")).flat_map(paths_in).collect()
}

/// Returns the name of a part of a path, or `None` for an index of a list.
fn key_of(segment: &Segment) -> Option<&str> {
    match segment {
        Segment::Map { key } => Some(key),
        Segment::Enum { variant } => Some(variant),
        Segment::Seq { .. } | Segment::Unknown => None,
    }
}

/// Converts a value to the type of the preset's value: one string to a list, and digits of a `--set` to text.
fn fitting(key: &str, value: Value, before: Option<&Value>, origin: Option<&Origin>) -> Value {
    let from_command_line = origin.and_then(|origin| origin.text.strip_prefix("--set "));
    match (before, value, from_command_line) {
        (Some(Value::Array(_)), Value::String(text), _) => Value::Array(listed(key, text.into())),
        (Some(Value::String(_)), value, Some(assignment)) if !value.is_str() => {
            let text = assignment.split_once('=').map_or(assignment, |(_, text)| text);
            Value::String(text.trim().into())
        }
        // 1e3 is a number of steps, too.
        (Some(Value::Integer(_)), Value::Float(whole), _) if whole.fract() == 0.0 && whole.abs() < 1e15 => {
            Value::Integer(whole as i64)
        }
        (_, value, _) => value,
    }
}

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;
