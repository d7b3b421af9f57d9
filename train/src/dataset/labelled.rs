//! Opens labelled rows, for classification and tagging.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use kiln_data::{
    BatchSource, LabelConfig, LabelledCorpus, LabelledShape, LabelledSource, Split, TextTokenizer, spelled_tokens,
};
use kiln_metrics::units::{counted, thousands};
use kiln_model::TransformerConfig;

use super::trained_tokenizer::{MadeFrom, Watched, find_or_make, read_through};
use super::{Files, RunData, Vocabulary, classes, find_files, folding_note, n_threads, prompt, shared, text};
use crate::config::Config;

pub(super) fn open(
    config: &Config,
    cache_dir: &Path,
    vocabulary: Option<Vocabulary>,
    is_split: bool,
    note: &mut dyn FnMut(&str),
) -> Result<RunData> {
    let Files { train, valid } = text::files(config, cache_dir)?;
    let watched = Watched::of(train.iter().map(PathBuf::as_path));
    let read = LabelledCorpus::read(&train, config.task, &filtered(config)?);
    let corpus = read.map_err(|error| with_new_classes(error, config)).context("data.train")?;
    let is_trained = vocabulary.is_none() && config.tokenizer.path.is_none();
    let tokenizer = match vocabulary.as_ref().and_then(Vocabulary::text) {
        Some(tokenizer) => tokenizer.clone(),
        None => load_or_train(config, &corpus, (&train, &watched), &cache_dir.join("tokenizer"), note)?,
    };
    tokenizer.check(config.task)?;

    let folding = folding_note(tokenizer.folding()?, is_trained);
    let labels = corpus.names().to_vec();
    let (train, mut notes) = source(config, &corpus, &tokenizer).context("data.train")?;
    notes.extend(folding);
    notes.splice(0..0, classes::notes(&corpus, config.task));
    let mut data = RunData { labels, notes, ..RunData::new(Vocabulary::Text(tokenizer.clone()), train) };

    if !valid.is_empty() {
        let config = with_names(config, &data.labels);
        let valid = LabelledCorpus::read(&valid, config.task, &config.data.labels).context("data.valid")?;
        let (source, notes) = source(&config, &valid, &tokenizer).context("data.valid")?;
        data.valid = Some(source);
        data.notes.extend(notes.into_iter().map(|note| format!("validation rows: {note}")));
        data.notes.extend(shared::labelled_too(&config, &valid, &corpus, is_split));
        data.prompt = prompt::to_continue(&valid.texts());
    }
    Ok(data)
}

/// Adds to a problem with labels of other classes how a new run learns them.
fn with_new_classes(error: kiln_data::Error, config: &Config) -> kiln_data::Error {
    match error {
        kiln_data::Error::BadRows(found)
            if !config.data.labels.names.is_empty() && found.contains("is not one of the classes") =>
        {
            kiln_data::Error::BadRows(format!(
                "{found}\nto learn the classes of these rows in a new run: --set 'data.labels.names=[]'"
            ))
        }
        other => other,
    }
}

/// Opens the `named` files, or the validation rows of the run if there are none. Returns `None` without any.
/// `note` gets a line about rows that are cut or cannot be used.
///
/// # Errors
/// If a file cannot be read, or if a label is not one of the run's classes.
pub(crate) fn valid_rows(
    config: &Config,
    named: &[PathBuf],
    cache_dir: &Path,
    vocabulary: &Vocabulary,
    note: &mut dyn FnMut(&str),
) -> Result<Option<Arc<dyn BatchSource>>> {
    let files = match named {
        [] => text::files(config, cache_dir)?.valid,
        named => find_files(config, named, Split::Valid)?,
    };
    if files.is_empty() {
        return Ok(None);
    }
    let tokenizer = vocabulary.text().context("a run of labelled rows has a tokenizer")?;
    let corpus = LabelledCorpus::read(&files, config.task, &config.data.labels)?;
    let (source, notes) = source(config, &corpus, tokenizer)?;
    notes.iter().for_each(|line| note(line));
    Ok(Some(source))
}

