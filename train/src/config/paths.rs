//! Looks for the files that a configuration names, so that a missing one is reported with the other mistakes.

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::slice;

use kiln_data::files::{open_file, read_line};
use kiln_data::terminal::shell_path;
use kiln_data::{Split, Task};

use super::Config;
use super::suggest::nearest;
use super::task::{Reads, traits_of};

/// The longest line that is looked at.
const MOST_BYTES_OF_LINE: u64 = 1 << 20;

/// Returns a problem for each named file that is not there. Each begins with its key.
pub(super) fn missing(config: &Config) -> Vec<String> {
    let reads = traits_of(config.task).reads;
    let mut named: Vec<(&str, PathBuf)> = Vec::new();
    let of_mix = config.data.mix.iter().flat_map(|source| [("data.mix", &source.train), ("data.mix", &source.valid)]);
    for (key, entries) in
        [("data.train", &config.data.train), ("data.valid", &config.data.valid)].into_iter().chain(of_mix)
    {
        for entry in entries {
            let files = if reads == Reads::Pairs { parallel(entry) } else { vec![entry.clone()] };
            named.extend(files.into_iter().map(|file| (key, file)));
        }
    }
    let others = [
        ("tokenizer.path", &config.tokenizer.path),
        ("tokenizer.target_path", &config.tokenizer.target_path),
        ("data.text.chat_template", &config.data.text.chat_template),
    ];
    named.extend(others.into_iter().filter_map(|(key, path)| Some((key, path.clone()?))));

    let problem = |(key, file): (&str, PathBuf)| {
        if file.as_os_str().is_empty() {
            let or_none = if key == "data.train" { " ([] takes the built-in data)" } else { ", or leave the key out" };
            return Some(format!("{key} is empty: name a file{or_none}"));
        }
        // A name with wildcards stands for others.
        if kiln_data::find_files(slice::from_ref(&file), Split::Train, true).is_ok_and(|found| found != [file.clone()])
        {
            return None;
        }
        let error = fs::metadata(&file).err()?;
        let reason = error.to_string();
        let reason = reason.split(" (os error").next().unwrap_or_default();
        let hint = lines_with_labels(config.task, &file).or_else(|| listed(key, &file)).unwrap_or_else(|| near(&file));
        Some(format!("{key} names {}: {reason}{hint}", file.display()))
    };
    named.into_iter().filter_map(problem).collect()
}

/// Returns the two files of `news.en,news.it`, or the entry itself.
fn parallel(entry: &Path) -> Vec<PathBuf> {
    match entry.to_string_lossy().split_once(',') {
        Some((source, target)) if !entry.exists() => vec![source.trim().into(), target.trim().into()],
        _ => vec![entry.into()],
    }
}

