//! Recipes for language models (`lm`) and masked language models (`mlm`).

use kiln_data::{LoaderConfig, TokenizerConfig, TokenizerKind};
use kiln_model::TransformerConfig;

use super::base;
use crate::config::{Config, GenerateConfig, OptimConfig, OptimizerChoice, Schedule, Task, TrainConfig};

/// 0.8 M parameters and the vocabulary, a minute on two cores: for the built-in text (sentences about numbers), or to try out a
/// corpus on a CPU.
pub fn gpt2_tiny() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 1000, split_digits: true, ..bytes() },
        loader: LoaderConfig { batch_tokens: 1024, num_workers: 1, ..LoaderConfig::default() },
        model: TransformerConfig {
            d_model: 128,
            n_heads: 4,
            d_ff: 512,
            n_decoder_layers: 4,
            max_positions: 128,
            dropout: 0.0,
            attention_dropout: 0.0,
            ..TransformerConfig::gpt2_124m()
        },
        optim: OptimConfig { lr: 2e-3, warmup_steps: 50, ..language_model().optim },
        train: TrainConfig {
            steps: 400,
            grad_accum_steps: 1,
            validate_every: 100,
            save_every: 200,
            ..language_model().train
        },
        ..language_model()
    }
}

/// A GPT-2 of 1.8 M parameters and the vocabulary, with dropout: for a book or a few, up to some hundred thousand words, or any
/// text on a CPU.
pub fn few_words() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 4000, ..bytes() },
        loader: LoaderConfig { batch_tokens: 2048, num_workers: 1, ..LoaderConfig::default() },
        model: TransformerConfig {
            d_model: 192,
            n_heads: 3,
            d_ff: 768,
            n_decoder_layers: 4,
            max_positions: 256,
            dropout: 0.2,
            attention_dropout: 0.0,
            ..TransformerConfig::gpt2_124m()
        },
        optim: OptimConfig { lr: 1e-3, warmup_steps: 100, ..language_model().optim },
        train: TrainConfig {
            steps: 1500,
            grad_accum_steps: 1,
            validate_every: 150,
            save_every: 500,
            ..language_model().train
        },
        ..language_model()
    }
}

/// A GPT-2 of 10.7 M parameters and the vocabulary: for a few million words of text, such as the works of one author, and one
/// GPU.
pub fn gpt2_mini() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 8000, ..bytes() },
        loader: LoaderConfig { batch_tokens: 32_768, ..LoaderConfig::default() },
        model: TransformerConfig {
            d_model: 384,
            n_heads: 6,
            d_ff: 1536,
            n_decoder_layers: 6,
            max_positions: 512,
            dropout: 0.2,
            attention_dropout: 0.0,
            ..TransformerConfig::gpt2_124m()
        },
        optim: OptimConfig { lr: 1e-3, warmup_steps: 100, ..language_model().optim },
        train: TrainConfig {
            steps: 2000,
            grad_accum_steps: 1,
            validate_every: 200,
            save_every: 500,
            ..language_model().train
        },
        ..language_model()
    }
}

/// GPT-2 small (Radford et al. 2019), 124 M parameters: for gigabytes of text. It trains on 0.5 M tokens per step, as llm.c and
/// nanoGPT do.
pub fn gpt2_124m() -> Config {
    language_model()
}

/// GPT-2 medium (Radford et al. 2019), 354 M parameters.
pub fn gpt2_350m() -> Config {
    Config {
        model: TransformerConfig { dropout: 0.0, attention_dropout: 0.0, ..TransformerConfig::gpt2_350m() },
        loader: LoaderConfig { batch_tokens: 32_768, ..language_model().loader },
        optim: OptimConfig { lr: 3e-4, ..language_model().optim },
        train: TrainConfig { grad_accum_steps: 16, ..language_model().train },
        ..language_model()
    }
}

/// [`gpt2_124m`] with the layers and the optimizer of today's small language models: the loss of GPT-2 after fewer minutes. `benches/speedrun`
/// compares the two.
pub fn modern_124m() -> Config {
    Config {
        model: TransformerConfig::modern_124m(),
        optim: OptimConfig {
            lr: 4e-3,
            schedule: Schedule::WarmupStableDecay,
            decay_fraction: 0.5,
            min_lr_ratio: 0.0,
            ..language_model().optim
        },
        train: TrainConfig { optimizer: OptimizerChoice::Muon, ..language_model().train },
        ..language_model()
    }
}

/// A Llama of 125 M parameters, deep and thin (Liu et al. 2024), with grouped queries.
pub fn llama_125m() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 32_000, ..bytes() },
        model: TransformerConfig::llama_125m(),
        optim: OptimConfig { lr: 1e-3, warmup_steps: 1000, ..language_model().optim },
        ..language_model()
    }
}

