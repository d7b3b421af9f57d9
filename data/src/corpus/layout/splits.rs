//! Fields that say to which part of a data set a row belongs: to train on, to validate with, or to test with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::corpus::fields::words_of;
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::json::{JsonFields, first_rows};
use crate::formats::{FileFormat, TEST, TRAIN, VALID, Wanted};
use crate::terminal::shell_path;

/// Words in the names of such fields. Under another name, the first rows must have two parts.
const NAMES: [&str; 10] =
    ["split", "splits", "set", "subset", "partition", "fold", "dataset", "usage", "phase", "portion"];
/// Further names of rows to test with.
const MORE_TESTS: [&str; 3] = ["holdout", "heldout", "tst"];
/// The parts in the names of files.
const PARTS: [&str; 3] = ["train", "valid", "test"];
/// Most words of such a value, such as `train_sft` or `PublicTest`.
const MOST_WORDS: usize = 3;
/// Different values of a field that are counted.
const MOST_VALUES: usize = 50;
/// Rows of which one in so many may belong to none of the parts.
const OTHERS: u64 = 20;

/// A field with the parts of a data set.
pub(super) struct Splits {
    field: String,
    /// The values of rows to train on, to validate with and to test with, with their numbers.
    parts: [BTreeMap<String, u64>; 3],
}

/// Returns which part a value names: 0 to train on, 1 to validate with, 2 to test with.
pub(super) fn part_of(value: &str) -> Option<usize> {
    let words = words_of(value);
    let is_of =
        |names: &[&str]| words.iter().any(|word| names.contains(&word.trim_end_matches(|c: char| c.is_ascii_digit())));
    let parts = [is_of(&TRAIN), is_of(&VALID) || is_of(&["development"]), is_of(&TEST) || is_of(&MORE_TESTS)];
    (words.len() <= MOST_WORDS).then(|| parts.iter().position(|is_one| *is_one)).flatten()
}

/// Returns the fields of `rows`, the first of a file, whose values are parts, with dots for nested objects.
pub(super) fn fields_with_parts(rows: &[Map<String, Value>]) -> Vec<String> {
    let mut values: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, value) in rows.iter().flatten() {
        match value {
            Value::String(text) => values.entry(name.clone()).or_default().push(text),
            Value::Object(inner) => {
                let texts = inner.iter().filter_map(|(key, value)| Some((key, value.as_str()?)));
                texts.for_each(|(key, text)| values.entry(format!("{name}.{key}")).or_default().push(text));
            }
            _ => {}
        }
    }
    let is_one = |(name, values): &(String, Vec<&str>)| {
        let mut found: Vec<Option<usize>> = values.iter().map(|value| part_of(value)).collect();
        found.sort_unstable();
        found.dedup();
        let is_named = words_of(name).iter().any(|word| NAMES.contains(&word.as_str()));
        found.first().is_some_and(Option::is_some) && (is_named || found.len() > 1)
    };
    values.into_iter().filter(is_one).map(|(name, _)| name).collect()
}

/// Counts the rows of a file by the values of a field with texts. `None` with too many values.
pub(super) fn values_of(file: &Path, format: FileFormat, field: &str) -> Option<BTreeMap<String, u64>> {
    let fields = JsonFields::new([field.to_owned()]);
    let mut records = format.open(file, &Wanted::all()).ok()?;
    let (mut line, mut counts) = (Vec::new(), BTreeMap::new());
    while records.next(&mut line).ok()?.is_some() {
        if let Ok(Ok([value])) = std::str::from_utf8(&line).map(|line| fields.parse(line)) {
            *counts.entry(value.into_owned()).or_insert(0) += 1;
        }
        if counts.len() > MOST_VALUES {
            return None;
        }
        line.clear();
    }
    Some(counts)
}

/// Finds the field of a file by whose values some rows are not for training. `rows` are the first ones, and `read` the fields that the
/// model reads or learns.
pub(super) fn of(file: &Path, format: FileFormat, rows: &[Map<String, Value>], read: &[&String]) -> Option<Splits> {
    let candidates = fields_with_parts(rows).into_iter().filter(|field| !read.contains(&field));
    candidates.into_iter().find_map(|field| {
        let mut parts: [BTreeMap<String, u64>; 3] = Default::default();
        let mut n_others = 0;
        for (value, n) in values_of(file, format, &field)? {
            match part_of(&value) {
                Some(part) => drop(parts[part].insert(value, n)),
                None => n_others += n,
            }
        }
        let found = Splits { field, parts };
        let n = found.n(0) + found.n(1) + found.n(2);
        (found.n(1) + found.n(2) > 0 && OTHERS * n_others <= n).then_some(found)
    })
}

