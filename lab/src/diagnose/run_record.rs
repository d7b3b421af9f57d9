//! What a run folder tells about a run: its configuration, losses, validations and speed.

use std::collections::BTreeMap;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_data::files::{MOST_LINE_BYTES, open_file, read_line};
use kiln_metrics::logging::METRICS_FILE;
use kiln_train::checkpoint::{Checkpoints, RUN_CONFIG_FILE, all_differences, read_state};
use kiln_train::config::Config;
use kiln_train::dataset::Vocabulary;
use serde_json::Value;

use super::compare::Losses;
use super::no_history::HistoryError;

/// A measure of a validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// Its field in `metrics.jsonl`.
    pub(crate) field: &'static str,
    /// Its name for people, with its unit.
    pub name: &'static str,
    /// Whether the highest value is the best one.
    pub(crate) higher_is_better: bool,
    /// Whether it is a fraction, which people read in percent.
    is_share: bool,
}

impl Measure {
    /// Writes a value for people, with the digits that the other commands print.
    pub fn shown(&self, value: f64) -> String {
        if self.is_share { format!("{:.2}%", 100.0 * value) } else { format!("{value:.4}") }
    }
}

/// The measures, in the order in which people read them.
pub const MEASURES: [Measure; 11] = [
    measure("loss", "loss (nats)", false),
    measure("nll", "nll (nats)", false),
    measure("bits_per_byte", "bits per byte", false),
    share("masked_accuracy", "masked accuracy"),
    share("reward_accuracy", "reward accuracy"),
    share("accuracy", "accuracy"),
    share("macro_f1", "macro F1"),
    share("entity_f1", "entity F1"),
    measure("bleu", "BLEU", true),
    measure("chrf", "chrF2", true),
    share("exact_match", "exact match"),
];

const fn measure(field: &'static str, name: &'static str, higher_is_better: bool) -> Measure {
    Measure { field, name, higher_is_better, is_share: false }
}

const fn share(field: &'static str, name: &'static str) -> Measure {
    Measure { field, name, higher_is_better: true, is_share: true }
}

/// Says what to read of short texts instead of BLEU.
pub const SHORT_TEXTS: &str = "BLEU counts sequences of up to four words, and is 0 where no translation has four, as in some of these validations. Of such \
                               short texts, chrF2 and exact match tell more.";

/// A value of a measure at a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Optimizer steps done.
    pub step: u64,
    /// The value.
    pub value: f64,
}

/// Speed and length of the training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Non-padding tokens per second of training.
    pub tokens_per_sec: f64,
    /// Seconds of training, without validation and saving.
    pub train_secs: f64,
}

/// A run, as its folder tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// The run folder.
    pub dir: PathBuf,
    /// The complete configuration.
    pub config: Config,
    /// The training loss of each step.
    pub losses: Losses,
    /// The speed, if a line of metrics was written.
    pub speed: Option<Speed>,
    /// Fingerprint of the vocabulary, if there is a checkpoint or a trained tokenizer.
    pub(crate) vocabulary: Option<String>,
    /// Fingerprint of the validation batches, if a checkpoint has it.
    pub(crate) validation: Option<String>,
    /// The values of each measure by its field, in the order of their steps.
    validations: BTreeMap<&'static str, Vec<Measured>>,
    /// Whether BLEU was 0 in a validation because no translation had four words.
    pub has_short_texts: bool,
}

