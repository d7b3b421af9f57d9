//! Statistics of training data: lengths, padding with these and other settings of the loader, duplicates, and what to change.

use std::path::Path;

use anyhow::{Result, ensure};
use kiln_data::{Buckets, Lengths, LoaderConfig, Packing, RowReport, TextSource, TokenCache};
use kiln_train::config::Config;
use kiln_train::dataset::{Vocabulary, text_config};

/// Rows that are decoded to count tokens per byte.
const DECODED: usize = 2000;
/// Less padding than this is not worth another shape, in fractions of the positions.
const WORTH: f64 = 0.02;
/// A setting with fewer shapes is preferred if it pads this much more at most.
const CLOSE: f64 = 0.025;

/// Batches of an epoch with some settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Batching {
    /// What differs from the settings of the run, as arguments of `--set`; empty for the settings of the run.
    pub settings: Vec<String>,
    /// Fraction of the positions that is padding, 0 to 1.
    pub padding: f64,
    /// Different shapes of batches.
    pub n_shapes: usize,
    /// Batches per epoch.
    pub n_batches: u64,
}

/// What training data looks like.
#[derive(Debug, Clone, PartialEq)]
pub struct DataStats {
    /// Kept and skipped rows.
    pub report: RowReport,
    /// The lengths of each side.
    pub lengths: Vec<Lengths>,
    /// Rows that equal an earlier row.
    pub n_duplicates: u64,
    /// Tokens of the target, or of the text, per byte of UTF-8.
    pub tokens_per_byte: f64,
    /// Plain text: documents with more tokens than a row, which are cut.
    pub n_cut: Option<u64>,
    /// The settings of the run, then others.
    pub batchings: Vec<Batching>,
    /// What to do, in sentences.
    pub advice: Vec<String>,
}

impl DataStats {
    /// Looks at the training data of `config`, whose token cache is in `cache_dir`.
    ///
    /// # Errors
    /// If the data is read without a cache, or if a cache cannot be read.
    pub fn of(config: &Config, vocabulary: &Vocabulary, cache_dir: &Path) -> Result<Self> {
        Self::of_cache(config, vocabulary, &cache_dir.join("train.tokens"))
    }

    /// Does the same for each source of a mixture, by name.
    ///
    /// # Errors
    /// If a cache cannot be read.
    pub fn of_sources(config: &Config, vocabulary: &Vocabulary, cache_dir: &Path) -> Result<Vec<(String, Self)>> {
        let of_source = |name: &String| {
            let path = cache_dir.join(format!("train.{name}.tokens"));
            Ok((name.clone(), Self::of_cache(config, vocabulary, &path)?))
        };
        config.data.mix.iter().map(|source| of_source(&source.name)).collect()
    }

    fn of_cache(config: &Config, vocabulary: &Vocabulary, path: &Path) -> Result<Self> {
        ensure!(
            config.data.cache_limit.is_none(),
            "data.cache_limit keeps a part of the token cache, whose lengths are counted here: leave it out and name some files of the text"
        );
        ensure!(
            path.is_file() || config.data.labels.names.is_empty(),
            "labelled rows have no token cache, whose lengths are counted here; kiln train --dry-run shows their classes and batches"
        );
        let cache = TokenCache::open(path)?;
        let rows: Vec<(usize, usize)> = (0..cache.n_rows()).map(|row| cache.row_lengths(row)).collect();
        let batchings = match cache.is_text() {
            true => of_text(config, vocabulary, path)?,
            false => of_pairs(&config.loader, &rows, cache.max_lens())?,
        };

        let n_cut = cache.is_text().then(|| {
            let row = text_config(config).seq_len;
            rows.iter().filter(|(_, len)| *len > row).count() as u64
        });
        let mut stats = Self {
            report: cache.report().clone(),
            lengths: Lengths::of_cache(&cache, usize::MAX),
            n_duplicates: cache.n_duplicates(),
            tokens_per_byte: tokens_per_byte(&cache, vocabulary)?,
            n_cut,
            batchings,
            advice: Vec::new(),
        };
        stats.advice = stats.advise(config);
        Ok(stats)
    }

    /// Returns the batches with the settings of the run.
    pub fn current(&self) -> &Batching {
        &self.batchings[0]
    }

