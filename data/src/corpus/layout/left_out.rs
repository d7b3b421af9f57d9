//! Texts of rows with a class that the class is not learned from.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::RowReader;
use crate::corpus::columns::{Column, ENOUGH_ROWS, column_at, columns_of, left_out, with_examples};
use crate::corpus::fields::{is_about, is_analysis, is_of_persons};
use crate::corpus::labelled::LabelConfig;
use crate::corpus::pairs::flag;
use crate::corpus::path::value_at;
use crate::corpus::share;
use crate::corpus::text::Task;

/// Words of a part of a text that rows are about, at most.
const MOST_WORDS: usize = 4;
/// Names the fields with texts that are not `read`, with an example of each; empty if there are none.
pub(super) fn other_texts(rows: &[Map<String, Value>], order: &[String], read: &[&String]) -> String {
    if read.iter().any(|name| name.contains('{')) {
        return share::rest(rows, read);
    }
    let columns = columns_of(rows);
    let read: Vec<&str> = read.iter().map(|name| name.as_str()).collect();
    let parts = parts_of(rows, &columns, &read);
    let named = || order.iter().filter_map(|name| columns.get_key_value(name));
    let others = left_out(named().map(|(name, column)| (name.as_str(), column)), &read).unwrap_or_default();
    let parts = named().filter(|(name, _)| parts.contains(name) && !others.contains(&format!("\"{name}\" (")));
    let parts = with_examples(parts.map(|(name, column)| (name.as_str(), column)));
    let found: Vec<String> = [parts, others].into_iter().filter(|names| !names.is_empty()).collect();
    if found.is_empty() { String::new() } else { format!("\nthat leaves out {}", found.join(", ")) }
}

/// Returns the fields with a few words of the texts in the fields that are `read`.
fn parts_of<'c>(rows: &[Map<String, Value>], columns: &'c BTreeMap<String, Column>, read: &[&str]) -> Vec<&'c String> {
    let part_of_text = |row: &Map<String, Value>, name: &str| {
        let texts = read.iter().filter_map(|field| value_at(row, field)?.as_str());
        let part = value_at(row, name)?.as_str()?.trim().to_lowercase();
        // Words of the text may have other endings.
        let begins = |text: &str| {
            let before = |at: usize| text[..at].chars().next_back();
            text.match_indices(&part).any(|(at, _)| before(at).is_none_or(|c| !c.is_alphanumeric()))
        };
        Some(!part.is_empty() && texts.into_iter().any(|text| begins(&text.to_lowercase())))
    };
    let is_part = |(name, column): &(&'c String, &Column)| {
        let found: Vec<bool> = rows.iter().filter_map(|row| part_of_text(row, name)).collect();
        let n_parts = found.iter().filter(|is_part| **is_part).count();
        let is_short = column.n_words <= MOST_WORDS * column.n;
        let can_be = column.can_be_read(name) && !is_about(name) && !is_of_persons(name) && !is_analysis(name);
        let is_usual = found.len() >= ENOUGH_ROWS && found.len() * 2 > rows.len() && 10 * n_parts >= 9 * found.len();
        can_be && is_short && is_usual && !read.contains(&name.as_str())
    };
    columns.iter().filter(is_part).map(|(name, _)| name).collect()
}

impl RowReader<'_> {
    /// Warns of a field with words of the text that the model does not read: the class probably says something of these words.
    pub(super) fn part_left_out(&self, file: &Path, rows: &[Map<String, Value>]) -> Option<String> {
        let LabelConfig { text_field: text, pair_field: pair, label_field: label, .. } = self.labels;
        if self.task != Task::Classification || text.contains('{') || pair.contains('{') || !has_classes(rows, label) {
            return None;
        }
        let columns = columns_of(rows);
        let parts = parts_of(rows, &columns, &[text, pair, label]);
        (column_at(rows, text).n > 0 && !parts.is_empty()).then(|| {
            let names = parts.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
            let template: String = parts.iter().map(|name| format!("{{{name}}}: ")).collect();
            format!(
                "warning: the words in {names} stand in the texts of {}, and the model does not read which ones they are; if the class says \
                 something of them, put them in front: {}",
                file.display(),
                flag("data.labels.text_field", &format!("{template}{{{text}}}"))
            )
        })
    }
}