impl RunRecord {
    /// Reads a run folder.
    ///
    /// # Errors
    /// [`HistoryError`], if the folder holds no run, or none that was trained; or if the configuration cannot be read.
    pub fn read(dir: &Path) -> Result<Self> {
        let config_path = dir.join(RUN_CONFIG_FILE);
        if !config_path.is_file() {
            return Err(HistoryError::NoRun(dir.to_path_buf()).into());
        }
        let path = dir.join(METRICS_FILE);
        let file = open_file(&path).map_err(|source| match source.kind() {
            ErrorKind::NotFound => HistoryError::NoMetrics(dir.to_path_buf()),
            _ => HistoryError::Unreadable { path: path.clone(), source },
        })?;

        let mut lines = Lines::default();
        let (mut file, mut line) = (BufReader::new(file), Vec::new());
        while read_line(&mut file, &mut line, MOST_LINE_BYTES).with_context(|| format!("reading {}", path.display()))? {
            // The last line of a killed run may be incomplete. `kiln check` reports damage.
            if let Ok(line) = serde_json::from_slice::<Value>(&line) {
                lines.add(&line);
            }
        }
        if lines.losses.is_empty() {
            return Err(HistoryError::NoSteps(dir.to_path_buf()).into());
        }
        let config = Config::read(&config_path)?;
        let vocabulary = Self::vocabulary_of(dir, &config);
        let validation = validation_of(dir);
        let (speed, dir) = (lines.speed(), dir.to_path_buf());
        let Lines { losses, validations, has_short_texts, .. } = lines;
        Ok(Self { dir, config, losses, speed, vocabulary, validation, validations, has_short_texts })
    }

    /// Returns the fingerprint of the vocabulary in the newest checkpoint, or of the one that was trained for the run.
    fn vocabulary_of(dir: &Path, config: &Config) -> Option<String> {
        let (_, newest) = Checkpoints::of_run(dir).list().ok()?.pop().unwrap_or((0, dir.join("cache/tokenizer")));
        Some(Vocabulary::load_dir(&newest, config.task).ok()?.fingerprint())
    }

    /// Returns whether a loss per token means the same in all `runs`: whether they have one vocabulary.
    pub fn have_one_vocabulary(runs: &[Self]) -> bool {
        let differs = |key: &str| key.starts_with("tokenizer.") || key.contains("vocab_size");
        // The seed makes the built-in text, and each text gives a slightly different vocabulary of the same kind.
        let own_texts = runs.iter().filter(|run| !run.config.is_built_in_task());
        match own_texts.map(|run| run.vocabulary.as_ref()).collect::<Option<Vec<_>>>() {
            Some(vocabularies) if vocabularies.len() == runs.len() => {
                vocabularies.windows(2).all(|two| two[0] == two[1])
            }
            _ => !different_keys(runs).iter().any(|different| differs(&different.key)),
        }
    }

    /// Returns whether all `runs` were validated on the same rows, as far as checkpoints and configurations tell.
    pub fn have_one_validation(runs: &[Self]) -> bool {
        if runs.iter().all(|run| run.config.is_built_in_task()) {
            return true; // texts of one kind
        }
        let is_text = |key: &str| ["data.valid", "data.split"].contains(&key);
        if Self::have_one_vocabulary(runs)
            && let Some(found) = runs.iter().map(|run| run.validation.as_ref()).collect::<Option<Vec<_>>>()
        {
            return found.windows(2).all(|two| two[0] == two[1]);
        }
        let files = |run: &Self| (run.config.data.valid_files(), run.config.data.split > 0.0);
        let splits_other_text =
            || different_keys(runs).iter().any(|key| key.key == "data.train" || key.key == "data.split");
        let is_split = runs.iter().any(|run| run.config.data.split > 0.0);
        let differ = runs.windows(2).any(|two| files(&two[0]) != files(&two[1]));
        let named = different_keys(runs).iter().any(|different| is_text(&different.key));
        !(differ || named || is_split && splits_other_text())
    }

    /// Returns the newest value of a measure.
    pub fn last(&self, measure: Measure) -> Option<Measured> {
        self.validations.get(measure.field)?.last().copied()
    }

    /// Returns the best value of a measure; of equal values the first one.
    pub fn best(&self, measure: Measure) -> Option<Measured> {
        let values = self.validations.get(measure.field)?.iter().copied();
        values.reduce(|best, next| {
            let is_better = if measure.higher_is_better { next.value > best.value } else { next.value < best.value };
            if is_better { next } else { best }
        })
    }
}

/// Returns the fingerprint of the validation batches of the newest checkpoint in `dir`.
fn validation_of(dir: &Path) -> Option<String> {
    let (_, newest) = Checkpoints::of_run(dir).list().ok()?.pop()?;
    read_state(&newest).ok()??.validation_fingerprint
}

/// Whether a line says that no translation had four words.
pub(crate) fn has_short_texts(line: &Value) -> bool {
    line["no_four_grams"] == true
}