/// A Llama of 1.1 B parameters in the shape of TinyLlama (Zhang et al. 2024), on 0.5 M tokens per step.
pub fn llama_1b() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 32_000, ..bytes() },
        loader: LoaderConfig { batch_tokens: 16_384, ..language_model().loader },
        model: TransformerConfig::llama_1b(),
        optim: OptimConfig { lr: 4e-4, warmup_steps: 2000, ..language_model().optim },
        train: TrainConfig { grad_accum_steps: 32, ..language_model().train },
        ..language_model()
    }
}

/// 0.4 M parameters and the vocabulary: masked language modelling of the built-in text on a CPU.
pub fn bert_tiny() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 1000, split_digits: true, ..words() },
        loader: LoaderConfig { batch_tokens: 1024, num_workers: 1, ..LoaderConfig::default() },
        model: TransformerConfig {
            d_model: 128,
            n_heads: 4,
            d_ff: 512,
            n_encoder_layers: 2,
            max_positions: 128,
            dropout: 0.0,
            attention_dropout: 0.0,
            ..TransformerConfig::bert_small()
        },
        optim: OptimConfig { lr: 2e-3, warmup_steps: 100, ..masked_model().optim },
        train: TrainConfig { steps: 600, validate_every: 150, save_every: 300, ..masked_model().train },
        ..masked_model()
    }
}

/// 1.8 M parameters and the vocabulary: masked language modelling of up to some hundred thousand words, or of any text on a CPU.
pub fn few_words_mlm() -> Config {
    Config {
        tokenizer: TokenizerConfig { vocab_size: 4000, ..words() },
        loader: LoaderConfig { batch_tokens: 2048, num_workers: 1, ..LoaderConfig::default() },
        model: TransformerConfig {
            d_model: 192,
            n_heads: 3,
            d_ff: 768,
            n_encoder_layers: 4,
            max_positions: 256,
            dropout: 0.1,
            attention_dropout: 0.0,
            ..TransformerConfig::bert_small()
        },
        optim: OptimConfig { lr: 1e-3, warmup_steps: 200, ..masked_model().optim },
        train: TrainConfig { steps: 3000, validate_every: 300, save_every: 500, ..masked_model().train },
        ..masked_model()
    }
}

/// BERT small (Turc et al. 2019), 29 M parameters with 30,522 tokens.
pub fn bert_small() -> Config {
    masked_model()
}

/// The common recipe of language models, which is also [`gpt2_124m`].
fn language_model() -> Config {
    Config {
        task: Task::Lm,
        tokenizer: bytes(),
        loader: LoaderConfig { batch_tokens: 65_536, num_workers: 4, ..LoaderConfig::default() },

        // Text that the model hardly sees twice needs no dropout.
        model: TransformerConfig { dropout: 0.0, attention_dropout: 0.0, ..TransformerConfig::gpt2_124m() },
        optim: OptimConfig {
            lr: 6e-4,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            warmup_steps: 700,
            min_lr_ratio: 0.1,
            ..OptimConfig::default()
        },
        train: TrainConfig {
            steps: 20_000,
            grad_accum_steps: 8,
            label_smoothing: 0.0,
            validate_every: 1000,
            save_every: 1000,
            ..TrainConfig::default()
        },
        generate: GenerateConfig { sample: true, top_p: 0.95, ..GenerateConfig::default() },
        ..base()
    }
}

/// The common recipe of masked language models, which is also [`bert_small`].
fn masked_model() -> Config {
    Config {
        task: Task::Mlm,
        tokenizer: words(),
        loader: LoaderConfig { batch_tokens: 32_768, ..LoaderConfig::default() },
        model: TransformerConfig::bert_small(),
        optim: OptimConfig { lr: 5e-4, beta2: 0.98, eps: 1e-6, warmup_steps: 1000, ..OptimConfig::default() },
        train: TrainConfig {
            steps: 20_000,
            label_smoothing: 0.0,
            validate_every: 1000,
            save_every: 1000,
            ..TrainConfig::default()
        },
        ..base()
    }
}

/// A vocabulary like GPT-2's, which spells every text without loss.
fn bytes() -> TokenizerConfig {
    TokenizerConfig { kind: TokenizerKind::ByteLevelBpe, vocab_size: 50_257, ..TokenizerConfig::default() }
}

/// A vocabulary like BERT's: words and parts of words in lower case.
fn words() -> TokenizerConfig {
    TokenizerConfig {
        kind: TokenizerKind::WordPiece,
        vocab_size: 30_522,
        lowercase: true,
        ..TokenizerConfig::default()
    }
}
