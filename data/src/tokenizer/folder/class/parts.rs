//! The parts that a class has instead of the file's.

use serde_json::{Value, json};

use super::Class;

/// How Qwen 2 divides texts.
const QWEN2_PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Class {
    /// Returns normalizer, pre-tokenizer and decoder.
    pub(super) fn parts(self, tokenizer: &Value, config: &Value) -> Vec<(&'static str, Value)> {
        let [normalizer, pre_tokenizer, decoder] = match self {
            Self::Bert => of_bert(config),
            Self::CodeLlama | Self::Gemma | Self::Llama => self.of_pieces(config),
            Self::Pegasus | Self::T5 | Self::XlmRoberta => self.of_unigrams(tokenizer, config),
            Self::Cohere | Self::Gpt2 | Self::GptNeoX | Self::Qwen2 | Self::Roberta => self.of_bytes(config),
        };
        vec![("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("decoder", decoder)]
    }

    /// The classes that spell a text as bytes.
    fn of_bytes(self, config: &Value) -> [Value; 3] {
        let adds_space = flag(config, "add_prefix_space", false);
        let pre_tokenizer = match self {
            Self::Cohere => {
                let digits = json!({"type": "Digits", "individual_digits": true});
                json!({"type": "Sequence", "pretokenizers": [digits, byte_level(adds_space, true)]})
            }
            Self::Qwen2 => {
                let split = json!({"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated", "invert": false});
                json!({"type": "Sequence", "pretokenizers": [split, byte_level(adds_space, false)]})
            }
            _ => byte_level(adds_space, true),
        };

        let is_plain = matches!(self, Self::Gpt2 | Self::Roberta);
        let normalizer = if is_plain { Value::Null } else { json!({"type": "NFC"}) };
        // Settings that a decoder must have and that do not act.
        let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        [normalizer, pre_tokenizer, decoder]
    }

    /// The classes with pieces as SentencePiece has them, joined by merges.
    fn of_pieces(self, config: &Value) -> [Value; 3] {
        if self == Self::Gemma {
            let space = json!({"String": " "});
            let normalizer = json!({"type": "Replace", "pattern": space, "content": "\u{2581}"});
            let split = json!({"type": "Split", "pattern": space, "behavior": "MergedWithPrevious", "invert": false});
            return [normalizer, split, pieces_to_text(false)];
        }

        let adds_space = flag(config, "add_prefix_space", true);
        let is_legacy = self == Self::Llama && flag(config, "legacy", false);
        let scheme = match (adds_space, is_legacy) {
            (false, _) => "never",
            (true, true) => "always",
            (true, false) => "first",
        };
        [Value::Null, metaspace(scheme, false), pieces_to_text(adds_space || self == Self::CodeLlama)]
    }

    /// The classes with pieces that have probabilities.
    fn of_unigrams(self, tokenizer: &Value, config: &Value) -> [Value; 3] {
        let charsmap = precompiled(tokenizer);
        if self == Self::Pegasus {
            let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
            let lines = || json!({"type": "Replace", "pattern": {"Regex": "\n"}, "content": " "});
            let first = if charsmap.is_null() { lines() } else { charsmap };
            let normalizer = json!({"type": "Sequence", "normalizers": [first, spaces]});
            return [normalizer, metaspace("always", true), metaspace("always", true)];
        }

        let adds_space = self == Self::T5 || flag(config, "add_prefix_space", true);
        let scheme = if adds_space { "always" } else { "never" };
        let words =
            json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace(scheme, true)]});
        [charsmap, words, metaspace(scheme, true)]
    }

    /// Returns the settings of the model, which a file may have otherwise.
    pub(super) fn model_settings(self, config: &Value) -> Vec<(&'static str, Value)> {
        let unknown = |own: &str| {
            let named = config["unk_token"].as_str().or(config["unk_token"]["content"].as_str());
            ("unk_token", json!(named.unwrap_or(own)))
        };
        match self {
            Self::Bert => vec![
                unknown("[UNK]"),
                ("continuing_subword_prefix", json!("##")),
                ("max_input_chars_per_word", json!(100)),
            ],
            Self::Pegasus => vec![("byte_fallback", json!(false))],
            Self::T5 => vec![("byte_fallback", json!(false)), ("unk_id", json!(2))],
            Self::XlmRoberta => vec![("byte_fallback", json!(false)), ("unk_id", json!(3))],
            Self::CodeLlama | Self::Gemma => of_bpe(true).into_iter().chain([unknown("<unk>")]).collect(),
            Self::Llama => of_bpe(true),
            _ => of_bpe(false),
        }
    }

    /// Returns what the class puts around texts and pairs, where it does not take that from the file. `token` gives the token of a role.
    pub(in crate::tokenizer::folder) fn post_processor(
        self,
        token: impl Fn(&str) -> Option<Token>,
        config: &Value,
    ) -> Option<Value> {
        let (first, second) = (sequence("A", 0), sequence("B", 0));
        Some(match self {
            Self::Bert => {
                let [cls, sep] = [token("cls_token")?, token("sep_token")?];
                let single = vec![special(&cls, 0), first, special(&sep, 0)];
                let pair = [single.clone(), vec![sequence("B", 1), special(&sep, 1)]].concat();
                template(single, pair, &[cls, sep])
            }
            Self::Roberta => {
                let [sep, cls] = [token("sep_token")?, token("cls_token")?];
                let adds_space = flag(config, "add_prefix_space", false);
                json!({"type": "RobertaProcessing", "sep": sep, "cls": cls, "trim_offsets": true, "add_prefix_space": adds_space})
            }

            Self::XlmRoberta => {
                let [bos, eos] = [token("bos_token")?, token("eos_token")?];
                let end = special(&eos, 0);
                let single = vec![special(&bos, 0), first, end.clone()];
                let pair = [single.clone(), vec![end.clone(), second, end]].concat();
                template(single, pair, &[bos, eos])
            }
            Self::T5 => {
                let eos = ("</s>".to_owned(), token("eos_token")?.1);
                let end = special(&eos, 0);
                let single = vec![first, end.clone()];
                template(single.clone(), [single, vec![second, end]].concat(), &[eos])
            }

            Self::Pegasus => {
                let eos = token("eos_token")?;
                let end = special(&eos, 0);
                template(vec![first.clone(), end.clone()], vec![first, second, end], &[eos])
            }
            Self::GptNeoX => template(vec![first.clone()], vec![first, sequence("B", 1)], &[]),
            _ => return None,
        })
    }
}

