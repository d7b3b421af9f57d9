//! Validation rows that also stand in the training text.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use kiln_data::{LabelledCorpus, SharedRows, TokenCache};

use super::{Files, split};
use crate::config::task::traits_of;
use crate::config::{Config, MixEntry};

/// Shared rows that are worth a warning, as a fraction of the validation rows. Held-out text shares some short rows by chance.
const MANY_ROWS: f64 = 0.02;
/// The same for plain text, which shares licences and the like.
const MUCH_TEXT: f64 = 0.05;
/// Tokens of a training text that is compared in about a second. A larger one is not.
const MOST_TOKENS: u64 = 1 << 28;
/// What to do about validation rows that the model learns.
const REMEDY: &str = "name other text for data.valid, or let data.split take some";

/// The same for rows that `data.split` has set aside. Equal texts are on one side, so rows that the vocabulary reads alike differ elsewhere.
const REMEDY_OF_SPLIT: &str = "they differ only in what the vocabulary does not read, such as capitals or spaces: write them alike in \
                               data.train, or leave one of each out, and begin a new run";
/// The same where an earlier version has divided the rows.
const REMEDY_OF_EARLIER: &str =
    "an earlier version has divided them by whole records, and this run keeps its parts: begin a new run";

/// Says if validation text is training text, too: by its files, or by the rows in the token caches.
///
/// # Errors
/// If a token cache cannot be read.
pub(super) fn trained_on_too(config: &Config, cache_dir: &Path, is_split: bool) -> Result<Option<String>> {
    if let Some(note) = by_name(config) {
        return Ok(Some(note));
    }
    // Labelled rows have no caches.
    if config.is_built_in_task() || traits_of(config.task).classes.is_some() {
        return Ok(None);
    }
    let (valid, train) = (caches(config, cache_dir, "valid")?, caches(config, cache_dir, "train")?);
    if train.iter().map(TokenCache::n_tokens).sum::<u64>() > MOST_TOKENS {
        return Ok(None);
    }

    let found = SharedRows::of(&valid, &train);
    let is_plain = valid.iter().any(TokenCache::is_text) && !config.data.text.is_chat();
    Ok(match is_plain {
        true if found.share() < MUCH_TEXT => None,
        true => Some(of_text(found, SharedRows::of_documents(&valid, &train), is_split)),
        false => of_rows(found, remedy(config, cache_dir, is_split)),
    })
}

/// Says how much of a plain text stands in the training text, and how many of its documents do so nearly whole.
fn of_text(found: SharedRows, documents: SharedRows, is_split: bool) -> String {
    let SharedRows { shared, of } = documents;
    let what = format!(
        "{:.1} % of the validation text also stands in the training text, in passages of {} tokens or more; documents that do so nearly whole: ",
        100.0 * found.share(),
        SharedRows::PASSAGE
    );
    match (shared, is_split) {
        (0, true) => format!("note: {what}none of {of}; nothing is to be done if such texts share passages"),
        (0, false) => format!("warning: {what}none of {of}: {REMEDY}"),
        (_, true) => format!(
            "warning: {what}{shared} of {of}; if they are copies, leave one of each out of data.train, and begin a new run"
        ),
        (_, false) => format!("warning: {what}{shared} of {of}: {REMEDY}"),
    }
}

/// Says what to do about validation rows that the model learns.
fn remedy(config: &Config, cache_dir: &Path, is_split: bool) -> &'static str {
    match is_split {
        false => REMEDY,
        true if split::is_by_records(config, cache_dir) => REMEDY_OF_EARLIER,
        true => REMEDY_OF_SPLIT,
    }
}

/// Says if many validation texts are training texts, too, whatever their labels.
pub(super) fn labelled_too(
    config: &Config,
    valid: &LabelledCorpus,
    train: &LabelledCorpus,
    is_split: bool,
) -> Option<String> {
    // A split by texts has none of them on both sides.
    let remedy = if is_split { REMEDY_OF_EARLIER } else { REMEDY };
    if by_name(config).is_some() {
        return None;
    }
    let found = SharedRows { shared: valid.n_shared_with(train), of: valid.rows().len() as u64 };
    of_rows(found, remedy)
}

fn of_rows(SharedRows { shared, of }: SharedRows, remedy: &str) -> Option<String> {
    let is_much = shared > 0 && shared as f64 >= MANY_ROWS * of as f64;
    is_much.then(|| format!("warning: {shared} of {of} validation rows also stand in the training text: {remedy}"))
}

/// Opens the token caches of a part of the data, `train` or `valid`. None of them is there if shards are read in their place.
fn caches(config: &Config, cache_dir: &Path, part: &str) -> Result<Vec<TokenCache>> {
    let data = &config.data;
    let is_valid = part == "valid";
    let is_there = |entry: &&MixEntry| if is_valid { !entry.valid.is_empty() } else { data.cache_limit.is_none() };
    let of_mixture = data.mix.iter().filter(is_there);
    let mut names: Vec<String> = of_mixture.map(|entry| format!("{part}.{}.tokens", entry.name)).collect();
    let has_whole = if is_valid { !data.valid.is_empty() } else { !data.is_mixed() && data.cache_limit.is_none() };
    names.extend(has_whole.then(|| format!("{part}.tokens")));
    Ok(names.iter().map(|name| TokenCache::open(&cache_dir.join(name))).collect::<kiln_data::Result<_>>()?)
}

/// Says if a validation file is a training file, too, by its name or in a folder.
fn by_name(config: &Config) -> Option<String> {
    let Files { train, valid } = Files::of(config).ok()?;
    let trained = |files: &[PathBuf]| files.iter().map(|file| place_of(file)).collect::<HashSet<PathBuf>>();
    let named = trained(&train);
    let shared = |files: &[PathBuf], trained: &HashSet<PathBuf>| -> Vec<PathBuf> {
        files.iter().filter(|file| trained.contains(&place_of(file))).cloned().collect()
    };

    // An entry that both have keeps its name. Else a folder of one side may have the file of the other.
    let mut found = shared(&valid, &named);
    if found.is_empty() {
        let below = |entries: &[PathBuf]| kiln_data::files_in(entries).unwrap_or_default();
        found = shared(&below(&valid), &trained(&below(&train)));
    }
    let (first, others) = found.split_first()?;
    let are = match others.len() {
        0 => " is".to_owned(),
        1 => " and another file are".to_owned(),
        n => format!(" and {n} other files are"),
    };
    Some(format!(
        "warning: {}{are} in data.train and in data.valid: the validation measures how well the model knows it by heart; name \
         other text for data.valid, or let data.split take some",
        first.display()
    ))
}

/// Returns where the file is, whatever the spelling of its path; of parallel files (`news.en,news.it`) each.
fn place_of(entry: &Path) -> PathBuf {
    let place = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    match entry.to_string_lossy().split_once(',') {
        Some((source, target)) if !entry.exists() => {
            let [source, target] = [source, target].map(|file| place(Path::new(file.trim())));
            PathBuf::from(format!("{},{}", source.display(), target.display()))
        }
        _ => place(entry),
    }
}
