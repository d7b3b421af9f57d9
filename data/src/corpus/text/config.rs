//! How plain text is read and becomes rows.

use serde::{Deserialize, Serialize};

/// What a model learns to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Write the target of a pair, given its source.
    #[default]
    Translation,
    /// Predict the next token of a text.
    Lm,
    /// Predict tokens of a text that are hidden.
    Mlm,
}

/// How the documents of a text are told apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextFormat {
    /// By the name of the file: `.jsonl`, `.ndjson` and `.json` are JSONL, everything else has blank lines.
    #[default]
    Auto,
    /// Documents separated by blank lines.
    BlankLines,
    /// Every file is a document.
    Files,
    /// Every line is a document.
    Lines,
    /// One JSON object a line, whose field `field` is a document.
    Jsonl,
}

/// How documents become rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// Documents one behind the other in full rows. Positions start again at each document, and attention must stop at its
    /// borders: a document that shares its row with others is learned as if it stood alone.
    #[default]
    Documents,
    /// Documents one behind the other in full rows, which the model reads as one text: positions run on, and attention
    /// sees the documents before.
    Stream,
    /// Every document is a row of its own, padded to the length of its bucket (see [`crate::LoaderConfig`]). For
    /// sentences.
    Sentences,
}

/// How plain text is read and cut into rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextConfig {
    /// How the documents are told apart. Files may be compressed with gzip or zstd whatever their names; a folder stands
    /// for all files in it.
    pub format: TextFormat,
    /// JSONL: name of the field with the text. A dot reaches into nested objects (`page.text`).
    pub field: String,
    /// Tokens of a row; the longest row with `packing = "sentences"`. 0: the model's positions.
    pub seq_len: usize,
    /// How documents become rows.
    pub packing: Packing,
    /// Tolerated share of documents that cannot be used (malformed or without text), in [0, 1]. Blank documents cannot
    /// come up in files that have blank lines between documents.
    pub max_bad_rows: f64,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self {
            format: TextFormat::Auto,
            field: "text".into(),
            seq_len: 0,
            packing: Packing::Documents,
            max_bad_rows: 0.01,
        }
    }
}

impl TextConfig {
    /// Everything that cannot work, each with its remedy. `max_positions` are the model's; 0 if there is no model yet.
    pub fn validate(&self, max_positions: usize) -> Vec<String> {
        let mut problems = Vec::new();
        if self.field.is_empty() {
            problems.push("text.field is empty: name the JSON field, for example field = \"text\"".into());
        }
        if self.seq_len == 1 {
            problems.push(
                "text.seq_len = 1 leaves no room for a token and what comes before it: set at least 2, or 0 for the model's \
                 positions"
                    .into(),
            );
        }
        if max_positions > 0 && self.seq_len > max_positions {
            problems.push(format!(
                "text.seq_len = {} is more than the model's {max_positions} positions: lower it, set 0 to use them all, \
                 or raise model.max_positions",
                self.seq_len
            ));
        }
        if !(0.0..=1.0).contains(&self.max_bad_rows) {
            problems.push(format!(
                "text.max_bad_rows = {} is no share of the documents: set a number from 0 (none tolerated) to 1 (all)",
                self.max_bad_rows
            ));
        }
        problems
    }

    /// The same with a `seq_len` of 0 replaced by the model's positions.
    pub fn resolved(&self, max_positions: usize) -> Self {
        let seq_len = if self.seq_len == 0 { max_positions } else { self.seq_len };
        Self { seq_len, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_named() {
        let good = TextConfig::default();
        assert_eq!(good.validate(0), Vec::<String>::new());
        assert_eq!(good.resolved(1024).validate(1024), Vec::<String>::new());
        let cases = [
            (TextConfig { field: String::new(), ..good.clone() }, "text.field is empty"),
            (TextConfig { seq_len: 1, ..good.clone() }, "text.seq_len = 1 leaves no room"),
            (
                TextConfig { seq_len: 2048, ..good.clone() },
                "text.seq_len = 2048 is more than the model's 1024 positions",
            ),
            (TextConfig { max_bad_rows: 1.5, ..good.clone() }, "text.max_bad_rows = 1.5 is no share"),
        ];
        for (config, wanted) in cases {
            let problems = config.validate(1024);
            assert!(problems.len() == 1 && problems[0].starts_with(wanted), "{problems:?}");
        }
        let toml = serde_json::from_str::<TextConfig>(r#"{"packing": "stream", "format": "blank_lines"}"#);
        assert_eq!(toml.expect("known names").packing, Packing::Stream);
        assert!(serde_json::from_str::<TextConfig>(r#"{"pack": "stream"}"#).is_err());
    }
}