/// A token and its id.
type Token = (String, u32);

fn flag(config: &Value, key: &str, default: bool) -> bool {
    config[key].as_bool().unwrap_or(default)
}

fn of_bert(config: &Value) -> [Value; 3] {
    let normalizer = json!({
        "type": "BertNormalizer", "clean_text": true,
        "handle_chinese_chars": flag(config, "tokenize_chinese_chars", true),
        "strip_accents": config["strip_accents"].as_bool(), "lowercase": flag(config, "do_lower_case", true),
    });
    let decoder = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    [normalizer, json!({"type": "BertPreTokenizer"}), decoder]
}

fn of_bpe(spells_bytes: bool) -> Vec<(&'static str, Value)> {
    let mut settings = vec![
        ("dropout", Value::Null),
        ("fuse_unk", json!(spells_bytes)),
        ("byte_fallback", json!(spells_bytes)),
        ("ignore_merges", json!(false)),
    ];
    if !spells_bytes {
        settings.extend([("continuing_subword_prefix", Value::Null), ("end_of_word_suffix", Value::Null)]);
        settings.push(("unk_token", Value::Null));
    }
    settings
}

fn byte_level(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex})
}

fn metaspace(scheme: &str, split: bool) -> Value {
    json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": split})
}

/// The decoder of pieces that SentencePiece made.
fn pieces_to_text(strips_space: bool) -> Value {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    steps.extend(strips_space.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0})));
    json!({"type": "Sequence", "decoders": steps})
}

/// Returns the table of characters of SentencePiece that the file has, or null.
fn precompiled(tokenizer: &Value) -> Value {
    let normalizer = &tokenizer["normalizer"];
    let steps = match normalizer["normalizers"].as_array() {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(normalizer),
    };
    steps.iter().find(|step| step["type"] == "Precompiled").cloned().unwrap_or_default()
}

fn sequence(id: &str, type_id: u32) -> Value {
    json!({"Sequence": {"id": id, "type_id": type_id}})
}

fn special((token, _): &Token, type_id: u32) -> Value {
    json!({"SpecialToken": {"id": token, "type_id": type_id}})
}

fn template(single: Vec<Value>, pair: Vec<Value>, tokens: &[Token]) -> Value {
    let entry = |(token, id): &Token| (token.clone(), json!({"id": token, "ids": [id], "tokens": [token]}));
    let tokens: serde_json::Map<String, Value> = tokens.iter().map(entry).collect();
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens})
}

/// Whether a setting of a model has this value. An empty text is as good as none.
pub(super) fn is_set_to(model: &Value, key: &str, value: &Value) -> bool {
    let found = &model[key];
    match value {
        Value::Null => found.is_null() || found == "" || found == 0.0,
        Value::Bool(false) => found.is_null() || found == value,
        _ => found == value,
    }
}

/// Whether two parts give the same ids: settings that one of them lacks have their defaults.
pub(super) fn same(found: &Value, wanted: &Value) -> bool {
    match (found.as_object(), wanted.as_object()) {
        (Some(found), Some(wanted)) => wanted.iter().all(|(key, value)| match found.get(key) {
            Some(other) => key == "trim_offsets" || same(other, value),
            // As files before version 0.15 spell it.
            None if key == "prepend_scheme" => {
                *value == "always" && found.get("add_prefix_space") != Some(&json!(false))
            }
            None => {
                let is_default = key == "use_regex" || key == "split" || key == "cleanup";
                key == "trim_offsets" || is_default && *value == true || value.is_null()
            }
        }),
        _ => match (found.as_array(), wanted.as_array()) {
            (Some(found), Some(wanted)) => {
                found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| same(found, wanted))
            }
            _ => found == wanted,
        },
    }
}