/// Whether rows have a label in the field.
fn has_classes(rows: &[Map<String, Value>], label: &str) -> bool {
    rows.iter().any(|row| value_at(row, label).is_some())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::corpus::labelled::LabelConfig;
    use crate::corpus::pairs::CorpusConfig;
    use crate::corpus::text::TextConfig;
    use crate::corpus::{Task, check_layout, layout_notes};

    fn write(folder: &Path, row: &dyn Fn(usize) -> String) -> std::path::PathBuf {
        let file = folder.join("a.jsonl");
        fs::write(&file, (0..60).map(row).collect::<String>()).expect("writable");
        file
    }

    fn reader<'a>(parts: (&'a CorpusConfig, &'a TextConfig, &'a LabelConfig)) -> RowReader<'a> {
        let (corpus, text, labels) = parts;
        RowReader { task: Task::Classification, other_tasks: &[], corpus, text, labels }
    }

    #[test]
    fn texts_that_a_class_is_not_learned_from_are_named_with_an_example() {
        let folder = tempfile::tempdir().expect("a folder");
        let (corpus, text, labels) = <(CorpusConfig, TextConfig, LabelConfig)>::default();
        let said = |row: &dyn Fn(usize) -> String| {
            let file = write(folder.path(), row);
            check_layout(&[file], &reader((&corpus, &text, &labels))).expect_err("other fields").to_string()
        };
        // A review with a date, a file, an address, persons and a constant.
        let found = said(&|n| {
            format!(
                r#"{{"overall": {}.0, "when": "05 {}, 2014", "photo": "{n}.jpg", "at": "https://a.org/{n}", "authors": "Ada A., Bob B{n}", "shop": "A shop of ours", "review": "The bicycle {n} from Graz was perfect and it rides well.", "title": "A bicycle {n}"}}{}"#,
                n % 5 + 1,
                n % 28 + 1,
                "\n"
            )
        });
        assert!(found.contains("data.labels.text_field=review"), "{found}");
        assert!(found.contains("that leaves out \"title\" (\"A bicycle 0\")"), "{found}");
        for name in ["when", "photo", "at", "authors", "shop"] {
            assert!(
                !found.contains(&format!("={name} ")) && !found.contains(&format!("out \"{name}\"")),
                "{name}: {found}"
            );
        }

        // A word that a class belongs to, next to two texts.
        let found = said(&|n| {
            format!(
                "{{\"word\": \"word{}\", \"sentence1\": \"one word{} is here\", \"sentence2\": \"and {n} there\", \"label\": {}}}\n",
                n % 3,
                n % 3,
                n % 2
            )
        });
        assert!(found.contains("that leaves out \"word\" (\"word0\")"), "{found}");

        // An annotated copy does not count as a second text.
        let found = said(&|n| {
            let intent = ["weather", "alarm"][n % 2];
            format!(
                "{{\"utt\": \"is it raining in town{n} now\", \"annot_utt\": \"is it raining in [place : town{n}] now\", \"intent\": \"{intent}\"}}\n"
            )
        });
        assert!(found.contains("text_field=utt") && !found.contains("pair_field"), "{found}");
        assert!(found.contains("that leaves out \"annot_utt\""), "{found}");
    }

    #[test]
    fn words_of_the_text_in_a_field_of_their_own_are_warned_about() {
        let folder = tempfile::tempdir().expect("a folder");
        let row = |n: usize| {
            let name = ["Fay", "Ada", "Bob"][n % 3];
            format!(
                "{{\"text\": \"{name} gave it {n} to her\", \"target\": {{\"span\": \"{name}\"}}, \"id\": \"{n}\", \"kind\": \"gave\", \"label\": \"{}\"}}\n",
                ["yes", "no"][n % 2]
            )
        };
        let file = write(folder.path(), &row);
        let (corpus, text, labels) = <(CorpusConfig, TextConfig, LabelConfig)>::default();
        let notes = |labels: &LabelConfig| layout_notes(std::slice::from_ref(&file), &reader((&corpus, &text, labels)));
        let found = notes(&labels).join("\n");
        assert!(
            found.contains("\"target.span\"") && found.contains("--set 'data.labels.text_field={target.span}: {text}'"),
            "{found}"
        );
        let asked = LabelConfig { text_field: "{target.span}: {text}".into(), ..labels };
        assert_eq!(notes(&asked), Vec::<String>::new());
    }
}
