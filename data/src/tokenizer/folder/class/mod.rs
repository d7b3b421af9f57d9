//! What the class of a tokenizer says: it replaces the normalizer and the pre-tokenizer of `tokenizer.json`. Source: the classes of
//! `transformers` 5, which take only vocabulary, merges and post-processor from the file.

use serde_json::{Value, json};

/// How Qwen 2 divides texts.
const QWEN2_PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Classes that do not follow `tokenizer.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Bert,
    /// GPT-2, RoBERTa and BART.
    Gpt2,
    Qwen2,
    Llama,
}

/// Returns the name of a folder's class: the one that a file names, or else the usual one of the model's type.
fn name<'v>(config: &'v Value, model: &'v Value) -> Option<&'v str> {
    let declared = config["tokenizer_class"].as_str().or_else(|| model["tokenizer_class"].as_str());
    if let Some(name) = declared {
        return Some(name.strip_suffix("Fast").unwrap_or(name));
    }
    Some(match model["model_type"].as_str()? {
        "bert" | "distilbert" | "electra" => "BertTokenizer",
        "gpt2" | "phi" => "GPT2Tokenizer",
        "roberta" | "bart" => "RobertaTokenizer",
        "xlm-roberta" => "XLMRobertaTokenizer",
        "qwen2" | "qwen3" => "Qwen2Tokenizer",
        "gemma" | "gemma2" | "gemma3" | "gemma3_text" => "GemmaTokenizer",
        "gpt_neox" => "GPTNeoXTokenizer",
        _ => return None,
    })
}

/// Whether `transformers` takes the class `LlamaTokenizer`: it follows the file where that spells bytes, as for Llama 3, and
/// for Mistral.
fn takes_llama(tokenizer: &Value, model: &Value) -> bool {
    model["model_type"] != "mistral" && !spells_bytes(tokenizer)
}

/// Whether the class of a folder pads in front of a text, as no other does.
pub(super) fn pads_left(tokenizer: &Value, config: &Value, model: &Value) -> bool {
    match name(config, model) {
        Some("LlamaTokenizer") => takes_llama(tokenizer, model),
        Some(name) => ["CodeLlamaTokenizer", "CohereTokenizer", "GemmaTokenizer"].contains(&name),
        None => false,
    }
}

/// A role and its token.
type Own = (&'static str, &'static str);

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

const OF_GPT2: &[Own] =
    &[("bos_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>")];

const OF_QWEN2: &[Own] =
    &[("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>"), ("pad_token", "<|endoftext|>")];

/// Returns the special tokens that a folder's class has unless a file says otherwise.
pub(super) fn own_tokens(tokenizer: &Value, config: &Value, model: &Value) -> &'static [Own] {
    match name(config, model).unwrap_or_default() {
        "BertTokenizer" | "DistilBertTokenizer" | "ElectraTokenizer" => OF_BERT,
        "RobertaTokenizer"
        | "BartTokenizer"
        | "XLMRobertaTokenizer"
        | "CamembertTokenizer"
        | "MBartTokenizer"
        | "NllbTokenizer" => OF_ROBERTA,
        "GPT2Tokenizer" => OF_GPT2,
        "GPTNeoXTokenizer" => &[("eos_token", "<|endoftext|>"), ("pad_token", "<|padding|>")],
        "Qwen2Tokenizer" => OF_QWEN2,
        "LlamaTokenizer" if takes_llama(tokenizer, model) => {
            &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")]
        }
        "GemmaTokenizer" => OF_GEMMA,
        "T5Tokenizer" => &[("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")],
        _ => &[],
    }
}

impl Class {
    /// Returns the class of a folder, if it does not follow the file.
    fn of(tokenizer: &Value, config: &Value, model: &Value) -> Option<Self> {
        let class = match name(config, model)? {
            "BertTokenizer" | "DistilBertTokenizer" | "ElectraTokenizer" => Self::Bert,
            "GPT2Tokenizer" | "RobertaTokenizer" | "BartTokenizer" => Self::Gpt2,
            "Qwen2Tokenizer" => Self::Qwen2,
            "LlamaTokenizer" if takes_llama(tokenizer, model) => Self::Llama,
            _ => return None,
        };
        let wanted = if class == Self::Bert { "WordPiece" } else { "BPE" };
        (tokenizer["model"]["type"] == wanted).then_some(class)
    }

    /// Returns the parts that the class has instead of the file's.
    fn parts(self, config: &Value) -> Vec<(&'static str, Value)> {
        let flag = |key: &str, default: bool| config[key].as_bool().unwrap_or(default);

        match self {
            Self::Bert => {
                let normalizer = json!({
                    "type": "BertNormalizer", "clean_text": true,
                    "handle_chinese_chars": flag("tokenize_chinese_chars", true),
                    "strip_accents": config["strip_accents"].as_bool(), "lowercase": flag("do_lower_case", true),
                });
                vec![("normalizer", normalizer), ("pre_tokenizer", json!({"type": "BertPreTokenizer"}))]
            }
            Self::Gpt2 => {
                vec![("normalizer", Value::Null), ("pre_tokenizer", byte_level(flag("add_prefix_space", false), true))]
            }
            Self::Qwen2 => {
                let split = json!({"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated", "invert": false});
                let parts = [split, byte_level(flag("add_prefix_space", false), false)];
                let pre_tokenizer = json!({"type": "Sequence", "pretokenizers": parts});
                vec![("normalizer", json!({"type": "NFC"})), ("pre_tokenizer", pre_tokenizer)]
            }
            Self::Llama => {
                let adds_space = flag("add_prefix_space", true);
                let scheme = match (adds_space, flag("legacy", false)) {
                    (false, _) => "never",
                    (true, true) => "always",
                    (true, false) => "first",
                };
                let metaspace =
                    json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": false});
                let mut steps = vec![
                    json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
                    json!({"type": "ByteFallback"}),
                    json!({"type": "Fuse"}),
                ];
                steps.extend(adds_space.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0})));
                let decoder = json!({"type": "Sequence", "decoders": steps});
                vec![("normalizer", Value::Null), ("pre_tokenizer", metaspace), ("decoder", decoder)]
            }
        }
    }

    /// The settings that the parts come from.
    fn keys(self) -> &'static str {
        match self {
            Self::Bert => "do_lower_case, strip_accents and tokenize_chinese_chars",
            Self::Gpt2 | Self::Qwen2 => "add_prefix_space",
            Self::Llama => "add_prefix_space and legacy",
        }
    }
}

/// Gives a tokenizer the parts of its class. Returns a sentence if that changes it.
pub(super) fn apply(tokenizer: &mut Value, config: &Value, model: &Value) -> Option<String> {
    let class = Class::of(tokenizer, config, model)?;
    let mut changed = Vec::new();
    for (name, part) in class.parts(config) {
        if !same(&tokenizer[name], &part) {
            tokenizer[name] = part;
            changed.push(name);
        }
    }
    (!changed.is_empty()).then(|| {
        format!(
            "the tokenizer's class says otherwise than tokenizer.json, in {}; Kiln follows the class and its settings {} (or their \
             defaults), like version 5 of transformers; tokenizer_class = \"PreTrainedTokenizerFast\" in tokenizer_config.json lets \
             tokenizer.json win",
            changed.join(" and "),
            class.keys()
        )
    })
}

fn byte_level(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex})
}

/// Whether two parts give the same ids: settings that one of them lacks have their defaults.
fn same(found: &Value, wanted: &Value) -> bool {
    match (found.as_object(), wanted.as_object()) {
        (Some(found), Some(wanted)) => wanted.iter().all(|(key, value)| match found.get(key) {
            Some(other) => key == "trim_offsets" || same(other, value),
            None => key == "trim_offsets" || key == "use_regex" && *value == true || value.is_null(),
        }),
        _ => match (found.as_array(), wanted.as_array()) {
            (Some(found), Some(wanted)) => {
                found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| same(found, wanted))
            }
            _ => found == wanted,
        },
    }
}

/// Whether the file spells texts as bytes, in its pre-tokenizer or decoder.
fn spells_bytes(tokenizer: &Value) -> bool {
    ["pre_tokenizer", "decoder"].iter().any(|part| has_byte_level(&tokenizer[*part]))
}

fn has_byte_level(part: &Value) -> bool {
    let parts = ["pretokenizers", "decoders"].iter().filter_map(|key| part[*key].as_array()).flatten();
    part["type"] == "ByteLevel" || parts.into_iter().any(has_byte_level)
}