/// The lines of `metrics.jsonl` so far.
#[derive(Default)]
struct Lines {
    losses: Losses,
    validations: BTreeMap<&'static str, Vec<Measured>>,
    has_short_texts: bool,
    /// The closing record of the newest process.
    end: Option<Speed>,
    /// Tokens of the steps since the last window.
    pending_tokens: f64,
    /// Tokens and seconds of all windows.
    windows: [f64; 2],
}

impl Lines {
    fn add(&mut self, line: &Value) {
        let number = |key: &str| line[key].as_f64();
        let Some(step) = line["step"].as_u64() else { return };

        match line["kind"].as_str().unwrap_or_default() {
            "step" => {
                self.losses.insert(step, number("loss").unwrap_or(f64::NAN));
                self.pending_tokens += number("tokens").unwrap_or_default();
                self.end = None;
            }
            "window" => {
                let tokens = std::mem::take(&mut self.pending_tokens);
                if let Some(per_sec) = number("tokens_per_sec").filter(|speed| *speed > 0.0) {
                    self.windows[0] += tokens;
                    self.windows[1] += tokens / per_sec;
                }
            }
            "validation" => {
                self.has_short_texts |= has_short_texts(line);
                for measure in MEASURES {
                    if let Some(value) = number(measure.field) {
                        self.validations.entry(measure.field).or_default().push(Measured { step, value });
                    }
                }
            }
            "end" => {
                let speed = number("tokens_per_sec").zip(number("train_secs"));
                self.end = speed.map(|(tokens_per_sec, train_secs)| Speed { tokens_per_sec, train_secs });
            }
            _ => {}
        }
    }

    /// Returns the speed of the whole run: from its closing record, or from its windows if it goes on, was killed or is of
    /// an earlier version.
    fn speed(&self) -> Option<Speed> {
        let [tokens, secs] = self.windows;
        let of_windows = (secs > 0.0).then_some(Speed { tokens_per_sec: tokens / secs, train_secs: secs });
        self.end.or(of_windows)
    }
}

/// A key of the configuration that is not the same in all runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DifferentKey {
    /// The key, such as `optim.lr`.
    pub key: String,
    /// Its value in each run, as JSON.
    pub values: Vec<String>,
}

/// Returns the keys whose values differ between `runs`, sorted.
pub fn different_keys(runs: &[RunRecord]) -> Vec<DifferentKey> {
    different_keys_of(&runs.iter().map(|run| &run.config).collect::<Vec<_>>())
}

