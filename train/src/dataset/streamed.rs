//! Opens training data whose token cache is limited (`data.cache_limit`).

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kiln_data::{
    PairCorpus, PairTokenizers, Result, RowReport, Shards, StreamedPairs, StreamedSource, TextCorpus, TextTokenizer,
};
use kiln_metrics::units::counted;

use super::n_threads;
use crate::config::{ByteSize, Config};

/// Folder of the index and of the caches of shards, next to the other token caches.
pub(crate) const SHARDS: &str = "train-shards";

/// Finds or makes the index of the text in `cache_dir`, and opens its rows.
pub(super) fn open_text(
    config: &Config,
    limit: &ByteSize,
    cache_dir: &Path,
    (corpus, tokenizer): (&TextCorpus, &TextTokenizer),
    note: &mut dyn FnMut(&str),
) -> Result<(Arc<StreamedSource>, RowReport)> {
    let count = |folder: &Path| Shards::of_text(folder, corpus.clone(), tokenizer, limit.bytes(), n_threads());
    let shards = counted_shards(&cache_dir.join(SHARDS), limit, count, note)?;
    let report = shards.report().clone();
    let source = StreamedSource::new(shards, tokenizer, config.task, corpus.config(), &config.loader)?;
    Ok((Arc::new(source), report))
}

/// Does the same for pairs.
pub(super) fn open_pairs(
    config: &Config,
    limit: &ByteSize,
    cache_dir: &Path,
    (corpus, tokenizers): (&PairCorpus, &PairTokenizers),
    note: &mut dyn FnMut(&str),
) -> Result<(Arc<StreamedPairs>, RowReport)> {
    let multiple = config.loader.bucket_multiple;
    let count =
        |folder: &Path| Shards::of_pairs(folder, corpus.clone(), tokenizers, multiple, limit.bytes(), n_threads());
    let shards = counted_shards(&cache_dir.join(SHARDS), limit, count, note)?;
    let report = shards.report().clone();
    Ok((Arc::new(StreamedPairs::new(shards, tokenizers, &config.loader)?), report))
}

/// Returns the shards that `count` finds or counts in `folder`, and notes a count.
fn counted_shards(
    folder: &Path,
    limit: &ByteSize,
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
            limit.bytes() as f64 / 1e6,
            shards.report(),
        ));
    }
    Ok(shards)
}
