//! From a configuration to data: the built-in task or text files, tokenizers, token caches, batch sources.
//!
//! ```text
//! RUN/cache/                 (or data.cache_dir)
//!   tokenizer/               trained here once; kept while text and settings stay the same
//!   train.tokens             token caches
//!   valid.tokens
//!   numbers.train.jsonl      the built-in task as text, if it is the task
//!   numbers.valid.jsonl
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Context, Result};
use kiln_data::numbers::Numbers;
use kiln_data::{
    BatchSource, CachedSource, Corpus, CorpusConfig, DirectSource, Example, Prepared, TokenCache, TokenizerConfig,
    Tokenizers, numbers, prepare,
};
use serde::{Deserialize, Serialize};

use crate::config::Config;

/// Training rows of the built-in task.
const NUMBERS_TRAIN_ROWS: usize = 50_000;
/// Held-out rows of the built-in task.
const NUMBERS_VALID_ROWS: usize = 500;

/// The data of a run, ready to be cut into batches.
pub struct RunData {
    /// The vocabulary.
    pub tokenizers: Tokenizers,
    /// Training rows.
    pub train: Arc<dyn BatchSource>,
    /// Validation rows as batches, if there are any.
    pub valid: Option<Arc<dyn BatchSource>>,
    /// Validation rows as text.
    pub valid_examples: Vec<Example>,
}

/// The text files of a run and how they are read.
struct Files {
    cache_dir: PathBuf,
    train: Vec<PathBuf>,
    valid: Vec<PathBuf>,
    corpus: CorpusConfig,
}

impl Files {
    /// Writes the built-in task if it is the task.
    fn of(config: &Config, run_dir: &Path) -> Result<Self> {
        let cache_dir = config.data.cache_dir.clone().unwrap_or_else(|| run_dir.join("cache"));
        fs::create_dir_all(&cache_dir).with_context(|| {
            format!(
                "{}: cannot make this folder; check permissions, or set data.cache_dir or --run",
                cache_dir.display()
            )
        })?;
        let mut corpus = config.data.corpus.resolved(config.model.max_positions);
        let (mut train, mut valid) = (config.data.train.clone(), config.data.valid.clone());
        if config.is_built_in_task() {
            corpus = CorpusConfig {
                max_source_len: corpus.max_source_len,
                max_target_len: corpus.max_target_len,
                ..CorpusConfig::default()
            };
            let rows = built_in_rows(config)?;
            train = vec![cache_dir.join("numbers.train.jsonl")];
            valid = vec![cache_dir.join("numbers.valid.jsonl")];
            numbers::write_jsonl(&train[0], &rows.train)?;
            numbers::write_jsonl(&valid[0], &rows.held_out)?;
        }
        Ok(Self { cache_dir, train, valid, corpus })
    }
}

impl RunData {
    /// Makes or finds everything. `tokenizers` are those of a run that is continued; without them they are loaded or trained
    /// as the configuration says. `note` gets a line for people about each thing that took time or left rows out.
    pub fn open(
        config: &Config,
        run_dir: &Path,
        tokenizers: Option<Tokenizers>,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let files = Files::of(config, run_dir)?;
        let train_corpus = Corpus::open(&files.train, &files.corpus).context("data.train")?;
        let valid_corpus = match files.valid.as_slice() {
            [] => None,
            files_valid => Some(Corpus::open(files_valid, &files.corpus).context("data.valid")?),
        };
        let tokenizers = match tokenizers {
            Some(tokenizers) => tokenizers,
            None => load_or_train(&config.tokenizer, &train_corpus, &files.cache_dir.join("tokenizer"), note)?,
        };
        let train: Arc<dyn BatchSource> = if config.data.direct {
            let source = DirectSource::open(&train_corpus, &tokenizers, &config.loader).context("data.train")?;
            note(&format!("reading text directly: {}", source.report()));
            Arc::new(source)
        } else {
            let path = files.cache_dir.join("train.tokens");
            let cache = open_cache(&path, &train_corpus, &tokenizers, note).context("data.train")?;
            Arc::new(CachedSource::new(cache, &tokenizers, &config.loader)?)
        };
        let (mut valid, mut valid_examples): (Option<Arc<dyn BatchSource>>, _) = (None, Vec::new());
        if let Some(corpus) = &valid_corpus {
            let path = files.cache_dir.join("valid.tokens");
            let cache = open_cache(&path, corpus, &tokenizers, note).context("data.valid")?;
            valid = Some(Arc::new(CachedSource::new(cache, &tokenizers, &config.loader)?));
            valid_examples = corpus.read_all().context("data.valid")?.0;
        }
        Ok(Self { tokenizers, train, valid, valid_examples })
    }
}

/// The rows of the built-in task.
pub fn built_in_rows(config: &Config) -> kiln_data::Result<Numbers> {
    numbers::examples(NUMBERS_TRAIN_ROWS, NUMBERS_VALID_ROWS, numbers::MAX_DIGITS, config.seed)
}

