//! Validation rows that are taken out of the training rows (`data.split`).
//!
//! A hash of what the model reads of each row decides: neither labels nor other fields. So rows that the model reads alike are on one side.
//! With a fraction, a row stays on its side when rows are added or change their order. With a number, some rows move from validation to
//! training when rows are added. The two parts are files next to the token caches, each with a list of where its rows come from. With
//! `data.cache_limit`, the text is not copied: the rows for validation are a file, and training passes over them ([`in_place`]).

mod in_place;
mod remedy;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use kiln_data::files::read_file;
use kiln_data::files::replace::replace_file;
use kiln_data::{
    CorpusConfig, CorpusFormat, HeldOut, LabelledCorpus, Origins, PairCorpus, TextConfig, TextCorpus, TextFormat,
    records_of,
};
use serde_json::json;

pub(super) use self::remedy::notes_on_files;
use self::remedy::remedy_for_few;
use crate::config::Config;
use crate::config::task::{Reads, traits_of};

const TRAIN: &str = "split.train.jsonl";
pub(super) const VALID: &str = "split.valid.jsonl";
/// Says what the two files were made of.
const STAMP: &str = "split.json";

/// Divides the training text of `config`, unless that is done: into two files in `cache_dir`, or with `data.cache_limit` into the rows for
/// validation and the others. Returns the configuration that reads the parts; `None` without `data.split`.
///
/// # Errors
/// If the text cannot be read, a file cannot be written, or one of the two parts is empty.
pub(super) fn split(config: &Config, cache_dir: &Path, note: &mut dyn FnMut(&str)) -> Result<Option<Config>> {
    if config.data.split == 0.0 || config.is_built_in_task() {
        return Ok(None);
    }
    let found = read_file(&cache_dir.join(STAMP)).unwrap_or_default();
    if config.data.cache_limit.is_some() {
        let stamp = stamp(config, Deciding::Read)?;
        let known = if found == stamp.as_bytes() { in_place::read(cache_dir) } else { None };
        let held_out = match known {
            Some(held_out) => held_out,
            None => {
                let held_out = in_place::divide(config, cache_dir, note)?;
                replace_file(&cache_dir.join(STAMP), stamp.as_bytes())?;
                held_out
            }
        };
        let mut config = config.clone();
        (config.data.valid, config.data.split) = (vec![cache_dir.join(VALID)], 0.0);
        config.data.held_out = Some(Arc::new(held_out));
        return Ok(Some(config));
    }

    let by = Deciding::of(&found);
    let stamp = stamp(config, by)?;
    if found != stamp.as_bytes() {
        let rows = Rows::read(config)?;
        let rows = if by == Deciding::Records { Rows { read: Vec::new(), ..rows } } else { rows };
        let written = rows.write(config.data.split, cache_dir, || remedy_for_few(config));
        if written.is_err() && config.data.text.is_chat() && traits_of(config.task).reads == Reads::Text {
            // Rows that no conversation can be made of are the reason.
            TextCorpus::open(&config.data.train, &config.data.text)?.read_all().context("data.train")?;
        }
        written?.iter().for_each(|line| note(line));
        rows.bad.iter().for_each(|line| note(line));
        replace_file(&cache_dir.join(STAMP), stamp.as_bytes())?;
    }
    Ok(Some(reading(config, cache_dir)))
}

/// Whether an earlier version has divided the rows of the run in `run_dir` by whole records, where this one goes by what the model reads.
pub(crate) fn is_split_by_records(config: &Config, run_dir: &Path) -> bool {
    is_by_records(config, &config.data.cache_dir.clone().unwrap_or_else(|| run_dir.join("cache")))
}

pub(super) fn is_by_records(config: &Config, cache_dir: &Path) -> bool {
    let has_records = traits_of(config.task).reads == Reads::Text && !is_plain_text(config);
    has_records && Deciding::of(&read_file(&cache_dir.join(STAMP)).unwrap_or_default()) == Deciding::Records
}

impl Config {
    /// Lets a run in `run_dir` with `data.split` find its validation rows, for commands that score it.
    #[doc(hidden)]
    pub fn with_split_of(&self, run_dir: &Path) -> Self {
        let cache_dir = self.data.cache_dir.clone().unwrap_or_else(|| run_dir.join("cache"));
        match self.data.split > 0.0 && cache_dir.join(VALID).is_file() {
            true => reading(self, &cache_dir),
            false => self.clone(),
        }
    }
}

