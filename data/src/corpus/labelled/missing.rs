//! Classes that stand for labels which are missing: `-1` next to numbers of classes, `nan`, `None`, `-`.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Classes, Task};
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::origins;
use crate::formats::{FileFormat, Split, find_files};

/// Names of such classes in lower case.
const NAMES: [&str; 18] = [
    "\\n",
    "nan",
    "null",
    "n/a",
    "#n/a",
    "<na>",
    "nat",
    "nil",
    "undefined",
    "missing",
    "unlabeled",
    "unlabelled",
    "unsup",
    "unsupervised",
    "no label",
    "unannotated",
    "not labeled",
    "-100",
];
/// The same for signs, next to classes with letters or digits.
const SIGNS: [&str; 4] = ["-", "--", "?", "."];

/// Whether a class stands for missing labels, next to the other `names`.
fn is_missing(name: &str, names: &[String]) -> bool {
    let others = || names.iter().filter(|other| *other != name);
    let numbers: Vec<f64> = others().filter_map(|other| other.parse().ok()).collect();
    let are_words = others().any(|other| other.chars().any(char::is_alphanumeric));
    match name.trim() {
        // A feeling may be -1, 0 or 1, and a scale goes on below.
        "-1" if numbers.len() == others().count() => numbers.len() > 2 && numbers.iter().all(|number| *number >= 0.0),
        "-1" => true,
        // "none" is a class of its own in many data sets. Python writes the other one.
        "None" => true,
        // A country or a language has two letters, too.
        "NA" => others().any(|other| other.chars().count() > 2),
        sign if SIGNS.contains(&sign) => are_words,
        other => NAMES.contains(&other.to_lowercase().as_str()),
    }
}

impl Classes {
    /// Names classes of texts that seem to stand for missing labels, with their share and the commands that leave their rows out. The labels
    /// are in `field` of the rows of the files to train on, and of those for validation, which have classes of their own.
    pub fn note_on_missing(
        &self,
        task: Task,
        train: &[PathBuf],
        valid: Option<(&[PathBuf], &Classes)>,
        field: &str,
    ) -> Option<String> {
        let found: Vec<usize> = (0..self.names.len()).filter(|id| is_missing(&self.names[*id], &self.names)).collect();
        if found.is_empty() || task == Task::Tagging {
            return None;
        }
        let share = |id: &usize| {
            format!("{:?} ({:.1} %)", self.names[*id], 100.0 * self.counts[*id] as f64 / self.n_rows as f64)
        };
        let shown = found.iter().map(share).collect::<Vec<_>>().join(", ");
        let what = if found.len() == 1 { "the class" } else { "the classes" };
        let means = if found.len() == 1 { "seems" } else { "seem" };

        let path = path_in_jq(&field.split('.').map(str::to_owned).collect::<Vec<_>>());
        let is_one = |id: &usize| match self.names[*id].parse::<i64>() {
            Ok(number) => format!("({path} | tonumber? // .) == {number}"),
            Err(_) => format!("{path} == {}", json!(self.names[*id])),
        };
        let conditions = found.iter().map(is_one).collect::<Vec<_>>().join(" or ");
        let program = format!("select({conditions} | not)");
        let of_train = without_rows(train, Split::Train, &program, ("rows.jsonl", "train on rows.jsonl"))?;
        let has_missing = |classes: &Classes| {
            let names = found.iter().map(|id| &self.names[*id]);
            names
                .into_iter()
                .any(|name| classes.names.iter().zip(&classes.counts).any(|(own, n)| own == name && *n > 0))
        };
        let of_valid = valid.filter(|(_, classes)| has_missing(classes)).and_then(|(files, _)| {
            let then = ("valid.jsonl", "read valid.jsonl as data.valid");
            without_rows(files, Split::Valid, &program, then)
        });
        let of_valid =
            of_valid.map_or(String::new(), |found| format!("\nthe rows for validation have them, too: {found}"));
        Some(format!(
            "warning: {what} {shown} {means} to stand for missing labels, and the model learns to predict it; to leave these rows out: \
             {of_train}{of_valid}"
        ))
    }
}

/// Returns the command that writes the rows of files that a program keeps into the file `made`, and what to do `then`.
fn without_rows(files: &[PathBuf], split: Split, program: &str, (made, then): (&str, &str)) -> Option<String> {
    let files = find_files(files, split, false).ok()?;
    let files = origins::names(files.iter().map(PathBuf::as_path));
    let (first, others) = files.split_first()?;
    let first = Path::new(first);
    let format = FileFormat::by_name(first).unwrap_or(FileFormat::JSON);
    let command = jq::command(first, format, program).replace("> rows.jsonl", &format!("> {made}"));
    let others = match others.len() {
        0 => String::new(),
        n => format!(", and do the same for {n} more files, with other names"),
    };
    Some(jq::kept_apart(first, &format!("{command}\nand {then}{others}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_missing_labels_depend_on_the_other_classes() {
        for (names, missing) in [
            (&["-1", "0", "1", "2"][..], &["-1"][..]),
            (&["-1", "0", "1"], &[]),
            (&["-2", "-1", "0", "1", "2"], &[]),
            (&["-1", "neg", "pos"], &["-1"]),
            (&["-", "entailment", "neutral"], &["-"]),
            (&["-", "+"], &[]),
            (&["None", "nan", "#N/A", "pos", "NULL"], &["None", "nan", "#N/A", "NULL"]),
            (&["none", "pos", "neg"], &[]),
            (&["neg", "pos", "unsup"], &["unsup"]),
            (&["NA", "DE", "FR"], &[]),
            (&["NA", "good", "bad"], &["NA"]),
            (&["\\N", "n", "p"], &["\\N"]),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let found: Vec<&str> = names.iter().map(String::as_str).filter(|name| is_missing(name, &names)).collect();
            assert_eq!(found, missing, "{names:?}");
        }
    }
}
