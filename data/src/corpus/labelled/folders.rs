//! Entries that are not files of rows: folders with a folder for each class, and several names in one.

use std::path::{Path, PathBuf};

use super::LabelConfig;
use crate::error::{Error, Result};
use crate::formats::{Split, TEST, TRAIN, VALID, find_files};
use crate::terminal::shell_path;

/// Classes that a message names.
const SHOWN: usize = 6;
/// Folders inside folders that are searched for texts.
const DEEPEST: usize = 8;

/// A script that makes a row of each text with annotations of brat. Of a span with gaps it takes all characters between its ends.
const BRAT: &str = concat!(
    "python3 -c 'import json, pathlib, re, sys\n",
    "for file in sorted(pathlib.Path(sys.argv[1]).glob(\"**/*.ann\")):\n",
    "  if not file.with_suffix(\".txt\").is_file(): continue\n",
    "  marks = [line.split(\"\\t\")[1] for line in open(file, encoding=\"utf-8\") if line.startswith(\"T\")]\n",
    "  ends = [list(map(int, re.findall(\"[0-9]+\", mark.split(\" \", 1)[1]))) for mark in marks]\n",
    "  text = open(file.with_suffix(\".txt\"), encoding=\"utf-8\", newline=\"\").read()\n",
    "  spans = [[end[0], end[-1], mark.split(\" \")[0]] for mark, end in zip(marks, ends)]\n",
    "  print(json.dumps({\"text\": text, \"entities\": spans}))'"
);

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
    if has_annotations(folder, 0) {
        return format!(
            "a folder with texts and annotations of brat (.txt and .ann), without files of rows\nto make a row of each text, with its spans: \
             {BRAT} {} > rows.jsonl\nand read rows.jsonl with the same flags, which says how spans become tags",
            shell_path(folder)
        );
    }
    let folders: Vec<PathBuf> = inside(folder).into_iter().filter(|path| path.is_dir()).collect();
    let has_texts = |folder: &PathBuf| inside(folder).iter().any(|path| path.is_file());
    let has_classes = |folder: &PathBuf| inside(folder).iter().any(|path| path.is_dir() && has_texts_below(path, 0));
    let parts: Vec<&PathBuf> = folders.iter().filter(|folder| has_classes(folder)).collect();
    if parts.iter().any(|part| Part::of(part) != Part::Other) {
        return of_parts(&parts);
    }

    let classes: Vec<&PathBuf> = folders.iter().filter(|folder| has_texts_below(folder, 0)).collect();
    let inner = parts.first().filter(|_| !folders.iter().any(has_texts));
    let inner = inner.map(|part| format!("name one with a folder for each class, such as {}", shell_path(part)));
    if classes.is_empty() || classes.len() == 1 && inner.is_some() {
        let remedy = inner.unwrap_or_else(|| "name files of rows, such as .jsonl or .csv".to_owned());
        return format!("a folder without files of rows: {remedy}");
    }

    let names: Vec<String> = classes.iter().take(SHOWN).map(|class| format!("{:?}", name_of(class))).collect();
    let more = if classes.len() > SHOWN { format!(" and {} more", classes.len() - SHOWN) } else { String::new() };
    let deeper = if parts.is_empty() { "" } else { ", also of the texts in folders below them" };
    let or_inner = inner.map_or(String::new(), |inner| format!("\nif the folders in them are the classes, {inner}"));
    format!(
        "a folder without files of rows; its folders {}{more} seem to be the classes of the texts in them{deeper}\nto make a row of each \
         text: {} {} > rows.jsonl{or_inner}",
        names.join(", "),
        script(config),
        shell_path(folder)
    )
}

/// Returns the Python that makes a row of each text below the folder that it is given.
fn script(LabelConfig { text_field, label_field, .. }: &LabelConfig) -> String {
    format!(
        "python3 -c 'import json, pathlib, sys\ntop = pathlib.Path(sys.argv[1])\nfor file in sorted(top.glob(\"*/**/*\")):\n  if not \
         file.is_file() or file.name.startswith(\".\"): continue\n  try: found = file.read_text(encoding=\"utf-8-sig\")\n  except \
         UnicodeDecodeError: found = \"\"\n  if found.strip(): print(json.dumps({{\"{text_field}\": found, \"{label_field}\": \
         file.relative_to(top).parts[0]}}))\n  else: print(file, \"is empty or not UTF-8: left out\", file=sys.stderr)'"
    )
}

/// The part of a data set that a folder is by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Train,
    Other,
    Valid,
    Test,
}

impl Part {
    fn of(folder: &Path) -> Self {
        let name = name_of(folder).to_ascii_lowercase();
        let has = |names: &[&str]| name.split(|c: char| !c.is_alphanumeric()).any(|word| names.contains(&word));
        let known = [(&TRAIN[..], Self::Train), (&VALID, Self::Valid), (&TEST, Self::Test)];
        known.into_iter().find(|(names, _)| has(names)).map_or(Self::Other, |(_, part)| part)
    }
}

/// Says which part of a data set to train on, of folders that have a folder for each class.
fn of_parts(parts: &[&PathBuf]) -> String {
    let find = |wanted: Part| parts.iter().find(|part| Part::of(part) == wanted);
    let train = find(Part::Train).or_else(|| find(Part::Other));
    let valid = find(Part::Valid).or_else(|| find(Part::Test));
    let named = [(train, "to train on it"), (valid, "for data.valid")];
    let named = named.into_iter().filter_map(|(part, what)| Some(format!("{} {what}", shell_path(part?))));
    format!(
        "a folder without files of rows: its folders have a folder for each class; name {}",
        named.collect::<Vec<_>>().join(", and ")
    )
}

