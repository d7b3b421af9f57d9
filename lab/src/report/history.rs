//! The history of a run: its configuration and the lines of its `metrics.jsonl`.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use kiln_data::Lengths;
use kiln_data::files::{MOST_LINE_BYTES, open_file};
use kiln_data::terminal::in_one_line;
use kiln_metrics::logging::METRICS_FILE;
use kiln_train::checkpoint::RUN_CONFIG_FILE;
use kiln_train::config::Config;
use kiln_train::metrics::SourceMetrics;
use serde_json::Value;

use super::catalogue::{FIGURES, Measure};
use super::profiles::StepProfile;
pub use crate::diagnose::no_history::HistoryError;
use crate::diagnose::run_record::has_short_texts;

/// A longer line is not one of Kiln's and is skipped, bytes.
const LONGEST_LINE: u64 = 1 << 20;
/// Figures of a model of one's own that are kept, from the first.
const MOST_FIGURES: usize = 64;
/// Sides whose lengths are kept, and bars of each, from the first.
const MOST_SIDES: usize = 16;
const MOST_BARS: usize = 64;
/// Largest value that is drawn: sums and differences of larger ones are infinite.
const LARGEST: f64 = 1e30;
/// Notes and samples that are kept, from the newest.
const MOST_NOTES: usize = 200;

/// Values of a measure by step.
pub type Points = Vec<(f64, f64)>;

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// The newest step before it.
    pub(crate) step: u64,
    /// What happened.
    pub(crate) text: String,
}

/// A text that the model wrote while it was trained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Optimizer steps done.
    pub(crate) step: u64,
    /// What the model read.
    pub(crate) source: String,
    /// What the model wrote.
    pub(crate) output: String,
    /// What was wanted, if that is known.
    pub(crate) reference: Option<String>,
}

/// The totals of a run that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// `steps`, `time` or `stopped`.
    pub(crate) outcome: String,
    /// Seconds of training.
    pub(crate) train_secs: Option<f64>,
    /// Non-padding tokens per second.
    pub(crate) tokens_per_sec: Option<f64>,
    /// A mixture: its sources.
    pub(crate) sources: SourceMetrics,
}

/// A run, as its folder tells it.
#[derive(Debug, Clone)]
pub struct History {
    /// The run folder.
    pub dir: PathBuf,
    /// The name of the folder, unique among the runs of a report.
    pub(crate) name: String,
    /// The configuration, if this version of Kiln can read it.
    pub config: Option<Config>,
    /// The device, if a process of this version or a later one has trained.
    pub(crate) device: Option<String>,
    /// The lengths of the training rows, if a process of this version or a later one knew them.
    pub(crate) lengths: Vec<Lengths>,
    /// Steps that were logged.
    pub(crate) n_steps: u64,
    /// The newest step.
    pub(crate) last_step: u64,
    /// Seconds since 1970 of the newest line.
    pub(crate) last_time: Option<f64>,
    /// Steps whose loss or gradient was not finite.
    pub(crate) non_finite_steps: u64,
    /// What happened, oldest first.
    pub(crate) notes: Vec<Note>,
    /// What the model wrote, oldest first.
    pub(crate) samples: Vec<Sample>,
    /// Profiles of its steps.
    pub(crate) profiles: Vec<StepProfile>,
    /// Non-padding tokens of all steps.
    tokens: f64,
    /// Positions computed in all steps, padding included.
    padded_tokens: f64,
    /// The totals, unless the newest process still trains or was killed.
    pub(crate) end: Option<End>,
    /// Lines that are not JSON: usually the last one of a run that goes on.
    pub bad_lines: u64,
    /// Whether BLEU was 0 in a validation because no translation had four words.
    pub(crate) has_short_texts: bool,
    values: BTreeMap<(&'static str, &'static str), Points>,
    own: BTreeMap<String, Points>,
}

impl History {
    /// Reads the folder of a run, also while the run goes on.
    ///
    /// # Errors
    /// [`HistoryError`], if the folder holds no run, or if it has not finished a step.
    pub fn read(dir: &Path) -> Result<Self, HistoryError> {
        let config_path = dir.join(RUN_CONFIG_FILE);
        if !config_path.is_file() {
            return Err(HistoryError::NoRun(dir.to_path_buf()));
        }
        let path = dir.join(METRICS_FILE);
        let file = match open_file(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(HistoryError::NoMetrics(dir.to_path_buf()));
            }
            Err(source) => return Err(HistoryError::Unreadable { path, source }),
        };

