//! A text that a language model writes right after its training, to show more than numbers.

use kiln_data::{ChatMessage, Role, TextTokenizer};
use kiln_model::Transformer;
use kiln_train::config::GenerateConfig;
use kiln_train::dataset::Vocabulary;
use kiln_train::generate::{GenerateError, TextGenerator};

/// Tokens that give an impression.
const MAX_TOKENS: usize = 60;

/// The start of the validation text, and the settings to continue it.
pub(super) struct TextSample {
    tokenizer: TextTokenizer,
    config: GenerateConfig,
    prompt: String,
    /// The prompt is a question, which the chat template writes.
    is_chat: bool,
}

impl TextSample {
    /// Makes a sample; `None` for a run that does not continue text, or without validation text.
    pub(super) fn of(
        config: &GenerateConfig,
        vocabulary: &Vocabulary,
        prompt: Option<&str>,
        is_chat: bool,
    ) -> Option<Self> {
        let tokenizer = vocabulary.text()?.clone();
        let end_of_turn = if is_chat { tokenizer.end_of_turn().ok()? } else { None };
        let stop_tokens = config.stop_tokens.iter().cloned().chain(end_of_turn).collect();
        let max_new_tokens = config.max_new_tokens.min(MAX_TOKENS);
        Some(Self {
            config: GenerateConfig { max_new_tokens, stop_tokens, ..config.clone() },
            tokenizer,
            prompt: prompt?.to_owned(),
            is_chat,
        })
    }

    /// Returns the prompt and its continuation by `model`; `None` if the model does not continue text, or if the prompt
    /// leaves no room for it.
    pub(super) fn write(&self, model: &Transformer) -> Result<Option<String>, GenerateError> {
        let Transformer::DecoderOnly(model) = model else { return Ok(None) };
        if model.config().has_classes() {
            return Ok(None);
        }
        let generator = TextGenerator::new(model, self.tokenizer.clone(), self.config.clone())?;
        let written = match self.is_chat {
            true => self.answer(&generator),
            false => generator.generate(&[&self.prompt], 0).map(|texts| texts.first().map(|found| found.text.clone())),
        };
        match written {
            Ok(text) => Ok(text.map(|text| format!("{}{}{text}", self.prompt, if self.is_chat { " -> " } else { "" }))),
            Err(GenerateError::PromptTooLong { .. } | GenerateError::EmptyPrompt { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Answers the question; `None` if the template refuses it.
    fn answer(&self, generator: &TextGenerator) -> Result<Option<String>, GenerateError> {
        let question = [ChatMessage::new(Role::User, &*self.prompt)];
        let Ok(prompt) = self.tokenizer.chat_template()?.render(&question, true) else { return Ok(None) };
        let ids = self.tokenizer.special_encoder()?.encode(&prompt)?;
        Ok(Some(generator.stream_ids(ids, 0, &mut |_| Ok(()))?.text))
    }
}
