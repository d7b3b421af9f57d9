//! The files that an entry of a configuration stands for: a file, a folder, or a name with wildcards.

use std::path::{Path, PathBuf};

use super::{FileFormat, ending};
use crate::error::{Error, Result};
use crate::terminal::shell_path;

/// Which part of a data set is wanted of a folder that has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// The rows to train on.
    Train,
    /// The rows to validate on.
    Valid,
}

/// Names of splits, as `datasets` and the Hub have them. Of `Valid`, the first one that is there counts.
pub(crate) const TRAIN: [&str; 2] = ["train", "training"];
pub(crate) const VALID: [&str; 5] = ["validation", "valid", "val", "dev", "eval"];
pub(crate) const TEST: [&str; 3] = ["test", "testing", "evaluation"];

/// Pairs of parallel files that a message names.
const PAIRS_SHOWN: usize = 4;

/// Returns the files of `entries`: files as they are, wildcards (`*` and `?` in the name of a file) as the files that match, sorted by
/// name. A folder with a data set, as `datasets` saves it or as the Hub lays it out, stands for the files of `split`. With `keeps_text`, a
/// folder without Parquet and Arrow files stays, as a folder of plain text.
///
/// # Errors
///
/// If nothing matches a wildcard, if a folder cannot be read, or if a data set lacks the split.
pub fn find_files(entries: &[PathBuf], split: Split, keeps_text: bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in entries {
        if entry.is_dir() {
            match data_set(entry, split, keeps_text)? {
                Some(files) => found.extend(files),
                None => found.push(entry.clone()),
            }
        } else if has_wildcards(entry) && !entry.exists() {
            let problem = |error| of_parallel(entry, split).map_or(error, |problem| Error::corpus(entry, problem));
            found.extend(matching(entry).map_err(problem)?);
        } else {
            found.push(entry.clone());
        }
    }
    Ok(found)
}

/// Whether the name of the file has wildcards.
fn has_wildcards(entry: &Path) -> bool {
    entry.file_name().is_some_and(|name| name.to_string_lossy().contains(['*', '?']))
}

/// Says how two names with wildcards that stand for parallel files are named; `None` for one name.
fn of_parallel(entry: &Path, split: Split) -> Option<String> {
    let text = entry.to_str()?;
    let both = text.split_once(',')?;
    let [sources, targets] = [both.0, both.1].map(|name| matching(Path::new(name)).unwrap_or_default());
    let key = if split == Split::Train { "data.train" } else { "data.valid" };
    let pairs = sources.iter().zip(&targets).map(|(source, target)| {
        let [source, target] = [source, target].map(|path: &PathBuf| shell_path(path));
        format!("--set {key}={source},{target}")
    });
    let shown: Vec<String> = pairs.take(PAIRS_SHOWN).collect();
    let more = if sources.len() > PAIRS_SHOWN { " and so on" } else { "" };
    let problem = "parallel files take no wildcards";
    Some(match sources.len() == targets.len() && !shown.is_empty() {
        true => format!("{problem}: name each two files, such as {}{more}", shown.join(" ")),
        false => format!("{problem}: name each two files on their own, joined by a comma"),
    })
}

/// Returns the files whose names match the name of `entry`, sorted.
fn matching(entry: &Path) -> Result<Vec<PathBuf>> {
    let folder = match entry.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let pattern: Vec<char> = entry.file_name().unwrap_or_default().to_string_lossy().chars().collect();
    let is_bare = folder == Path::new(".") && !entry.starts_with(".");
    let list = list(folder)?.into_iter();
    let names = list.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let files: Vec<PathBuf> = names
        .filter(|name| matches(&name.chars().collect::<Vec<_>>(), &pattern))
        .map(|name| if is_bare { PathBuf::from(name) } else { folder.join(name) })
        .filter(|path| path.is_file())
        .collect();
    if files.is_empty() {
        return Err(Error::corpus(
            entry,
            "no file has such a name: `*` stands for any letters, `?` for one, in the name of a file",
        ));
    }
    Ok(files)
}

