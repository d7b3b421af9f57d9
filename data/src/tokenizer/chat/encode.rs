//! Conversations to ids, with a flag on each token that the model learns to predict.

use std::ops::Range;

use serde_json::Value;
use tokenizers::Tokenizer;

use super::template::{ChatTemplate, TemplateError};
use crate::corpus::{ChatMessage, Learn};
use crate::error::{Error, Result};
use crate::tokenizer::vocabulary::not_a_tokenizer;

/// Marks the ids of tokens that the model learns to predict. Vocabularies are far smaller.
pub(crate) const FLAG: u32 = 1 << 31;

/// Encodes conversations on one thread.
#[derive(Debug)]
pub(crate) struct ChatEncoder {
    template: ChatTemplate,
    tokenizer: SpecialEncoder,
    learn: Learn,
}

/// The ids of a conversation, or why it has none.
pub(crate) type Encoded = std::result::Result<Vec<u32>, TemplateError>;

impl ChatEncoder {
    pub(crate) fn new(tokenizer: SpecialEncoder, template: ChatTemplate, learn: Learn) -> Self {
        Self { template, tokenizer, learn }
    }

    /// Returns the ids of the rendered conversation. The ids of tokens to learn have the [`FLAG`].
    ///
    /// A token counts if it begins within an answer: the model writes it after the beginning of the answer. Where the template
    /// marks the answers, a token counts if it has any part of one, as in `transformers`.
    pub(crate) fn encode(&self, messages: &[ChatMessage]) -> Result<Encoded> {
        let (text, spans) = match self.template.render_to_learn(messages, self.learn) {
            Ok(rendered) => rendered,
            Err(problem) => return Ok(Err(problem)),
        };
        let encoding = self.tokenizer.encoding(&text)?;

        let marks = self.template.marks_answers() && self.learn != Learn::Everything;
        let mut spans = spans.into_iter().peekable();
        let mut ids = Vec::with_capacity(encoding.len());
        for (id, (start, end)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
            while spans.next_if(|span| span.end <= *start).is_some() {}
            let begins = |span: &Range<usize>| span.start <= *start || marks && span.start < *end;
            let counts = start < end && spans.peek().is_some_and(begins);
            ids.push(if counts { id | FLAG } else { *id });
        }
        Ok(Ok(ids))
    }
}

/// Encodes texts in which special tokens are spelled, such as rendered conversations. No token is added. Made by
/// [`TextTokenizer::special_encoder`](crate::TextTokenizer::special_encoder).
#[derive(Debug, Clone)]
pub struct SpecialEncoder(Tokenizer);

impl SpecialEncoder {
    /// Loads the content of a `tokenizer.json`.
    pub(in crate::tokenizer) fn new(json: &str) -> Result<Self> {
        let mut parts: Value = serde_json::from_str(json).map_err(|e| not_a_tokenizer(None, &e))?;
        for part in ["truncation", "padding", "post_processor"] {
            parts[part] = Value::Null;
        }
        if parts["model"]["dropout"].is_number() {
            parts["model"]["dropout"] = Value::Null;
        }
        Ok(Self(serde_json::from_value(parts).map_err(|e| not_a_tokenizer(None, &e))?))
    }

    /// Returns the ids of a text.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encoding(text)?.get_ids().to_vec())
    }

    /// Returns the spelling of the added token that a text begins with, such as `<|im_end|>`; `None` if it begins with other
    /// text.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn first_added_token(&self, text: &str) -> Result<Option<String>> {
        let first = self.encode(text)?.first().copied();
        let mut added = self.0.get_added_tokens_decoder();
        Ok(first.and_then(|id| added.remove(&id)).map(|token| token.content).filter(|token| text.starts_with(token)))
    }

    fn encoding(&self, text: &str) -> Result<tokenizers::Encoding> {
        self.0.encode(text, false).map_err(|e| Error::tokenizer(None, format!("encoding a conversation failed: {e}")))
    }
}
