//! How plain text is read and divided into rows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::corpus::filter::{HeldOut, RowFilter, record_of_json};
use crate::corpus::template::template_problem;
use crate::formats::{FileFormat, RowProblem};

/// What a model learns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// To write the target of a pair, given its source.
    #[default]
    Translation,
    /// To predict the next token of a text.
    Lm,
    /// To predict hidden tokens of a text.
    Mlm,
    /// To predict the class of a text, or of two.
    Classification,
    /// To predict the tag of each word.
    Tagging,
}

/// How a text is divided into documents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextFormat {
    /// Decided by the name of the file: `.jsonl`, `.ndjson` and `.json` are JSONL; `.parquet`, `.arrow` and `.feather` have records; all
    /// other files have blank lines between documents.
    #[default]
    Auto,
    /// Documents separated by blank lines.
    BlankLines,
    /// Every file is a document.
    Files,
    /// Every line is a document.
    Lines,
    /// One JSON object per line, whose field `field` is a document.
    Jsonl,
    /// Records of any format that the name of the file tells (JSON, CSV, TSV, Parquet, Arrow, CoNLL), whose field `field` is a document.
    Records,
    /// One JSON object per line, which is a conversation: `messages`, `conversations`, or a question and an answer, such as `prompt`
    /// and `completion` or Alpaca's `instruction`, `input` and `output`.
    Chat,
    /// One JSON object per line, which is a prompt with a preferred answer and another one: `prompt`, `chosen` and `rejected`.
    Preferences,
}

/// Which tokens of a conversation the model learns to predict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Learn {
    /// The answers, each with the tokens that end its turn.
    #[default]
    Answers,
    /// The last answer.
    LastAnswer,
    /// All tokens but the first.
    Everything,
}

/// How documents become rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// Documents in sequence in full rows. Positions restart at each document, and attention stops at its borders: the
    /// model sees a document as if it had a row of its own.
    #[default]
    Documents,
    /// Documents in sequence in full rows, which the model reads as one text: positions continue, and attention sees
    /// the documents before.
    Stream,
    /// One row per document, padded to the length of its bucket (see [`crate::LoaderConfig`]). For sentences, and for conversations
    /// behind a learned prompt.
    Sentences,
}

/// How plain text is read and divided into rows. The configuration table `[data.text]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextConfig {
    /// How a file is divided into documents. Text files may be compressed with gzip, zstd or xz; a folder stands for all
    /// files in it.
    pub format: TextFormat,
    /// JSONL and other records: name of the field with the text. A dot reaches into nested objects (`page.text`). A template makes the text
    /// of several fields (`{title}: {body}`). Conversations with names of their own: the list of messages, or a question and an
    /// answer joined by a comma (`ask,reply`).
    pub field: String,
    /// Tokens per row; the longest row with `packing = "sentences"`. 0: the model's positions.
    pub seq_len: usize,
    /// How documents become rows.
    pub packing: Packing,
    /// Conversations: a file with the chat template to use instead of the vocabulary's own.
    pub chat_template: Option<PathBuf>,
    /// Conversations: which tokens the model learns to predict.
    pub learn: Learn,
    /// Special tokens that the text spells, such as `</s>`: true splits them like other text, so that nobody's data ends a row or
    /// a turn; false reads them as the tokens. A SentencePiece model (`.model`) always splits them.
    pub split_special_tokens: bool,
    /// Tolerated share of unusable documents (malformed or without text), in [0, 1]. Files with blank lines between
    /// documents have no documents without text.
    pub max_bad_rows: f64,
    /// Drops usable documents that are not wanted. Not a key of this table: training text has one (`data.filter`), validation text
    /// has none.
    #[serde(skip)]
    pub filter: Option<Arc<RowFilter>>,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self {
            format: TextFormat::Auto,
            field: "text".into(),
            seq_len: 0,
            packing: Packing::Documents,
            chat_template: None,
            learn: Learn::Answers,
            split_special_tokens: true,
            max_bad_rows: 0.01,
            filter: None,
        }
    }
}

impl TextConfig {
    /// Whether this format reads the records of a file as plain text, with their names and quotes, though the name of the file tells them.
    pub fn reads_records_as_text(&self, file: &Path) -> bool {
        let is_plain = matches!(self.format, TextFormat::BlankLines | TextFormat::Files | TextFormat::Lines);
        is_plain && FileFormat::by_name(file).is_some_and(|format| format == FileFormat::JSON || format.is_binary())
    }

