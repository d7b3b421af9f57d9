//! Opens pairs of sentences, for translation.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use kiln_data::{
    BatchSource, CorpusConfig, Example, PairCorpus, PairSource, PairTokenizers, TokenCache, TokenizerConfig,
    prepare_pairs,
};

use super::trained_tokenizer::{MadeFrom, Watched, find_or_make, read_through};
use super::{Files, RunData, Vocabulary, built_in, cache_at, folding_note, lacking_note, n_threads, split, streamed};
use crate::config::Config;

pub(super) fn open(
    config: &Config,
    cache_dir: &Path,
    vocabulary: Option<Vocabulary>,
    note: &mut dyn FnMut(&str),
) -> Result<RunData> {
    let mut corpus_config = config.data.corpus.resolved(config.model.max_positions);
    let is_built_in = config.is_built_in_task();
    let files = if is_built_in { built_in::write(config, cache_dir)? } else { Files::of(config)? };
    if is_built_in {
        corpus_config = CorpusConfig {
            max_source_len: corpus_config.max_source_len,
            max_target_len: corpus_config.max_target_len,
            ..CorpusConfig::default()
        };
    }

    let filtered = CorpusConfig { filter: config.train_filter()?, ..corpus_config.clone() };
    let train_corpus = PairCorpus::open(&files.train, &filtered).context("data.train")?;
    let valid_corpus = match files.valid.as_slice() {
        [] => None,
        files_valid => {
            let CorpusConfig { format, source_field, target_field, header, .. } =
                split::reading_valid(config).data.corpus;
            let read_as = CorpusConfig { format, source_field, target_field, header, ..corpus_config.clone() };
            // The built-in task has files of its own.
            let read_as = if is_built_in { &corpus_config } else { &read_as };
            Some(PairCorpus::open(files_valid, read_as).context("data.valid")?)
        }
    };
    let mut notes = train_corpus.notes();
    notes.extend(train_corpus.note_on_copies());
    let new = |note: &String| !notes.contains(note);
    let of_valid: Vec<_> = valid_corpus.iter().flat_map(PairCorpus::notes).filter(new).collect();
    notes.extend(of_valid);
    let watched = Watched::of(train_corpus.inputs().iter().flat_map(|input| input.files()));
    let tokenizers = match vocabulary.as_ref().and_then(Vocabulary::pairs) {
        Some(tokenizers) => tokenizers.clone(),
        None => load_or_train(&config.tokenizer, &train_corpus, &cache_dir.join("tokenizer"), note)?,
    };

    let is_trained = vocabulary.is_none() && config.tokenizer.path.is_none();
    notes.extend(folding_note(tokenizers.folding()?, is_trained));

    // Training data.
    let train: Arc<dyn BatchSource> = match &config.data.cache_limit {
        Some(limit) => {
            let opened = streamed::open_pairs(
                config,
                limit.bytes(),
                &cache_dir.join(streamed::SHARDS),
                (&train_corpus, &tokenizers),
                note,
            );
            let (source, report) = opened.context("data.train")?;
            notes.extend(report.filter_notes());
            streamed::rows_of(source, config)?
        }
        None => {
            let path = cache_dir.join("train.tokens");
            let cache = open_cache(&path, &train_corpus, &tokenizers, note).context("data.train")?;
            notes.extend(cache.report().filter_notes());
            Arc::new(PairSource::new(cache, &tokenizers, &config.loader)?)
        }
    };

    watched.ensure_unchanged().context("data.train")?;

    let mut data = RunData { notes, ..RunData::new(Vocabulary::Pairs(tokenizers.clone()), train) };
    if let Some(corpus) = &valid_corpus {
        open_valid(config, corpus, &tokenizers, cache_dir, &mut data, note)?;
    }
    Ok(data)
}

/// Opens the validation data.
pub(super) fn open_valid(
    config: &Config,
    corpus: &PairCorpus,
    tokenizers: &PairTokenizers,
    cache_dir: &Path,
    data: &mut RunData,
    note: &mut dyn FnMut(&str),
) -> Result<()> {
    let path = cache_dir.join("valid.tokens");
    let cache = open_cache(&path, corpus, tokenizers, note).context("data.valid")?;
    data.valid = Some(Arc::new(PairSource::new(cache, tokenizers, &config.loader)?));
    let (examples, notes) = examples_of(corpus, tokenizers, config).context("data.valid")?;
    data.valid_examples = examples;
    data.notes.extend(notes);
    Ok(())
}

/// Reads the pairs of a validation text that can be translated. Also returns what the user should know about them.
pub(super) fn examples_of(
    corpus: &PairCorpus,
    tokenizers: &PairTokenizers,
    config: &Config,
) -> Result<(Vec<Example>, Vec<String>)> {
    let (examples, left_out) = translatable(corpus.read_all()?.0, tokenizers, config.model.max_positions)?;
    let mut notes: Vec<String> = left_out.map(|note| format!("data.valid: {note}")).into_iter().collect();
    // Reports count unknown tokens only, and a character that becomes bytes is not one.
    if tokenizers.spells_bytes() {
        let lacking = lacking_note(&tokenizers.lacking_in_pairs(&examples)?, true);
        notes.extend(lacking.map(|note| format!("validation pairs: {note}")));
    }
    notes.extend(without_spaces(&examples));
    Ok((examples, notes))
}