impl Splits {
    fn n(&self, part: usize) -> u64 {
        self.parts[part].values().sum()
    }

    /// Says which rows are not for training, and how the file is divided.
    pub(super) fn warning(&self, file: &Path, format: FileFormat) -> String {
        let then = match self.n(1) {
            0 => String::new(),
            _ => format!(", with --set data.valid={}", shell_path(&part_path(file, 1))),
        };
        format!(
            "warning: {}, and all of them are trained on{}",
            self.marked(file),
            self.divided(file, format, &format!("train on {}{then}", shell_path(&part_path(file, 0))))
        )
    }

    /// Says how many rows the field marks for each part.
    fn marked(&self, file: &Path) -> String {
        let n = |part: usize| self.n(part);
        let parts = [(n(0), "training"), (n(1), "validation"), (n(2), "tests")].into_iter().filter(|(n, _)| *n > 0);
        let parts: Vec<String> = parts.map(|(n, part)| format!("{n} rows for {part}")).collect();
        format!("\"{}\" of {} marks {}", self.field, file.display(), parts.join(", "))
    }

    /// Returns the commands that divide the file, and what follows `then`. Empty without rows for training.
    fn divided(&self, file: &Path, format: FileFormat, then: &str) -> String {
        if self.n(0) == 0 {
            return String::new();
        }
        let commands = (0..PARTS.len()).filter(|part| self.n(*part) > 0).map(|part| {
            let path = path_in_jq(&self.field.split('.').map(str::to_owned).collect::<Vec<_>>());
            let values: Vec<String> = self.parts[part].keys().map(|value| json!(value).to_string()).collect();
            let program = match values.as_slice() {
                [value] => format!("select({path} == {value})"),
                several => format!("select({path} | IN({}))", several.join(", ")),
            };
            let name = shell_path(&part_path(file, part));
            jq::command(file, format, &program).replace("> rows.jsonl", &format!("> {name}"))
        });
        let commands: Vec<String> = commands.collect();
        format!("; to divide the file:\n{}\nand {then}", commands.join("\n"))
    }
}

/// Returns the name of the file with a part of `file`, in the present folder.
fn part_path(file: &Path, part: usize) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = name.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or("rows").to_owned();
    format!("{stem}.{}.jsonl", PARTS[part]).into()
}

/// Adds to a refusal with a command that makes rows how the file is divided first, if it has rows that are not for training.
pub(super) fn divided_first(file: &Path, found: String) -> String {
    let makes_rows = ["> rows.jsonl", "> words.jsonl"].iter().any(|part| found.contains(part));
    let Some(format) = FileFormat::by_name(file).filter(|_| makes_rows) else { return found };
    match of(file, format, &first_rows(file, format).rows, &[]) {
        Some(splits) => format!(
            "{found}\n{}, and the command above makes rows of all of them{}",
            splits.marked(file),
            splits.divided(file, format, "make rows of each of these files in its place")
        ),
        None => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[&str], name: &str) -> Vec<Map<String, Value>> {
        let row = |value: &&str| json!({"text": "a b c", name: value}).as_object().expect("an object").clone();
        values.iter().map(row).collect()
    }

    #[test]
    fn fields_with_parts_are_known_by_their_names_and_values() {
        for (name, values, is_one) in [
            ("split", &["train", "train"][..], true),
            ("partition", &["test"], true),
            ("Usage", &["Training", "PublicTest"], true),
            ("x", &["train_sft", "test_sft"], true),
            ("x", &["dev-00", "train-01"], true),
            ("x", &["train", "train"], false),
            ("set", &["train", "bus"], false),
            ("kind", &["test", "car"], false),
            ("split", &["", "train"], false),
        ] {
            assert_eq!(!fields_with_parts(&rows(values, name)).is_empty(), is_one, "{name} {values:?}");
        }
    }

    #[test]
    fn rows_far_from_the_beginning_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("it's.jsonl");
        let line =
            |n: usize| json!({"text": format!("a {n}"), "meta": {"split": if n < 300 { "train" } else { "test" }}});
        std::fs::write(&file, (0..400).map(|n| format!("{}\n", line(n))).collect::<String>()).expect("writable");
        let first = crate::corpus::json::first_rows(&file, FileFormat::JSON).rows;
        let found = of(&file, FileFormat::JSON, &first, &[]).expect("parts");
        let said = found.warning(&file, FileFormat::JSON);
        assert!(
            said.contains("marks 300 rows for training, 100 rows for tests, and all of them are trained on"),
            "{said}"
        );
        assert!(said.contains("select(.meta.split == \"test\")") && said.contains("'it'\\''s.test.jsonl'"), "{said}");
        assert!(of(&file, FileFormat::JSON, &first, &[&"meta.split".to_owned()]).is_none());
    }
}