    /// Says what to change, and why.
    fn advise(&self, config: &Config) -> Vec<String> {
        let mut advice = Vec::new();
        let now = self.current();
        if let Some(better) = better(&self.batchings) {
            let change: Vec<String> = better.settings.iter().map(|setting| format!("--set {setting}")).collect();
            advice.push(format!(
                "{} lowers padding from {:.1} % to {:.1} %: up to {:.0} % more tokens per second, with {} shapes of batches \
                 instead of {}",
                change.join(" "),
                100.0 * now.padding,
                100.0 * better.padding,
                100.0 * ((1.0 - better.padding) / (1.0 - now.padding) - 1.0),
                better.n_shapes,
                now.n_shapes
            ));
        } else {
            advice.push(format!("padding is {:.1} %; no setting tried here lowers it by much", 100.0 * now.padding));
        }

        let (rows, kept) = (self.report.rows().max(1) as f64, self.report.kept.max(1) as f64);
        let is_chat = config.data.text.is_chat();
        if self.report.over_long as f64 > 0.001 * rows && !is_chat {
            let corpus = config.data.corpus.resolved(config.model.max_positions);
            advice.push(format!(
                "{:.1} % of the rows are skipped because a side is longer than {} or {} tokens: data.corpus.max_source_len and \
                 data.corpus.max_target_len set the limits, model.max_positions bounds them",
                100.0 * self.report.over_long as f64 / rows,
                corpus.max_source_len,
                corpus.max_target_len
            ));
        }
        if self.report.over_long as f64 > 0.001 * rows && is_chat {
            advice.push(format!(
                "{:.1} % of the conversations are skipped because they have more than {} tokens: data.text.seq_len sets the limit, \
                 model.max_positions bounds it",
                100.0 * self.report.over_long as f64 / rows,
                text_config(config).seq_len
            ));
        }
        if self.n_duplicates as f64 > 0.01 * kept {
            advice.push(format!(
                "{:.1} % of the rows repeat an earlier one, so an epoch sees them several times: set \
                 data.filter.drop_duplicates = true, unless that is intended",
                100.0 * self.n_duplicates as f64 / kept
            ));
        }
        advice
    }
}

/// Returns the settings with the fewest shapes among those that pad about as little as possible, if they pad clearly less
/// than the first ones.
pub(super) fn better(batchings: &[Batching]) -> Option<&Batching> {
    let (now, others) = batchings.split_first()?;
    // Another budget changes what the run learns, and other rows what it learns from.
    let others =
        || others.iter().filter(|other| !other.settings.iter().any(|set| set.starts_with("loader.batch_tokens")));
    let least = others().map(|other| other.padding).fold(f64::INFINITY, f64::min);
    let close = others().filter(|other| other.padding <= least + CLOSE && other.padding <= now.padding - WORTH);
    close.min_by_key(|other| other.n_shapes)
}

/// The settings of the run, and others that pad less or hold more.
fn variants(loader: &LoaderConfig) -> Vec<(Vec<String>, LoaderConfig)> {
    let mut variants = vec![(Vec::new(), loader.clone())];
    for bucket_multiple in [8, 4, 2] {
        for max_buckets in [16, 32, 64] {
            let changed = LoaderConfig { bucket_multiple, max_buckets, ..loader.clone() };
            variants.push((settings(loader, &changed), changed));
        }
    }
    for batch_tokens in [loader.batch_tokens / 2, loader.batch_tokens * 2] {
        let changed = LoaderConfig { batch_tokens, ..loader.clone() };
        variants.push((settings(loader, &changed), changed));
    }
    let is_other = |(i, (settings, _)): &(usize, (Vec<String>, LoaderConfig))| *i == 0 || !settings.is_empty();
    variants.into_iter().enumerate().filter(is_other).map(|(_, variant)| variant).collect()
}

/// The keys of the loader that differ, as arguments of `--set`.
fn settings(now: &LoaderConfig, other: &LoaderConfig) -> Vec<String> {
    let keys = [
        ("bucket_multiple", now.bucket_multiple, other.bucket_multiple),
        ("max_buckets", now.max_buckets, other.max_buckets),
        ("batch_tokens", now.batch_tokens, other.batch_tokens),
    ];
    keys.iter().filter(|(_, a, b)| a != b).map(|(key, _, value)| format!("loader.{key}={value}")).collect()
}

