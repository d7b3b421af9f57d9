//! From a configuration to data: the built-in task or text files, tokenizers, token caches, batch sources.
//!
//! ```text
//! RUN/cache/                 (or data.cache_dir)
//!   tokenizer/               trained once; kept while text and settings stay the same
//!   train.tokens             token caches
//!   valid.tokens
//!   train-shards/            in place of train.tokens with data.cache_limit; of a mixture train-shards.NAME
//!   numbers.train.jsonl      the text of the built-in task, if the run uses it (.txt for lm and mlm)
//!   numbers.valid.jsonl
//! ```

pub mod built_in;
mod classes;
mod copied_split;
pub mod labelled;
pub mod mix;
mod mix_in_shards;
mod own;
pub mod pairs;
mod prompt;
mod shared;
mod split;
pub(crate) mod streamed;
pub mod text;
mod trained_tokenizer;
mod vocabulary;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Context, Result};
use kiln_data::{
    BatchSource, CharacterCounts, CorpusFormat, Example, Prepared, RowReader, Split, Task, TokenCache, check_layout,
    layout_notes,
};

use kiln_data::terminal::shell_path;
use kiln_metrics::logging::METRICS_FILE;

pub use copied_split::copy_split;
pub use own::OwnData;
pub(crate) use split::is_split_by_records;
pub use text::text_config;
pub use trained_tokenizer::{SoundTokenizer, verify_tokenizer};
pub use vocabulary::Vocabulary;

use crate::config::task::{Reads, traits_of};
use crate::config::{Config, DataConfig, MixEntry};

/// The vocabulary and the data of a run.
pub struct RunData {
    /// The vocabulary.
    pub vocabulary: Vocabulary,
    /// Training rows.
    pub train: Arc<dyn BatchSource>,
    /// Validation rows as batches, if there are any.
    pub valid: Option<Arc<dyn BatchSource>>,
    /// A mixture: the validation rows of each source as batches, by name.
    pub valid_parts: Vec<(String, Arc<dyn BatchSource>)>,
    /// Translation: validation rows as text.
    pub valid_examples: Vec<Example>,
    /// lm: UTF-8 bytes of the validation text.
    pub valid_bytes: Option<u64>,
    /// Plain text: words of the validation text to try the model with, for mlm with a mask.
    pub prompt: Option<String>,
    /// Classification and tagging: the names of the classes.
    pub labels: Vec<String>,
    /// What the user should know about how the data is read, such as characters that the vocabulary lacks.
    pub notes: Vec<String>,
}