    /// Returns all invalid settings, each with a remedy. `max_positions` is the model's; 0 without a model.
    pub fn validate(&self, max_positions: usize) -> Vec<String> {
        let mut problems = Vec::new();
        if self.field.is_empty() {
            problems.push("data.text.field is empty: name the JSON field, for example field = \"text\"".into());
        }
        problems.extend(template_problem("data.text.field", &self.field));
        let is_chat = self.is_chat();
        if is_chat && self.packing == Packing::Stream {
            problems.push(
                "data.text.packing = \"stream\" makes one text of all documents, but conversations do not see each other: set \
                 \"documents\", which packs them whole, or \"sentences\", which gives each a row"
                    .into(),
            );
        }
        if self.is_preferences() && self.packing == Packing::Sentences {
            problems.push(
                "data.text.packing = \"sentences\" is how answers to compare are read anyway: leave it at \"documents\"".into(),
            );
        }
        if !is_chat && self.chat_template.is_some() {
            problems.push(
                "data.text.chat_template is set, but only conversations have a template: set data.text.format = \"chat\", or \
                 remove it"
                    .into(),
            );
        }
        if !is_chat && self.learn != Learn::Answers {
            problems.push(
                "data.text.learn is set, but only conversations have answers: set data.text.format = \"chat\", or remove it"
                    .into(),
            );
        }
        if self.is_preferences() && self.learn != Learn::Answers {
            problems.push(
                "data.text.learn is set, but of preferences the last answers are compared: remove it, or set data.text.format = \
                 \"chat\""
                    .into(),
            );
        }
        if self.seq_len == 1 {
            problems.push(
                "data.text.seq_len = 1 leaves no room for a token and its context: set at least 2, or 0 for the model's \
                 positions"
                    .into(),
            );
        }

        if max_positions > 0 && self.seq_len > max_positions {
            problems.push(format!(
                "data.text.seq_len = {} is more than the model's {max_positions} positions: lower it, set 0 to use all, \
                 or raise model.max_positions (trained weights with learned positions keep it)",
                self.seq_len
            ));
        }
        if !(0.0..=1.0).contains(&self.max_bad_rows) {
            problems.push(format!(
                "data.text.max_bad_rows = {} is not a fraction: use 0 (reject any bad document) to 1 (accept all)",
                self.max_bad_rows
            ));
        }
        problems
    }

    /// Refuses a record that is for validation.
    pub(super) fn check_record(&self, json: &str) -> Result<(), RowProblem> {
        let read = || self.conversation_in(json).unwrap_or_else(|| record_of_json(json.as_bytes()));
        let check = |filter: &Arc<RowFilter>| filter.check_record(read);
        self.filter.as_ref().map_or(Ok(()), check)
    }

    /// Refuses a document that is for validation.
    pub(super) fn check_document(&self, text: &str) -> Result<(), RowProblem> {
        let check = |filter: &Arc<RowFilter>| filter.check_record(|| HeldOut::record_of_text(text));
        self.filter.as_ref().map_or(Ok(()), check)
    }

    /// Lets the filter judge a text.
    pub(super) fn check_text(&self, text: &str) -> Result<(), RowProblem> {
        self.filter.as_ref().map_or(Ok(()), |filter| filter.check_text(text))
    }

    /// Whether rows are conversations, which a chat template writes.
    pub fn is_chat(&self) -> bool {
        matches!(self.format, TextFormat::Chat | TextFormat::Preferences)
    }

    /// Whether rows are answers to compare.
    pub fn is_preferences(&self) -> bool {
        self.format == TextFormat::Preferences
    }

    /// Replaces a `seq_len` of 0 by the model's positions.
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
            (TextConfig { field: String::new(), ..good.clone() }, "data.text.field is empty"),
            (TextConfig { seq_len: 1, ..good.clone() }, "data.text.seq_len = 1 leaves no room"),
            (
                TextConfig { seq_len: 2048, ..good.clone() },
                "data.text.seq_len = 2048 is more than the model's 1024 positions",
            ),
            (
                TextConfig { format: TextFormat::Chat, packing: Packing::Stream, ..good.clone() },
                "data.text.packing = \"stream\" makes one text",
            ),
            (
                TextConfig { format: TextFormat::Preferences, packing: Packing::Sentences, ..good.clone() },
                "data.text.packing = \"sentences\" is how",
            ),
            (
                TextConfig { chat_template: Some("x.jinja".into()), ..good.clone() },
                "data.text.chat_template is set, but",
            ),
            (TextConfig { learn: Learn::Everything, ..good.clone() }, "data.text.learn is set, but only"),
            (
                TextConfig { format: TextFormat::Preferences, learn: Learn::Everything, ..good.clone() },
                "data.text.learn is set, but of preferences",
            ),
            (TextConfig { max_bad_rows: 1.5, ..good.clone() }, "data.text.max_bad_rows = 1.5 is not a fraction"),
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