        let mut history = Self {
            name: name_of(dir),
            dir: dir.to_path_buf(),
            config: Config::read(&config_path).ok(),
            device: None,
            lengths: Vec::new(),
            n_steps: 0,
            last_step: 0,
            last_time: None,
            non_finite_steps: 0,
            notes: Vec::new(),
            samples: Vec::new(),
            profiles: StepProfile::all(dir),
            tokens: 0.0,
            padded_tokens: 0.0,
            end: None,
            bad_lines: 0,
            has_short_texts: false,
            values: BTreeMap::new(),
            own: BTreeMap::new(),
        };
        history.read_lines(BufReader::new(file)).map_err(|source| HistoryError::Unreadable { path, source })?;
        if history.n_steps == 0 {
            return Err(HistoryError::NoSteps(dir.to_path_buf()));
        }
        history
            .values
            .values_mut()
            .chain(history.own.values_mut())
            .for_each(|points| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
        Ok(history)
    }

    /// Returns the values of a measure that are numbers, by step, multiplied by its scale.
    pub fn points(&self, measure: &Measure) -> Points {
        let points = self.values.get(&(measure.kind, measure.field)).into_iter().flatten();
        points.map(|(step, value)| (*step, value * measure.scale)).collect()
    }

    /// Returns whether a measure has a value.
    pub fn has(&self, measure: &Measure) -> bool {
        self.values.contains_key(&(measure.kind, measure.field))
    }

    /// Returns the values of a field of all lines of a kind, if a figure shows it.
    pub fn field(&self, kind: &str, field: &str) -> &[(f64, f64)] {
        let found = self.values.iter().find(|((a, b), _)| *a == kind && *b == field);
        found.map_or(&[], |(_, points)| points)
    }

    /// Returns the fraction of padding in all steps, whichever process took them. `None` if no step says it.
    pub fn padding_ratio(&self) -> Option<f64> {
        (self.padded_tokens > 0.0).then(|| 1.0 - self.tokens / self.padded_tokens)
    }

    /// Returns the values of each figure of a model of one's own, by step.
    pub fn own_figures(&self) -> &BTreeMap<String, Points> {
        &self.own
    }

