//! Conversations and preferences in a configuration.

use super::Config;
use super::task::traits_of;

/// Returns what is wrong with reading the text as conversations, and with hiding what is only read.
pub(super) fn problem(config: &Config) -> Option<String> {
    let (traits, text) = (traits_of(config.task), &config.data.text);
    if !(0.0..1.0).contains(&config.train.hidden_share) {
        return Some(format!(
            "train.hidden_share {} is outside [0, 1); 0.1 to 0.3 is usual, 0 hides nothing",
            config.train.hidden_share
        ));
    }

    let only_learns = traits.continues_text && (!text.is_chat() || text.is_preferences());
    if config.train.hidden_share > 0.0 && only_learns {
        return Some(format!(
            "train.hidden_share = {} hides tokens that are read and not learned: sources of translations, texts with classes and questions of \
             conversations (data.text.format = \"chat\"); this run learns all of its text, so set train.hidden_share=0",
            config.train.hidden_share
        ));
    }
    if !text.is_chat() {
        return None;
    }
    if !traits.continues_text {
        return Some(format!(
            "data.text.format reads conversations, which task = \"{}\" cannot learn; set task = \"lm\"",
            traits.name
        ));
    }
    None
}

impl Config {
    /// Returns whether answers are compared with a copy of the model before training. A model with adapters needs none: it is
    /// compared with itself without them.
    pub fn compares_with_start(&self) -> bool {
        self.data.text.is_preferences() && !self.model.has_adapters()
    }
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
    fn what_is_learned_cannot_be_hidden() {
        for (mut config, format, refused) in [
            (presets::tiny(), TextFormat::Auto, false),
            (presets::gpt2_mini(), TextFormat::Chat, false),
            (presets::gpt2_mini(), TextFormat::Lines, true),
            (presets::gpt2_mini(), TextFormat::Preferences, true),
            (presets::classify(), TextFormat::Auto, false),
            (presets::tag(), TextFormat::Auto, false),
        ] {
            config.data.text.format = format;
            config.train.hidden_share = 0.2;
            let problems = config.validate();
            assert_eq!(problems.iter().any(|text| text.contains("train.hidden_share=0")), refused, "{problems:?}");
        }
        for share in [1.0, -0.1, f64::NAN] {
            let mut config = presets::tiny();
            config.train.hidden_share = share;
            assert!(config.validate()[0].contains("is outside [0, 1)"), "{share}");
        }
    }

    #[test]
    fn preferences_without_adapters_need_a_copy_of_the_model() {
        let mut config = presets::gpt2_mini();
        assert!(!config.compares_with_start());
        config.data.text.format = TextFormat::Preferences;
        assert_eq!(config.validate(), Vec::<String>::new());
        assert!(config.compares_with_start());
        config.model.lora.rank = 4;
        assert!(!config.compares_with_start());
    }
}
