//! Prompt tuning (Lester et al. 2021): how many learned vectors stand in front of a text, or behind the first token of an encoder's text.

use super::{Architecture, ClassHead, TransformerConfig};

impl TransformerConfig {
    /// Whether only what was added to a trained model is trained: its adapters, or its learned prompt.
    pub fn trains_additions(&self) -> bool {
        self.has_adapters() || self.prompt_tokens > 0
    }

    /// Tokens of the longest text: [`Self::max_positions`] less the learned prompt.
    pub fn text_positions(&self) -> usize {
        self.max_positions.saturating_sub(self.prompt_tokens)
    }

    pub(super) fn validate_prompt(&self, problems: &mut Vec<String>) {
        let p = self.prompt_tokens;
        if p == 0 {
            return;
        }
        if self.architecture == Architecture::EncoderDecoder {
            problems.push(format!(
                "model.prompt_tokens {p} is for model.architecture = \"decoder_only\" or \"encoder_only\"; set it to 0, or train \
                 adapters (model.lora.rank)"
            ));
        }

        if p >= self.max_positions.saturating_sub(1) {
            problems.push(format!(
                "model.prompt_tokens {p} leaves less than 2 of model.max_positions {} for a text; 10 to 100 is usual",
                self.max_positions
            ));
        }

        if self.class_head == ClassHead::Last {
            problems.push(format!(
                "model.prompt_tokens {p} is for decoders that continue texts, and model.class_head = \"last\" predicts classes; set it to 0, or \
                 train adapters (model.lora.rank)"
            ));
        }
        if self.has_adapters() {
            problems.push(format!(
                "model.prompt_tokens {p} and model.lora.rank {} are two ways to leave the weights alone; set one of them to 0",
                self.lora.rank
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_impossible_prompt_is_one_problem_that_begins_with_its_key() {
        type Change = fn(&mut TransformerConfig);
        let cases: [(&str, Change); 5] = [
            ("is for model.architecture", |c| *c = TransformerConfig { prompt_tokens: 8, ..TransformerConfig::tiny() }),
            ("leaves less than 2", |c| c.prompt_tokens = c.max_positions - 1),
            ("leaves less than 2", |c| c.prompt_tokens = usize::MAX - 2),
            ("are two ways", |c| c.lora.rank = 2),
            ("predicts classes", |c| (c.class_head, c.n_classes) = (ClassHead::Last, 2)),
        ];
        for (part, change) in cases {
            let mut config = TransformerConfig { prompt_tokens: 8, ..TransformerConfig::llama_125m() };
            assert_eq!(config.validate(), Vec::<String>::new());
            assert_eq!(config.text_positions(), config.max_positions - 8);
            change(&mut config);
            let problems = config.validate();
            assert_eq!(problems.len(), 1, "{part}: {problems:#?}");
            assert!(problems[0].starts_with("model.prompt_tokens") && problems[0].contains(part), "{problems:#?}");
        }
    }
}
