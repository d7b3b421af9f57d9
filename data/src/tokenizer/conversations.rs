//! What a language model's vocabulary knows of conversations.

use super::TextTokenizer;
use super::chat::{ChatTemplate, SpecialEncoder};
use crate::error::{Error, Result};

impl TextTokenizer {
    /// Returns an encoder for texts that spell special tokens.
    ///
    /// # Errors
    /// If the tokenizer cannot be loaded again.
    pub fn special_encoder(&self) -> Result<SpecialEncoder> {
        SpecialEncoder::new(self.json())
    }

    /// Returns the chat template of the model, or ChatML if it has none ([`ChatTemplate::is_default`]).
    ///
    /// # Errors
    /// If the template is not valid.
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        let Some(source) = self.own_chat_template() else { return Ok(ChatTemplate::chatml()) };
        ChatTemplate::parse(source, self.tokens_of_template())
            .map_err(|problem| Error::tokenizer(None, format!("has a chat template that cannot be used: {problem}")))
    }

    /// Returns the spelling of the added token that ends a turn of a conversation; `None` if the template ends turns with other
    /// text, or refuses a question and its answer.
    ///
    /// # Errors
    /// If the template is not valid.
    pub fn end_of_turn(&self) -> Result<Option<String>> {
        let end = self.chat_template()?.end_of_turn().unwrap_or_default();
        self.special_encoder()?.first_added_token(&end)
    }

    /// Returns the text that ends a turn, if it is not a token of the vocabulary: several tokens spell it.
    ///
    /// # Errors
    /// If the template is not valid.
    pub fn spelled_end_of_turn(&self) -> Result<Option<String>> {
        if self.end_of_turn()?.is_some() {
            return Ok(None);
        }
        let end = self.chat_template()?.end_of_turn().unwrap_or_default();
        Ok(Some(end.trim().to_owned()).filter(|end| !end.is_empty()))
    }
}
