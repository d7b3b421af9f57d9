//! Trains a tokenizer once, and reuses it as long as its text and settings are the same.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use kiln_data::files::{open_file, read_file};
use kiln_data::{RowFilter, TokenizerConfig};
use serde::{Deserialize, Serialize};

use kiln_data::files::replace::replace_file;

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
            let content = open_file(file).and_then(|file| hasher.update_reader(file).map(|_| ()));
            content.with_context(|| format!("{}: cannot read the training text", file.display()))?;
            Ok(hasher.finalize().to_hex().to_string())
        };
        let corpus = serde_json::to_value(corpus).expect("plain values");
        Ok(Self { config: config.clone(), corpus, files: files.map(hash).collect::<Result<_>>()? })
    }
}

/// Adds a filter to how a text is read; nothing without one, so that vocabularies of earlier versions stay valid. Repeated rows do not
/// matter to a vocabulary: they are dropped later.
pub(super) fn read_through(read_as: &impl Serialize, filter: Option<&RowFilter>) -> serde_json::Value {
    let read_as = serde_json::to_value(read_as).expect("plain values");
    match filter.map(RowFilter::mark_of_texts).filter(|mark| !mark.is_empty()) {
        Some(mark) => serde_json::json!([read_as, mark]),
        None => read_as,
    }
}

/// The files of a text, as they were before its vocabulary was made.
pub(super) struct Watched(Vec<(PathBuf, Option<Stamp>)>);

/// Size and time of the last change.
type Stamp = (u64, Option<SystemTime>);

impl Watched {
    /// Looks at `files`. Call it before they are read.
    pub(super) fn of<'a>(files: impl Iterator<Item = &'a Path>) -> Self {
        Self(files.map(|file| (file.to_path_buf(), stamp(file))).collect())
    }

    /// Refuses a text that has changed since, so that vocabulary and token cache hold the same one.
    ///
    /// # Errors
    /// If a file was changed, replaced or removed.
    pub(super) fn ensure_unchanged(&self) -> Result<()> {
        match self.0.iter().find(|(file, before)| stamp(file) != *before) {
            Some((file, _)) => Err(changed(file)),
            None => Ok(()),
        }
    }
}

fn stamp(file: &Path) -> Option<Stamp> {
    fs::metadata(file).ok().map(|file| (file.len(), file.modified().ok()))
}

fn changed(file: &Path) -> anyhow::Error {
    kiln_data::Error::Invalid(format!(
        "{}: the text changed while its vocabulary was made, so vocabulary and token cache would not be of one text: run again \
         when nothing writes to it",
        file.display()
    ))
    .into()
}

/// `made_from.json`, next to the tokenizer's files.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Record<'a> {
    made_from: Cow<'a, MadeFrom>,
    /// BLAKE3 of the tokenizer's files by name: a file that was damaged later would give other tokens.
    made: BTreeMap<String, String>,
    /// BLAKE3 of this record as compact JSON without a digest. Absent in the records of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    digest: Option<String>,
}

impl Record<'_> {
    fn computed_digest(&self) -> String {
        let Self { made_from, made, .. } = self;
        let bare = Record { made_from: Cow::Borrowed(&**made_from), made: made.clone(), digest: None };
        blake3::hash(&serde_json::to_vec(&bare).expect("plain values")).to_hex().to_string()
    }

    /// Returns whether the record is as it was written; `None` if it does not say.
    fn is_sound(&self) -> Option<bool> {
        self.digest.as_ref().map(|digest| *digest == self.computed_digest())
    }
}

/// The files of a trained tokenizer that are as they were written.
pub struct SoundTokenizer {
    /// The tokenizer's own files.
    pub files: Vec<PathBuf>,
    /// The record of what it was trained on.
    pub record: PathBuf,
    /// Whether the record has a digest to compare with: earlier versions wrote none.
    pub record_has_digest: bool,
}

/// Verifies the trained tokenizer in `dir`.
///
/// # Errors
/// If a file was damaged or is missing.
pub fn verify_tokenizer(dir: &Path) -> Result<SoundTokenizer> {
    let path = dir.join(RECORD);
    let json = read_file(&path).with_context(|| format!("{RECORD} cannot be read"))?;
    let record: Record<'_> = serde_json::from_slice(&json).with_context(|| format!("{RECORD} is damaged"))?;
    ensure!(record.is_sound() != Some(false), "{RECORD} differs from the one that was written");

    let now = hashes(dir).with_context(|| format!("{} cannot be read", dir.display()))?;
    let mut files = Vec::new();
    for (name, hash) in &record.made {
        let found = now.get(name).with_context(|| format!("{name} is missing"))?;
        ensure!(found == hash, "{name} differs from the one that was written");
        files.push(dir.join(name));
    }
    Ok(SoundTokenizer { files, record_has_digest: record.digest.is_some(), record: path })
}

/// Name of the record.
const RECORD: &str = "made_from.json";

