//! The vocabulary, in one of the two forms that llama.cpp encodes with: BPE over bytes (`gpt2`), and SentencePiece's BPE (`llama`).

use std::collections::HashMap;

use serde_json::Value;

use super::config::size;
use super::file::{Entry, GgufFile};
use super::{GgufError, TokenizerFiles, refused};

/// Kinds of tokens.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// How Llama 3 divides a text into words.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// How Qwen 2 and 3 do.
const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Adds the vocabulary.
pub(super) fn add(
    file: &mut GgufFile<'_>,
    config: &Value,
    TokenizerFiles { tokenizer, chat_template, adds_bos, end_of_turn }: &TokenizerFiles<'_>,
) -> Result<(), GgufError> {
    let model = &tokenizer["model"];
    if model["type"] != "BPE" {
        return Err(refused(format!("it has no vocabulary of the kind {}", model["type"])));
    }
    let merges = merges(model)?;
    let tokens = tokens(tokenizer, size(config, "vocab_size") as usize)?;
    let is_byte_level = tokenizer["decoder"]["type"] == "ByteLevel";
    let kinds = tokens.iter().map(|token| token.kind(is_byte_level)).collect();

    if is_byte_level {
        file.add(ggml("model"), Entry::Text("gpt2".to_owned()));
        file.add(ggml("pre"), Entry::Text(words_of(tokenizer)?.to_owned()));
    } else {
        if model["byte_fallback"] != Value::Bool(true) {
            return Err(refused("its BPE needs tokens for all bytes (tokenizer.byte_fallback)"));
        }
        file.add(ggml("model"), Entry::Text("llama".to_owned()));
        file.add(ggml("pre"), Entry::Text("default".to_owned()));
        file.add(ggml("add_space_prefix"), Entry::Bool(begins_with_space(tokenizer)?));
        // The earlier a merge, the larger the score of its result.
        let ranks: HashMap<String, usize> =
            merges.iter().enumerate().rev().map(|(rank, [left, right])| (format!("{left}{right}"), rank)).collect();
        let score = |token: &Token| ranks.get(&token.text).map_or(0.0, |rank| -(*rank as f32) - 1.0);
        file.add(ggml("scores"), Entry::F32s(tokens.iter().map(score).collect()));
    }
    file.add(ggml("tokens"), Entry::Texts(tokens.into_iter().map(|token| token.text).collect()));
    file.add(ggml("token_type"), Entry::I32s(kinds));
    if is_byte_level {
        let merges = merges.iter().map(|[left, right]| format!("{left} {right}")).collect();
        file.add(ggml("merges"), Entry::Texts(merges));
    }

    for (key, name) in
        [("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id"), ("pad_token_id", "padding_token_id")]
    {
        if let Some(id) = config[key].as_u64() {
            file.add(ggml(name), Entry::U32(id as u32));
        }
    }
    file.add(ggml("add_bos_token"), Entry::Bool(*adds_bos));
    file.add(ggml("add_eos_token"), Entry::Bool(false));
    if let Some(id) = end_of_turn {
        file.add(ggml("eot_token_id"), Entry::U32(*id));
    }
    if let Some(template) = chat_template {
        file.add(["tokenizer", "chat_template"].join("."), Entry::Text((*template).to_owned()));
    }
    Ok(())
}

/// Returns a key of the vocabulary.
fn ggml(name: &str) -> String {
    ["tokenizer", "ggml", name].join(".")
}

/// A token of the vocabulary.
struct Token {
    text: String,
    /// Whether it is an added token, and a special one.
    added: Option<bool>,
    is_unknown: bool,
    is_there: bool,
}

impl Token {
    fn kind(&self, is_byte_level: bool) -> i32 {
        match self.added {
            _ if !self.is_there => UNUSED,
            _ if self.is_unknown && !is_byte_level => UNKNOWN,
            Some(true) => CONTROL,
            Some(false) => USER_DEFINED,
            None if !is_byte_level && is_byte(&self.text) => BYTE,
            None => NORMAL,
        }
    }
}

