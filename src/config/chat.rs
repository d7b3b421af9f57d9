//! Conversations and preferences in a configuration.

use super::Config;
use super::task::traits_of;

/// Returns what is wrong with reading the text as conversations.
pub(super) fn problem(config: &Config) -> Option<String> {
    let (traits, text) = (traits_of(config.task), &config.data.text);
    if !text.is_chat() {
        return None;
    }
    if !traits.continues_text {
        return Some(format!(
            "data.text.format reads conversations, which task = \"{}\" cannot learn; set task = \"lm\"",
            traits.name
        ));
    }
    (text.is_preferences() && !config.model.has_adapters()).then(|| {
        "data.text.format = \"preferences\" compares the model with itself before training, which is the model without adapters: set \
         model.lora.rank, for example to 16"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use kiln_data::TextFormat;

    use crate::config::presets;

    #[test]
    fn conversations_are_for_language_models() {
        for (mut config, refused) in
            [(presets::gpt2_mini(), false), (presets::bert_small(), true), (presets::tiny(), true)]
        {
            config.data.text.format = TextFormat::Chat;
            let problems = config.validate();
            assert_eq!(problems.iter().any(|text| text.contains("cannot learn; set task")), refused, "{problems:?}");
        }
    }

    #[test]
    fn preferences_need_adapters() {
        let mut config = presets::gpt2_mini();
        config.data.text.format = TextFormat::Preferences;
        assert!(config.validate()[0].contains("set model.lora.rank"), "{:?}", config.validate());
        config.model.lora.rank = 4;
        assert_eq!(config.validate(), Vec::<String>::new());
    }
}