/// Finds or builds the token cache at `path`.
pub fn open_cache(
    path: &Path,
    corpus: &Corpus,
    tokenizers: &Tokenizers,
    note: &mut dyn FnMut(&str),
) -> kiln_data::Result<TokenCache> {
    let start = Instant::now();
    let Prepared { cache, built_because } = prepare(path, corpus, tokenizers, n_threads(), &mut |_| {})?;
    if let Some(reason) = built_because {
        note(&format!(
            "{}: built in {:.1}s ({reason}), {} + {} tokens; {}",
            path.display(),
            start.elapsed().as_secs_f64(),
            cache.n_source_tokens(),
            cache.n_target_tokens(),
            cache.report()
        ));
    }
    Ok(cache)
}

/// Loads the tokenizers that the configuration names or trains them; trained ones are found again in `dir` as long as text and
/// settings are the same.
pub fn load_or_train(
    config: &TokenizerConfig,
    corpus: &Corpus,
    dir: &Path,
    note: &mut dyn FnMut(&str),
) -> Result<Tokenizers> {
    if config.path.is_some() {
        return Ok(Tokenizers::load(config)?);
    }
    let made_from = MadeFrom::of(config, corpus)?;
    let record = dir.join("made_from.json");
    let before = fs::read(&record).ok().and_then(|json| serde_json::from_slice::<MadeFrom>(&json).ok());
    if before.as_ref() == Some(&made_from)
        && let Ok(tokenizers) = Tokenizers::load_dir(dir)
    {
        return Ok(tokenizers);
    }
    let start = Instant::now();
    let tokenizers = Tokenizers::train(config, corpus, n_threads()).context("training the tokenizer")?;
    let unwritable = || format!("{}: cannot write the tokenizer", dir.display());
    // The record goes first and comes last: an interrupted save is no tokenizer.
    fs::create_dir_all(dir).with_context(unwritable)?;
    let _ = fs::remove_file(&record);
    tokenizers.save(dir)?;
    fs::write(&record, serde_json::to_vec_pretty(&made_from).expect("plain values")).with_context(unwritable)?;
    note(&format!(
        "{}: trained in {:.1}s, {} source and {} target entries{}",
        dir.display(),
        start.elapsed().as_secs_f64(),
        tokenizers.source_vocab_size(),
        tokenizers.target_vocab_size(),
        if tokenizers.is_joint() { " (joint)" } else { "" }
    ));
    Ok(tokenizers)
}

/// What a trained tokenizer depends on.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct MadeFrom {
    config: TokenizerConfig,
    corpus: CorpusConfig,
    /// BLAKE3 of each file's content.
    files: Vec<String>,
}

impl MadeFrom {
    fn of(config: &TokenizerConfig, corpus: &Corpus) -> Result<Self> {
        let hash = |file: &Path| {
            let mut hasher = blake3::Hasher::new();
            let content = fs::File::open(file).and_then(|file| hasher.update_reader(file).map(|_| ()));
            content.with_context(|| format!("{}: cannot read the training text", file.display()))?;
            Ok(hasher.finalize().to_hex().to_string())
        };
        let files = corpus.inputs().iter().flat_map(|input| input.files()).map(hash).collect::<Result<_>>()?;
        Ok(Self { config: config.clone(), corpus: corpus.config().clone(), files })
    }
}

/// Preparing uses every core: nothing else runs yet.
fn n_threads() -> usize {
    available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::presets;

    fn open(config: &Config, dir: &Path) -> (RunData, Vec<String>) {
        let mut notes = Vec::new();
        let data = RunData::open(config, dir, None, &mut |note| notes.push(note.to_owned())).expect("data");
        (data, notes)
    }

    #[test]
    fn the_built_in_task_is_made_once_and_found_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = presets::numbers();
        let (first, notes) = open(&config, folder.path());
        assert_eq!(notes.len(), 3, "tokenizer, training and validation cache: {notes:#?}");
        assert!(first.valid.is_some());
        assert_eq!(first.valid_examples.len(), NUMBERS_VALID_ROWS);
        let (second, notes) = open(&config, folder.path());
        assert_eq!(notes, Vec::<String>::new(), "everything was there");
        assert_eq!(first.train.fingerprint(), second.train.fingerprint());
    }

    #[test]
    fn changed_text_and_settings_are_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = folder.path().join("rows.jsonl");
        let rows = |n: usize| numbers::examples(n, 10, 6, 3).expect("rows").train;
        numbers::write_jsonl(&text, &rows(400)).expect("writable");
        let mut config = presets::numbers();
        config.data.train = vec![text.clone()];
        let run = folder.path().join("run");
        let (before, _) = open(&config, &run);
        numbers::write_jsonl(&text, &rows(500)).expect("writable");
        let (after, notes) = open(&config, &run);
        assert_ne!(before.train.fingerprint(), after.train.fingerprint());
        assert_eq!(notes.len(), 2, "tokenizer and cache are made again: {notes:#?}");
        config.tokenizer.vocab_size -= 10;
        assert_eq!(open(&config, &run).1.len(), 2);
        assert_eq!(open(&config, &run).1.len(), 0);
    }
}