/// Whether a token stands for one byte: `<0x0A>`.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Returns a token for each row of the embedding.
fn tokens(tokenizer: &Value, n_rows: usize) -> Result<Vec<Token>, GgufError> {
    let mut tokens: Vec<Token> = (0..n_rows)
        .map(|id| Token { text: format!("[PAD{id}]"), added: None, is_unknown: false, is_there: false })
        .collect();
    let unknown = tokenizer["model"]["unk_token"].as_str();
    let vocab =
        tokenizer["model"]["vocab"].as_object().ok_or_else(|| refused("its vocabulary is not a list of tokens"))?;
    let mut put = |id: u64, text: &str, added: Option<bool>| {
        let place =
            tokens.get_mut(id as usize).ok_or_else(|| refused(format!("token {id} has no row in the embedding")))?;
        *place = Token { text: text.to_owned(), added, is_unknown: unknown == Some(text), is_there: true };
        Ok(())
    };
    for (text, id) in vocab {
        put(id.as_u64().unwrap_or(u64::MAX), text, None)?;
    }
    for token in tokenizer["added_tokens"].as_array().into_iter().flatten() {
        let (id, text) = (token["id"].as_u64().unwrap_or(u64::MAX), token["content"].as_str().unwrap_or_default());
        put(id, text, Some(token["special"] == Value::Bool(true)))?;
    }
    Ok(tokens)
}

/// Returns both parts of each merge. Older files join them with a space.
fn merges(model: &Value) -> Result<Vec<[String; 2]>, GgufError> {
    let part = |text: &str| text.to_owned();
    let merge = |merge: &Value| match merge {
        Value::String(text) => text.split_once(' ').map(|(left, right)| [part(left), part(right)]),
        Value::Array(parts) => match parts.as_slice() {
            [Value::String(left), Value::String(right)] => Some([part(left), part(right)]),
            _ => None,
        },
        _ => None,
    };
    let merges = model["merges"].as_array().map_or(&[][..], Vec::as_slice);
    merges.iter().map(|found| merge(found).ok_or_else(|| refused("its merges are not pairs of tokens"))).collect()
}

/// Returns llama.cpp's name for how a text is divided into words.
fn words_of(tokenizer: &Value) -> Result<&'static str, GgufError> {
    let normalizer = &tokenizer["normalizer"];
    if !normalizer.is_null() && normalizer["type"] != "NFC" {
        return Err(refused(format!("it changes a text before it encodes it: {normalizer}")));
    }
    let pre = &tokenizer["pre_tokenizer"];
    let parts = match pre["type"].as_str() {
        Some("Sequence") => pre["pretokenizers"].as_array().map_or(&[][..], Vec::as_slice),
        _ => std::slice::from_ref(pre),
    };
    let unlike = || refused(format!("it divides a text into words in other ways than {pre}"));
    match parts {
        [bytes] if bytes["type"] == "ByteLevel" && bytes["use_regex"] == Value::Bool(true) => {
            if bytes["add_prefix_space"] == Value::Bool(true) { Err(unlike()) } else { Ok("gpt-2") }
        }
        [split, bytes] if split["type"] == "Split" && bytes["type"] == "ByteLevel" => {
            match split["pattern"]["Regex"].as_str() {
                Some(LLAMA_3) => Ok("llama-bpe"),
                Some(QWEN_2) => Ok("qwen2"),
                _ => Err(unlike()),
            }
        }
        _ => Err(unlike()),
    }
}

/// Returns whether a text gets a space in front, and refuses other changes of it.
fn begins_with_space(tokenizer: &Value) -> Result<bool, GgufError> {
    let (normalizer, pre) = (&tokenizer["normalizer"], &tokenizer["pre_tokenizer"]);
    let parts = match normalizer["type"].as_str() {
        Some("Sequence") => normalizer["normalizers"].as_array().map_or(&[][..], Vec::as_slice),
        Some(_) => std::slice::from_ref(normalizer),
        None => &[],
    };
    let is_mark =
        |part: &Value| part["type"] == "Replace" && part["pattern"]["String"] == " " && part["content"] == "▁";
    let is_prefix = |part: &Value| part["type"] == "Prepend" && part["prepend"] == "▁";
    match (parts, pre["type"].as_str()) {
        ([prefix, mark], None) if is_prefix(prefix) && is_mark(mark) => Ok(true),
        ([mark], None) if is_mark(mark) => Ok(false),
        _ => Err(refused("it changes a text in other ways before it encodes it")),
    }
}
