//! Opens labelled rows, for classification and tagging.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use kiln_data::{
    BatchSource, Classes, LabelConfig, Labelled, LabelledCorpus, LabelledInput, LabelledShape, LabelledSource,
    LabelledText, RowReport, Split, TextTokenizer, TokenizerConfig, Unknown, find_classes, spelled_tokens,
};
use kiln_metrics::units::{counted, thousands};
use kiln_model::TransformerConfig;

use super::trained_tokenizer::{MadeFrom, Watched, find_or_make, read_through};
use super::{
    Files, RunData, Vocabulary, classes, find_files, folding_note, many_repeated, n_threads, prompt, shared, streamed,
    text,
};
use crate::config::{ByteSize, Config};

/// Rows that contradict earlier ones and are worth a warning, as a fraction.
const CONTRADICTING: f64 = 0.01;

pub(super) fn open(
    config: &Config,
    cache_dir: &Path,
    vocabulary: Option<Vocabulary>,
    is_split: bool,
    note: &mut dyn FnMut(&str),
) -> Result<RunData> {
    let Files { train, valid } = text::files(config, cache_dir)?;
    let is_trained = vocabulary.is_none() && config.tokenizer.path.is_none();
    let known = vocabulary.as_ref().and_then(Vocabulary::text);
    let Rows { source: train, tokenizer, classes, corpus, notes } = match &config.data.cache_limit {
        Some(limit) => in_shards(config, limit, (cache_dir, &train), known, note),
        None => in_memory(config, (cache_dir, &train), known, note),
    }
    .context("data.train")?;

    let folding = folding_note(tokenizer.folding()?, is_trained);
    let labels = classes.names.clone();
    let notes = classes::notes(&classes, corpus.as_ref().map_or(&[], LabelledCorpus::rows), config.task)
        .into_iter()
        .chain(notes)
        .chain(folding)
        .collect();
    let mut data = RunData { labels, notes, ..RunData::new(Vocabulary::Text(tokenizer.clone()), train) };

    let mut of_valid = None;
    if !valid.is_empty() {
        let config = with_names(config, &data.labels);
        let valid = LabelledCorpus::read(&valid, config.task, &config.data.labels).context("data.valid")?;
        let (source, notes) = source(&config, &valid, &tokenizer).context("data.valid")?;
        data.valid = Some(source);
        data.notes.extend(notes.into_iter().map(|note| format!("validation rows: {note}")));
        data.notes.extend(corpus.and_then(|corpus| shared::labelled_too(&config, &valid, &corpus, is_split)));
        data.prompt = prompt::to_classify(&valid.texts());
        of_valid = Some(valid.classes()).filter(|_| !is_split);
    }
    // Rows that data.split takes are of the training text.
    let of_valid = of_valid.as_ref().map(|classes| (config.data.valid.as_slice(), classes));
    let missing = classes.note_on_missing(config.task, &config.data.train, of_valid, &config.data.labels.label_field);
    data.notes.extend(missing);
    Ok(data)
}

/// The training rows.
struct Rows {
    source: Arc<dyn BatchSource>,
    tokenizer: TextTokenizer,
    classes: Classes,
    /// The rows, if they are in memory.
    corpus: Option<LabelledCorpus>,
    /// What the user should know about them.
    notes: Vec<String>,
}

/// Reads all training rows into memory.
fn in_memory(
    config: &Config,
    (cache_dir, files): (&Path, &[PathBuf]),
    known: Option<&TextTokenizer>,
    note: &mut dyn FnMut(&str),
) -> Result<Rows> {
    let watched = Watched::of(files.iter().map(PathBuf::as_path));
    let read = LabelledCorpus::read(files, config.task, &filtered(config)?);
    let corpus = read.map_err(|error| with_new_classes(error, config))?;
    let train =
        |tokenizer: &TokenizerConfig| TextTokenizer::train_on_documents(tokenizer, &corpus.texts(), n_threads());
    let tokenizer = match known {
        Some(tokenizer) => tokenizer.clone(),
        None => load_or_train(config, train, (files, &watched), &cache_dir.join("tokenizer"), note)?,
    };
    tokenizer.check(config.task)?;

    let (source, mut notes) = source(config, &corpus, &tokenizer)?;
    let (n_repeated, n_other) = corpus.n_repeated();
    notes.extend(many_repeated(n_repeated, corpus.report().kept, false));
    if n_other as f64 > CONTRADICTING * corpus.report().kept as f64 {
        let n = thousands(n_other as f64);
        notes.push(format!(
            "warning: {n} rows have the text of an earlier one and another label: a model cannot learn both, so correct them"
        ));
    }
    Ok(Rows { source, tokenizer, classes: corpus.classes(), corpus: Some(corpus), notes })
}

