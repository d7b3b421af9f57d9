//! Trains a tokenizer once, and reuses it as long as its text and settings are the same.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use kiln_data::TokenizerConfig;
use serde::{Deserialize, Serialize};

use crate::files::replace_file;

/// The inputs of a trained tokenizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct MadeFrom {
    config: TokenizerConfig,
    /// Settings that the text is read with.
    corpus: serde_json::Value,
    /// BLAKE3 of each file's content.
    files: Vec<String>,
}

impl MadeFrom {
    /// Hashes `files`, which are read as `corpus` says.
    pub(super) fn of<'a>(
        config: &TokenizerConfig,
        corpus: &impl Serialize,
        files: impl Iterator<Item = &'a Path>,
    ) -> Result<Self> {
        let hash = |file: &Path| {
            let mut hasher = blake3::Hasher::new();
            let content = fs::File::open(file).and_then(|file| hasher.update_reader(file).map(|_| ()));
            content.with_context(|| format!("{}: cannot read the training text", file.display()))?;
            Ok(hasher.finalize().to_hex().to_string())
        };
        let corpus = serde_json::to_value(corpus).expect("plain values");
        Ok(Self { config: config.clone(), corpus, files: files.map(hash).collect::<Result<_>>()? })
    }
}

/// `made_from.json`, next to the tokenizer's files.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Record<'a> {
    made_from: Cow<'a, MadeFrom>,
    /// BLAKE3 of the tokenizer's files by name: a file that was damaged later would give other tokens.
    made: BTreeMap<String, String>,
}

/// Name of the record.
const RECORD: &str = "made_from.json";

/// Hashes the files in `dir`, except the record.
fn hashes(dir: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let mut hashes = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != RECORD && entry.file_type()?.is_file() {
            hashes.insert(name, blake3::hash(&fs::read(entry.path())?).to_hex().to_string());
        }
    }
    Ok(hashes)
}

/// Loads the tokenizer in `dir` if it was made from the same inputs. Otherwise trains one, saves it there, and returns
/// it with the seconds that the training took.
pub(super) fn find_or_make<T>(
    dir: &Path,
    made_from: &MadeFrom,
    load: impl FnOnce(&Path) -> kiln_data::Result<T>,
    train: impl FnOnce() -> kiln_data::Result<T>,
    save: impl FnOnce(&T, &Path) -> kiln_data::Result<()>,
) -> Result<(T, Option<f64>)> {
    let record = dir.join(RECORD);
    let before = fs::read(&record).ok().and_then(|json| serde_json::from_slice::<Record<'_>>(&json).ok());
    if before.is_some_and(|before| &*before.made_from == made_from && hashes(dir).is_ok_and(|now| now == before.made))
        && let Ok(found) = load(dir)
    {
        return Ok((found, None));
    }

    let start = Instant::now();
    let trained = train().context("training the tokenizer")?;

    let unwritable = || format!("{}: cannot write the tokenizer", dir.display());
    // The record is removed first and written last, so that an interrupted save does not count as a tokenizer.
    fs::create_dir_all(dir).with_context(unwritable)?;
    let _ = fs::remove_file(&record);
    save(&trained, dir)?;
    let made = hashes(dir).with_context(unwritable)?;
    let json = serde_json::to_vec_pretty(&Record { made_from: Cow::Borrowed(made_from), made });
    replace_file(&record, &json.expect("plain values")).with_context(unwritable)?;
    Ok((trained, Some(start.elapsed().as_secs_f64())))
}
