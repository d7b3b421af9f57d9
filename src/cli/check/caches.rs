//! Verifies the cache folder: token caches, the trained tokenizer and the built-in text.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use kiln_data::files::read_file;
use kiln_data::{TokenCache, verify_file_record, verify_record_of, verify_shard_index};
use kiln_metrics::units::thousands;
use kiln_train::checkpoint::{Checkpoints, TrainerState, read_state};
use kiln_train::config::Config;
use kiln_train::dataset::{SoundTokenizer, built_in, verify_tokenizer};

use super::findings::{Findings, entries};

/// Said of an incomplete file.
const LEFT: &str = "left by an interrupted preparation; it can be deleted";
/// Said of a record that an earlier version wrote.
const WITHOUT_DIGEST: &str = "an earlier version wrote it without a digest";

/// Verifies what is in the cache folder of the run in `dir`.
pub(super) fn caches(dir: &Path, config: Option<&Config>, findings: &mut Findings) {
    let cache_dir = config.and_then(|config| config.data.cache_dir.clone()).unwrap_or_else(|| dir.join("cache"));
    let trained_on = Checkpoints::of_run(dir).list().unwrap_or_default();
    let trained_on = trained_on.iter().rev().find_map(|(_, path)| read_state(path).ok()?);
    let trained_on = trained_on.as_ref();
    let mut n_caches = 0;
    for path in entries(&cache_dir) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".tokens") {
            n_caches += 1;
            findings.vouch_for(&path);
            let of_training = (name == "train.tokens").then_some(trained_on).flatten();
            findings.add(&path, cache(&path, of_training));
        } else if name.ends_with(".tokens.files.json") {
            file_record(&path, findings);
        } else if name == "train-shards" || name.starts_with("train-shards.") {
            n_caches += shards(&path, findings);
        } else if name.ends_with(".partial") {
            findings.note(&path, LEFT);
        }
    }
    if n_caches == 0 {
        findings.note(&cache_dir, "no token cache; the next start builds it from the text");
    }

    tokenizer(&cache_dir.join("tokenizer"), findings);
    if let Some(config) = config.filter(|config| config.is_built_in_task()) {
        built_in_text(config, &cache_dir, findings);
    }
}

/// Verifies the index and the caches of a text in shards. Returns the number of files that a start would use.
fn shards(folder: &Path, findings: &mut Findings) -> usize {
    let mut n_files = 0;
    for path in entries(folder) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let checked = match () {
            () if name == "index.jsonl" => {
                verify_shard_index(&path).map(|n| format!("an index of {n} shards")).map_err(anyhow::Error::from)
            }
            () if name.ends_with(".tokens") => TokenCache::open(&path)
                .and_then(|cache| cache.verify().map(|()| format!("{} documents", thousands(cache.n_rows() as f64))))
                .map_err(anyhow::Error::from),
            () if name.ends_with(".files.json") => {
                file_record(&path, findings);
                continue;
            }
            () if name.ends_with(".partial") => {
                findings.note(&path, LEFT);
                continue;
            }
            () => continue,
        };

        n_files += 1;
        findings.vouch_for(&path);
        findings.add(&path, checked.context("delete it; the next start makes it again from the text"));
    }
    n_files
}

/// Verifies a token cache; the cache of the training text must be the one that the newest checkpoint was trained on.
fn cache(path: &Path, trained_on: Option<&TrainerState>) -> Result<String> {
    let check = || -> Result<String> {
        let cache = TokenCache::open(path)?;
        cache.verify()?;
        if let Some(state) = trained_on {
            let tokenizer = cache.tokenizer_fingerprint();
            ensure!(
                tokenizer == state.tokenizer_fingerprint,
                "it was made with another tokenizer than the checkpoints"
            );
            // Other sources than pairs hash their settings, too.
            let is_other = cache.is_pairs() && cache.fingerprint() != state.data_fingerprint;
            ensure!(!is_other, "it holds another text than the newest checkpoint was trained on");
        }
        verify_record_of(&cache)?;
        let (rows, tokens) = (thousands(cache.n_rows() as f64), thousands(cache.n_tokens() as f64));
        Ok(format!("{rows} rows, {tokens} tokens"))
    };
    check().context("delete it; the next start builds it again from the text")
}

/// Verifies the record of the text files behind a cache.
fn file_record(path: &Path, findings: &mut Findings) {
    match verify_file_record(path) {
        Ok(false) => return findings.note(path, WITHOUT_DIGEST),
        Ok(true) => findings.add(path, Ok("sizes, time stamps and hashes of the text files".into())),
        Err(error) => {
            let error = anyhow::Error::from(error).context("delete it; the next start reads the text files again");
            findings.add(path, Err(error));
        }
    }
    findings.vouch_for(path);
}

/// Verifies the tokenizer that was trained for the run, if there is one.
fn tokenizer(dir: &Path, findings: &mut Findings) {
    if !dir.is_dir() {
        return;
    }
    match verify_tokenizer(dir) {
        Ok(SoundTokenizer { files, record, record_has_digest }) => {
            findings.add(dir, Ok(format!("{} files as they were trained", files.len())));
            files.into_iter().for_each(|file| findings.vouch_for(file));
            match record_has_digest {
                true => findings.vouch_for(record),
                false => findings.note(&record, WITHOUT_DIGEST),
            }
        }
        Err(error) => {
            entries(dir).into_iter().for_each(|file| findings.vouch_for(file));
            findings.add(dir, Err(error.context("delete the folder; the next start trains the tokenizer again")));
        }
    }
}

/// Compares the built-in text with the text that the configuration makes.
fn built_in_text(config: &Config, cache_dir: &Path, findings: &mut Findings) {
    let Ok(texts) = built_in::texts(config) else { return };
    for (name, wanted) in texts {
        let path = cache_dir.join(name);
        if !path.exists() {
            continue;
        }
        let compared = || -> Result<String> {
            let found = read_file(&path).context("it cannot be read")?;
            ensure!(found == wanted, "it is not the built-in text of this seed; the next start writes it again");
            Ok(format!("{} lines", thousands(wanted.iter().filter(|byte| **byte == b'\n').count() as f64)))
        };
        findings.vouch_for(&path);
        findings.add(&path, compared());
    }
}
