//! Mixtures whose token caches are limited: each source has a folder of shards of its own, `train-shards.NAME`, and an equal part of the
//! limit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use kiln_data::{
    MixPart, Packing, PairCorpus, PairTokenizers, RowReport, StreamedMix, StreamedParts, StreamedRows, StreamedSource,
    TextCorpus, TextTokenizer,
};

use super::of_source;
use super::streamed::{SHARDS, open_pairs, shards_of_text, single_rows_of_text};
use crate::config::{ByteSize, Config, MixEntry};

/// A mixture, and what its filters have dropped.
type Opened = (StreamedMix, Vec<String>);

/// Opens a mixture of pairs.
pub(super) fn pairs(
    config: &Config,
    limit: &ByteSize,
    cache_dir: &Path,
    (sources, tokenizers): (&[(&MixEntry, PairCorpus)], &PairTokenizers),
    note: &mut dyn FnMut(&str),
) -> Result<Opened> {
    let mut notes = Vec::new();
    let part = |(entry, corpus): &(&MixEntry, PairCorpus)| -> Result<MixPart<Arc<StreamedRows>>> {
        let opened = open_pairs(config, part_of(limit, sources), &folder(cache_dir, entry), (corpus, tokenizers), note);
        let (source, report) = opened.with_context(|| of_source(entry))?;
        notes.extend(notes_of(entry, &report));
        Ok(MixPart { name: entry.name.as_str().into(), source: Arc::new(source) })
    };
    let parts = StreamedParts::Rows(sources.iter().map(part).collect::<Result<_>>()?);
    Ok((StreamedMix::new(parts, &config.data.mix_shares(), &config.loader)?, notes))
}

/// Opens a mixture of plain text or conversations.
pub(super) fn text(
    config: &Config,
    limit: &ByteSize,
    cache_dir: &Path,
    (sources, tokenizer): (&[(&MixEntry, TextCorpus)], &TextTokenizer),
    note: &mut dyn FnMut(&str),
) -> Result<Opened> {
    let (mut notes, mut packed, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for (entry, corpus) in sources {
        let (text, name) = (corpus.config(), Arc::<str>::from(entry.name.as_str()));
        let mut open = || -> kiln_data::Result<()> {
            let folder = folder(cache_dir, entry);
            let shards = shards_of_text(part_of(limit, sources), &folder, (corpus, tokenizer), note)?;
            notes.extend(notes_of(entry, shards.report()));
            if text.packing == Packing::Sentences {
                let source = single_rows_of_text(shards, tokenizer, text, config)?;
                rows.push(MixPart { name: name.clone(), source: Arc::new(source) });
            } else {
                let source = StreamedSource::new(shards, tokenizer, config.task, text, &config.loader)?;
                packed.push(MixPart { name: name.clone(), source: Arc::new(source) });
            }
            Ok(())
        };
        open().with_context(|| of_source(entry))?;
    }

    let parts = if packed.is_empty() { StreamedParts::Rows(rows) } else { StreamedParts::Packed(packed) };
    Ok((StreamedMix::new(parts, &config.data.mix_shares(), &config.loader)?, notes))
}

/// Returns the bytes that the token caches of a source may take.
fn part_of<T>(limit: &ByteSize, sources: &[T]) -> u64 {
    limit.bytes() / sources.len().max(1) as u64
}

fn folder(cache_dir: &Path, entry: &MixEntry) -> PathBuf {
    cache_dir.join(format!("{SHARDS}.{}", entry.name))
}

fn notes_of(entry: &MixEntry, report: &RowReport) -> impl Iterator<Item = String> + use<> {
    let source = of_source(entry);
    report.notes().into_iter().map(move |note| format!("{source}: {note}"))
}
