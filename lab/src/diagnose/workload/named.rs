//! The workloads that have names.

use kiln_model::{Activation, Architecture, Positions, TransformerConfig};
use kiln_train::config::{Config, OptimConfig, Task, TrainConfig};

use super::{Workload, constant_rate};

/// Names that [`Workload::named`] knows.
pub const NAMES: [&str; 15] = [
    "gpt", "gpt64", "gpt-h96", "gpt-8k", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "bert", "mt", "t5",
    "tiny", "tiny-mt",
];

impl Workload {
    /// Returns the workload called `name`, one of [`NAMES`].
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "gpt" => Some(Self::gpt("gpt", [16, 1024])),
            "gpt64" => Some(Self::gpt("gpt64", [64, 1024])),
            "gpt-h96" => Some(Self::gpt_with_heads_of_96()),
            "gpt-8k" => Some(Self::gpt("gpt-8k", [4, 8192])),
            "llama" => Some(Self::llama()),
            "bert" => Some(Self::bert()),
            "mt" => Some(Self::mt()),
            "tiny" => Some(Self::tiny()),
            "tiny-mt" => Some(Self::tiny_mt()),
            family => Self::family(family),
        }
    }

    /// GPT-2 124M on full rows, without dropout; the vocabulary padded to 50,304 as is usual.
    fn gpt(name: &str, [rows, len]: [usize; 2]) -> Self {
        let model = TransformerConfig { max_positions: len, ..gpt2() };
        Self::synthetic(name, format!("GPT-2 124M, {rows} x {len}"), model, [rows, len])
    }

    /// GPT-2 124M with 8 heads of 96 dimensions instead of 12 of 64.
    fn gpt_with_heads_of_96() -> Self {
        let model = TransformerConfig { n_heads: 8, ..gpt2() };
        Self::synthetic("gpt-h96", "GPT-2 124M with heads of 96, 16 x 1024".into(), model, [16, 1024])
    }

    /// A Llama with grouped queries, RMS norms, rotary positions and SwiGLU.
    fn llama() -> Self {
        let model = TransformerConfig { target_vocab_size: 32_000, ..TransformerConfig::llama_125m() };
        Self::synthetic("llama", "Llama 125M, 16 x 2048".into(), model, [16, 2048])
    }

    /// BERT base, with dropout, on full rows of which 15 % of the tokens are labels.
    fn bert() -> Self {
        let model =
            TransformerConfig { source_vocab_size: 30_592, max_positions: 512, ..TransformerConfig::bert_base() };
        Self::synthetic("bert", "BERT base, 64 x 512".into(), model, [64, 512])
    }

    /// Transformer base, pre-norm, 32,000 joint tokens, on 400 padded pairs of 48 to 64 tokens; dropout 0.1 also inside the
    /// feed-forward, label smoothing 0.1.
    fn mt() -> Self {
        let model = TransformerConfig {
            source_vocab_size: 32_000,
            target_vocab_size: 32_000,
            positions: Positions::Learned,
            activation: Activation::GeluTanh.into(),
            dropout: 0.1,
            ..TransformerConfig::base()
        };
        Self::synthetic("mt", "Transformer base, 400 x (64 + 64) padded".into(), model, [400, 64])
    }

    /// A model that a CPU can train, to try the command out.
    fn tiny() -> Self {
        let model = TransformerConfig {
            target_vocab_size: 512,
            d_model: 64,
            n_heads: 2,
            d_ff: 128,
            n_decoder_layers: 2,
            max_positions: 64,
            dropout: 0.0,
            attention_dropout: 0.0,
            ..TransformerConfig::gpt2_124m()
        };
        Self::synthetic("tiny", "a small GPT, 4 x 64".into(), model, [4, 64])
    }

    /// A translator that a CPU can train.
    fn tiny_mt() -> Self {
        let vocabulary = 512;
        let model = TransformerConfig {
            source_vocab_size: vocabulary,
            target_vocab_size: vocabulary,
            d_model: 64,
            n_heads: 2,
            d_ff: 128,
            n_encoder_layers: 1,
            n_decoder_layers: 1,
            ..Self::mt().model
        };
        let mt = Self::synthetic("tiny-mt", "a small translator, 8 x (16 + 16) padded".into(), model, [8, 16]);
        Self { n_batches: 2, ..mt }
    }

    /// The recipe of the baseline. Pairs have a label smoothing of 0.1.
    pub(super) fn synthetic(
        name: &str,
        title: String,
        model: TransformerConfig,
        [batch_size, seq_len]: [usize; 2],
    ) -> Self {
        let task = match model.architecture {
            Architecture::EncoderDecoder => Task::Translation,
            Architecture::DecoderOnly => Task::Lm,
            Architecture::EncoderOnly => Task::Mlm,
        };
        let is_pairs = task == Task::Translation;
        let recipe =
            OptimConfig { beta2: 0.999, eps: 1e-8, weight_decay: 0.1, max_grad_norm: 1.0, ..OptimConfig::default() };
        let config = Config {
            task,
            optim: constant_rate(recipe),
            train: TrainConfig { label_smoothing: if is_pairs { 0.1 } else { 0.0 }, ..TrainConfig::default() },
            model: model.clone(),
            ..Config::default()
        };
        let (n_batches, shortest) = if is_pairs { (4, 0.75) } else { (2, 1.0) };
        Self { name: name.into(), title, config, model, batch_size, seq_len, n_batches, shortest }
    }
}

/// GPT-2 124M as the baseline has it.
fn gpt2() -> TransformerConfig {
    TransformerConfig {
        target_vocab_size: 50_304,
        dropout: 0.0,
        attention_dropout: 0.0,
        ..TransformerConfig::gpt2_124m()
    }
}