/// Whether `*` (any characters, also none) and `?` (one) make `pattern` equal to `name`.
fn matches(name: &[char], pattern: &[char]) -> bool {
    let (mut at, mut in_pattern) = (0, 0);
    // The last star, and how much of the name it has taken.
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        match (pattern.get(in_pattern), star) {
            (Some('*'), _) => {
                star = Some((in_pattern, at));
                in_pattern += 1;
            }
            (Some(wanted), _) if *wanted == '?' || *wanted == name[at] => (at, in_pattern) = (at + 1, in_pattern + 1),
            (_, Some((in_star, taken))) => {
                star = Some((in_star, taken + 1));
                (at, in_pattern) = (taken + 1, in_star + 1);
            }
            (_, None) => return false,
        }
    }
    pattern[in_pattern..].iter().all(|rest| *rest == '*')
}

/// Returns the entries of a folder that are not hidden, sorted by name.
fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let paths = || std::fs::read_dir(folder)?.map(|item| item.map(|item| item.path())).collect();
    let mut paths: Vec<PathBuf> = std::io::Result::map_err(paths(), Error::io(folder, "listing the folder"))?;
    paths.retain(|path| path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.')));
    paths.sort();
    Ok(paths)
}

/// Returns the files of a split of the data set in `folder`. `None` if it does not hold one.
fn data_set(folder: &Path, split: Split, keeps_text: bool) -> Result<Option<Vec<PathBuf>>> {
    let mut data = Vec::new();
    walk(folder, 0, &mut data)?;
    let is_table = |path: &PathBuf| matches!(ending(path).as_str(), "parquet" | "arrow" | "feather");
    // JSON files next to tables describe them.
    match data.iter().any(is_table) {
        true => data.retain(|path| is_table(path) && !is_cache(path)),
        false => data.retain(|path| FileFormat::by_name(path).is_some() && !keeps_text),
    }
    if data.is_empty() {
        return Ok(None);
    }

    let of = |names: &[&str]| -> Vec<PathBuf> {
        let first = names.iter().find(|name| data.iter().any(|path| is_of(path, folder, name)));
        first.map_or(Vec::new(), |name| data.iter().filter(|path| is_of(path, folder, name)).cloned().collect())
    };
    let (train, valid, test) = (of(&TRAIN), of(&VALID), of(&TEST));
    let found = match split {
        // A single split has any name.
        Split::Train if train.is_empty() && valid.is_empty() && test.is_empty() => data,
        Split::Train => train,
        Split::Valid if valid.is_empty() => test,
        Split::Valid => valid,
    };
    if found.is_empty() {
        let (wanted, key) = match split {
            Split::Train => ("train", "data.train"),
            Split::Valid => ("validation", "data.valid"),
        };
        let found = format!(
            "the data set in this folder has no split \"{wanted}\": name the files of another one in {key}, for example with `*`"
        );
        return Err(Error::corpus(folder, found));
    }
    Ok(Some(found))
}

/// Whether a file belongs to a split: its name or the name of a folder above it has the word.
fn is_of(path: &Path, folder: &Path, split: &str) -> bool {
    let below = path.strip_prefix(folder).unwrap_or(path).to_string_lossy().to_ascii_lowercase();
    below.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == split)
}

/// Whether `datasets` keeps a result of its own in the file.
fn is_cache(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cache-"))
}

