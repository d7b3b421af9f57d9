//! Presets: whole configurations as functions. Each is a size and a recipe that trains it well.

mod classes;
mod text;
mod translation;

use std::fmt;
use std::str::FromStr;

pub use classes::{classify, classify_decoder, tag};
pub use text::{
    bert_small, bert_tiny, few_words, few_words_mlm, gpt2_124m, gpt2_350m, gpt2_mini, gpt2_tiny, llama_1b, llama_125m,
    modern_124m,
};
pub use translation::{base, big, few_pairs, numbers, small, tiny, transformer_base, transformer_big};

use super::Config;
use super::suggest::did_you_mean;

/// The values of `--preset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// [`numbers`].
    Numbers,
    /// [`few_pairs`].
    FewPairs,
    /// [`tiny`].
    Tiny,
    /// [`small`].
    Small,
    /// [`base`].
    Base,
    /// [`big`].
    Big,
    /// [`transformer_base`].
    TransformerBase,
    /// [`transformer_big`].
    TransformerBig,
    /// [`gpt2_tiny`].
    Gpt2Tiny,
    /// [`few_words`].
    FewWords,
    /// [`gpt2_mini`].
    Gpt2Mini,
    /// [`gpt2_124m`].
    Gpt2Small,
    /// [`gpt2_350m`].
    Gpt2Medium,
    /// [`modern_124m`].
    Modern124m,
    /// [`llama_125m`].
    Llama125m,
    /// [`llama_1b`].
    Llama1b,
    /// [`bert_tiny`].
    BertTiny,
    /// [`few_words_mlm`].
    FewWordsMlm,
    /// [`bert_small`].
    BertSmall,
    /// [`classify`].
    Classify,
    /// [`classify_decoder`].
    ClassifyDecoder,
    /// [`tag`].
    Tag,
}

/// A preset, its name on the command line, and its configuration.
type Row = (Preset, &'static str, fn() -> Config);

/// All presets: first for translation, then for `lm`, `mlm` and classes, each
/// group by size. The order is the enum's.
const TABLE: [Row; 22] = [
    (Preset::Numbers, "numbers", numbers),
    (Preset::FewPairs, "few-pairs", few_pairs),
    (Preset::Tiny, "tiny", tiny),
    (Preset::Small, "small", small),
    (Preset::Base, "base", base),
    (Preset::Big, "big", big),
    (Preset::TransformerBase, "transformer-base", transformer_base),
    (Preset::TransformerBig, "transformer-big", transformer_big),
    (Preset::Gpt2Tiny, "gpt2-tiny", gpt2_tiny),
    (Preset::FewWords, "few-words", few_words),
    (Preset::Gpt2Mini, "gpt2-mini", gpt2_mini),
    (Preset::Gpt2Small, "gpt2-124m", gpt2_124m),
    (Preset::Gpt2Medium, "gpt2-350m", gpt2_350m),
    (Preset::Modern124m, "modern-124m", modern_124m),
    (Preset::Llama125m, "llama-125m", llama_125m),
    (Preset::Llama1b, "llama-1b", llama_1b),
    (Preset::BertTiny, "bert-tiny", bert_tiny),
    (Preset::FewWordsMlm, "few-words-mlm", few_words_mlm),
    (Preset::BertSmall, "bert-small", bert_small),
    (Preset::Classify, "classify", classify),
    (Preset::ClassifyDecoder, "classify-decoder", classify_decoder),
    (Preset::Tag, "tag", tag),
];

impl Preset {
    /// All presets, in the order of the table.
    pub const ALL: [Preset; TABLE.len()] = {
        let mut all = [Preset::Numbers; TABLE.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = TABLE[i].0;
            i += 1;
        }
        all
    };

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Returns its configuration.
    pub fn config(self) -> Config {
        TABLE[self as usize].2()
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|preset| preset.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            format!("unknown preset {text:?}{}; presets are {}", did_you_mean(text, names), names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_valid_and_survives_its_own_toml() {
        for preset in Preset::ALL {
            let config = preset.config();
            assert_eq!(config.validate(), Vec::<String>::new(), "{preset}");
            let toml = config.to_toml();
            assert_eq!(Config::from_toml(&toml).as_ref(), Ok(&config), "{preset}:\n{toml}");
            assert_eq!(preset.name().parse(), Ok(preset));
        }
    }

    #[test]
    fn the_table_has_the_order_of_the_enum() {
        for (i, preset) in Preset::ALL.into_iter().enumerate() {
            assert_eq!(preset as usize, i, "{preset}");
        }
    }

    #[test]
    fn a_misspelt_preset_is_answered_with_the_nearest_name() {
        let error = "bsae".parse::<Preset>().expect_err("no such preset");
        assert!(error.contains("did you mean base?") && error.contains("numbers, few-pairs, tiny, small"), "{error}");
    }

    #[test]
    fn every_task_has_a_usual_preset_of_its_own_kind() {
        for task in crate::config::task::TASKS {
            for has_text in [false, true] {
                assert_eq!(Preset::usual_for(task, has_text).config().task, task);
            }
        }
    }
}
