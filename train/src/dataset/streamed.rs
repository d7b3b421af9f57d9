//! Opens plain text whose token cache is limited (`data.cache_limit`).

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use kiln_data::{RowReport, StreamedSource, TextCorpus, TextShards, TextTokenizer};
use kiln_metrics::units::counted;

use super::n_threads;
use crate::config::{Config, DiskSize};

/// Folder of the index and of the caches of shards, next to the other token caches.
pub(crate) const SHARDS: &str = "train-shards";

/// Finds or makes the index of the text in `cache_dir`, and opens its rows.
pub(super) fn open(
    config: &Config,
    limit: &DiskSize,
    cache_dir: &Path,
    corpus: &TextCorpus,
    tokenizer: &TextTokenizer,
    note: &mut dyn FnMut(&str),
) -> Result<(Arc<StreamedSource>, RowReport)> {
    let (folder, start) = (cache_dir.join(SHARDS), Instant::now());
    let shards = TextShards::prepare(&folder, corpus.clone(), tokenizer, limit.bytes(), n_threads())?;
    let report = shards.report().clone();

    if shards.n_counted() > 0 {
        let secs = start.elapsed().as_secs_f64();
        let before = match shards.n_shards() - shards.n_counted() {
            0 => String::new(),
            n => format!(", {n} of them by an earlier start"),
        };
        note(&format!(
            "{}: counted in {secs:.1}s, {}{before}, {} tokens, {:.0} MB of token caches, at most {:.0} MB of them at a time; {report}",
            folder.display(),
            counted(shards.n_shards() as u64, "shard"),
            shards.n_tokens(),
            shards.n_bytes() as f64 / 1e6,
            limit.bytes() as f64 / 1e6,
        ));
    }
    let source = StreamedSource::new(shards, config.task, corpus.config(), &config.loader)?;
    Ok((Arc::new(source), report))
}
