//! Recipes for translation.

use kiln_data::built_in::numbers::tokenizer_config as numbers_tokenizer;
use kiln_data::{LoaderConfig, TokenizerConfig};
use kiln_model::{NormPlacement, TransformerConfig};

use crate::config::{Config, DataConfig, GenerateConfig, OptimConfig, Schedule, Task, TrainConfig};

/// A million parameters and small batches for the built-in task, numbers in digits to English words. It reaches 100 % exact
/// match on unseen numbers after a minute or two on two CPU cores.
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

/// 1 M parameters and the vocabulary, with much dropout: for hundreds to a few thousand pairs.
pub fn few_pairs() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 1500, split_digits: true, ..TokenizerConfig::default() },
        loader: LoaderConfig { batch_tokens: 1024, num_workers: 1, ..LoaderConfig::default() },
        model: TransformerConfig {
            d_model: 128,
            n_heads: 4,
            d_ff: 512,
            max_positions: 256,
            dropout: 0.3,
            norm: NormPlacement::Post,
            ..TransformerConfig::tiny()
        },
        optim: OptimConfig { lr: 1e-3, warmup_steps: 200, ..OptimConfig::default() },
        train: TrainConfig { steps: 3000, validate_every: 250, save_every: 500, ..TrainConfig::default() },
        ..base()
    }
}

/// 0.4 M parameters and the vocabulary: to try out a corpus on a CPU.
pub fn tiny() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 4000, split_digits: true, ..TokenizerConfig::default() },
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
        task: Task::Translation,
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

/// The "base" of Vaswani et al. 2017 as printed: 63 M parameters, post-norm, a vocabulary of 37,000, 100,000 steps of 25,000
/// tokens per side. [`base`] has the same layers and a recipe that is easier to train.
pub fn transformer_base() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 37_000, ..TokenizerConfig::default() },
        loader: LoaderConfig { batch_tokens: 25_000, num_workers: 4, ..LoaderConfig::default() },
        model: TransformerConfig::transformer_base(),
        optim: OptimConfig {
            lr: 1.0, // Noam: the factor in front of the formula
            schedule: Schedule::Noam,
            warmup_steps: 4000,
            weight_decay: 0.0,
            max_grad_norm: 0.0,
            ..OptimConfig::default()
        },
        train: TrainConfig { steps: 100_000, validate_every: 2000, save_every: 2000, ..TrainConfig::default() },
        generate: GenerateConfig { beam_size: 4, max_len_ratio: 1.0, max_len_offset: 50, ..GenerateConfig::default() },
        ..base()
    }
}

/// The "big" of Vaswani et al. 2017 as printed: 214 M parameters, post-norm, a vocabulary of 37,000, 300,000 steps.
pub fn transformer_big() -> Config {
    let base = transformer_base();
    Config { model: TransformerConfig::transformer_big(), train: TrainConfig { steps: 300_000, ..base.train }, ..base }
}