impl RunData {
    /// Returns training data of your own, without validation data.
    pub fn new(vocabulary: Vocabulary, train: Arc<dyn BatchSource>) -> Self {
        Self {
            vocabulary,
            train,
            valid: None,
            valid_parts: Vec::new(),
            valid_examples: Vec::new(),
            valid_bytes: None,
            prompt: None,
            labels: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Makes or finds everything. A run that continues passes its `vocabulary`; otherwise it is loaded or trained as the
    /// configuration says. `note` gets a line for the user about everything that took time or skipped rows.
    ///
    /// # Errors
    /// If a text, a tokenizer or a cache cannot be read or written.
    pub fn open(
        config: &Config,
        run_dir: &Path,
        vocabulary: Option<Vocabulary>,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let cache_dir = config.data.cache_dir.clone().unwrap_or_else(|| run_dir.join("cache"));
        fs::create_dir_all(&cache_dir).with_context(|| {
            format!(
                "{}: cannot make this folder; check permissions, or set data.cache_dir or --run",
                cache_dir.display()
            )
        })?;
        let of_rows = notes_on_rows(config)?;
        let divided = split::split(config, &cache_dir, note)?;
        let is_split = divided.is_some();
        // A note on the files of the user does not stand for the two parts.
        let are_copied = divided.as_ref().is_some_and(|config| config.data.held_out.is_none());
        let of_files = if are_copied { split::notes_on_files(config)? } else { Vec::new() };
        let config = divided.as_ref().unwrap_or(config);

        let row = traits_of(config.task);
        let mut data = match row.reads {
            Reads::Pairs if config.data.is_mixed() => mix::open_pairs(config, &cache_dir, vocabulary, note),
            Reads::Text if config.data.is_mixed() => mix::open_text(config, &cache_dir, vocabulary, note),
            Reads::Pairs => pairs::open(config, &cache_dir, vocabulary, note),
            Reads::Text if row.classes.is_some() => labelled::open(config, &cache_dir, vocabulary, is_split, note),
            Reads::Text => text::open(config, &cache_dir, vocabulary, note),
        }?;
        data.notes.extend(of_rows.into_iter().chain(of_files));
        data.notes.extend(shared::trained_on_too(config, &cache_dir, is_split)?);
        Ok(data)
    }
}

/// Refuses files whose rows another task, format or field reads, with the flags that read them. `other_tasks` are those that the command
/// can change to.
///
/// # Errors
/// If the rows of a file have a layout that the configuration does not read, or a folder is a run.
pub fn check_rows(config: &Config, files: &[PathBuf], other_tasks: &[Task]) -> kiln_data::Result<()> {
    if let Some(run) = files.iter().find(|file| is_run(file)) {
        return Err(kiln_data::Error::BadRows(format!(
            "{}: this is a run and not text: name files of text; kiln config --run {} prints the names of those that it was trained on",
            run.display(),
            shell_path(run)
        )));
    }
    let DataConfig { corpus, text, labels, .. } = &config.data;
    check_layout(files, &RowReader { task: config.task, other_tasks, corpus, text, labels })
}

/// Says what the rows of the training text have that the configuration leaves out although it belongs to them.
fn notes_on_rows(config: &Config) -> Result<Vec<String>> {
    if config.is_built_in_task() {
        return Ok(Vec::new());
    }
    let DataConfig { corpus, text, labels, .. } = &config.data;
    let files = find_files(config, &config.data.train_files(), Split::Train).context("data.train")?;
    Ok(layout_notes(&files, &RowReader { task: config.task, other_tasks: &[], corpus, text, labels }))
}

/// Whether the folder is a run or a checkpoint. Its caches look like texts.
fn is_run(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).exists();
    has("config.toml") && ["checkpoints", "manifest.json", METRICS_FILE].into_iter().any(has)
}

/// Rows that repeat earlier ones and are worth a warning, as a fraction.
const REPEATED: f64 = 0.7;
/// Of so few rows nothing is said.
const FEWEST_ROWS: u64 = 50;

/// Training and validation files.
struct Files {
    train: Vec<PathBuf>,
    valid: Vec<PathBuf>,
}

impl Files {
    /// Finds the files that the configuration names.
    fn of(config: &Config) -> Result<Self> {
        let train = find_files(config, &config.data.train_files(), Split::Train).context("data.train")?;
        let valid = find_files(config, &config.data.valid_files(), Split::Valid).context("data.valid")?;
        Ok(Self { train, valid })
    }
}

/// Returns the files of `entries`, and of each data set among them the files of `split`.
pub(crate) fn find_files(config: &Config, entries: &[PathBuf], split: Split) -> kiln_data::Result<Vec<PathBuf>> {
    let row = traits_of(config.task);
    let keeps_text = match row.reads {
        Reads::Text => row.classes.is_none(),
        // The files of a folder have their own formats.
        Reads::Pairs => config.data.corpus.format != CorpusFormat::Auto,
    };
    kiln_data::find_files(entries, split, keeps_text)
}

/// Returns the token cache that `prepare` finds or builds at `path`, and notes a build with its `tokens`.
fn cache_at(
    path: &Path,
    prepare: impl FnOnce() -> kiln_data::Result<Prepared>,
    tokens: impl FnOnce(&TokenCache) -> String,
    note: &mut dyn FnMut(&str),
) -> kiln_data::Result<TokenCache> {
    let start = Instant::now();
    let Prepared { cache, built_because } = prepare()?;
    if let Some(reason) = built_because {
        let (shown, secs) = (path.display(), start.elapsed().as_secs_f64());
        note(&format!("{shown}: built in {secs:.1}s ({reason}), {} tokens; {}", tokens(&cache), cache.report()));
        let is_valid = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("valid"));
        many_repeated(cache.n_duplicates(), cache.report().kept, is_valid).iter().for_each(|warning| note(warning));
    }
    Ok(cache)
}

/// Warns of rows most of which repeat an earlier one.
fn many_repeated(repeated: u64, kept: u64, is_valid: bool) -> Option<String> {
    let then = match is_valid {
        true => "a validation scores few different rows; filters leave them, so drop them from the file",
        false => "an epoch sees few different rows; data.filter.drop_duplicates = true drops them",
    };
    (kept >= FEWEST_ROWS && repeated as f64 > REPEATED * kept as f64)
        .then(|| format!("warning: {repeated} of {kept} rows repeat an earlier one, so {then}"))
}

/// Names a source of a mixture in messages.
fn of_source(entry: &MixEntry) -> String {
    format!("data.mix, source \"{}\"", entry.name)
}

/// Says which characters of a text the vocabulary lacks and how the model reads them; `None` if it has all of them.
pub fn lacking_note(lacking: &CharacterCounts, spells_bytes: bool) -> Option<String> {
    let read_as = if spells_bytes { "bytes, which it has rarely seen in training" } else { "unknown tokens" };
    (!lacking.is_empty()).then(|| format!("the vocabulary lacks {lacking}; the model reads them as {read_as}"))
}

/// Says what a vocabulary takes from texts. `is_trained`: whether the configuration decides that.
fn folding_note(folding: Option<&str>, is_trained: bool) -> Option<String> {
    let key = if is_trained { " (tokenizer.lowercase=false keeps them)" } else { "" };
    folding.map(|folding| format!("the vocabulary {folding}: the model neither reads nor writes them{key}"))
}

/// Returns the number of threads for preparing: all cores, because nothing else runs yet.
fn n_threads() -> usize {
    available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use kiln_data::built_in::numbers;

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
        assert_eq!(first.valid_examples.len(), built_in::VALID_ROWS);
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
