//! Opens a mixture (`data.mix`). Each source has a token cache of its own, `train.NAME.tokens` and `valid.NAME.tokens`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use kiln_data::{
    BatchSource, ChatSource, CorpusConfig, Example, MixPart, MixParts, MixShares, MixSource, MixedPart, PairCorpus,
    PairSource, PairTokenizers, Split, StreamedMix, TextConfig, TextCorpus, TextSource, TextTokenizer, TokenCache,
};
use kiln_metrics::units::thousands;

use super::trained_tokenizer::Watched;
use super::{RunData, Vocabulary, find_files, folding_note, mix_in_shards, of_source, pairs, text};
use crate::config::task::traits_of;
use crate::config::{ByteSize, Config, MixEntry};

/// Validation batches of all sources, and of each by name.
type Measured = (Option<Arc<dyn BatchSource>>, Vec<(String, Arc<dyn BatchSource>)>);

/// Opens a mixture of pairs.
pub(super) fn open_pairs(
    config: &Config,
    cache_dir: &Path,
    vocabulary: Option<Vocabulary>,
    note: &mut dyn FnMut(&str),
) -> Result<RunData> {
    let train = pair_corpora(config, Split::Train)?;
    let valid = pair_corpora(config, Split::Valid)?;
    let files: Vec<PathBuf> = find_files(config, &config.data.train_files(), Split::Train).context("data.mix")?;
    let corpus_config = config.data.corpus.resolved(config.model.max_positions);
    let filtered = CorpusConfig { filter: config.train_filter()?, ..corpus_config.clone() };
    let all = PairCorpus::open(&files, &filtered).context("data.mix")?;
    let mut notes = all.notes();
    let copies =
        |(entry, corpus): &(&MixEntry, PairCorpus)| Some(format!("{}: {}", of_source(entry), corpus.note_on_copies()?));
    notes.extend(train.iter().filter_map(copies));

    let watched = Watched::of(all.inputs().iter().flat_map(|input| input.files()));
    let tokenizers = match vocabulary.as_ref().and_then(Vocabulary::pairs) {
        Some(tokenizers) => tokenizers.clone(),
        None => pairs::load_or_train(&config.trained_tokenizer(), &all, &cache_dir.join("tokenizer"), note)?,
    };
    let is_trained = vocabulary.is_none() && config.tokenizer.path.is_none();
    notes.extend(folding_note(tokenizers.folding()?, is_trained));
    notes.extend(check_tags(config, &tokenizers)?);

    let mut filter_notes = Vec::new();
    let mut part = |(entry, corpus): &(&MixEntry, PairCorpus), split: &str| -> Result<MixPart<PairSource>> {
        let path = cache_path(cache_dir, split, entry);
        let cache = pairs::open_cache(&path, corpus, &tokenizers, note).with_context(|| of_source(entry))?;
        filter_notes.extend(notes_of_filter(entry, &cache));
        let source = PairSource::new(cache, &tokenizers, &config.loader).with_context(|| of_source(entry))?;
        Ok(MixPart { name: entry.name.as_str().into(), source })
    };
    let whole = match &config.data.cache_limit {
        Some(_) => None,
        None => {
            let parts = train.iter().map(|source| part(source, "train")).collect::<Result<_>>()?;
            Some(MixSource::new(MixParts::Pairs(parts), &config.data.mix_shares(), &config.loader)?)
        }
    };
    let valid_parts: Vec<_> = valid.iter().map(|source| part(source, "valid")).collect::<Result<_>>()?;
    let in_shards = |limit: &ByteSize| mix_in_shards::pairs(config, limit, cache_dir, (&train, &tokenizers), note);
    let (mixed, shares) = opened(whole, config, &mut filter_notes, in_shards, "pair")?;
    watched.ensure_unchanged().context("data.mix")?;
    notes.extend(shares.into_iter().chain(filter_notes));

    let mut data = RunData { notes, ..RunData::new(Vocabulary::Pairs(tokenizers.clone()), mixed) };
    let by_source = valid.iter().map(|(entry, _)| -> Result<(String, Arc<dyn BatchSource>)> {
        let cache = TokenCache::open(&cache_path(cache_dir, "valid", entry))?;
        Ok((entry.name.clone(), Arc::new(PairSource::new(cache, &tokenizers, &config.loader)?)))
    });
    let by_source = by_source.collect::<Result<Vec<_>>>()?;
    (data.valid, data.valid_parts) = measured(MixParts::Pairs(valid_parts), by_source, config)?;
    for (entry, corpus) in &valid {
        let (examples, notes) = pairs::examples_of(corpus, &tokenizers, config).with_context(|| of_source(entry))?;
        data.valid_examples.extend(examples);
        data.notes.extend(notes.into_iter().map(|note| format!("{}: {note}", of_source(entry))));
    }
    if !config.data.valid.is_empty() {
        let files = find_files(config, &config.data.valid, Split::Valid).context("data.valid")?;
        let corpus = PairCorpus::open(&files, &corpus_config).context("data.valid")?;
        pairs::open_valid(config, &corpus, &tokenizers, cache_dir, &mut data, note)?;
        data.notes.extend(missing_tags(config, &data.valid_examples));
    }
    Ok(data)
}