    fn read_lines(&mut self, mut lines: impl BufRead) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            if (&mut lines).take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            match serde_json::from_slice::<Value>(&line) {
                Ok(value) => self.add(&value),
                Err(_) => self.bad_lines += 1,
            }
            if line.last() != Some(&b'\n') && line.len() as u64 == LONGEST_LINE {
                skip_line(&mut lines)?;
            }
        }
    }

    fn add(&mut self, line: &Value) {
        let kind = line["kind"].as_str().unwrap_or_default();
        self.last_time = line["time"].as_f64().or(self.last_time);
        if let Some(step) = line["step"].as_u64() {
            self.last_step = step;
            let measures = FIGURES.iter().flat_map(|figure| figure.measures);
            for measure in measures.filter(|measure| measure.kind == kind) {
                if let Some(value) = value(line, measure) {
                    let points = self.values.entry((measure.kind, measure.field)).or_default();
                    points.push((step as f64, value.clamp(-LARGEST, LARGEST)));
                }
            }
        }

        match kind {
            "validation" => {
                self.own_figures_of(line);
                self.has_short_texts |= has_short_texts(line);
            }
            "window" => self.source_losses_of(line),
            "step" => {
                self.n_steps += 1;
                if let (Some(tokens), Some(padded)) = (line["tokens"].as_f64(), line["padded_tokens"].as_f64()) {
                    self.tokens += tokens;
                    self.padded_tokens += padded;
                }
                self.end = None;
                self.non_finite_steps += u64::from(line["loss"].is_null() || line["grad_norm"].is_null());
            }
            "start" => {
                let name = line["device"].as_str().map(str::to_owned);
                let many = line["devices"].as_u64().filter(|n| *n > 1);
                self.device = name.map(|name| many.map_or(name.clone(), |n| format!("{n} x {name}")));
                self.lengths = lengths(line);
                self.end = None;
            }
            "note" => self.note(line["note"].as_str()),
            "sample" => self.sample(line),
            "end" => {
                self.end = Some(End {
                    sources: serde_json::from_value(line["sources"].clone()).unwrap_or_default(),
                    outcome: line["outcome"].as_str().unwrap_or_default().to_owned(),
                    train_secs: number(line, "train_secs"),
                    tokens_per_sec: number(line, "tokens_per_sec"),
                });
            }
            _ => {}
        }
    }

    fn own_figures_of(&mut self, line: &Value) {
        let (Some(step), Some(figures)) = (line["step"].as_u64(), line["figures"].as_object()) else { return };
        for (name, value) in figures {
            if let Some(value) = value.as_f64() {
                self.add_own(step, in_one_line(name), value);
            }
        }
    }

    /// Reads the training losses of the sources of a mixture.
    fn source_losses_of(&mut self, line: &Value) {
        let (Some(step), Some(sources)) = (line["step"].as_u64(), line["sources"].as_object()) else { return };
        for (name, source) in sources {
            if let Some(nll) = source["nll"].as_f64() {
                self.add_own(step, source_loss(name), nll);
            }
        }
    }

    fn add_own(&mut self, step: u64, name: String, value: f64) {
        if self.own.len() < MOST_FIGURES || self.own.contains_key(&name) {
            self.own.entry(name).or_default().push((step as f64, value.clamp(-LARGEST, LARGEST)));
        }
    }

    fn note(&mut self, text: Option<&str>) {
        let Some(text) = text else { return };
        if self.notes.len() == MOST_NOTES {
            self.notes.remove(0);
        }
        self.notes.push(Note { step: self.last_step, text: text.to_owned() });
    }

    fn sample(&mut self, line: &Value) {
        let text = |key: &str| line[key].as_str().map(str::to_owned);
        let Some(output) = text("output") else { return };
        if self.samples.len() == MOST_NOTES {
            self.samples.remove(0);
        }
        let source = text("source").unwrap_or_default();
        self.samples.push(Sample { step: self.last_step, source, output, reference: text("reference") });
    }
}

/// Returns the name of the figure with the training loss of a source.
pub(crate) fn source_loss(name: &str) -> String {
    format!("training nll of {}", in_one_line(name))
}

/// Returns the value of a measure in a line, without its scale.
fn value(line: &Value, measure: &Measure) -> Option<f64> {
    let value = number(line, measure.field).or_else(|| number(line, measure.older?))?;
    match measure.per {
        None => Some(value),
        Some(per) => number(line, per).filter(|whole| *whole > 0.0).map(|whole| value / whole),
    }
}

/// Returns the lengths of a line in a size that a page can show.
fn lengths(line: &Value) -> Vec<Lengths> {
    let mut sides: Vec<Lengths> = serde_json::from_value(line["lengths"].clone()).unwrap_or_default();
    sides.truncate(MOST_SIDES);
    for side in &mut sides {
        side.side = in_one_line(&side.side);
        side.bars.truncate(MOST_BARS);
    }
    sides
}

/// Returns a number of a line; `a.b` is field `b` of object `a`.
fn number(line: &Value, field: &str) -> Option<f64> {
    let mut value = line;
    for part in field.split('.') {
        value = value.get(part)?;
    }
    value.as_f64()
}

/// Reads to the end of an overlong line, without keeping it.
fn skip_line(lines: &mut impl BufRead) -> io::Result<()> {
    if (lines.take(MOST_LINE_BYTES).skip_until(b'\n')? as u64) < MOST_LINE_BYTES {
        return Ok(());
    }
    let problem = format!("a line has more than {MOST_LINE_BYTES} bytes: it is another file, or damaged");
    Err(io::Error::new(io::ErrorKind::InvalidData, problem))
}

/// Returns the name of a run folder, without characters that a page cannot show.
fn name_of(dir: &Path) -> String {
    let name = dir.canonicalize().ok().and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
    in_one_line(&name.unwrap_or_else(|| dir.display().to_string()))
}

/// Makes the names of runs unique: by their paths, if two folders have one name.
pub fn name_apart(runs: &mut [History]) {
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for (i, run) in runs.iter_mut().enumerate() {
        if names.iter().enumerate().any(|(j, name)| j != i && *name == run.name) {
            run.name = run.dir.display().to_string();
        }
    }
}

#[cfg(test)]
mod tests;
