//! The special tokens that a class has unless a file says otherwise.

use std::iter;

use serde_json::Value;

use super::Class;

/// A role and its token.
pub(super) type Own = (&'static str, &'static str);

const OF_BERT: &[Own] = &[
    ("unk_token", "[UNK]"),
    ("sep_token", "[SEP]"),
    ("pad_token", "[PAD]"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
];

const OF_ROBERTA: &[Own] = &[
    ("bos_token", "<s>"),
    ("eos_token", "</s>"),
    ("unk_token", "<unk>"),
    ("sep_token", "</s>"),
    ("pad_token", "<pad>"),
    ("cls_token", "<s>"),
    ("mask_token", "<mask>"),
];

const OF_GEMMA: &[Own] = &[
    ("bos_token", "<bos>"),
    ("eos_token", "<eos>"),
    ("unk_token", "<unk>"),
    ("pad_token", "<pad>"),
    ("mask_token", "<mask>"),
];

const OF_COHERE: &[Own] = &[
    ("bos_token", "<BOS_TOKEN>"),
    ("eos_token", "<|END_OF_TURN_TOKEN|>"),
    ("unk_token", "<UNK>"),
    ("sep_token", "<SEP>"),
    ("pad_token", "<PAD>"),
    ("cls_token", "<CLS>"),
    ("mask_token", "<MASK_TOKEN>"),
];

const OF_GPT_NEOX: &[Own] = &[
    ("bos_token", "<|endoftext|>"),
    ("eos_token", "<|endoftext|>"),
    ("unk_token", "<|endoftext|>"),
    ("pad_token", "<|padding|>"),
];

impl Class {
    /// Returns the special tokens of the class.
    pub(in crate::tokenizer::folder) fn own_tokens(self) -> &'static [Own] {
        match self {
            Self::Bert => OF_BERT,
            Self::Cohere => OF_COHERE,
            Self::Gemma => OF_GEMMA,
            Self::Gpt2 => {
                &[("bos_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>")]
            }
            Self::GptNeoX => OF_GPT_NEOX,
            Self::CodeLlama | Self::Llama => &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")],
            Self::Pegasus => {
                &[("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>"), ("mask_token", "<mask_2>")]
            }
            Self::Qwen2 => {
                &[("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>"), ("pad_token", "<|endoftext|>")]
            }
            Self::Roberta | Self::XlmRoberta => OF_ROBERTA,
            Self::T5 => &[("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")],
        }
    }

    /// Returns the further special tokens of the class, in the order in which a vocabulary without them gets them.
    pub(in crate::tokenizer::folder) fn further_tokens(self, config: &Value) -> Vec<String> {
        match self {
            Self::CodeLlama => ["\u{2581}<PRE>", "\u{2581}<MID>", "\u{2581}<SUF>", "\u{2581}<EOT>", "<FILL_ME>"]
                .map(str::to_owned)
                .into(),
            Self::Pegasus => iter::once("<mask_1>".to_owned()).chain((2..103).map(|n| format!("<unk_{n}>"))).collect(),
            Self::T5 => (0..config["extra_ids"].as_u64().unwrap_or(100)).map(|n| format!("<extra_id_{n}>")).collect(),
            _ => Vec::new(),
        }
    }
}