/// Appends all files below a folder, sorted by name.
fn walk(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    const DEEPEST: usize = 8;
    for path in list(folder)? {
        match path.is_dir() {
            true if depth < DEEPEST => walk(&path, depth + 1, files)?,
            true => {}
            false => files.push(path),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn make(folder: &Path, names: &[&str]) {
        for name in names {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
            fs::write(path, "").expect("writable");
        }
    }

    fn found(folder: &Path, entry: &str, split: Split) -> std::result::Result<Vec<String>, String> {
        let files = find_files(&[folder.join(entry)], split, true).map_err(|error| error.to_string())?;
        Ok(files.iter().map(|file| file.strip_prefix(folder).expect("inside").display().to_string()).collect())
    }

    #[test]
    fn stars_and_question_marks_match() {
        for (name, pattern, wanted) in [
            ("train-00.parquet", "train-*.parquet", true),
            ("train-00.parquet", "train-??.*", true),
            ("train-00.parquet", "*0*.par*t", true),
            ("train-00.parquet", "train-?.parquet", false),
            ("ab", "a*b*c", false),
            ("aab", "*ab", true),
            ("", "*", true),
        ] {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            assert_eq!(matches(&chars(name), &chars(pattern)), wanted, "{name} {pattern}");
        }
    }

    #[test]
    fn wildcards_stand_for_the_files_that_match() {
        let folder = tempfile::tempdir().expect("a folder");
        make(folder.path(), &["b-1.csv", "b-0.csv", "c.csv", ".b-2.csv", "b-3/x.csv"]);
        assert_eq!(found(folder.path(), "b-*", Split::Train).expect("files"), ["b-0.csv", "b-1.csv"]);
        assert!(found(folder.path(), "d*", Split::Train).expect_err("none").contains("no file has such a name"));
        make(folder.path(), &["what?.txt"]);
        assert_eq!(found(folder.path(), "what?.txt", Split::Train).expect("a file"), ["what?.txt"]);
        assert_eq!(found(folder.path(), "missing.csv", Split::Train).expect("left to the reader"), ["missing.csv"]);
    }

    #[test]
    fn wildcards_of_parallel_files_are_answered_with_each_pair() {
        let folder = tempfile::tempdir().expect("a folder");
        make(folder.path(), &["t.1.en", "t.2.en", "t.1.de", "t.2.de", "a,b.txt"]);
        let other = folder.path().join("t.*.de").display().to_string();
        let said = found(folder.path(), &format!("t.*.en,{other}"), Split::Train).expect_err("two names");
        assert!(
            said.contains("such as --set data.train=") && said.contains("t.2.en,") && said.ends_with("t.2.de"),
            "{said}"
        );
        assert_eq!(found(folder.path(), "a,*", Split::Train).expect("a file"), ["a,b.txt"]);
    }

    #[test]
    fn a_data_set_has_splits_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        make(
            folder.path(),
            &[
                "hub/README.md",
                "hub/data/train-00000-of-00002.parquet",
                "hub/data/train-00001-of-00002.parquet",
                "hub/data/validation-00000-of-00001.parquet",
                "hub/data/test-00000-of-00001.parquet",
                "saved/dataset_dict.json",
                "saved/train/data-00000-of-00001.arrow",
                "saved/train/state.json",
                "saved/train/dataset_info.json",
                "saved/train/cache-0123.arrow",
                "saved/test/data-00000-of-00001.arrow",
                "one/state.json",
                "one/data-00000-of-00001.arrow",
                "text/train.txt",
                "text/valid.txt",
                "only_test/test.parquet",
            ],
        );
        let of = |entry: &str, split| found(folder.path(), entry, split);

        let train = of("hub", Split::Train).expect("files");
        assert_eq!(train, ["hub/data/train-00000-of-00002.parquet", "hub/data/train-00001-of-00002.parquet"]);
        assert_eq!(of("hub", Split::Valid).expect("files"), ["hub/data/validation-00000-of-00001.parquet"]);
        assert_eq!(of("saved", Split::Train).expect("files"), ["saved/train/data-00000-of-00001.arrow"]);
        assert_eq!(of("saved", Split::Valid).expect("files"), ["saved/test/data-00000-of-00001.arrow"], "no other");
        assert_eq!(of("one", Split::Train).expect("files"), ["one/data-00000-of-00001.arrow"]);
        assert_eq!(of("text", Split::Train).expect("the folder"), ["text"]);

        let pairs = find_files(&[folder.path().join("text")], Split::Train, false).expect("no data");
        assert_eq!(pairs, [folder.path().join("text")]);
        make(folder.path(), &["rows/dev.jsonl", "rows/train.jsonl.gz", "rows/notes.txt"]);
        let pairs = find_files(&[folder.path().join("rows")], Split::Train, false).expect("a data set");
        assert_eq!(pairs, [folder.path().join("rows/train.jsonl.gz")]);
        for (entry, split, wanted) in
            [("one", Split::Valid, "no split \"validation\""), ("only_test", Split::Train, "no split \"train\"")]
        {
            assert!(of(entry, split).expect_err("no such split").contains(wanted));
        }
    }
}
