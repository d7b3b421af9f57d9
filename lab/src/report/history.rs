//! The history of a run: its configuration and the lines of its `metrics.jsonl`.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use kiln_data::files::{MOST_LINE_BYTES, open_file};
use kiln_ranks::terminal::in_one_line;
use kiln_train::checkpoint::RUN_CONFIG_FILE;
use kiln_train::config::Config;
use kiln_train::logging::METRICS_FILE;
use serde_json::Value;
use thiserror::Error;

use super::catalogue::{FIGURES, Measure};

/// A longer line is not one of Kiln's and is skipped, bytes.
const LONGEST_LINE: u64 = 1 << 20;
/// Figures of a model of one's own that are kept, from the first.
const MOST_FIGURES: usize = 64;
/// Largest value that is drawn: sums and differences of larger ones are infinite.
const LARGEST: f64 = 1e30;
/// Notes and samples that are kept, from the newest.
const MOST_NOTES: usize = 200;

/// A run that cannot be reported on.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// The path holds no run.
    #[error("{}: this folder holds no run (no {RUN_CONFIG_FILE}); name a run folder, kiln train makes runs/NAME", .0.display())]
    NoRun(PathBuf),
    /// The run never trained.
    #[error(
        "{}: this run has no {METRICS_FILE}, so it was never trained; imported and averaged models have none, see kiln evaluate",
        .0.display()
    )]
    NoMetrics(PathBuf),
    /// The run has not finished a step.
    #[error(
        "{}: no step has been logged yet; wait for the first line of metrics, or watch with kiln report --live",
        .0.display()
    )]
    NoSteps(PathBuf),
    /// The system refused to read the metrics.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

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
    /// Fraction of padding.
    pub(crate) padding_ratio: Option<f64>,
    /// Fraction of the time that training waited for data.
    pub(crate) data_wait_share: Option<f64>,
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
    /// The totals, unless the newest process still trains or was killed.
    pub(crate) end: Option<End>,
    /// Lines that are not JSON: usually the last one of a run that goes on.
    pub bad_lines: u64,
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
            n_steps: 0,
            last_step: 0,
            last_time: None,
            non_finite_steps: 0,
            notes: Vec::new(),
            samples: Vec::new(),
            end: None,
            bad_lines: 0,
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
            "validation" => self.own_figures_of(line),
            "step" => {
                self.n_steps += 1;
                self.end = None;
                self.non_finite_steps += u64::from(line["loss"].is_null() || line["grad_norm"].is_null());
            }
            "start" => {
                let name = line["device"].as_str().map(str::to_owned);
                let many = line["devices"].as_u64().filter(|n| *n > 1);
                self.device = name.map(|name| many.map_or(name.clone(), |n| format!("{n} x {name}")));
                self.end = None;
            }
            "note" => self.note(line["note"].as_str()),
            "sample" => self.sample(line),
            "end" => {
                self.end = Some(End {
                    outcome: line["outcome"].as_str().unwrap_or_default().to_owned(),
                    train_secs: number(line, "train_secs"),
                    tokens_per_sec: number(line, "tokens_per_sec"),
                    padding_ratio: number(line, "padding_ratio"),
                    data_wait_share: number(line, "data_wait_share"),
                });
            }
            _ => {}
        }
    }

    fn own_figures_of(&mut self, line: &Value) {
        let (Some(step), Some(figures)) = (line["step"].as_u64(), line["figures"].as_object()) else { return };
        for (name, value) in figures {
            let Some(value) = value.as_f64() else { continue };
            let name = in_one_line(name);
            if self.own.len() < MOST_FIGURES || self.own.contains_key(&name) {
                self.own.entry(name).or_default().push((step as f64, value.clamp(-LARGEST, LARGEST)));
            }
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

/// Returns the value of a measure in a line, without its scale.
fn value(line: &Value, measure: &Measure) -> Option<f64> {
    let value = number(line, measure.field).or_else(|| number(line, measure.older?))?;
    match measure.per {
        None => Some(value),
        Some(per) => number(line, per).filter(|whole| *whole > 0.0).map(|whole| value / whole),
    }
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
mod tests {
    use std::fs;

    use super::super::catalogue::find;
    use super::*;

    fn run(metrics: &[u8]) -> (tempfile::TempDir, Result<History, HistoryError>) {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(RUN_CONFIG_FILE), "").expect("writable");
        fs::write(folder.path().join(METRICS_FILE), metrics).expect("writable");
        let history = History::read(folder.path());
        (folder, history)
    }

    #[test]
    fn a_run_that_goes_on_is_read_up_to_its_torn_line() {
        let (_folder, history) = run(b"{\"kind\":\"note\",\"note\":\"hello\"}
{\"kind\":\"step\",\"step\":1,\"loss\":2.5,\"grad_norm\":1}
{\"kind\":\"step\",\"step\":2,\"loss\":null,\"grad_norm\":1}
{\"kind\":\"window\",\"step\":2,\"time\":9.5,\"tokens_per_sec\":70}
{\"kind\":\"sample\",\"step\":2,\"source\":\"a\",\"output\":\"b\"}
{\"kind\":\"step\",\"st");
        let history = history.expect("two steps");
        assert_eq!((history.n_steps, history.last_step, history.bad_lines), (2, 2, 1));
        assert_eq!((history.non_finite_steps, history.last_time), (1, Some(9.5)));
        assert!(history.end.is_none());
        assert_eq!(history.points(&find("loss").expect("known").measures[0]), [(1.0, 2.5)]);
        assert_eq!(history.field("window", "tokens_per_sec"), [(2.0, 70.0)]);
        assert_eq!(history.notes, [Note { step: 0, text: "hello".into() }]);
        assert_eq!((history.samples[0].output.as_str(), history.samples[0].step), ("b", 2));
    }

    #[test]
    fn a_resumed_run_has_not_ended() {
        let step = |n: u64| format!("{{\"kind\":\"step\",\"step\":{n},\"loss\":1}}\n");
        let end = "{\"kind\":\"end\",\"step\":1,\"outcome\":\"stopped\",\"train_secs\":3}\n";
        let (_folder, history) = run(format!("{}{end}", step(1)).as_bytes());
        assert_eq!(history.expect("a step").end.expect("ended").outcome, "stopped");
        let (_folder, history) = run(format!("{}{end}{}", step(1), step(2)).as_bytes());
        assert!(history.expect("steps").end.is_none());
    }

    #[test]
    fn what_is_not_a_trained_run_is_refused_with_a_reason() {
        let (folder, history) = run(b"{\"kind\":\"note\",\"note\":\"hello\"}\n");
        assert!(history.expect_err("no steps").to_string().contains("no step has been logged yet"));
        fs::remove_file(folder.path().join(METRICS_FILE)).expect("there");
        assert!(History::read(folder.path()).expect_err("no metrics").to_string().contains("was never trained"));
        fs::remove_file(folder.path().join(RUN_CONFIG_FILE)).expect("there");
        assert!(History::read(folder.path()).expect_err("no run").to_string().contains("holds no run"));
    }

    #[test]
    fn an_overlong_line_is_skipped_without_being_kept() {
        let mut metrics = vec![b'x'; 3 * LONGEST_LINE as usize];
        metrics.extend_from_slice(b"\n{\"kind\":\"step\",\"step\":1,\"loss\":2.5}\n");
        let history = run(&metrics).1.expect("a step");
        assert_eq!((history.n_steps, history.bad_lines), (1, 1));
    }

    #[test]
    fn two_folders_of_one_name_are_named_by_their_paths() {
        let history = run(b"{\"kind\":\"step\",\"step\":1,\"loss\":2.5}\n").1.expect("a step");
        let of = |dir: &str| History { dir: dir.into(), name: "x".into(), ..history.clone() };
        let mut runs = [of("a/x"), of("b/x"), History { name: "y".into(), ..of("c/y") }];
        name_apart(&mut runs);
        assert_eq!(runs.map(|run| run.name), ["a/x", "b/x", "y"]);
    }
}
