//! Opens plain text, for lm and mlm.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use kiln_data::{
    BatchSource, ChatSource, Packing, PreferenceSource, RowReport, Split, TextConfig, TextCorpus, TextFormat,
    TextSource, TextTokenizer, TokenCache, TokenizerConfig, prepare_chat, prepare_text, read_chat_template,
};

use super::trained_tokenizer::{MadeFrom, Watched, find_or_make, read_through};
use super::{
    Files, RunData, Vocabulary, built_in, cache_at, find_files, folding_note, lacking_note, n_threads, prompt, split,
    streamed,
};
use crate::config::Config;
use crate::config::task::traits_of;

pub(super) fn open(
    config: &Config,
    cache_dir: &Path,
    vocabulary: Option<Vocabulary>,
    note: &mut dyn FnMut(&str),
) -> Result<RunData> {
    let Files { train, valid } = files(config, cache_dir)?;
    let filtered = TextConfig { filter: config.train_filter()?, ..text_config(config) };
    let corpus = TextCorpus::open(&train, &filtered).context("data.train")?;
    let watched = Watched::of(corpus.files());
    let tokenizer = match vocabulary.as_ref().and_then(Vocabulary::text) {
        Some(tokenizer) => tokenizer.clone(),
        None => load_or_train(&config.tokenizer, &corpus, &cache_dir.join("tokenizer"), note)?,
    };
    let tokenizer = with_chat_template(config, tokenizer)?;
    tokenizer.check(config.task)?;
    let is_trained = vocabulary.is_none() && config.tokenizer.path.is_none();
    let folding = folding_note(tokenizer.folding()?, is_trained);

    let (train, report): (Arc<dyn BatchSource>, _) = match &config.data.cache_limit {
        Some(limit) => {
            let folder = cache_dir.join(streamed::SHARDS);
            streamed::open_text(config, limit.bytes(), &folder, (&corpus, &tokenizer), note).context("data.train")?
        }
        None => {
            let path = cache_dir.join("train.tokens");
            let rows = rows(config, &path, &corpus, &tokenizer, note).context("data.train")?;
            (rows.source, rows.report)
        }
    };
    watched.ensure_unchanged().context("data.train")?;
    let notes = corpus.notes().into_iter().chain(report.notes()).chain(folding);
    let notes = notes.chain(one_document(&report, &corpus)?);
    let notes = notes.chain(default_template(config, &tokenizer)?).collect();
    let vocabulary = Vocabulary::Text(tokenizer);
    let mut data = RunData { notes, ..RunData::new(vocabulary, train) };

    if !valid.is_empty() {
        open_valid(&split::reading_valid(config), &valid, cache_dir, &mut data, note)?;
    }
    Ok(data)
}

/// Opens the validation data.
pub(super) fn open_valid(
    config: &Config,
    files: &[PathBuf],
    cache_dir: &Path,
    data: &mut RunData,
    note: &mut dyn FnMut(&str),
) -> Result<()> {
    let corpus = TextCorpus::open(files, &text_config(config)).context("data.valid")?;
    let opened = open_to_measure(config, &corpus, cache_dir, &data.vocabulary, note).context("data.valid")?;
    data.valid = Some(opened.source);
    // Bits per byte count every token of a text. In a conversation, only the answers have labels.
    let counts_all = traits_of(config.task).continues_text && !config.data.text.is_chat();
    data.valid_bytes = counts_all.then_some(opened.n_bytes);
    data.prompt = opened.prompt;
    data.notes.extend(opened.notes);
    Ok(())
}

/// Returns words of a text to try the model with.
pub(super) fn prompt_of(config: &Config, corpus: &TextCorpus, documents: &[String]) -> Result<Option<String>> {
    let to_try = if traits_of(config.task).hides_tokens { prompt::to_fill_in } else { prompt::to_continue };
    Ok(if corpus.config().is_chat() { corpus.first_question()? } else { to_try(documents) })
}

/// Says if all lines of a text are one document, perhaps against the user's intention.
fn one_document(report: &RowReport, corpus: &TextCorpus) -> Result<Option<String>> {
    const MANY_LINES: usize = 100;
    if report.rows() != 1 || corpus.config().format != TextFormat::Auto || corpus.has_known_form() {
        return Ok(None);
    }
    let (documents, _) = corpus.read_all()?;
    let n_lines = documents.iter().map(|document| document.lines().count()).sum::<usize>();
    let text = || {
        format!(
            "the training text is one document of {n_lines} lines: blank lines separate documents; if each line is one, add --set \
             data.text.format=lines"
        )
    };
    Ok((n_lines >= MANY_LINES).then(text))
}

