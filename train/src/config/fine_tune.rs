//! The configuration of a run that gives a trained model a head for classes.

use kiln_model::{Architecture, ClassHead, TransformerConfig};

use super::set_keys::SetKeys;
use super::task::{Classes, traits_of};
use super::{Config, Preset, Schedule, Task};

/// The longest rows in tokens, unless `data.text.seq_len` says otherwise: decoders have up to 131,072 positions.
const LONGEST_ROW: usize = 1024;

/// Learning rate times `d_model`: 5e-5 for a model of the size of BERT base (Devlin et al. 2019, appendix A.3).
const RATE_BY_WIDTH: f64 = 5e-5 * 768.0;

impl Config {
    /// Returns the configuration to fine-tune the `model` of this run for another `task`, which predicts classes:
    /// the recipe of the task with a learning rate for trained weights, the model of the run with a head for classes.
    ///
    /// # Errors
    /// If a model of this architecture does not learn the task, or if the task predicts no classes.
    #[doc(hidden)]
    pub fn fine_tuned(&self, model: &TransformerConfig, task: Task) -> Result<Self, String> {
        let row = traits_of(task);
        let Some(classes) = row.classes else {
            return Err(format!(
                "--from keeps the task of that run, or gives its model a head: --task classification or --task tagging, not {}",
                row.name
            ));
        };
        if !row.suits(model.architecture) {
            let (needed, instead) = match (classes, model.architecture) {
                (Classes::OfWords, Architecture::DecoderOnly) => (
                    "an encoder, such as BERT",
                    ": it has not read what follows a word; --task classification takes it",
                ),
                (Classes::OfWords, _) => ("an encoder, such as BERT", ""),
                (Classes::OfTexts, _) => ("an encoder, such as BERT, or a decoder, such as GPT-2", ""),
            };
            return Err(format!(
                "--task {} needs {needed}, but the model of --from is of another architecture ({:?}){instead}",
                row.name, model.architecture
            ));
        }

        let mut config = Preset::usual_for(task, true).config();
        config.tokenizer = self.tokenizer.clone();
        config.train.precision = self.train.precision;
        config.seed = self.seed;
        let longest = model.max_positions.min(LONGEST_ROW);
        config.data.text.seq_len = if model.max_positions > longest { longest } else { 0 };
        config.model = with_head(model, classes);
        config.optim.lr = RATE_BY_WIDTH / model.d_model.max(1) as f64;
        let longest = longest.next_multiple_of(config.loader.bucket_multiple.max(1));
        config.loader.batch_tokens = config.loader.batch_tokens.max(longest);
        Ok(config)
    }
}

/// Returns the model with a head for classes in place of the one that predicts tokens.
fn with_head(model: &TransformerConfig, classes: Classes) -> TransformerConfig {
    let class_head = match classes {
        Classes::OfTexts if model.has_classes() && model.class_head != ClassHead::Tokens => model.class_head,
        Classes::OfTexts => model.row_head(),
        Classes::OfWords => ClassHead::Tokens,
    };
    TransformerConfig {
        mlm_head: model.mlm_head && model.architecture != Architecture::EncoderOnly,
        pooler: model.pooler || class_head == ClassHead::Pooled,
        class_head,
        n_classes: 0,
        ..model.clone()
    }
}

/// Factor of the learning rate of adapters: they begin at zero, and the weights next to them stay.
const ADAPTERS: f64 = 10.0;

