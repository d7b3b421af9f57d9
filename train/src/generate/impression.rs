//! A text that a language model writes while it is trained and after it, to show more than numbers.

use kiln_data::{ChatMessage, Role, TextTokenizer};
use kiln_model::Transformer;

use super::{GenerateError, TextGenerator};
use crate::config::{Config, GenerateConfig};

/// Tokens that give an impression.
const MAX_TOKENS: usize = 60;

/// Continues `prompt` as the configuration generates text; the prompt of a model of conversations is a question, which the model
/// answers. `None` if the model does not continue text, or if the prompt or the settings do not suit it.
pub(crate) fn impression(
    model: &Transformer,
    tokenizer: &TextTokenizer,
    config: &Config,
    prompt: &str,
) -> Result<Option<String>, GenerateError> {
    let Transformer::DecoderOnly(model) = model else { return Ok(None) };
    if model.config().has_classes() {
        return Ok(None);
    }
    let is_chat = config.data.text.is_chat();
    let end_of_turn = if is_chat { tokenizer.end_of_turn().ok().flatten() } else { None };
    let spelled = if is_chat { tokenizer.spelled_end_of_turn().ok().flatten() } else { None };
    let stop_tokens = config.generate.stop_tokens.iter().cloned().chain(end_of_turn).collect();
    let stop = config.generate.stop.iter().cloned().chain(spelled).collect();
    let max_new_tokens = config.generate.max_new_tokens.min(MAX_TOKENS);
    let settings = GenerateConfig { max_new_tokens, stop_tokens, stop, ..config.generate.clone() };

    let written = TextGenerator::new(model, tokenizer.clone(), settings).and_then(|generator| match is_chat {
        true => answer(&generator, prompt),
        false => Ok(generator.generate(&[prompt], 0)?.into_iter().next().map(|found| found.text)),
    });
    match written {
        Err(
            GenerateError::PromptTooLong { .. }
            | GenerateError::EmptyPrompt { .. }
            | GenerateError::UnknownStopToken(_)
            | GenerateError::UnknownBadWord(_),
        ) => Ok(None),
        written => written,
    }
}

/// Answers a question; `None` if the template refuses it.
fn answer(generator: &TextGenerator, question: &str) -> Result<Option<String>, GenerateError> {
    let question = [ChatMessage::new(Role::User, question)];
    let tokenizer = generator.tokenizer();
    let Ok(prompt) = tokenizer.chat_template()?.render(&question, true) else { return Ok(None) };
    let ids = tokenizer.special_encoder()?.encode(&prompt)?;
    Ok(Some(generator.stream_ids(ids, 0, &mut |_| Ok(()))?.text))
}
