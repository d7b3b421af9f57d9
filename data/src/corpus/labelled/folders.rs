//! Entries that are not files of rows: folders with a folder for each class, and several names in one.

use std::path::{Path, PathBuf};

use super::LabelConfig;
use crate::error::{Error, Result};
use crate::formats::{Split, find_files};

/// Classes that a message names.
const SHOWN: usize = 6;

/// Refuses entries that stand for no file of rows, and says how they become one.
///
/// # Errors
///
/// If an entry is a folder without files of rows, or several names with commas between them.
pub(super) fn check_entries(entries: &[PathBuf], config: &LabelConfig) -> Result<()> {
    for entry in entries {
        check_list(entry)?;
        let is_whole = |folder: &PathBuf| find_files(std::slice::from_ref(folder), Split::Train, false);
        if entry.is_dir() && is_whole(entry).is_ok_and(|found| found == [entry.clone()]) {
            return Err(Error::corpus(entry, of_folder(entry, config)));
        }
    }
    Ok(())
}

/// Refuses a name such as `a.csv,b.csv`, which no file has, if the parts of it are files.
///
/// # Errors
///
/// In that case; the error says how several files are named.
fn check_list(entry: &Path) -> Result<()> {
    let name = entry.to_string_lossy();
    let parts: Vec<&str> = name.split(',').map(str::trim).collect();
    if parts.len() < 2 || entry.exists() || !parts.iter().all(|part| Path::new(part).exists()) {
        return Ok(());
    }
    Err(Error::corpus(
        entry,
        format!(
            "no file has this name, and {} files have the parts of it: name each on its own, for example with --set once per file",
            parts.len()
        ),
    ))
}

/// Says what a folder without files of rows is, and how it becomes a file of rows.
fn of_folder(folder: &Path, config: &LabelConfig) -> String {
    let inside = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let mut found: Vec<PathBuf> = entries.filter(|path| !is_hidden(path)).collect();
        found.sort();
        found
    };
    let folders: Vec<PathBuf> = inside(folder).into_iter().filter(|path| path.is_dir()).collect();
    let has_texts = |folder: &PathBuf| inside(folder).iter().any(|path| path.is_file());
    let classes: Vec<&PathBuf> = folders.iter().filter(|folder| has_texts(folder)).collect();
    if classes.is_empty() {
        let below = folders.iter().find(|folder| inside(folder).iter().any(|path| path.is_dir() && has_texts(path)));
        let remedy = below.map_or_else(
            || "name files of rows, such as .jsonl or .csv".to_owned(),
            |folder| format!("name one with a folder for each class, such as {}", folder.display()),
        );
        return format!("a folder without files of rows: {remedy}");
    }

    let names: Vec<String> = classes
        .iter()
        .take(SHOWN)
        .map(|class| format!("{:?}", class.file_name().unwrap_or_default().to_string_lossy()))
        .collect();
    let more = if classes.len() > SHOWN { format!(" and {} more", classes.len() - SHOWN) } else { String::new() };
    let LabelConfig { text_field, label_field, .. } = config;
    format!(
        "a folder without files of rows; its folders {}{more} seem to be the classes of the texts in them\nto make a row of each text: \
         python3 -c 'import json, pathlib, sys\nfor file in sorted(pathlib.Path(sys.argv[1]).glob(\"*/*\")):\n  if file.is_file(): \
         print(json.dumps({{\"{text_field}\": file.read_text(encoding=\"utf-8\"), \"{label_field}\": file.parent.name}}))' {} > \
         rows.jsonl",
        names.join(", "),
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn refused(folder: &Path) -> String {
        check_entries(&[folder.into()], &LabelConfig::default()).expect_err("a folder").to_string()
    }

    #[test]
    fn folders_of_classes_come_with_the_command_that_makes_rows() {
        let place = tempfile::tempdir().expect("a folder");
        let train = place.path().join("imdb/train");
        for class in ["pos", "neg"] {
            fs::create_dir_all(train.join(class)).expect("writable");
            fs::write(train.join(class).join("0_9.txt"), "a text").expect("writable");
        }
        let text = refused(&train);
        assert!(text.contains("its folders \"neg\", \"pos\" seem to be the classes"), "{text}");
        assert!(text.contains("python3 -c") && text.contains("\"label\": file.parent.name"), "{text}");
        let above = refused(&place.path().join("imdb"));
        assert!(above.contains("such as ") && above.ends_with("train"), "{above}");
        let empty = place.path().join("empty");
        fs::create_dir(&empty).expect("writable");
        assert!(refused(&empty).contains("name files of rows"));
        fs::write(empty.join("rows.jsonl"), "").expect("writable");
        check_entries(&[empty], &LabelConfig::default()).expect("a data set");
    }

    #[test]
    fn several_names_in_one_are_answered_with_a_flag_for_each() {
        let place = tempfile::tempdir().expect("a folder");
        let files = ["a.csv", "b.csv"].map(|name| place.path().join(name));
        files.iter().for_each(|file| fs::write(file, "").expect("writable"));
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        let found = check_list(Path::new(&names.join(","))).expect_err("two files").to_string();
        assert!(found.contains("2 files have the parts of it") && found.ends_with("once per file"), "{found}");
        check_list(Path::new(&format!("{},none.csv", names[0]))).expect("a missing file is another fault");
        check_list(&files[0]).expect("one file");
    }
}
