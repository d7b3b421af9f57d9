//! Validation rows that are taken out of the training rows (`data.split`).
//!
//! A hash of each row decides, so that a row stays on its side when rows are added or change their order, and copies of a row are on one
//! side. The two parts are files next to the token caches.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use kiln_data::files::read_file;
use kiln_data::{
    CorpusConfig, CorpusFormat, LabelledCorpus, PairCorpus, TextConfig, TextCorpus, TextFormat, records_of,
};
use serde_json::json;

use crate::config::Config;
use crate::config::task::{Reads, traits_of};
use crate::files::replace_file;

const TRAIN: &str = "split.train.jsonl";
const VALID: &str = "split.valid.jsonl";
/// Says what the two files were made of.
const STAMP: &str = "split.json";

/// Divides the training text of `config` into two files in `cache_dir`, unless that is done. Returns the configuration that reads them;
/// `None` without `data.split`.
///
/// # Errors
/// If the text cannot be read, a file cannot be written, or one of the two parts is empty.
pub(super) fn split(config: &Config, cache_dir: &Path, note: &mut dyn FnMut(&str)) -> Result<Option<Config>> {
    if config.data.split == 0.0 || config.is_built_in_task() {
        return Ok(None);
    }
    let stamp = stamp(config)?;
    let is_done = read_file(&cache_dir.join(STAMP)).is_ok_and(|found| found == stamp.as_bytes());
    if !is_done {
        let (rows, bad) = rows(config)?;
        note(&write(&rows, config.data.split, cache_dir)?);
        bad.iter().for_each(|line| note(line));
        replace_file(&cache_dir.join(STAMP), stamp.as_bytes())?;
    }
    Ok(Some(reading(config, cache_dir)))
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

/// Describes the files and how they are read and divided.
fn stamp(config: &Config) -> Result<String> {
    let of_file = |path: PathBuf| -> Result<serde_json::Value> {
        let found = fs::metadata(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let modified = found.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Ok(json!([path, found.len(), modified.map(|time| time.as_nanos().to_string())]))
    };
    let files = files(config)?.into_iter().map(of_file).collect::<Result<Vec<_>>>()?;
    let data = &config.data;
    Ok(json!({"split": data.split, "files": files, "corpus": data.corpus, "text": data.text}).to_string())
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

/// Returns the training rows as JSON lines, and a sentence about rows that cannot be used.
fn rows(config: &Config) -> Result<(Vec<String>, Option<String>)> {
    let data = &config.data;
    let (rows, report) = match traits_of(config.task).reads {
        Reads::Pairs => {
            let (examples, report) = PairCorpus::open(&data.train, &data.corpus)?.read_all().context("data.train")?;
            let row = |example: kiln_data::Example| json!({"src": example.source, "trg": example.target}).to_string();
            (examples.into_iter().map(row).collect(), report)
        }
        Reads::Text if is_plain_text(config) => {
            let (documents, report) = TextCorpus::open(&data.train, &data.text)?.read_all().context("data.train")?;
            (documents.into_iter().map(|text| json!({"text": text}).to_string()).collect(), report)
        }
        Reads::Text if traits_of(config.task).classes.is_some() => {
            // What is wrong with a row is said where the row is; the two files hold good ones.
            let corpus = LabelledCorpus::read(&data.train, config.task, &data.labels).context("data.train")?;
            let mut rows = records(config)?;
            rows.retain(|row| LabelledCorpus::can_use(row, config.task, &data.labels));
            return Ok((rows, (corpus.report().bad() > 0).then(|| corpus.report().to_string())));
        }
        // What is wrong with a conversation is said when it is read.
        Reads::Text => return Ok((records(config)?, None)),
    };
    Ok((rows, (report.bad() > 0).then(|| report.to_string())))
}

/// Returns every record of the training text as a JSON line.
fn records(config: &Config) -> Result<Vec<String>> {
    let mut rows = Vec::new();
    for file in files(config)? {
        rows.extend(records_of(&file).context("data.train")?);
    }
    Ok(rows)
}

/// Writes the two parts. Returns a sentence about them.
fn write(rows: &[String], split: f64, cache_dir: &Path) -> Result<String> {
    let hash = |row: &String| {
        let bytes = *blake3::hash(row.as_bytes()).as_bytes();
        u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
    };
    let hashes: Vec<u64> = rows.iter().map(hash).collect();
    let limit = match split < 1.0 {
        true => (split * u64::MAX as f64) as u64,
        false => {
            let mut sorted = hashes.clone();
            sorted.sort_unstable();
            sorted.get(split as usize).copied().unwrap_or(u64::MAX)
        }
    };

    let part = |is_valid: bool| -> Vec<&str> {
        let chosen = rows.iter().zip(&hashes).filter(|(_, hash)| (**hash < limit) == is_valid);
        chosen.map(|(row, _)| row.as_str()).collect()
    };
    let (train, valid) = (part(false), part(true));
    anyhow::ensure!(
        !train.is_empty() && !valid.is_empty(),
        kiln_data::Error::Invalid(format!(
            "data.split = {split} leaves {} rows for training and {} for validation, of {}: set another number of rows or fraction",
            train.len(),
            valid.len(),
            rows.len()
        ))
    );
    for (name, part) in [(TRAIN, &train), (VALID, &valid)] {
        replace_file(&cache_dir.join(name), (part.join("\n") + "\n").as_bytes())?;
    }
    Ok(format!("data.split: {} of {} rows are for validation, chosen by a hash of each row", valid.len(), rows.len()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn row(i: usize) -> String {
        json!({"text": format!("row {i}")}).to_string()
    }

    fn parts(rows: &[String], split: f64) -> [Vec<String>; 2] {
        let folder = tempfile::tempdir().expect("a folder");
        write(rows, split, folder.path()).expect("two parts");
        [TRAIN, VALID].map(|name| records_of(&folder.path().join(name)).expect("written"))
    }

    #[test]
    fn a_row_stays_on_its_side_when_others_come() {
        let rows: Vec<String> = (0..1000).map(row).collect();
        let [train, valid] = parts(&rows, 0.1);
        assert!((70..130).contains(&valid.len()) && train.len() + valid.len() == 1000, "{}", valid.len());
        let more: Vec<String> = (0..1500).rev().map(row).collect();
        let [later, _] = parts(&more, 0.1);
        let later: HashSet<&String> = later.iter().collect();
        assert!(train.iter().all(|row| later.contains(row)) && valid.iter().all(|row| !later.contains(row)));
    }

    #[test]
    fn rows_of_a_table_are_records() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("labels.csv");
        fs::write(&path, "text,label\n\"two\nlines\",good\nplain,bad\n").expect("writable");
        let rows = records_of(&path).expect("rows");
        let wanted = [json!({"text": "two\nlines", "label": "good"}), json!({"text": "plain", "label": "bad"})];
        assert_eq!(rows, wanted.map(|row| row.to_string()));
    }

    #[test]
    fn a_number_of_rows_is_kept_and_copies_are_on_one_side() {
        let rows: Vec<String> = (0..1000).map(row).collect();
        assert_eq!(parts(&rows, 50.0)[1].len(), 50);
        let copies: Vec<String> = (0..1000).map(|i| row(i % 50)).collect();
        let [train, valid] = parts(&copies, 0.2);
        let train: HashSet<&String> = train.iter().collect();
        assert!(!valid.is_empty() && valid.iter().all(|row| !train.contains(row)));
        let folder = tempfile::tempdir().expect("a folder");
        let all = write(&rows, 1000.0, folder.path()).expect_err("nothing to train on").to_string();
        assert!(all.contains("leaves 0 rows for training"), "{all}");
    }
}
