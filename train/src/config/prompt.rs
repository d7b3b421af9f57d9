//! A learned prompt in a configuration.

use kiln_data::Packing;

use super::Config;
use super::task::traits_of;

/// Returns what does not go together with a learned prompt in front of every text.
pub(super) fn problem(config: &Config) -> Option<String> {
    let (p, text) = (config.model.prompt_tokens, &config.data.text);
    if p == 0 {
        return None;
    }
    if text.is_preferences() {
        return Some(format!(
            "model.prompt_tokens = {p} does not learn from data.text.format = \"preferences\"; train adapters (model.lora.rank), or set \
             model.prompt_tokens=0"
        ));
    }
    let has_rows_of_documents = traits_of(config.task).classes.is_none() && text.packing == Packing::Documents;
    has_rows_of_documents.then(|| {
        let also = if text.is_chat() { "" } else { " (a row per document) or \"stream\" (rows of one text)" };
        format!(
            "model.prompt_tokens = {p} stands in front of a row, and data.text.packing = \"documents\" puts several texts into one; set \
             data.text.packing = \"sentences\"{also}"
        )
    })
}

#[cfg(test)]
mod tests {
    use kiln_data::TextFormat;

    use super::*;
    use crate::config::presets;

    #[test]
    fn a_prompt_stands_in_front_of_rows_of_one_text() {
        for (format, packing, wanted) in [
            (TextFormat::Auto, Packing::Sentences, None),
            (TextFormat::Auto, Packing::Stream, None),
            (TextFormat::Chat, Packing::Sentences, None),
            (TextFormat::Auto, Packing::Documents, Some("\"sentences\" (a row per document) or \"stream\"")),
            (TextFormat::Chat, Packing::Documents, Some("set data.text.packing = \"sentences\"")),
            (TextFormat::Preferences, Packing::Documents, Some("train adapters (model.lora.rank)")),
        ] {
            let mut config = presets::gpt2_mini();
            config.model.prompt_tokens = 8;
            (config.data.text.format, config.data.text.packing) = (format, packing);
            let problems = config.validate();
            assert_eq!(problems.len(), usize::from(wanted.is_some()), "{problems:?}");
            assert!(problems.iter().all(|problem| problem.contains(wanted.unwrap_or_default())), "{problems:?}");
        }
    }

    #[test]
    fn a_prompt_takes_its_positions_from_the_text() {
        let mut config = presets::gpt2_mini();
        (config.model.prompt_tokens, config.data.text.packing) = (8, Packing::Sentences);
        config.data.text.seq_len = config.model.max_positions - 8;
        assert_eq!(config.validate(), Vec::<String>::new());
        config.data.text.seq_len += 1;
        let problems = config.validate();
        assert!(problems.len() == 1 && problems[0].starts_with("data.text.seq_len"), "{problems:?}");
    }
}