/// The share of the letters, from which on a text is one without spaces between words.
const MOST_LETTERS: f64 = 0.3;

/// Says how to read BLEU where the targets are in a script without spaces between words.
pub(crate) fn without_spaces(examples: &[Example]) -> Option<String> {
    let letters = || examples.iter().flat_map(|example| example.target.chars()).filter(|c| c.is_alphabetic());
    let n = letters().filter(|c| has_no_spaces(*c)).count();
    (n as f64 > MOST_LETTERS * letters().count() as f64).then(|| {
        "BLEU takes the text between two spaces for a word, and these targets have few spaces: read chrF2 (train.best_metric = \"chrf\")"
            .to_owned()
    })
}

/// Whether a letter is Chinese, Japanese, Thai, Lao, Tibetan, Burmese or Khmer.
fn has_no_spaces(c: char) -> bool {
    let scripts = [
        '\u{0e00}'..='\u{0eff}',
        '\u{0f00}'..='\u{0fff}',
        '\u{1000}'..='\u{109f}',
        '\u{1780}'..='\u{17ff}',
        '\u{3040}'..='\u{30ff}',
        '\u{3400}'..='\u{9fff}',
        '\u{f900}'..='\u{faff}',
        '\u{20000}'..='\u{3ffff}',
    ];
    scripts.iter().any(|script| script.contains(&c))
}

/// Leaves out pairs whose source has more than `limit` tokens, the end token included: the model cannot read them. Returns the others,
/// and a sentence if there are such pairs. Their targets get the Unicode form in which the model writes, so that scores compare them.
pub(crate) fn translatable(
    examples: Vec<Example>,
    tokenizers: &PairTokenizers,
    limit: usize,
) -> Result<(Vec<Example>, Option<String>)> {
    let sources: Vec<&str> = examples.iter().map(|example| example.source.as_str()).collect();
    let fits: Vec<bool> = tokenizers.encode_sources(&sources)?.iter().map(|ids| ids.len() <= limit).collect();

    let (n_all, n_fitting) = (fits.len(), fits.iter().filter(|fits| **fits).count());
    let note = (n_fitting < n_all).then(|| {
        format!(
            "{} of {n_all} sources have more than {limit} tokens (model.max_positions); they are not translated, and the scores leave \
             them out",
            n_all - n_fitting
        )
    });
    let kept = examples.into_iter().zip(fits).filter(|(_, fits)| *fits);
    let comparable = |(example, _): (Example, bool)| {
        Ok(Example { target: tokenizers.target_in_unicode_form(&example.target)?, ..example })
    };
    Ok((kept.map(comparable).collect::<Result<_>>()?, note))
}

/// Finds or builds the token cache at `path`.
pub(crate) fn open_cache(
    path: &Path,
    corpus: &PairCorpus,
    tokenizers: &PairTokenizers,
    note: &mut dyn FnMut(&str),
) -> kiln_data::Result<TokenCache> {
    let prepare = || prepare_pairs(path, corpus, tokenizers, n_threads(), &mut |_| {});
    let tokens = |cache: &TokenCache| format!("{} + {}", cache.n_source_tokens(), cache.n_target_tokens());
    cache_at(path, prepare, tokens, note)
}

/// Loads the tokenizers that the configuration names, or trains them. Trained tokenizers are reused from `dir` as long
/// as text and settings are the same.
pub fn load_or_train(
    config: &TokenizerConfig,
    corpus: &PairCorpus,
    dir: &Path,
    note: &mut dyn FnMut(&str),
) -> Result<PairTokenizers> {
    if config.path.is_some() {
        return Ok(PairTokenizers::load(config)?);
    }

    let files = || corpus.inputs().iter().flat_map(|input| input.files());
    let watched = Watched::of(files());
    let read_as = read_through(corpus.config(), corpus.config().filter.as_deref());
    let made_from = MadeFrom::of(config, &read_as, files())?;
    let train = || PairTokenizers::train(config, corpus, n_threads());
    let (tokenizers, secs) =
        find_or_make(dir, (&made_from, &watched), PairTokenizers::load_dir, train, PairTokenizers::save)?;
    if let Some(secs) = secs {
        note(&format!(
            "{}: trained in {secs:.1}s, {} source and {} target entries{}",
            dir.display(),
            tokenizers.source_vocab_size(),
            tokenizers.target_vocab_size(),
            if tokenizers.is_joint() { " (joint)" } else { "" }
        ));
    }
    Ok(tokenizers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_in_a_script_without_spaces_come_with_a_note() {
        let note = |target: &str| without_spaces(&[Example { source: "a".into(), target: target.into() }]).is_some();
        for target in ["他喜欢猫。", "猫が好きです", "แมวนอนหลับ", "ငါ", "合并 git 分支 (branch)"]
        {
            assert!(note(target), "{target}");
        }
        for target in ["The cat sleeps.", "Кот спит", "고양이가 잔다", "बिल्ली", "see 图 in the text", "123", ""]
        {
            assert!(!note(target), "{target}");
        }
    }
}
