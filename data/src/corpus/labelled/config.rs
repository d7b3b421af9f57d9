//! How labelled rows are read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::corpus::filter::RowFilter;
use crate::corpus::template::template_problem;

/// How labelled rows are read: records with texts and their classes, or words and their tags. The configuration table
/// `[data.labels]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LabelConfig {
    /// Names of the classes or tags, in the order of their ids. Empty: the labels of the training rows, sorted.
    pub names: Vec<String>,
    /// Name of the field with the text. A dot reaches into nested objects, and a template makes the text of several fields
    /// (`{title}: {body}`).
    pub text_field: String,
    /// Name of the field with a second text, which rows may lack.
    pub pair_field: String,
    /// Name of the field with the class: a name, or the number of one.
    pub label_field: String,
    /// Name of the field with the words, a list.
    pub words_field: String,
    /// Name of the field with the tags of the words, a list of names or numbers.
    pub tags_field: String,
    /// Tolerated fraction of unusable rows, in [0, 1].
    pub max_bad_rows: f64,
    /// Drops usable rows that are not wanted. Not a key of this table: training text has one (`data.filter`), validation text has none.
    #[serde(skip)]
    pub filter: Option<Arc<RowFilter>>,
}

impl Default for LabelConfig {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            text_field: "text".into(),
            pair_field: "text_pair".into(),
            label_field: "label".into(),
            words_field: "tokens".into(),
            tags_field: "tags".into(),
            max_bad_rows: 0.0,
            filter: None,
        }
    }
}

impl LabelConfig {
    /// Returns all invalid settings, each with a remedy.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (key, field) in [
            ("text_field", &self.text_field),
            ("pair_field", &self.pair_field),
            ("label_field", &self.label_field),
            ("words_field", &self.words_field),
            ("tags_field", &self.tags_field),
        ] {
            if field.is_empty() {
                problems.push(format!("data.labels.{key} is empty: name the JSON field"));
            }
            if ["text_field", "pair_field"].contains(&key) {
                problems.extend(template_problem(&format!("data.labels.{key}"), field));
            }
        }

        let mut sorted: Vec<&String> = self.names.iter().collect();
        sorted.sort();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            problems.push(format!("data.labels.names has {:?} twice: name each class once", twice[0]));
        }
        if !(0.0..=1.0).contains(&self.max_bad_rows) {
            problems.push(format!(
                "data.labels.max_bad_rows = {} is not a fraction: use 0 (reject any bad row) to 1 (accept all)",
                self.max_bad_rows
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_named() {
        let good = LabelConfig::default();
        assert_eq!(good.validate(), Vec::<String>::new());
        let cases = [
            (LabelConfig { tags_field: String::new(), ..good.clone() }, "data.labels.tags_field is empty"),
            (
                LabelConfig { names: ["a", "b", "a"].map(Into::into).into(), ..good.clone() },
                "data.labels.names has \"a\" twice",
            ),
            (LabelConfig { max_bad_rows: f64::NAN, ..good.clone() }, "data.labels.max_bad_rows = NaN"),
        ];
        for (config, wanted) in cases {
            let problems = config.validate();
            assert!(problems.len() == 1 && problems[0].starts_with(wanted), "{problems:?}");
        }
    }
}