/// Returns the entries of a folder that are not hidden, sorted.
fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<PathBuf> = entries.filter(|path| !name_of(path).starts_with('.')).collect();
    found.sort();
    found
}

/// Whether a file of annotations lies in the folder or below, next to its text.
fn has_annotations(folder: &Path, depth: usize) -> bool {
    let is_ending = |path: &Path| path.extension().is_some_and(|ending| ending == "ann");
    let is_one = |path: &PathBuf| match path.is_dir() {
        true => depth < DEEPEST && has_annotations(path, depth + 1),
        false => is_ending(path) && path.with_extension("txt").is_file(),
    };
    inside(folder).iter().any(is_one)
}

fn has_texts_below(folder: &Path, depth: usize) -> bool {
    let is_one = |path: &PathBuf| path.is_file() || depth < DEEPEST && has_texts_below(path, depth + 1);
    inside(folder).iter().any(is_one)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::corpus::followed::rows_made;

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
        assert!(text.contains("python3 -c") && text.contains("\"label\": file.relative_to(top)"), "{text}");
        let above = refused(&place.path().join("imdb"));
        assert!(above.ends_with("imdb/train to train on it"), "{above}");
        let empty = place.path().join("empty");
        fs::create_dir(&empty).expect("writable");
        assert!(refused(&empty).contains("name files of rows"));
        fs::write(empty.join("rows.jsonl"), "").expect("writable");
        check_entries(&[empty], &LabelConfig::default()).expect("a data set");
    }

    fn make(place: &Path, files: &[&str]) {
        for file in files {
            let file = place.join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("writable");
            fs::write(file, "a text").expect("writable");
        }
    }

    #[test]
    fn the_test_folder_is_never_proposed_for_training() {
        let place = tempfile::tempdir().expect("a folder");
        let path = |name: &str| place.path().join(name).display().to_string();
        make(
            place.path(),
            &["a/test/pos/1.txt", "a/train/neg/1.txt", "a/train/README", "b/test/x/1.txt", "b/all/x/1.txt"],
        );
        make(place.path(), &["c/x/y/1.txt", "d/x/test/1.txt", "d/y/1.txt", "e/x/a/1.txt", "e/y/a/1.txt"]);
        for (folder, end) in [
            ("a", format!("name {} to train on it, and {} for data.valid", path("a/train"), path("a/test"))),
            ("b", format!("name {} to train on it, and {} for data.valid", path("b/all"), path("b/test"))),
            ("c", format!("such as {}", path("c/x"))),
            ("d", format!("{} > rows.jsonl", path("d"))),
            (
                "e",
                format!(
                    "if the folders in them are the classes, name one with a folder for each class, such as {}",
                    path("e/x")
                ),
            ),
        ] {
            let text = refused(&place.path().join(folder));
            assert!(text.ends_with(&end), "{text}");
        }
    }

    #[test]
    fn annotations_of_brat_become_rows_with_spans() {
        let place = tempfile::tempdir().expect("a folder");
        make(place.path(), &["brat/annotation.conf", "brat/more/b.txt", "brat/more/alone.ann"]);
        fs::write(place.path().join("brat/a.txt"), "Ada sees Rome today.").expect("writable");
        let marks = "T1\tPER 0 3\tAda\nR1\tsees Arg1:T1 Arg2:T2\nT2\tLOC 9 10;12 13\tR e\n";
        fs::write(place.path().join("brat/a.ann"), marks).expect("writable");
        let said = refused(&place.path().join("brat"));
        let Some(made) = rows_made(&said, place.path()) else { return };
        assert_eq!(made.len(), 1, "{said}");
        assert_eq!(made[0], json!({"text": "Ada sees Rome today.", "entities": [[0, 3, "PER"], [9, 13, "LOC"]]}));
    }

    #[test]
    fn texts_of_deeper_folders_keep_their_class() {
        let place = tempfile::tempdir().expect("a folder");
        make(place.path(), &["law/BGB/1.txt", "law/StGB/2.txt", "law/Acts/2019/3.txt", "law/Acts/2019/.DS_Store"]);
        fs::write(place.path().join("law/BGB/4.txt"), b"caf\xe9").expect("writable");
        let text = refused(&place.path().join("law"));
        assert!(text.contains("\"Acts\", \"BGB\", \"StGB\"") && text.contains("in folders below them"), "{text}");

        let command = text.split("of each text: ").nth(1).expect("a command");
        let ran = std::process::Command::new("sh").args(["-c", command]).current_dir(place.path()).output();
        let Ok(ran) = ran.inspect_err(|error| eprintln!("no shell: {error}")) else { return };
        let said = String::from_utf8_lossy(&ran.stderr);
        if !ran.status.success() && said.contains("not found") {
            return; // no Python here
        }
        assert!(ran.status.success() && said.contains("4.txt is empty or not UTF-8"), "{said}");
        let rows = fs::read_to_string(place.path().join("rows.jsonl")).expect("rows");
        let labels: Vec<&str> = rows.lines().filter_map(|row| row.split('"').nth(7)).collect();
        assert_eq!(labels, ["Acts", "BGB", "StGB"], "{rows}");
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
