//! Paths in a configuration file are relative to the file.

use std::path::{Path, PathBuf};

use toml::Value;

/// Keys with paths of files that are read.
const PATHS: [&str; 5] =
    ["data.train", "data.valid", "data.text.chat_template", "tokenizer.path", "tokenizer.target_path"];

/// Lets a relative path in the value of `key` be relative to the folder of the configuration `file`, if it names a file there. A run that
/// was moved along with its text finds it two folders above its own, where `kiln train` was called.
pub(super) fn relative_to(file: &Path, key: &str, value: Value) -> Value {
    if key == "data.mix" {
        return of_sources(file, value);
    }
    if !PATHS.contains(&key) {
        return value;
    }
    match value {
        Value::String(text) => Value::String(entry(file, &text)),
        Value::Array(items) => Value::Array(items.into_iter().map(|item| relative_to(file, key, item)).collect()),
        other => other,
    }
}

/// Does the same for the files of each source of a mixture.
fn of_sources(file: &Path, value: Value) -> Value {
    let in_source = |source: Value| match source {
        Value::Table(keys) => {
            let path = |(key, value): (String, Value)| match key.as_str() {
                "train" | "valid" => (key, relative_to(file, "data.train", value)),
                _ => (key, value),
            };
            Value::Table(keys.into_iter().map(path).collect())
        }
        other => other,
    };
    match value {
        Value::Array(sources) => Value::Array(sources.into_iter().map(in_source).collect()),
        other => other,
    }
}

/// Returns an entry, or the two parallel files of one, with the paths that exist.
fn entry(file: &Path, text: &str) -> String {
    match text.split_once(',') {
        Some((source, target)) if !Path::new(text).exists() => {
            format!("{},{}", found(file, source.trim()), found(file, target.trim()))
        }
        _ => found(file, text),
    }
}

fn found(file: &Path, path: &str) -> String {
    if Path::new(path).is_absolute() {
        return path.to_owned();
    }
    let is_run = file.file_name().is_some_and(|name| name == "config.toml");
    let folder = file.parent().unwrap_or(Path::new(""));
    let above = folder.ancestors().skip(2).take(usize::from(is_run)).map(Path::to_path_buf);
    // The text of a run is where it was named, seen from the current folder, first of all.
    let here = is_run.then(PathBuf::new);
    let folders = here.into_iter().chain([folder.to_path_buf()]).chain(above);
    let candidates = folders.map(|folder| folder.join(path));
    { candidates }.find(|path| path.exists()).map_or_else(|| path.to_owned(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn paths_are_found_next_to_the_file_and_above_a_run() {
        let place = tempfile::tempdir().expect("a folder");
        for name in ["conf/data/a.tsv", "conf/b.en", "conf/b.it", "data/c.tsv", "runs/x/config.toml"] {
            let path = place.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("writable");
            fs::write(path, "").expect("writable");
        }
        let inside = |name: &str| place.path().join(name).display().to_string();
        let toml = place.path().join("conf/pairs.toml");
        let of = |file: &Path, text: &str| relative_to(file, "data.train", Value::Array(vec![text.into()]));
        assert_eq!(of(&toml, "data/a.tsv"), Value::Array(vec![inside("conf/data/a.tsv").into()]));
        let mix = "[[mix]]\nname = \"a\"\ntrain = [\"data/a.tsv\"]\nvalid = \"b.en\"\n";
        let mix: toml::Table = toml::from_str(mix).expect("TOML");
        let mix = relative_to(&toml, "data.mix", mix["mix"].clone());
        assert_eq!(
            (mix[0]["train"][0].as_str(), mix[0]["valid"].as_str()),
            (Some(&*inside("conf/data/a.tsv")), Some(&*inside("conf/b.en")))
        );
        let both = format!("{},{}", inside("conf/b.en"), inside("conf/b.it"));
        assert_eq!(of(&toml, "b.en,b.it"), Value::Array(vec![both.into()]));
        assert_eq!(of(&toml, "no/d.tsv"), Value::Array(vec!["no/d.tsv".into()]), "named as it is written");
        let run = place.path().join("runs/x/config.toml");
        assert_eq!(of(&run, "data/c.tsv"), Value::Array(vec![inside("data/c.tsv").into()]));
        assert_eq!(relative_to(&toml, "train.steps", Value::Integer(3)), Value::Integer(3));
    }
}