/// Returns the command that joins two files with a line per row, if one has words and the other one their tags, or texts and their classes.
fn lines_with_labels(task: Task, file: &Path) -> Option<String> {
    let name = file.to_string_lossy();
    let (texts, labels) = name.split_once(',')?;
    let n_words = |name: &str| Some(first_line(Path::new(name.trim()))?.split_whitespace().count());
    let (n_of_text, n_of_label) = (n_words(texts)?, n_words(labels)?);
    let (what, program) = match task {
        Task::Tagging if n_of_text == n_of_label => {
            ("words and lines of tags", r#"split("\t") | {tokens: [.[0] | scan("\\S+")], tags: [.[1] | scan("\\S+")]}"#)
        }
        Task::Classification if n_of_label < n_of_text => {
            ("texts and lines of classes", r#"split("\t") | {text: .[0:-1] | join(" "), label: .[-1]}"#)
        }
        _ => return None,
    };
    Some(format!(
        "; to join lines of {what}: paste {} {} | jq -cR '{program}' > rows.jsonl\nand train on rows.jsonl",
        shell_path(Path::new(texts.trim())),
        shell_path(Path::new(labels.trim()))
    ))
}

/// Returns the first line of a file, if it is not too long.
fn first_line(path: &Path) -> Option<String> {
    let mut line = Vec::new();
    read_line(&mut BufReader::new(open_file(path).ok()?), &mut line, MOST_BYTES_OF_LINE).ok()?;
    String::from_utf8(line).ok()
}

/// Returns the flags that name several files, if `file` has the names of files with commas between them.
fn listed(key: &str, file: &Path) -> Option<String> {
    let name = file.to_string_lossy();
    let parts: Vec<&str> = name.split(',').map(str::trim).collect();
    let are_files = parts.len() > 1 && parts.iter().all(|part| Path::new(part).exists());
    let flags = || parts.iter().map(|part| format!("--set {key}={part}")).collect::<Vec<_>>().join(" ");
    are_files.then(|| format!("; for several files, name each on its own: {}", flags()))
}

/// Returns `; did you mean X?` if the folder has a file with a near name, or if a folder of the path is missing.
fn near(file: &Path) -> String {
    let folder = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let named = file.to_string_lossy();
    if named.starts_with('~') {
        return "; only the shell replaces ~, so write the whole path".into();
    }
    if named.contains("**") {
        return "; ** is not read: a folder stands for all its files, also in folders inside it".into();
    }
    if named.contains(['*', '?']) {
        return "; only the shell replaces *: kiln train takes files without a flag, and a folder stands for its files"
            .into();
    }

    let here = if file.is_relative() { std::env::current_dir().ok() } else { None };
    let here = here.map_or(String::new(), |here| format!("; it is relative to {}", here.display()));
    let Ok(entries) = fs::read_dir(folder) else {
        return format!("; the folder {} is missing, too{here}", folder.display());
    };
    let names: Vec<String> =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    let wrong = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match nearest(&wrong, names.iter().map(String::as_str)) {
        Some(name) => format!("; did you mean {}?", file.with_file_name(name).display()),
        None => here,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DataConfig, presets};

    #[test]
    fn missing_files_are_named_with_near_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for name in ["pairs.train.jsonl", "news.en", "news.it"] {
            fs::write(path(name), "").expect("writable");
        }
        let mut config = presets::base();
        config.data.train = vec![
            path("pairs.trian.jsonl"),
            PathBuf::from(format!("{},{}", path("news.en").display(), path("news.ti").display())),
        ];
        config.data.valid = vec![path("no/dev.jsonl"), path("pairs.train.jsonl")];
        config.tokenizer.path = Some(path("something.else"));

        let unnamed = presets::base();
        let unnamed =
            Config { data: DataConfig { train: vec!["".into()], valid: vec!["".into()], ..unnamed.data }, ..unnamed };
        let wanted = ["data.train is empty: name a file ([] takes", "data.valid is empty: name a file, or leave"];
        let problems = missing(&unnamed);
        assert!(problems.len() == 2 && problems.iter().zip(wanted).all(|(found, start)| found.starts_with(start)));

        for (name, wanted) in [("~/a.tsv", "only the shell replaces ~"), ("no/*.tsv", "only the shell replaces *")] {
            assert!(near(Path::new(name)).contains(wanted), "{name}");
        }
        assert!(near(Path::new("no/such/file")).contains("the folder no/such is missing, too; it is relative to /"));

        let problems = missing(&config);
        let wanted = [
            ("data.train names", "pairs.trian.jsonl: No such file or directory; did you mean", "pairs.train.jsonl?"),
            ("data.train names", "news.ti: No such file or directory; did you mean", "news.it?"),
            ("data.valid names", "no/dev.jsonl: No such file or directory; the folder", "no is missing, too"),
            ("tokenizer.path names", "something.else: No such file", "directory"),
        ];
        assert_eq!(problems.len(), wanted.len(), "{problems:#?}");
        for (problem, (start, middle, end)) in problems.iter().zip(wanted) {
            assert!(problem.starts_with(start) && problem.contains(middle) && problem.ends_with(end), "{problem}");
        }
    }
}
