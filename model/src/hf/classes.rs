//! Heads for classes in `config.json`: the number of classes for all families, and the head of the decoders, `score`.
//!
//! `...ForSequenceClassification` of a decoder has `score.weight` in place of the projection to the vocabulary. It reads the last token
//! that is not `pad_token_id`, and needs that field for batches of several texts.

use serde_json::{Map, Value, json};

use super::Family;
use super::fields::Fields;
use super::table::{Layout, Table};
use crate::config::{ClassHead, TransformerConfig};

/// The head's module in `transformers`.
pub(super) const MODULE: &str = "score";
/// Its weight in a file.
pub(super) const WEIGHT: &str = "score.weight";
/// Its weight here.
pub(super) const OURS: &str = "classifier.output.weight";

/// The names of the model's class in `transformers`.
pub(super) fn architectures<'a>(fields: &Fields<'a>) -> impl Iterator<Item = &'a str> {
    fields.get("architectures").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Refuses heads that do not predict one class of several.
pub(super) fn check_problem_type(fields: &mut Fields<'_>) {
    fields.only("problem_type", "single_label_classification", "Kiln's models predict one class of several");
}

/// The number of classes. `transformers` writes their names, and the number only where there are none.
pub(super) fn n_classes(fields: &mut Fields<'_>) -> usize {
    let named = fields.get("id2label").and_then(Value::as_object).map(Map::len);
    let n = named.unwrap_or_else(|| fields.size_or("num_labels", 2));
    if n < 2 {
        fields
            .problems
            .push(format!("id2label names {n} classes; a head for one number (regression) is not supported"));
        return 2;
    }
    n
}

/// The head of a decoder that `config.json` promises, and its classes.
pub(super) fn of_decoder(fields: &mut Fields<'_>) -> (ClassHead, usize) {
    let named = |end: &str| architectures(fields).find(|name| name.ends_with(end)).map(str::to_owned);
    let (of_words, of_texts) = (named("ForTokenClassification"), named("ForSequenceClassification"));
    if let Some(name) = of_words {
        fields.problems.push(format!(
            "architectures has {name}: a decoder that tags words is not supported, because it has not read what follows a word; \
             Kiln tags words with encoders (BERT, RoBERTa), and classifies whole texts with decoders"
        ));
    }
    if of_texts.is_none() {
        return (ClassHead::None, 0);
    }
    check_problem_type(fields);
    if fields.get("pad_token_id").is_none() {
        fields.notes.push(
            "pad_token_id is missing, so transformers takes one text at a time; kiln export writes the field"
                .to_owned(),
        );
    }
    (ClassHead::Last, n_classes(fields))
}

/// Puts the head in place of the projection to the vocabulary.
pub(super) fn replace_output(table: &mut Table, config: &TransformerConfig) {
    table.rows.retain(|row| row.ours != "output.weight");
    table.add_one(OURS, WEIGHT, Layout::Linear { n_in: config.d_model }, config.n_classes);
}

/// Names the class of a decoder with the head.
pub(super) fn write(family: Family, config: &TransformerConfig, written: &mut Map<String, Value>) {
    let stem = match family {
        Family::Gpt2 => "GPT2",
        Family::Mistral => "Mistral",
        Family::Qwen2 => "Qwen2",
        Family::Qwen3 => "Qwen3",
        Family::Gemma2 => "Gemma2",
        Family::Gemma3 => "Gemma3Text",
        _ => "Llama",
    };
    written.insert("architectures".to_owned(), json!([format!("{stem}ForSequenceClassification")]));
    written.insert("num_labels".to_owned(), json!(config.n_classes));
}