/// Returns the keys whose values differ between configurations, sorted.
pub fn different_keys_of(configs: &[&Config]) -> Vec<DifferentKey> {
    let Some((first, others)) = configs.split_first() else { return Vec::new() };
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (i, other) in (1..).zip(others) {
        for difference in all_differences(first, other) {
            keys.entry(difference.field).or_insert_with(|| vec![difference.saved; configs.len()])[i] = difference.now;
        }
    }
    keys.into_iter().map(|(key, values)| DifferentKey { key, values }).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn run(dir: &Path, name: &str, config: &str, metrics: &str) -> RunRecord {
        let dir = dir.join(name);
        fs::create_dir(&dir).expect("writable");
        fs::write(dir.join(RUN_CONFIG_FILE), config).expect("writable");
        fs::write(dir.join(METRICS_FILE), metrics).expect("writable");
        RunRecord::read(&dir).expect("a run")
    }

    const METRICS: &str = "{\"kind\":\"step\",\"step\":1,\"loss\":2.0,\"tokens\":100}
{\"kind\":\"step\",\"step\":2,\"loss\":1.0,\"tokens\":300}
{\"kind\":\"window\",\"step\":2,\"tokens_per_sec\":200.0}
{\"kind\":\"validation\",\"step\":2,\"loss\":1.5,\"nll\":1.2,\"bleu\":30.0}
{\"kind\":\"step\",\"step\":3,\"loss\":0.5,\"tokens\":400}
{\"kind\":\"window\",\"step\":3,\"tokens_per_sec\":100.0}
{\"kind\":\"validation\",\"step\":3,\"loss\":1.4,\"nll\":1.3,\"bleu\":20.0}
";

    #[test]
    fn the_best_values_and_the_speed_are_those_of_the_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let going_on = run(folder.path(), "a", "", METRICS);
        let of = |name: &str| {
            let measure = MEASURES.into_iter().find(|measure| measure.field == name).expect("known");
            [going_on.last(measure), going_on.best(measure)]
        };
        let at = |step, value| Some(Measured { step, value });
        assert_eq!(of("loss"), [at(3, 1.4), at(3, 1.4)]);
        assert_eq!(of("nll"), [at(3, 1.3), at(2, 1.2)]);
        assert_eq!(of("bleu"), [at(3, 20.0), at(2, 30.0)]);
        assert_eq!(of("chrf"), [None, None]);
        let shown =
            |name: &str| MEASURES.into_iter().find(|measure| measure.field == name).expect("known").shown(0.19333);
        assert_eq!([shown("exact_match"), shown("bleu")], ["19.33%", "0.1933"]);
        // 400 tokens in 2 s and 400 tokens in 4 s.
        let speed = going_on.speed.expect("two windows");
        assert!(
            (speed.tokens_per_sec - 800.0 / 6.0).abs() < 1e-9 && (speed.train_secs - 6.0).abs() < 1e-9,
            "{speed:?}"
        );

        let end = "{\"kind\":\"end\",\"step\":3,\"tokens_per_sec\":123.0,\"train_secs\":7.0}\n";
        let ended = run(folder.path(), "b", "", &format!("{METRICS}{end}"));
        assert_eq!(ended.speed, Some(Speed { tokens_per_sec: 123.0, train_secs: 7.0 }));
        let short = METRICS.replace("\"bleu\":20.0", "\"bleu\":0.0,\"no_four_grams\":true");
        assert!(!ended.has_short_texts && run(folder.path(), "c", "", &short).has_short_texts);
    }

    #[test]
    fn keys_that_differ_are_listed_with_every_value() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = |lr, seed| format!("seed = {seed}\n[optim]\nlr = {lr}\n");
        let runs = [("a", 0.5, 1), ("b", 0.5, 2), ("c", 0.25, 1)];
        let runs = runs.map(|(name, lr, seed)| run(folder.path(), name, &config(lr, seed), METRICS));
        let keys = different_keys(&runs);
        let list: Vec<_> = keys.iter().map(|different| (different.key.as_str(), different.values.join(" "))).collect();
        assert_eq!(list, [("optim.lr", "0.5 0.5 0.25".to_owned()), ("seed", "1 2 1".to_owned())]);
        assert_eq!(different_keys(&runs[..1]), []);
        assert!(RunRecord::have_one_vocabulary(&runs), "as far as the configurations tell");
        let other = run(folder.path(), "d", "[tokenizer]\nvocab_size = 99\n", METRICS);
        assert!(!RunRecord::have_one_vocabulary(&[&runs[..], &[other]].concat()));
        let built_in = |vocabulary: &str| RunRecord { vocabulary: Some(vocabulary.into()), ..runs[0].clone() };
        assert!(RunRecord::have_one_vocabulary(&[built_in("a"), built_in("b")]), "of two seeds");
        let known = |run: &RunRecord, vocabulary: &str| {
            let mut config = run.config.clone();
            config.data.train = vec!["own.txt".into()];
            RunRecord { vocabulary: Some(vocabulary.into()), config, ..run.clone() }
        };
        assert!(!RunRecord::have_one_vocabulary(&[known(&runs[0], "a"), known(&runs[1], "b")]));
        assert!(RunRecord::have_one_vocabulary(&[known(&runs[0], "a"), known(&runs[1], "a")]));
    }

    #[test]
    fn folders_without_steps_are_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(RunRecord::read(folder.path()).expect_err("empty").to_string().contains("holds no run"));
        fs::write(folder.path().join(RUN_CONFIG_FILE), "").expect("writable");
        assert!(RunRecord::read(folder.path()).expect_err("imported").to_string().contains("was never trained"));
        fs::write(folder.path().join(METRICS_FILE), "{\"kind\":\"note\",\"note\":\"hello\"}\n{\"kind\":\"st")
            .expect("writable");
        assert!(RunRecord::read(folder.path()).expect_err("no steps").to_string().contains("no step has been logged"));
    }
}