/// Opens training rows whose token cache is limited.
fn in_shards(
    config: &Config,
    limit: &ByteSize,
    (cache_dir, files): (&Path, &[PathBuf]),
    known: Option<&TextTokenizer>,
    note: &mut dyn FnMut(&str),
) -> Result<Rows> {
    let watched = Watched::of(files.iter().map(PathBuf::as_path));
    let text = LabelledText::open(files, config.task, &filtered(config)?)?;
    let folder = cache_dir.join(streamed::SHARDS);
    let classes = find_classes(&folder, &text, n_threads()).map_err(|error| with_new_classes(error, config))?;
    let train = |tokenizer: &TokenizerConfig| TextTokenizer::train_on_labelled(tokenizer, &text, n_threads());
    let tokenizer = match known {
        Some(tokenizer) => tokenizer.clone(),
        None => load_or_train(config, train, (files, &watched), &cache_dir.join("tokenizer"), note)?,
    };
    tokenizer.check(config.task)?;

    let shape = shape(config, &config.model);
    let text = text.with_classes(&classes.names);
    let opened = streamed::open_labels(config, limit, &folder, (text, &tokenizer, shape), note);
    let (source, report) = opened.map_err(|error| with_new_classes(error, config))?;
    watched.ensure_unchanged()?;
    let (mut of_rows, of_tokens) = (report.clone(), report);
    (of_rows.unknown, of_rows.spelled, of_rows.read_special) = (Unknown::default(), 0, 0);
    let notes = notes_on_rows(&of_rows, &of_tokens, &classes, config, shape);
    Ok(Rows { source, tokenizer, classes, corpus: None, notes })
}

/// Returns what the user should know about rows: which of them cannot be used or are cut, and how they are read. `tokens` counts what
/// is found when they are tokenized.
fn notes_on_rows(
    report: &RowReport,
    tokens: &RowReport,
    classes: &Classes,
    config: &Config,
    shape: LabelledShape,
) -> Vec<String> {
    let bad = (report.bad() > 0).then(|| report.to_string());
    let cut = (tokens.cut > 0).then(|| {
        format!(
            "{} of {} have more than {} tokens and are cut (data.text.seq_len, model.max_positions)",
            thousands(tokens.cut as f64),
            counted(report.kept, "row"),
            shape.max_len
        )
    });
    let spelled = spelled_tokens(tokens.spelled + tokens.read_special, shape.splits_special_tokens, "data.text");
    let unknown = (tokens.unknown.tokens > 0).then(|| tokens.unknown.to_string());
    let of_labels = [classes.note_on_numbers(), classes.note_on_combinations(config.task)].into_iter().flatten();
    let of_texts = [cut, spelled, unknown].into_iter().flatten();
    bad.into_iter().chain(of_labels).chain(report.filter_notes()).chain(of_texts).collect()
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
    let found = match config.data.cache_limit {
        Some(_) => {
            let text = LabelledText::open(&train, config.task, &filtered(config)?).context("data.train")?;
            find_classes(&cache_dir.join(streamed::SHARDS), &text, n_threads()).context("data.train")?
        }
        None => {
            let corpus = LabelledCorpus::read(&train, config.task, &filtered(config)?).context("data.train")?;
            corpus.classes()
        }
    };
    let are_the_same = found.are(names);
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
    let source = LabelledSource::new(corpus, tokenizer, shape, &config.loader, n_threads())?;
    let mut of_tokens = RowReport::default();
    (of_tokens.cut, of_tokens.spelled) = (source.n_cut(), source.n_spelled());
    of_tokens.unknown = source.unknown().clone();
    let mut notes = notes_on_rows(corpus.report(), &of_tokens, &corpus.classes(), config, shape);
    notes.extend(without_second_text(corpus.rows(), &config.data.labels.pair_field));
    Ok((Arc::new(source), notes))
}

/// Counts the rows without a second text, where others have one.
fn without_second_text(rows: &[Labelled], field: &str) -> Option<String> {
    let has_pair = |row: &&Labelled| matches!(row.input, LabelledInput::Text { pair: Some(_), .. });
    let n_pairs = rows.iter().filter(has_pair).count();
    (n_pairs > 0 && n_pairs < rows.len()).then(|| {
        format!(
            "{} of {} have no \"{field}\" (data.labels.pair_field), and the model reads their first text alone",
            thousands((rows.len() - n_pairs) as f64),
            counted(rows.len() as u64, "row")
        )
    })
}

/// Loads the tokenizer that the configuration names, or lets `train` train it on the texts of the rows.
fn load_or_train(
    config: &Config,
    train: impl FnOnce(&TokenizerConfig) -> kiln_data::Result<TextTokenizer>,
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
    let train = || train(tokenizer);
    let (found, secs) = find_or_make(dir, (&made_from, watched), TextTokenizer::load_dir, train, TextTokenizer::save)?;
    if let Some(secs) = secs {
        note(&format!("{}: trained in {secs:.1}s, {} entries", dir.display(), found.vocab_size()));
    }
    Ok(found)
}