fn of_pairs(loader: &LoaderConfig, rows: &[(usize, usize)], max_lens: (usize, usize)) -> Result<Vec<Batching>> {
    let mut found = Vec::new();
    for (settings, loader) in variants(loader) {
        match Buckets::new(rows.iter().copied(), max_lens, &loader) {
            Ok(buckets) => found.push(Batching {
                settings,
                padding: buckets.padding_ratio(),
                n_shapes: buckets.shapes().len(),
                n_batches: buckets.batches_per_epoch(),
            }),
            // A smaller budget may not hold the longest row.
            Err(error) if settings.is_empty() => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(found)
}

fn of_text(config: &Config, vocabulary: &Vocabulary, path: &Path) -> Result<Vec<Batching>> {
    use kiln_data::BatchSource;

    let text = text_config(config);
    if text.is_chat() {
        return of_chat(config, &text, vocabulary, path);
    }
    let tokenizer = vocabulary.text().expect("a vocabulary of text for a cache of text");
    let packings = [(Packing::Documents, "documents"), (Packing::Stream, "stream"), (Packing::Sentences, "sentences")];
    let loaders = match text.packing {
        Packing::Sentences => variants(&config.loader),
        _ => vec![(Vec::new(), config.loader.clone())],
    };
    let same = loaders.into_iter().map(|(settings, loader)| (settings, loader, text.packing));
    let others = packings.into_iter().filter(|(packing, _)| *packing != text.packing);
    let others =
        others.map(|(packing, name)| (vec![format!("data.text.packing={name}")], config.loader.clone(), packing));

    let mut found = Vec::new();
    for (settings, loader, packing) in same.chain(others) {
        let text = kiln_data::TextConfig { packing, ..text.clone() };
        match TextSource::new(TokenCache::open(path)?, tokenizer, config.task, &text, &loader) {
            Ok(source) => found.push(Batching {
                settings,
                padding: source.padding_ratio(),
                n_shapes: source.shapes().map_or(1, |shapes| shapes.len()),
                n_batches: source.batches_per_epoch(),
            }),
            Err(error) if settings.is_empty() => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(found)
}

/// Conversations are packed in one way.
fn of_chat(
    config: &Config,
    text: &kiln_data::TextConfig,
    vocabulary: &Vocabulary,
    path: &Path,
) -> Result<Vec<Batching>> {
    use kiln_data::BatchSource;

    let tokenizer = vocabulary.text().expect("a vocabulary of text for conversations");
    let source = kiln_data::ChatSource::new(TokenCache::open(path)?, tokenizer, text, &config.loader)?;
    Ok(vec![Batching {
        settings: Vec::new(),
        padding: source.padding_ratio(),
        n_shapes: source.shapes().map_or(1, |shapes| shapes.len()),
        n_batches: source.batches_per_epoch(),
    }])
}

/// Tokens per byte of rows that are spread over the data.
fn tokens_per_byte(cache: &TokenCache, vocabulary: &Vocabulary) -> Result<f64> {
    let step = cache.n_rows().div_ceil(DECODED).max(1);
    let (mut tokens, mut bytes) = (0, 0);
    for row in (0..cache.n_rows()).step_by(step) {
        let ids = cache.target_ids(row);
        let text = match vocabulary {
            Vocabulary::Pairs(tokenizers) => tokenizers.decode(&ids)?,
            Vocabulary::Text(tokenizer) => tokenizer.decode(&ids)?,
        };
        tokens += ids.len();
        bytes += text.len();
    }
    Ok(tokens as f64 / bytes.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_shapes_among_the_best_settings_are_recommended() {
        let batching = |setting: &str, padding: f64, n_shapes: usize| {
            let settings = if setting.is_empty() { Vec::new() } else { vec![setting.to_owned()] };
            Batching { settings, padding, n_shapes, n_batches: 1 }
        };
        let now = batching("", 0.2, 16);
        let four = batching("loader.bucket_multiple=4", 0.105, 20);
        let many = batching("loader.max_buckets=64", 0.1, 60);
        let budget = batching("loader.batch_tokens=2", 0.01, 1);
        let all = [now.clone(), many.clone(), four.clone(), budget.clone()];
        assert_eq!(better(&all), Some(&four));
        assert_eq!(better(&[now.clone(), budget]), None, "another budget is another run");
        assert_eq!(better(&[now, batching("loader.max_buckets=32", 0.19, 30)]), None, "not worth it");
    }
}