/// Returns the configuration that reads the two files.
fn reading(config: &Config, cache_dir: &Path) -> Config {
    let mut config = config.clone();
    (config.data.train, config.data.valid) = (vec![cache_dir.join(TRAIN)], vec![cache_dir.join(VALID)]);
    config.data.split = 0.0;
    reading_copies(config)
}

/// Returns the configuration that reads the validation rows of `config`, which `data.split` may have copied.
pub(super) fn reading_valid(config: &Config) -> Config {
    if config.data.held_out.is_some() { reading_copies(config.clone()) } else { config.clone() }
}

/// Returns the configuration that reads rows as [`split`] writes them.
fn reading_copies(mut config: Config) -> Config {
    match traits_of(config.task).reads {
        Reads::Pairs => {
            let CorpusConfig { source_field, target_field, header, .. } = CorpusConfig::default();
            let format = CorpusFormat::Jsonl;
            config.data.corpus = CorpusConfig { format, source_field, target_field, header, ..config.data.corpus };
        }
        Reads::Text if is_plain_text(&config) => {
            let TextConfig { field, .. } = TextConfig::default();
            config.data.text = TextConfig { format: TextFormat::Jsonl, field, ..config.data.text };
        }
        Reads::Text => {}
    }
    config
}

/// Whether the rows are documents: neither conversations nor labelled.
fn is_plain_text(config: &Config) -> bool {
    traits_of(config.task).classes.is_none() && !config.data.text.is_chat()
}

/// What decides on which side a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deciding {
    /// The whole record, as in earlier versions. A run that one of them began keeps its parts.
    Records,
    /// What the model reads of it.
    Read,
}

impl Deciding {
    /// Tells what has decided by the stamp of earlier parts, which is empty without any.
    fn of(stamp: &[u8]) -> Self {
        let stamp: serde_json::Value = serde_json::from_slice(stamp).unwrap_or_default();
        if stamp.is_object() && stamp.get("by").is_none() { Self::Records } else { Self::Read }
    }
}

/// Returns what the model reads of `line`, a row as a line of JSON. `None` if it is the line, or if the row cannot be used.
fn read_of(config: &Config, line: &str) -> Option<String> {
    let data = &config.data;
    match traits_of(config.task) {
        row if row.reads == Reads::Pairs => None,
        row if row.classes.is_some() => LabelledCorpus::input_of(line, config.task, &data.labels),
        _ => data.text.conversation_in(line),
    }
}

