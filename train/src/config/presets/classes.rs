//! Recipes for classes of texts (`classification`) and of words (`tagging`).

use kiln_data::{LoaderConfig, TokenizerConfig};
use kiln_model::{ClassHead, TransformerConfig};

use super::{few_words, few_words_mlm};
use crate::config::{Config, OptimConfig, Task, TrainConfig};

/// 1.8 M parameters and the vocabulary: classes of texts, without a trained encoder. With `--from`, the recipe trains the
/// encoder of that run.
pub fn classify() -> Config {
    let encoder = few_words_mlm();
    Config {
        task: Task::Classification,
        tokenizer: TokenizerConfig { vocab_size: 4000, ..encoder.tokenizer.clone() },
        loader: LoaderConfig { batch_tokens: 4096, num_workers: 1, ..LoaderConfig::default() },
        model: TransformerConfig {
            mlm_head: false,
            pooler: true,
            class_head: ClassHead::Pooled,
            ..encoder.model.clone()
        },
        optim: OptimConfig { lr: 5e-4, beta2: 0.999, eps: 1e-8, warmup_steps: 100, ..OptimConfig::default() },
        train: TrainConfig {
            steps: 1000,
            label_smoothing: 0.0,
            validate_every: 100,
            save_every: 500,
            ..TrainConfig::default()
        },
        ..encoder
    }
}

/// The same with a decoder in the shape of GPT-2: 1.8 M parameters and the vocabulary.
pub fn classify_decoder() -> Config {
    let (texts, decoder) = (classify(), few_words());
    Config {
        tokenizer: decoder.tokenizer,
        model: TransformerConfig { dropout: texts.model.dropout, class_head: ClassHead::Last, ..decoder.model },
        ..texts
    }
}

/// The same for tags of words.
pub fn tag() -> Config {
    let texts = classify();
    Config {
        task: Task::Tagging,
        model: TransformerConfig { pooler: false, class_head: ClassHead::Tokens, ..texts.model.clone() },
        ..texts
    }
}
