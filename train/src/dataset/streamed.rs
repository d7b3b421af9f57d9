//! Opens training data whose token cache is limited (`data.cache_limit`).

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kiln_data::{
    BatchSource, LabelledShape, LabelledText, Packing, PairCorpus, PairTokenizers, Result, RowReport, Shards,
    StreamedRows, StreamedSource, TextConfig, TextCorpus, TextTokenizer,
};
use kiln_metrics::units::counted;

use super::n_threads;
use crate::config::{ByteSize, Config};

/// Folder of the index and of the caches of shards, next to the other token caches.
pub(crate) const SHARDS: &str = "train-shards";

/// The rows, and the counts of those that are kept and of the others.
type Opened<S> = (S, RowReport);

/// Finds or makes the index of a text, of conversations or of answers to compare in `folder`, and opens its rows.
pub(super) fn open_text(
    config: &Config,
    limit: u64,
    folder: &Path,
    (corpus, tokenizer): (&TextCorpus, &TextTokenizer),
    note: &mut dyn FnMut(&str),
) -> Result<Opened<Arc<dyn BatchSource>>> {
    let shards = shards_of_text(limit, folder, (corpus, tokenizer), note)?;
    let (report, text, loader) = (shards.report().clone(), corpus.config(), &config.loader);
    let source: Arc<dyn BatchSource> = if text.is_preferences() {
        let beta = config.train.preference_beta;
        rows_of(StreamedRows::of_preferences(shards, tokenizer, text.seq_len, loader, beta)?, config)?
    } else if text.packing == Packing::Sentences {
        rows_of(single_rows_of_text(shards, tokenizer, text, config)?, config)?
    } else {
        let source = StreamedSource::new(shards, tokenizer, config.task, text, loader)?;
        if loader.shuffle { Arc::new(source) } else { Arc::new(source.in_file_order()?) }
    };
    Ok((source, report))
}

/// Opens documents or conversations that each have rows of their own.
pub(super) fn single_rows_of_text(
    shards: Shards,
    tokenizer: &TextTokenizer,
    text: &TextConfig,
    config: &Config,
) -> Result<StreamedRows> {
    match text.is_chat() {
        true => StreamedRows::of_conversations(shards, tokenizer, text, &config.loader),
        false => StreamedRows::of_documents(shards, tokenizer, config.task, text, &config.loader),
    }
}

/// Returns rows in the order of the loader.
pub(super) fn rows_of(rows: StreamedRows, config: &Config) -> Result<Arc<dyn BatchSource>> {
    Ok(if config.loader.shuffle { Arc::new(rows) } else { Arc::new(rows.in_file_order()?) })
}

/// Finds or makes the index of a text, of conversations or of answers to compare in `folder`.
pub(super) fn shards_of_text(
    limit: u64,
    folder: &Path,
    (corpus, tokenizer): (&TextCorpus, &TextTokenizer),
    note: &mut dyn FnMut(&str),
) -> Result<Shards> {
    let template = corpus.config().is_chat().then(|| tokenizer.chat_template()).transpose()?;
    let (corpus, threads) = (corpus.clone(), n_threads());
    let count = |folder: &Path| match &template {
        Some(template) => Shards::of_conversations(folder, corpus, tokenizer, template, limit, threads),
        None => Shards::of_text(folder, corpus, tokenizer, limit, threads),
    };
    counted_shards(folder, limit, count, note)
}

/// Finds or makes the index of pairs in `folder`, and opens them.
pub(super) fn open_pairs(
    config: &Config,
    limit: u64,
    folder: &Path,
    (corpus, tokenizers): (&PairCorpus, &PairTokenizers),
    note: &mut dyn FnMut(&str),
) -> Result<Opened<StreamedRows>> {
    let multiple = config.loader.bucket_multiple;
    let count = |folder: &Path| Shards::of_pairs(folder, corpus.clone(), tokenizers, multiple, limit, n_threads());
    let shards = counted_shards(folder, limit, count, note)?;
    let report = shards.report().clone();
    Ok((StreamedRows::of_pairs(shards, tokenizers, &config.loader)?, report))
}

/// Finds or makes the index of labelled rows in `folder`, and opens them.
pub(super) fn open_labels(
    config: &Config,
    limit: &ByteSize,
    folder: &Path,
    (text, tokenizer, shape): (LabelledText, &TextTokenizer, LabelledShape),
    note: &mut dyn FnMut(&str),
) -> Result<Opened<Arc<dyn BatchSource>>> {
    let (n_classes, limit) = (text.config().names.len(), limit.bytes());
    let count = |folder: &Path| Shards::of_labels(folder, text, tokenizer, shape, limit, n_threads());
    let shards = counted_shards(folder, limit, count, note)?;
    let report = shards.report().clone();
    let rows = StreamedRows::of_labels(shards, tokenizer, shape, n_classes, &config.loader)?;
    Ok((rows_of(rows, config)?, report))
}

/// Returns the shards that `count` finds or counts in `folder`, and notes a count.
fn counted_shards(
    folder: &Path,
    limit: u64,
    count: impl FnOnce(&Path) -> Result<Shards>,
    note: &mut dyn FnMut(&str),
) -> Result<Shards> {
    let start = Instant::now();
    let shards = count(folder)?;

    if shards.n_counted() > 0 {
        let secs = start.elapsed().as_secs_f64();
        let before = match shards.n_shards() - shards.n_counted() {
            0 => String::new(),
            n => format!(", {n} of them by an earlier start"),
        };
        note(&format!(
            "{}: counted in {secs:.1}s, {}{before}, {} tokens, {:.0} MB of token caches, at most {:.0} MB of them at a time; {}",
            folder.display(),
            counted(shards.n_shards() as u64, "shard"),
            shards.n_tokens(),
            shards.n_bytes() as f64 / 1e6,
            limit as f64 / 1e6,
            shards.report(),
        ));
    }
    Ok(shards)
}