/// Describes the files and how they are read and divided.
fn stamp(config: &Config, by: Deciding) -> Result<String> {
    let of_file = |path: PathBuf| -> Result<serde_json::Value> {
        let found = fs::metadata(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let modified = found.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Ok(json!([path, found.len(), modified.map(|time| time.as_nanos().to_string())]))
    };
    let files = files(config)?.into_iter().map(of_file).collect::<Result<Vec<_>>>()?;
    let data = &config.data;
    let mut stamp = json!({
        "split": data.split,
        "files": files,
        "corpus": data.corpus,
        "text": data.text,
        "labels": data.labels,
        "task": traits_of(config.task).name,
        "has_origins": true,
    });
    if data.cache_limit.is_some() {
        stamp["in_place"] = true.into();
    }
    if by == Deciding::Read {
        stamp["by"] = json!("what the model reads");
    }
    Ok(stamp.to_string())
}

/// Returns all files of the training text.
fn files(config: &Config) -> Result<Vec<PathBuf>> {
    Ok(match traits_of(config.task).reads {
        Reads::Pairs => {
            let corpus = PairCorpus::open(&config.data.train, &config.data.corpus).context("data.train")?;
            corpus.inputs().iter().flat_map(|input| input.files()).map(Path::to_path_buf).collect()
        }
        Reads::Text => {
            let corpus = TextCorpus::open(&config.data.train, &config.data.text).context("data.train")?;
            corpus.files().map(Path::to_path_buf).collect()
        }
    })
}

/// The training rows.
#[derive(Default)]
struct Rows {
    /// Each as a line of JSON.
    lines: Vec<String>,
    /// What the model reads of each; empty if this is the line.
    read: Vec<String>,
    origins: Origins,
    /// The labels of each row, if rows have labels.
    labels: Vec<Vec<String>>,
    /// A sentence about rows that cannot be used.
    bad: Option<String>,
}

/// Warns of a split that leaves fewer rows for training than for validation: it is the part for validation.
fn few_to_train(split: f64, [n_train, n_valid]: [usize; 2]) -> Option<String> {
    let n = n_train + n_valid;
    let other = if split < 1.0 && split > 0.5 { format!("{:.2}", 1.0 - split) } else { "0.1".to_owned() };
    let other = other.trim_end_matches('0').to_owned();
    (n_train < n_valid).then(|| {
        format!(
            "warning: data.split = {split} leaves {n_train} of {n} rows for training, and {n_valid} for validation: it is the part for \
             validation; for most of the rows to train on: --set data.split={other}"
        )
    })
}

/// Returns the hash below which a fraction of all rows are.
fn limit_of(fraction: f64) -> u64 {
    (fraction * u64::MAX as f64) as u64
}

/// Refuses a part without rows, of the parts for training and for validation. `keeps_classes`: rows stay for training because of their
/// classes.
fn check_parts(
    split: f64,
    [n_train, n_valid]: [usize; 2],
    keeps_classes: bool,
    remedy: impl FnOnce() -> String,
) -> Result<()> {
    if n_train > 0 && n_valid > 0 {
        return Ok(());
    }
    let n = n_train + n_valid;
    let found = match n {
        1 => format!("data.split = {split} cannot divide one document or row"),
        _ if n_valid == 0 && keeps_classes => format!(
            "data.split = {split} leaves no row for validation, of {n}, because each class needs a row for training: set another \
             number of rows or fraction"
        ),
        _ => format!(
            "data.split = {split} leaves {n_train} rows for training and {n_valid} for validation, of {n}: set another number of \
             rows or fraction"
        ),
    };
    Err(kiln_data::Error::Invalid(format!("{found}; {}", remedy())).into())
}

/// Describes the parts for training and for validation. So many rows stay for training because of their classes.
fn said(split: f64, [n_train, n_valid]: [usize; 2], n_kept: usize) -> Vec<String> {
    let for_classes = match n_kept {
        0 => String::new(),
        1 => "; 1 more stays for training, where its class has no other row".to_owned(),
        n => format!("; {n} more stay for training, where their classes have no other rows"),
    };
    let n = n_train + n_valid;
    let fraction = split / n as f64;
    let fraction = if fraction < 0.001 { format!("{fraction:.1e}") } else { format!("{fraction:.4}") };
    let by_number = format!(
        "; when rows are added, some of these become training rows: a fraction keeps each on its side (--set data.split={fraction})"
    );
    let by_number = if split < 1.0 { "" } else { &by_number };
    let said = format!(
        "data.split: {n_valid} of {n} rows are for validation, chosen by a hash of what the model reads{for_classes}{by_number}"
    );
    [said].into_iter().chain(few_to_train(split, [n_train, n_valid])).collect()
}

impl Rows {
    fn read(config: &Config) -> Result<Self> {
        let (data, mut origins) = (&config.data, Origins::default());
        let (lines, report) = match traits_of(config.task).reads {
            Reads::Pairs => {
                let corpus = PairCorpus::open(&data.train, &data.corpus)?;
                let (examples, report) = corpus.read_with_origins(&mut origins).context("data.train")?;
                let row = |row: kiln_data::Example| json!({"src": row.source, "trg": row.target}).to_string();
                (examples.into_iter().map(row).collect(), report)
            }
            Reads::Text if is_plain_text(config) => {
                let corpus = TextCorpus::open(&data.train, &data.text)?;
                let (documents, report) = corpus.read_with_origins(&mut origins).context("data.train")?;
                (documents.into_iter().map(|text| json!({"text": text}).to_string()).collect(), report)
            }
            Reads::Text if traits_of(config.task).classes.is_some() => {
                return Self::labelled(config);
            }
            // What is wrong with a conversation is said when it is read.
            Reads::Text => {
                let rows = Self::records(config, records_of)?;
                return Ok(rows.with_read(|line| read_of(config, line)));
            }
        };
        Ok(Self { lines, origins, bad: (report.bad() > 0).then(|| report.to_string()), ..Self::default() })
    }

    /// Reads labelled rows. What is wrong with a row is said where the row is; the two files hold good ones.
    fn labelled(config: &Config) -> Result<Self> {
        let (task, data) = (config.task, &config.data);
        let corpus = LabelledCorpus::read(&data.train, task, &data.labels).context("data.train")?;
        let rows = Self::records(config, |file| LabelledCorpus::records(file, task, &data.labels))?;
        let of_row = |row: &String| LabelledCorpus::labels_of(row, task, &data.labels).unwrap_or_default();
        let labels = rows.lines.iter().map(of_row).collect();
        let bad = (corpus.report().bad() > 0).then(|| corpus.report().to_string());
        let rows = Self { bad, labels, ..rows };
        Ok(rows.with_read(|line| read_of(config, line)))
    }

    /// Adds what the model reads of each line. A line that cannot be used decides by itself.
    fn with_read(self, read: impl Fn(&str) -> Option<String>) -> Self {
        let of_line = |line: &String| read(line).unwrap_or_else(|| line.clone());
        Self { read: self.lines.iter().map(of_line).collect(), ..self }
    }

    /// Reads the records of the training text.
    fn records(config: &Config, read: impl Fn(&Path) -> kiln_data::Result<Vec<(u64, String)>>) -> Result<Self> {
        let mut rows = Self::default();
        for file in files(config)? {
            for (line, record) in read(&file).context("data.train")? {
                rows.lines.push(record);
                rows.origins.push(&file, line);
            }
        }
        Ok(rows)
    }

    /// Writes the two parts. Returns sentences about them. `remedy` says what makes more rows of the same text.
    fn write(&self, split: f64, cache_dir: &Path, remedy: impl FnOnce() -> String) -> Result<Vec<String>> {
        let deciding = if self.read.is_empty() { &self.lines } else { &self.read };
        let hashes: Vec<u64> = deciding.iter().map(|row| HeldOut::hash(row)).collect();
        let limit = match split < 1.0 {
            true => limit_of(split),
            false => {
                let mut sorted = hashes.clone();
                sorted.sort_unstable();
                sorted.get(split as usize).copied().unwrap_or(u64::MAX)
            }
        };

        let kept = self.kept_for_classes(&hashes, limit);
        let part = |is_valid: bool| -> Vec<usize> {
            let is_of_valid = |row: usize| hashes[row] < limit && !kept.contains(&hashes[row]);
            (0..hashes.len()).filter(|row| is_of_valid(*row) == is_valid).collect()
        };
        let (train, valid) = (part(false), part(true));
        check_parts(split, [train.len(), valid.len()], !kept.is_empty(), remedy)?;
        for (name, part) in [(TRAIN, &train), (VALID, &valid)] {
            let path = cache_dir.join(name);
            let lines: Vec<&str> = part.iter().map(|row| self.lines[*row].as_str()).collect();
            replace_file(&path, (lines.join("\n") + "\n").as_bytes())?;
            replace_file(&Origins::path_of(&path), self.origins.list(part.iter().copied()).as_bytes())?;
        }
        let n_kept = hashes.iter().filter(|hash| kept.contains(hash)).count();
        Ok(said(split, [train.len(), valid.len()], n_kept))
    }

    /// Returns the hashes of rows that stay for training although they are below the `limit`: the largest hash of each class that has no row
    /// above it. A model learns all classes of its rows then.
    fn kept_for_classes(&self, hashes: &[u64], limit: u64) -> HashSet<u64> {
        let labels_of = |row: usize| self.labels.get(row).into_iter().flatten().map(String::as_str);
        let (train, valid): (Vec<usize>, Vec<usize>) = (0..hashes.len()).partition(|row| hashes[*row] >= limit);
        let learned: HashSet<&str> = train.into_iter().flat_map(labels_of).collect();
        let mut largest: BTreeMap<&str, u64> = BTreeMap::new();
        for row in valid {
            for label in labels_of(row).filter(|label| !learned.contains(label)) {
                let hash = largest.entry(label).or_default();
                *hash = (*hash).max(hashes[row]);
            }
        }
        largest.into_values().collect()
    }
}

#[cfg(test)]
mod tests;
