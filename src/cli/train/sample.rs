//! What a language model writes right after its training, to see more than numbers.

use kiln_data::TextTokenizer;
use kiln_model::Transformer;

use crate::config::{Config, GenerateConfig};
use crate::dataset::RunData;
use crate::generate::{GenerateError, TextGenerator};

/// Tokens that are enough to get an impression.
const MAX_TOKENS: usize = 60;

/// How the validation text begins, and how to continue it.
pub(super) struct TextSample {
    tokenizer: TextTokenizer,
    config: GenerateConfig,
    prompt: String,
}

impl TextSample {
    /// None for a run that does not continue text, or has no validation text to begin with.
    pub(super) fn of(config: &Config, data: &RunData) -> Option<Self> {
        let max_new_tokens = config.generate.max_new_tokens.min(MAX_TOKENS);
        Some(Self {
            tokenizer: data.vocabulary.text()?.clone(),
            config: GenerateConfig { max_new_tokens, ..config.generate.clone() },
            prompt: data.prompt.clone()?,
        })
    }

    /// The prompt and what `model` writes behind it; `None` for a model that does not continue text, and for a prompt that
    /// leaves it no room.
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
