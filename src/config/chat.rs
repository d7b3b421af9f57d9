//! Conversations in a configuration.

use super::Config;
use super::task::traits_of;

/// Returns what is wrong with reading the text as conversations.
pub(super) fn problem(config: &Config) -> Option<String> {
    let traits = traits_of(config.task);
    let is_wrong = config.data.text.is_chat() && !traits.continues_text;
    is_wrong.then(|| {
        format!(
            "data.text.format = \"chat\" reads conversations, which task = \"{}\" cannot learn; set task = \"lm\"",
            traits.name
        )
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
}