/// Hashes the files in `dir`, except the record, and what a process that was killed had not renamed yet.
fn hashes(dir: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let mut hashes = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_temporary = name.ends_with(".tmp");
        if name != RECORD && !is_temporary && entry.file_type()?.is_file() {
            hashes.insert(name, blake3::hash(&read_file(&entry.path())?).to_hex().to_string());
        }
    }
    Ok(hashes)
}

/// Loads the tokenizer in `dir` if it was made from the same inputs. Otherwise trains one, saves it there, and returns
/// it with the seconds that the training took.
///
/// # Errors
/// If `watched`, the text that `train` reads, changes meanwhile; and if the tokenizer cannot be made or written.
pub(super) fn find_or_make<T>(
    dir: &Path,
    (made_from, watched): (&MadeFrom, &Watched),
    load: impl FnOnce(&Path) -> kiln_data::Result<T>,
    train: impl FnOnce() -> kiln_data::Result<T>,
    save: impl FnOnce(&T, &Path) -> kiln_data::Result<()>,
) -> Result<(T, Option<f64>)> {
    let record = dir.join(RECORD);
    let before = read_file(&record).ok().and_then(|json| serde_json::from_slice::<Record<'_>>(&json).ok());
    let fits = |before: Record<'_>| {
        let is_sound = before.is_sound() != Some(false) && hashes(dir).is_ok_and(|now| now == before.made);
        is_sound && &*before.made_from == made_from
    };
    if before.is_some_and(fits)
        && let Ok(found) = load(dir)
    {
        return Ok((found, None));
    }

    let start = Instant::now();
    // An error of the text names its file.
    let trained = train().map_err(|error| match error {
        kiln_data::Error::Tokenizer { .. } => anyhow::Error::from(error).context("training the tokenizer"),
        error => error.into(),
    })?;

    watched.ensure_unchanged()?;
    let unwritable = || format!("{}: cannot write the tokenizer", dir.display());
    // The record is removed first and written last, so that an interrupted save does not count as a tokenizer.
    fs::create_dir_all(dir).with_context(unwritable)?;
    let _ = fs::remove_file(&record);
    save(&trained, dir)?;
    let made = hashes(dir).with_context(unwritable)?;
    let mut written = Record { made_from: Cow::Borrowed(made_from), made, digest: None };
    written.digest = Some(written.computed_digest());
    let json = serde_json::to_vec_pretty(&written);
    replace_file(&record, &json.expect("plain values")).with_context(unwritable)?;
    Ok((trained, Some(start.elapsed().as_secs_f64())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_a_killed_process_left_is_no_part_of_the_tokenizer() {
        let folder = tempfile::tempdir().expect("a folder");
        let (text, dir) = (folder.path().join("text.txt"), folder.path().join("tokenizer"));
        fs::write(&text, "a text").expect("writable");
        fs::create_dir(&dir).expect("writable");
        let left = dir.join("made_from.json.tmp");
        fs::write(&left, "half a rec").expect("writable");

        let files = || [text.as_path()].into_iter();
        let watched = Watched::of(files());
        let made_from = MadeFrom::of(&TokenizerConfig::default(), &"text", files()).expect("readable");
        let save = |(): &(), dir: &Path| {
            fs::write(dir.join("tokenizer.json"), "{}").expect("writable");
            Ok(())
        };
        let made = find_or_make(&dir, (&made_from, &watched), |_| Ok(()), || Ok(()), save).expect("made");
        assert!(made.1.is_some());
        fs::remove_file(&left).ok();
        assert_eq!(verify_tokenizer(&dir).expect("sound").files, [dir.join("tokenizer.json")]);
        let again = find_or_make(&dir, (&made_from, &watched), |_| Ok(()), || Ok(()), save).expect("found");
        assert_eq!(again.1, None, "it is not trained again");
    }

    #[test]
    fn a_vocabulary_of_a_text_that_changed_meanwhile_is_not_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let (text, dir) = (folder.path().join("text.txt"), folder.path().join("tokenizer"));
        type Change = (&'static str, fn(&Path));
        let changes: [Change; 4] = [
            ("nothing", |_| ()),
            ("longer", |text| fs::write(text, "one two three").expect("writable")),
            ("of the same size", |text| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                fs::write(text, "six one").expect("writable");
            }),
            ("removed", |text| fs::remove_file(text).expect("there")),
        ];

        for (what, change) in changes {
            fs::write(&text, "one two").expect("writable");
            let files = || [text.as_path()].into_iter();
            let watched = Watched::of(files());
            let made_from = MadeFrom::of(&TokenizerConfig::default(), &"text", files()).expect("readable");
            let train = || {
                change(&text);
                Ok(())
            };
            let made = find_or_make(&dir, (&made_from, &watched), |_| Ok(()), train, |(), _| Ok(()));
            match what {
                "nothing" => assert!(made.is_ok() && dir.join(RECORD).exists()),
                _ => {
                    let error = format!("{:#}", made.expect_err(what));
                    assert!(error.contains("text.txt: the text changed") && error.contains("run again"), "{error}");
                    assert!(!dir.exists(), "{what}");
                }
            }
            let _ = fs::remove_dir_all(&dir);
        }
    }
}