/// A text to score a model on.
pub(crate) struct OpenedText {
    /// Its rows.
    pub(crate) source: Arc<dyn BatchSource>,
    /// Its length in UTF-8 bytes, without the separators of documents.
    pub(crate) n_bytes: u64,
    /// The documents that were kept and skipped.
    pub(crate) report: RowReport,
    /// How its documents lie in rows. `None` for conversations, which are never cut and do not see each other.
    pub(crate) division: Option<Division>,
    /// Words of it to try the model with.
    pub(crate) prompt: Option<String>,
    /// What the user should know about how it is read.
    pub(crate) notes: Vec<String>,
}

/// How the documents of a text lie in rows. A cut document is read in parts, the later ones without what stands before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    /// How documents become rows.
    pub packing: Packing,
    /// Tokens of the longest row.
    pub seq_len: usize,
    /// Number of documents.
    pub n_documents: u64,
    /// Those that no single row has room for.
    pub n_longer_than_row: u64,
}

/// Opens the `named` files, or the validation text of the run if there are none, with a token cache in `cache_dir`.
/// Returns `None` if there is no text.
pub(crate) fn valid_text(
    config: &Config,
    named: &[PathBuf],
    cache_dir: &Path,
    vocabulary: &Vocabulary,
    note: &mut dyn FnMut(&str),
) -> Result<Option<OpenedText>> {
    let corpus = if named.is_empty() {
        let Files { valid, .. } = files(config, cache_dir)?;
        if valid.is_empty() {
            return Ok(None);
        }
        TextCorpus::open(&valid, &text_config(config)).context("data.valid")?
    } else {
        let named = find_files(config, named, Split::Valid)?;
        TextCorpus::open(&named, &config.data.text.resolved(config.model.text_positions()))?
    };
    open_to_measure(config, &corpus, cache_dir, vocabulary, note).map(Some)
}

fn open_to_measure(
    config: &Config,
    corpus: &TextCorpus,
    cache_dir: &Path,
    vocabulary: &Vocabulary,
    note: &mut dyn FnMut(&str),
) -> Result<OpenedText> {
    let tokenizer = vocabulary.text().context("a run of text has a tokenizer")?;
    let rows = rows(config, &cache_dir.join("valid.tokens"), corpus, tokenizer, note)?;
    let (documents, _) = corpus.read_all()?;
    let n_bytes = documents.iter().map(|document| document.len() as u64).sum();
    let prompt = prompt_of(config, corpus, &documents)?;

    let mut notes = corpus.notes();
    // A vocabulary need not spell the marks of ChatML, in which conversations come here.
    if tokenizer.spells_bytes() && !corpus.config().is_chat() {
        let lacking = lacking_note(&tokenizer.lacking_in(&documents)?, true);
        notes.extend(lacking.map(|note| format!("validation text: {note}")));
    }
    let Rows { source, report, division } = rows;
    Ok(OpenedText { source, n_bytes, report, division, prompt, notes })
}

/// Returns the text of the run, or the built-in text.
pub(super) fn files(config: &Config, cache_dir: &Path) -> Result<Files> {
    if config.is_built_in_task() {
        return built_in::write(config, cache_dir);
    }
    Files::of(config)
}

/// Returns how the text of a run is read, with the model's positions in place of a limit of 0.
pub fn text_config(config: &Config) -> TextConfig {
    let text = config.data.text.resolved(config.model.text_positions());
    if config.is_built_in_task() { built_in::text_config(&text) } else { text }
}

/// The rows of a text.
struct Rows {
    source: Arc<dyn BatchSource>,
    report: RowReport,
    division: Option<Division>,
}