/// Opens a mixture of plain text or conversations.
pub(super) fn open_text(
    config: &Config,
    cache_dir: &Path,
    vocabulary: Option<Vocabulary>,
    note: &mut dyn FnMut(&str),
) -> Result<RunData> {
    let text_config = text::text_config(config);
    let train = text_corpora(config, Split::Train)?;
    let valid = text_corpora(config, Split::Valid)?;
    let files = find_files(config, &config.data.train_files(), Split::Train).context("data.mix")?;
    let filtered = TextConfig { filter: config.train_filter()?, ..text_config };
    let all = TextCorpus::open(&files, &filtered).context("data.mix")?;
    let watched = Watched::of(all.files());
    let tokenizer = match vocabulary.as_ref().and_then(Vocabulary::text) {
        Some(tokenizer) => tokenizer.clone(),
        None => text::load_or_train(&config.tokenizer, &all, &cache_dir.join("tokenizer"), note)?,
    };
    let tokenizer = text::with_chat_template(config, tokenizer)?;
    tokenizer.check(config.task)?;
    let is_trained = vocabulary.is_none() && config.tokenizer.path.is_none();
    let mut notes = all.notes();
    notes.extend(folding_note(tokenizer.folding()?, is_trained));
    notes.extend(text::default_template(config, &tokenizer)?);

    let mut filter_notes = Vec::new();
    let mut cached = |sources: &[(&MixEntry, TextCorpus)], split: &str| -> Result<()> {
        sources.iter().try_for_each(|(entry, corpus)| {
            let path = cache_path(cache_dir, split, entry);
            let cache = text::open_cache(&path, corpus, &tokenizer, note).with_context(|| of_source(entry))?;
            filter_notes.extend(notes_of_filter(entry, &cache));
            Ok(())
        })
    };
    if config.data.cache_limit.is_none() {
        cached(&train, "train")?;
    }
    cached(&valid, "valid")?;
    let whole = match &config.data.cache_limit {
        Some(_) => None,
        None => {
            let parts = text_parts(config, cache_dir, &train, "train", &tokenizer)?;
            Some(MixSource::new(parts, &config.data.mix_shares(), &config.loader)?)
        }
    };
    let in_shards = |limit: &ByteSize| mix_in_shards::text(config, limit, cache_dir, (&train, &tokenizer), note);
    let (mixed, shares) = opened(whole, config, &mut filter_notes, in_shards, "row")?;
    watched.ensure_unchanged().context("data.mix")?;
    notes.extend(shares.into_iter().chain(filter_notes));

    let mut data = RunData { notes, ..RunData::new(Vocabulary::Text(tokenizer.clone()), mixed) };
    let by_source = valid.iter().map(|(entry, _)| -> Result<(String, Arc<dyn BatchSource>)> {
        let cache = TokenCache::open(&cache_path(cache_dir, "valid", entry))?;
        Ok((entry.name.clone(), text_source(config, cache, &tokenizer)?))
    });
    let by_source = by_source.collect::<Result<Vec<_>>>()?;
    let parts = text_parts(config, cache_dir, &valid, "valid", &tokenizer)?;
    (data.valid, data.valid_parts) = measured(parts, by_source, config)?;

    for (entry, corpus) in &valid {
        let (documents, _) = corpus.read_all().with_context(|| of_source(entry))?;
        let n_bytes: u64 = documents.iter().map(|document| document.len() as u64).sum();
        let counts_all = traits_of(config.task).continues_text && !config.data.text.is_chat();
        data.valid_bytes = counts_all.then_some(data.valid_bytes.unwrap_or(0) + n_bytes);
        if data.prompt.is_none() {
            data.prompt = text::prompt_of(config, corpus, &documents)?;
        }
    }
    if !config.data.valid.is_empty() {
        let files = find_files(config, &config.data.valid, Split::Valid).context("data.valid")?;
        text::open_valid(config, &files, cache_dir, &mut data, note)?;
    }
    Ok(data)
}