impl Config {
    /// Lowers the learning rate, unless it is set, to one for trained weights. Returns a sentence about it. A rate of random weights
    /// undoes in a few steps what trained ones have learned.
    pub(super) fn take_fine_tuning_rate(&mut self, set: &SetKeys) -> Option<String> {
        // The prompt begins with random vectors, and `noam` has no peak to lower.
        if set.contains("optim.lr") || self.model.prompt_tokens > 0 || self.optim.schedule == Schedule::Noam {
            return None;
        }
        let (factor, what) = if self.model.has_adapters() { (ADAPTERS, "adapters") } else { (1.0, "trained weights") };
        let rate = factor * RATE_BY_WIDTH / self.model.d_model.max(1) as f64;
        let rate = format!("{rate:.1e}").parse().unwrap_or(rate);
        let before = self.optim.lr;
        let shown: f64 = format!("{before:.2e}").parse().unwrap_or(before);
        if shown <= rate {
            return None; // equal up to rounding
        }
        self.optim.lr = rate;
        Some(format!("optim.lr {rate}, a rate for {what}, instead of {shown} (--set optim.lr=... decides otherwise)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::presets;

    #[test]
    fn an_encoder_keeps_its_shape_and_gets_the_head_of_its_family() {
        let of_run = presets::bert_small();
        let bert = of_run.fine_tuned(&of_run.model, Task::Classification).expect("an encoder");
        assert_eq!((bert.model.class_head, bert.model.pooler, bert.model.mlm_head), (ClassHead::Pooled, true, false));
        assert_eq!((bert.model.d_model, bert.task), (of_run.model.d_model, Task::Classification));
        assert!((bert.optim.lr - 7.5e-5).abs() < 1e-9, "{}", bert.optim.lr);
        assert_eq!(bert.validate(), Vec::<String>::new());

        let roberta = TransformerConfig { n_token_types: 1, ..of_run.model.clone() };
        let dense = of_run.fine_tuned(&roberta, Task::Classification).expect("an encoder");
        assert_eq!((dense.model.class_head, dense.model.pooler), (ClassHead::Dense, false));
        let tags = of_run.fine_tuned(&roberta, Task::Tagging).expect("an encoder");
        assert_eq!(tags.model.class_head, ClassHead::Tokens);
        assert_eq!(tags.validate(), Vec::<String>::new());
    }

    #[test]
    fn trained_weights_get_a_lower_rate_unless_it_is_set() {
        let mut config = presets::tiny();
        let before = config.optim.lr;
        assert_eq!(config.take_fine_tuning_rate(&SetKeys::of(["optim.lr"])), None);
        let note = config.take_fine_tuning_rate(&SetKeys::default()).expect("lower");
        assert!(config.optim.lr < before / 4.0 && note.contains("optim.lr"), "{note}");
        assert_eq!(config.take_fine_tuning_rate(&SetKeys::default()), None, "low already");
        let mut adapted = presets::llama_1b();
        adapted.model.lora.rank = 8;
        adapted.take_fine_tuning_rate(&SetKeys::default());
        assert!((1e-4..4e-4).contains(&adapted.optim.lr), "{}", adapted.optim.lr);
    }

    #[test]
    fn a_decoder_keeps_its_shape_and_reads_the_last_token() {
        let of_run = presets::llama_1b();
        let model = TransformerConfig { max_positions: 131_072, ..of_run.model.clone() };
        let llama = of_run.fine_tuned(&model, Task::Classification).expect("a decoder");
        assert_eq!((llama.model.class_head, llama.model.d_model), (ClassHead::Last, model.d_model));
        assert_eq!((llama.data.text.seq_len, llama.loader.batch_tokens), (1024, 4096));
        assert_eq!(llama.validate(), Vec::<String>::new());
    }

    #[test]
    fn other_models_and_tasks_are_refused() {
        let gpt2 = presets::gpt2_tiny();
        let error = gpt2.fine_tuned(&gpt2.model, Task::Tagging).expect_err("a decoder");
        assert!(error.contains("--task tagging needs an encoder") && error.contains("what follows a word"), "{error}");
        let pairs = presets::tiny();
        let error = pairs.fine_tuned(&pairs.model, Task::Classification).expect_err("a translator");
        assert!(error.contains("or a decoder, such as GPT-2, but the model of --from"), "{error}");
        let error = gpt2.fine_tuned(&gpt2.model, Task::Mlm).expect_err("no classes");
        assert!(error.contains("--task classification or --task tagging, not mlm"), "{error}");
    }
}