/// Names the classes of `config` as the run `origin` does, if its rows have the same ones, so that its head can be kept. Names that are
/// set stay. Returns whether it has named them.
pub(crate) fn take_classes(config: &mut Config, origin: &Config, cache_dir: &Path) -> Result<bool> {
    let names = &origin.data.labels.names;
    if origin.task != config.task || names.is_empty() || !config.data.labels.names.is_empty() {
        return Ok(false);
    }
    let Files { train, .. } = text::files(config, cache_dir)?;
    let corpus = LabelledCorpus::read(&train, config.task, &filtered(config)?).context("data.train")?;
    let are_the_same = corpus.has_classes(names);
    if are_the_same {
        config.data.labels.names.clone_from(names);
    }
    Ok(are_the_same)
}

/// How training rows are read, and which of them are wanted.
fn filtered(config: &Config) -> kiln_data::Result<LabelConfig> {
    Ok(LabelConfig { filter: config.train_filter()?, ..config.data.labels.clone() })
}

fn with_names(config: &Config, names: &[String]) -> Config {
    let mut config = config.clone();
    config.data.labels.names = names.to_vec();
    config
}

/// How the rows of a run are encoded for a model.
pub fn shape(config: &Config, model: &TransformerConfig) -> LabelledShape {
    config.labelled_shape(model)
}

/// Encodes the rows. Also returns what the user should know about them.
fn source(
    config: &Config,
    corpus: &LabelledCorpus,
    tokenizer: &TextTokenizer,
) -> Result<(Arc<dyn BatchSource>, Vec<String>)> {
    let shape = shape(config, &config.model);
    let max_len = shape.max_len;
    let source = LabelledSource::new(corpus, tokenizer, shape, &config.loader, n_threads())?;

    let mut notes = Vec::new();
    if corpus.report().bad() > 0 {
        notes.push(corpus.report().to_string());
    }
    notes.extend(corpus.note_on_numbers());
    notes.extend(corpus.note_on_missing());
    notes.extend(corpus.note_on_combinations());
    notes.extend(corpus.report().filter_notes());
    if source.n_cut() > 0 {
        notes.push(format!(
            "{} of {} have more than {max_len} tokens and are cut (data.text.seq_len, model.max_positions)",
            thousands(source.n_cut() as f64),
            counted(source.n_rows() as u64, "row")
        ));
    }
    notes.extend(spelled_tokens(source.n_spelled(), shape.splits_special_tokens, "data.text"));
    if source.unknown().tokens > 0 {
        notes.push(source.unknown().to_string());
    }
    Ok((Arc::new(source), notes))
}

/// Loads the tokenizer that the configuration names, or trains it on the texts of the rows.
fn load_or_train(
    config: &Config,
    corpus: &LabelledCorpus,
    (files, watched): (&[PathBuf], &Watched),
    dir: &Path,
    note: &mut dyn FnMut(&str),
) -> Result<TextTokenizer> {
    let tokenizer = &config.tokenizer;
    if tokenizer.path.is_some() {
        return Ok(TextTokenizer::load(tokenizer)?);
    }
    let LabelConfig { text_field, pair_field, words_field, .. } = &config.data.labels;
    let filter = config.train_filter()?;
    let read_as = read_through(&(config.task, text_field, pair_field, words_field), filter.as_deref());
    let made_from = MadeFrom::of(tokenizer, &read_as, files.iter().map(PathBuf::as_path))?;
    let train = || TextTokenizer::train_on_documents(tokenizer, &corpus.texts(), n_threads());
    let (found, secs) = find_or_make(dir, (&made_from, watched), TextTokenizer::load_dir, train, TextTokenizer::save)?;
    if let Some(secs) = secs {
        note(&format!("{}: trained in {secs:.1}s, {} entries", dir.display(), found.vocab_size()));
    }
    Ok(found)
}