/// Returns the mixture of whole caches, or else in shards under the limit. Describes its shares, too. Adds what filters have dropped to
/// `notes`.
fn opened(
    whole: Option<MixSource>,
    config: &Config,
    notes: &mut Vec<String>,
    in_shards: impl FnOnce(&ByteSize) -> Result<(StreamedMix, Vec<String>)>,
    unit: &str,
) -> Result<(Arc<dyn BatchSource>, Vec<String>)> {
    match (whole, &config.data.cache_limit) {
        (Some(mixed), _) => {
            let shares = described(&mixed.parts_by_step(), unit);
            Ok((Arc::new(mixed), shares))
        }
        (None, Some(limit)) => {
            let (mixed, dropped) = in_shards(limit)?;
            notes.extend(dropped);
            let shares = described(mixed.parts_by_step(), unit);
            Ok((Arc::new(mixed), shares))
        }
        (None, None) => unreachable!("a mixture of whole caches"),
    }
}

/// Reads the validation pairs of all sources, with their tags.
pub(crate) fn valid_examples(config: &Config) -> Result<Vec<Example>> {
    let mut examples = Vec::new();
    for (entry, corpus) in pair_corpora(config, Split::Valid)? {
        examples.extend(corpus.read_all().with_context(|| of_source(entry))?.0);
    }
    Ok(examples)
}

/// How sources of pairs with other names of fields are read together.
pub(crate) const ALL_SOURCES_ALIKE: &str = "all sources of data.mix are read with the same keys: where names differ, tables are read by \
    number, with data.corpus.header=yes and data.corpus.source_column and target_column, next to the fields of other formats";

/// Says if pairs lack the tags that every source of the run's mixture has.
pub(crate) fn missing_tags(config: &Config, examples: &[Example]) -> Option<String> {
    missing_tags_in(config, examples.iter().map(|example| example.source.as_str()))
}

/// Does the same for sources alone.
pub fn missing_tags_in<'a>(config: &Config, sources: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut sources = sources.peekable();
    sources.peek()?;
    let tags: Vec<&str> = config.data.mix.iter().map(|entry| entry.tag.as_deref()).collect::<Option<_>>()?;
    let has_tag = |source: &str| tags.iter().any(|tag| source.starts_with(*tag));
    let all = tags.iter().map(|tag| format!("\"{tag}\"")).collect::<Vec<_>>().join(", ");
    (!tags.is_empty() && !sources.any(has_tag)).then(|| {
        format!(
            "note: no source text begins with a tag of the run's mixture ({all}), as all texts did that the model learned: put one in front of \
             each, with a space"
        )
    })
}

fn cache_path(cache_dir: &Path, split: &str, entry: &MixEntry) -> PathBuf {
    cache_dir.join(format!("{split}.{}.tokens", entry.name))
}

/// Returns what a source's filter has dropped, and the fields of its rows that are left out.
fn notes_of_filter(entry: &MixEntry, cache: &TokenCache) -> impl Iterator<Item = String> {
    let source = of_source(entry);
    cache.report().notes().into_iter().map(move |note| format!("{source}: {note}"))
}

/// Returns the files of each source that has some.
fn files_of(config: &Config, split: Split) -> Result<Vec<(&MixEntry, Vec<PathBuf>)>> {
    let entries = config.data.mix.iter().filter(|entry| split == Split::Train || !entry.valid.is_empty());
    let files = |entry: &MixEntry| match split {
        Split::Train => find_files(config, &entry.train, split),
        _ => find_files(config, &entry.valid, split),
    };
    entries.map(|entry| Ok((entry, files(entry).with_context(|| of_source(entry))?))).collect()
}

fn pair_corpora(config: &Config, split: Split) -> Result<Vec<(&MixEntry, PairCorpus)>> {
    let open = |(entry, files): (&'_ MixEntry, Vec<PathBuf>)| {
        let mut corpus = config.data.corpus.resolved(config.model.max_positions);
        corpus.tag.clone_from(&entry.tag);
        if split == Split::Train {
            corpus.filter = config.source_filter(entry)?;
        }
        PairCorpus::open(&files, &corpus).map_err(|error| {
            let names_columns = config.data.mix.len() > 1 && error.to_string().contains("data.corpus.source_field=");
            let hint = if names_columns { format!(" ({ALL_SOURCES_ALIKE})") } else { String::new() };
            anyhow::Error::new(error).context(of_source(entry) + &hint)
        })
    };
    files_of(config, split)?.into_iter().map(|(entry, files)| Ok((entry, open((entry, files))?))).collect()
}

