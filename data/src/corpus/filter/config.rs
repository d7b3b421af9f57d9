//! Which rows a filter keeps.

use regex::Regex;
use serde::{Deserialize, Deserializer, Serialize};

use super::script::Script;

/// The rows that are wanted, of those that can be used. The configuration table `[data.filter]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilterConfig {
    /// What the limits of lengths count.
    pub length_unit: LengthUnit,
    /// Shortest text: each side of a pair, a document, a conversation. 0: no limit.
    pub min_length: usize,
    /// Longest text. 0: no limit.
    pub max_length: usize,
    /// Pairs: the longer side divided by the shorter one, at most. 0: no limit.
    pub max_length_ratio: f64,
    /// Pairs: drops rows whose two sides are the same text.
    pub drop_identical: bool,
    /// Text, labels and conversations: scripts of the letters, by Unicode's names (`Latin`). Empty: any.
    #[serde(deserialize_with = "one_or_several")]
    pub script: Vec<String>,
    /// Pairs: scripts of the source's letters. Empty: any.
    #[serde(deserialize_with = "one_or_several")]
    pub source_script: Vec<String>,
    /// Pairs: scripts of the target's letters. Empty: any.
    #[serde(deserialize_with = "one_or_several")]
    pub target_script: Vec<String>,
    /// Least fraction of the letters in one of the scripts, in (0, 1].
    pub min_script_share: f64,
    /// Drops rows in which this regular expression is found, of a pair in either side. Empty: none.
    pub drop_regex: String,
    /// Keeps only rows in which this regular expression is found, of a pair in both sides. Empty: all.
    pub keep_regex: String,
    /// Drops rows that are equal to an earlier one of the same files.
    pub drop_duplicates: bool,
}

impl Default for FilterConfig {
    fn default() -> Self {
        Self {
            length_unit: LengthUnit::Words,
            min_length: 0,
            max_length: 0,
            max_length_ratio: 0.0,
            drop_identical: false,
            script: Vec::new(),
            source_script: Vec::new(),
            target_script: Vec::new(),
            min_script_share: 0.5,
            drop_regex: String::new(),
            keep_regex: String::new(),
            drop_duplicates: false,
        }
    }
}

/// What a length counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LengthUnit {
    /// Words between white space.
    #[default]
    Words,
    /// Unicode characters, white space included.
    Characters,
}

impl LengthUnit {
    /// Measures a text.
    pub(super) fn length(self, text: &str) -> usize {
        match self {
            Self::Words => text.split_whitespace().count(),
            Self::Characters => text.chars().count(),
        }
    }

    /// Names a length.
    pub(super) fn counted(self, length: usize) -> String {
        let unit = match self {
            Self::Words => "word",
            Self::Characters => "character",
        };
        format!("{length} {unit}{}", if length == 1 { "" } else { "s" })
    }
}

/// What a filter looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilteredRows {
    /// Pairs of texts.
    Pairs,
    /// Rows of one text: documents, labelled rows, conversations.
    Texts,
}

/// Reads a list of names, or one name.
fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Names {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Names::deserialize(deserializer)? {
        Names::One(name) => vec![name],
        Names::Several(names) => names,
    })
}

impl FilterConfig {
    /// Whether every row passes.
    pub fn is_empty(&self) -> bool {
        // Neither of these drops a row on its own.
        let Self { length_unit, min_script_share, .. } = *self;
        *self == Self { length_unit, min_script_share, ..Self::default() }
    }

    /// Returns all invalid settings for `rows`, each with a remedy. `place` says whose filter it is, such as `data.filter.`; the name
    /// of a key follows it.
    pub fn validate(&self, place: &str, rows: FilteredRows) -> Vec<String> {
        let mut problems = Vec::new();
        if self.max_length > 0 && self.min_length > self.max_length {
            problems.push(format!(
                "{place}min_length = {} is above max_length = {}, so no row passes; lower it, or raise the other",
                self.min_length, self.max_length
            ));
        }
        let ratio = self.max_length_ratio;
        if ratio != 0.0 && !(ratio >= 1.0 && ratio.is_finite()) {
            problems.push(format!(
                "{place}max_length_ratio = {ratio} is the longer side divided by the shorter one: use a number from 1, or 0 for no \
                 limit"
            ));
        }
        let share = self.min_script_share;
        if !(share > 0.0 && share <= 1.0) {
            problems.push(format!("{place}min_script_share = {share} is not a fraction above 0 and up to 1"));
        }

        let scripts =
            [("script", &self.script), ("source_script", &self.source_script), ("target_script", &self.target_script)];
        for (key, names) in scripts {
            problems.extend(Script::of(names).err().map(|problem| format!("{place}{key} {problem}")));
        }
        for (key, pattern) in [("drop_regex", &self.drop_regex), ("keep_regex", &self.keep_regex)] {
            let error = Regex::new(pattern).err().map(|error| error.to_string());
            let reason =
                error.as_deref().and_then(|error| error.lines().last()).map(|line| line.trim_start_matches("error: "));
            problems.extend(
                reason.map(|reason| format!("{place}{key} = {pattern:?} is not a regular expression: {reason}")),
            );
        }
        problems.extend(self.unfit_keys(rows).into_iter().map(|(key, remedy)| format!("{place}{key} {remedy}")));
        problems
    }

    /// Returns the keys that are set and that `rows` do not have.
    fn unfit_keys(&self, rows: FilteredRows) -> Vec<(&'static str, &'static str)> {
        let of_pairs = "compares or names a side of a pair, and these rows have one text; remove it";
        let set = match rows {
            FilteredRows::Pairs => vec![(
                "script",
                !self.script.is_empty(),
                "is for rows of one text; name the sides of a pair with source_script and target_script",
            )],
            FilteredRows::Texts => vec![
                ("max_length_ratio", self.max_length_ratio != 0.0, of_pairs),
                ("drop_identical", self.drop_identical, of_pairs),
                ("source_script", !self.source_script.is_empty(), "is for pairs; name it script"),
                ("target_script", !self.target_script.is_empty(), "is for pairs; name it script"),
            ],
        };
        set.into_iter().filter(|(_, is_set, _)| *is_set).map(|(key, _, remedy)| (key, remedy)).collect()
    }
}
