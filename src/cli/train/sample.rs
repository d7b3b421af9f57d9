//! A text that a language model writes right after its training, to show more than numbers.

use kiln_data::TextTokenizer;
use kiln_model::Transformer;

use crate::config::GenerateConfig;
use crate::dataset::Vocabulary;
use crate::generate::{GenerateError, TextGenerator};

/// Tokens that give an impression.
const MAX_TOKENS: usize = 60;

/// The start of the validation text, and the settings to continue it.
pub(super) struct TextSample {
    tokenizer: TextTokenizer,
    config: GenerateConfig,
    prompt: String,
}

impl TextSample {
    /// Makes a sample; `None` for a run that does not continue text, or without validation text.
    pub(super) fn of(config: &GenerateConfig, vocabulary: &Vocabulary, prompt: Option<&str>) -> Option<Self> {
        let max_new_tokens = config.max_new_tokens.min(MAX_TOKENS);
        Some(Self {
            tokenizer: vocabulary.text()?.clone(),
            config: GenerateConfig { max_new_tokens, ..config.clone() },
            prompt: prompt?.to_owned(),
        })
    }

    /// Returns the prompt and its continuation by `model`; `None` if the model does not continue text, or if the prompt
    /// leaves no room for it.
    pub(super) fn write(&self, model: &Transformer) -> Result<Option<String>, GenerateError> {
        let Transformer::DecoderOnly(model) = model else { return Ok(None) };
        let generator = TextGenerator::new(model, self.tokenizer.clone(), self.config.clone())?;
        match generator.generate(&[&self.prompt], 0) {
            Ok(texts) => Ok(texts.first().map(|found| format!("{}{}", self.prompt, found.text))),
            Err(GenerateError::PromptTooLong { .. } | GenerateError::EmptyPrompt { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
