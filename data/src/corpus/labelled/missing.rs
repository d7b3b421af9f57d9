//! Classes that stand for labels which are missing: `-1` next to numbers of classes, `nan`, `None`, `-`.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Classes, Task};
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::origins;
use crate::formats::{FileFormat, Split, find_files};

/// Names of such classes in lower case.
const NAMES: [&str; 15] = [
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
    /// Names classes of texts that seem to stand for missing labels, with their share and the command that leaves their rows out. The labels
    /// are in `field` of the rows of `files`.
    pub fn note_on_missing(&self, task: Task, files: &[PathBuf], field: &str) -> Option<String> {
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
        let files = find_files(files, Split::Train, false).ok()?;
        let files = origins::names(files.iter().map(PathBuf::as_path));
        let (first, others) = files.split_first()?;
        let first = Path::new(first);
        let format = FileFormat::by_name(first).unwrap_or(FileFormat::JSON);
        let command = jq::command(first, format, &format!("select({conditions} | not)"));
        let others = match others.len() {
            0 => String::new(),
            n => format!(", and do the same for {n} more files, with other names"),
        };
        let said = format!(
            "warning: {what} {shown} {means} to stand for missing labels, and the model learns to predict it; to leave these rows out: \
             {command}\nand train on rows.jsonl{others}"
        );
        Some(jq::kept_apart(first, &said))
    }
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
            (&["NA", "DE", "FR"], &[]),
            (&["NA", "good", "bad"], &["NA"]),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let found: Vec<&str> = names.iter().map(String::as_str).filter(|name| is_missing(name, &names)).collect();
            assert_eq!(found, missing, "{names:?}");
        }
    }
}