/// Finds or builds the token cache of `corpus` at `path`, and opens its rows.
fn rows(
    config: &Config,
    path: &Path,
    corpus: &TextCorpus,
    tokenizer: &TextTokenizer,
    note: &mut dyn FnMut(&str),
) -> Result<Rows> {
    let cache = open_cache(path, corpus, tokenizer, note)?;
    let report = cache.report().clone();
    if corpus.config().is_chat() {
        if corpus.config().is_preferences() {
            let (max_len, beta) = (corpus.config().seq_len, config.train.preference_beta);
            let source = PreferenceSource::new(cache, tokenizer, max_len, &config.loader, beta)?;
            return Ok(Rows { source: Arc::new(source), report, division: None });
        }
        let source = ChatSource::new(cache, tokenizer, corpus.config(), &config.loader)?;
        return Ok(Rows { source: Arc::new(source), report, division: None });
    }

    let source = TextSource::new(cache, tokenizer, config.task, corpus.config(), &config.loader)?;
    let division = Division {
        packing: corpus.config().packing,
        seq_len: corpus.config().seq_len,
        n_documents: source.cache().n_rows() as u64,
        n_longer_than_row: source.n_longer_than_row(),
    };
    Ok(Rows { source: Arc::new(source), report, division: Some(division) })
}

/// Finds or builds the token cache of `corpus` at `path`.
pub(super) fn open_cache(
    path: &Path,
    corpus: &TextCorpus,
    tokenizer: &TextTokenizer,
    note: &mut dyn FnMut(&str),
) -> Result<TokenCache> {
    let template = corpus.config().is_chat().then(|| tokenizer.chat_template()).transpose()?;
    let prepare = || match &template {
        Some(template) => prepare_chat(path, corpus, tokenizer, template, n_threads(), &mut |_| {}),
        None => prepare_text(path, corpus, tokenizer, n_threads(), &mut |_| {}),
    };
    Ok(cache_at(path, prepare, |cache| cache.n_tokens().to_string(), note)?)
}

/// Gives the tokenizer of a run on conversations the template that the run uses, so that the checkpoints keep it.
pub(super) fn with_chat_template(config: &Config, tokenizer: TextTokenizer) -> Result<TextTokenizer> {
    if !config.data.text.is_chat() {
        return Ok(tokenizer);
    }
    let template = match &config.data.text.chat_template {
        Some(path) => read_chat_template(path).context("data.text.chat_template")?,
        None => tokenizer.chat_template()?.source().to_owned(),
    };
    let tokenizer = tokenizer.with_chat_template(&template);
    tokenizer.chat_template()?;
    Ok(tokenizer)
}

/// Says if the conversations of a run are written with the template for models that have none.
pub(super) fn default_template(config: &Config, tokenizer: &TextTokenizer) -> Result<Option<String>> {
    if !config.data.text.is_chat() || !tokenizer.chat_template()?.is_default() {
        return Ok(None);
    }
    let spelled = tokenizer.spelled_end_of_turn()?.map_or(String::new(), |end| {
        format!(
            "; its {end} is not a token of this vocabulary, so that kiln chat ends an answer there and an exported model does not, unless \
             a program gives it stop_strings: for an export, set a template that ends a turn with the model's end token"
        )
    });
    Ok(Some(format!(
        "conversations are written with ChatML, because the model has no chat template (data.text.chat_template sets one){spelled}"
    )))
}

/// Loads the tokenizer that the configuration names, or trains it. A trained tokenizer is reused from `dir` as long as
/// text and settings are the same.
pub fn load_or_train(
    config: &TokenizerConfig,
    corpus: &TextCorpus,
    dir: &Path,
    note: &mut dyn FnMut(&str),
) -> Result<TextTokenizer> {
    if config.path.is_some() {
        return Ok(TextTokenizer::load(config)?);
    }
    // The vocabulary does not depend on how documents become rows.
    let read_as = TextConfig { seq_len: 0, packing: Packing::default(), ..corpus.config().clone() };
    let watched = Watched::of(corpus.files());
    let read_as = read_through(&read_as, read_as.filter.as_deref());
    let made_from = MadeFrom::of(config, &read_as, corpus.files())?;
    let train = || TextTokenizer::train(config, corpus, n_threads());
    let (tokenizer, secs) =
        find_or_make(dir, (&made_from, &watched), TextTokenizer::load_dir, train, TextTokenizer::save)?;
    if let Some(secs) = secs {
        note(&format!("{}: trained in {secs:.1}s, {} entries", dir.display(), tokenizer.vocab_size()));
    }
    Ok(tokenizer)
}