fn text_corpora(config: &Config, split: Split) -> Result<Vec<(&MixEntry, TextCorpus)>> {
    let open = |entry: &MixEntry, files: &[PathBuf]| -> Result<TextCorpus> {
        let mut text_config = text::text_config(config);
        if split == Split::Train {
            text_config.filter = config.source_filter(entry)?;
        }
        TextCorpus::open(files, &text_config).with_context(|| of_source(entry))
    };
    files_of(config, split)?.into_iter().map(|(entry, files)| Ok((entry, open(entry, &files)?))).collect()
}

/// Opens the rows of each source from its cache.
fn text_parts(
    config: &Config,
    cache_dir: &Path,
    sources: &[(&MixEntry, TextCorpus)],
    split: &str,
    tokenizer: &TextTokenizer,
) -> Result<MixParts> {
    let text = text::text_config(config);
    let cache = |entry: &MixEntry| TokenCache::open(&cache_path(cache_dir, split, entry));
    Ok(match text.is_chat() {
        true => MixParts::Chat(named(sources, |entry| {
            Ok(ChatSource::new(cache(entry)?, tokenizer, &text, &config.loader)?)
        })?),
        false => MixParts::Text(named(sources, |entry| {
            Ok(TextSource::new(cache(entry)?, tokenizer, config.task, &text, &config.loader)?)
        })?),
    })
}

fn named<S>(sources: &[(&MixEntry, TextCorpus)], open: impl Fn(&MixEntry) -> Result<S>) -> Result<Vec<MixPart<S>>> {
    let part = |(entry, _): &(&MixEntry, TextCorpus)| {
        let source = open(entry).with_context(|| of_source(entry))?;
        Ok(MixPart { name: entry.name.as_str().into(), source })
    };
    sources.iter().map(part).collect()
}

fn text_source(config: &Config, cache: TokenCache, tokenizer: &TextTokenizer) -> Result<Arc<dyn BatchSource>> {
    let text = text::text_config(config);
    Ok(match text.is_chat() {
        true => Arc::new(ChatSource::new(cache, tokenizer, &text, &config.loader)?),
        false => Arc::new(TextSource::new(cache, tokenizer, config.task, &text, &config.loader)?),
    })
}

/// Makes one validation set of the sources that have validation text. Every row is in it once.
fn measured(parts: MixParts, by_source: Vec<(String, Arc<dyn BatchSource>)>, config: &Config) -> Result<Measured> {
    if by_source.is_empty() {
        return Ok((None, Vec::new()));
    }
    let all = MixSource::new(parts, &MixShares::Temperature(1.0), &config.loader).context("data.mix")?;
    Ok((Some(Arc::new(all)), by_source))
}

/// Describes each source in a sentence.
fn described(by_step: &[(u64, Vec<MixedPart>)], unit: &str) -> Vec<String> {
    let later = by_step.iter().skip(1).map(|(step, parts)| {
        let total: u64 = parts.iter().map(|part| part.rows_per_epoch).sum();
        let share =
            |part: &MixedPart| format!("{} {:.1} %", part.name, 100.0 * part.rows_per_epoch as f64 / total as f64);
        let shares: Vec<String> = parts.iter().map(share).collect();
        format!("mixture: after {} steps {} of the {unit}s", thousands(*step as f64), shares.join(", "))
    });
    let first = by_step.first().map_or(&[][..], |(_, parts)| parts);
    let total: u64 = first.iter().map(|part| part.rows_per_epoch).sum();
    let describe = |part: &MixedPart| {
        format!(
            "mixture: {} is {:.1} % of the {unit}s: {} per epoch of its {}, {:.2} passes",
            part.name,
            100.0 * part.rows_per_epoch as f64 / total as f64,
            thousands(part.rows_per_epoch as f64),
            thousands(part.rows as f64),
            part.passes_per_epoch()
        )
    };
    first.iter().map(describe).chain(later).collect()
}

/// Refuses a tag that the vocabulary does not know, and notes one that it splits.
fn check_tags(config: &Config, tokenizers: &PairTokenizers) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for entry in &config.data.mix {
        let Some(tag) = &entry.tag else { continue };
        let ids = tokenizers.encode_sources(&[tag])?.remove(0);
        let n_tokens = ids.len() - tokenizers.before_source().len() - 1;
        anyhow::ensure!(
            !ids.contains(&tokenizers.special().unk),
            kiln_data::Error::Invalid(format!(
                "{}: the vocabulary does not know the tag {tag}: use one of its tokens, or one that it can spell",
                of_source(entry)
            ))
        );
        if n_tokens > 1 {
            notes.push(format!(
                "{}: the vocabulary reads the tag {tag} as {n_tokens} tokens, since it has no token for it",
                of_source(entry)
            ));
        }
    }
    Ok(notes)
}
