//! Presets: whole configurations as functions, a size and a recipe that trains it well.

use std::fmt;
use std::str::FromStr;

use kiln_data::numbers::tokenizer_config as numbers_tokenizer;
use kiln_data::{LoaderConfig, TokenizerConfig};
use kiln_model::TransformerConfig;

use super::suggest::did_you_mean;
use super::{Config, DataConfig, GenerateConfig, OptimConfig, TrainConfig};

/// The names that `--preset` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// [`numbers`].
    Numbers,
    /// [`tiny`].
    Tiny,
    /// [`small`].
    Small,
    /// [`base`].
    Base,
    /// [`big`].
    Big,
}

impl Preset {
    /// All presets, smallest first.
    pub const ALL: [Preset; 5] = [Preset::Numbers, Preset::Tiny, Preset::Small, Preset::Base, Preset::Big];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Numbers => "numbers",
            Preset::Tiny => "tiny",
            Preset::Small => "small",
            Preset::Base => "base",
            Preset::Big => "big",
        }
    }

    /// The configuration.
    pub fn config(self) -> Config {
        match self {
            Preset::Numbers => numbers(),
            Preset::Tiny => tiny(),
            Preset::Small => small(),
            Preset::Base => base(),
            Preset::Big => big(),
        }
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

/// The built-in task: numbers in digits -> English words. A million parameters and small batches: 100 % exact match on
/// unseen numbers after a minute or two on two CPU cores.
pub fn numbers() -> Config {
    Config {
        tokenizer: numbers_tokenizer(),
        loader: LoaderConfig { batch_tokens: 512, num_workers: 1, ..LoaderConfig::default() },
        model: TransformerConfig { d_model: 128, n_heads: 4, d_ff: 512, ..TransformerConfig::tiny() },
        optim: OptimConfig { lr: 2e-3, warmup_steps: 100, ..OptimConfig::default() },
        train: TrainConfig { steps: 1000, validate_every: 250, save_every: 500, ..TrainConfig::default() },
        ..base()
    }
}

/// 0.4 M parameters and the vocabulary: tries out a corpus on a CPU.
pub fn tiny() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 4000, ..TokenizerConfig::default() },
        loader: LoaderConfig { batch_tokens: 4096, ..LoaderConfig::default() },
        model: TransformerConfig { dropout: 0.1, ..TransformerConfig::tiny() },
        optim: OptimConfig { lr: 2e-3, warmup_steps: 200, ..OptimConfig::default() },
        train: TrainConfig { steps: 4000, ..TrainConfig::default() },
        ..base()
    }
}

/// 5.5 M parameters and the vocabulary: a patient CPU or any GPU.
pub fn small() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 8000, ..TokenizerConfig::default() },
        loader: LoaderConfig { batch_tokens: 8192, ..LoaderConfig::default() },
        model: TransformerConfig { dropout: 0.1, ..TransformerConfig::small() },
        optim: OptimConfig { lr: 1e-3, warmup_steps: 400, ..OptimConfig::default() },
        train: TrainConfig { steps: 10_000, ..TrainConfig::default() },
        ..base()
    }
}

/// 44 M parameters and the vocabulary ("base" of Vaswani et al. 2017, pre-norm): for some hundred thousand pairs and
/// one GPU.
pub fn base() -> Config {
    Config {
        seed: 1,
        data: DataConfig::default(),
        tokenizer: TokenizerConfig { vocab_size: 16_000, ..TokenizerConfig::default() },
        loader: LoaderConfig { batch_tokens: 16_384, ..LoaderConfig::default() },
        model: TransformerConfig { dropout: 0.2, ..TransformerConfig::base() },
        optim: OptimConfig::default(),
        train: TrainConfig::default(),
        generate: GenerateConfig::default(),
    }
}

/// 176 M parameters and the vocabulary ("big" of Vaswani et al. 2017, pre-norm): for millions of pairs and a large GPU.
pub fn big() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 32_000, ..TokenizerConfig::default() },
        loader: LoaderConfig { batch_tokens: 32_768, num_workers: 4, ..LoaderConfig::default() },
        model: TransformerConfig::big(),
        optim: OptimConfig { lr: 5e-4, warmup_steps: 4000, ..OptimConfig::default() },
        train: TrainConfig { steps: 50_000, validate_every: 2000, save_every: 2000, ..TrainConfig::default() },
        ..base()
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
    fn a_misspelt_preset_is_answered_with_the_nearest_name() {
        let error = "bsae".parse::<Preset>().expect_err("no such preset");
        assert!(error.contains("did you mean base?") && error.contains("numbers, tiny, small"), "{error}");
    }
}
