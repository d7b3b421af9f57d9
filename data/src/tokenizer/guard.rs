//! What a `tokenizer.json` of somebody else may ask for. The crate that reads it panics on some nonsense, and takes gigabytes or
//! minutes for some that is valid.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokenizers::{EncodeInput, Encoding, Tokenizer};

use crate::error::panic_text;

/// Longest added token in bytes. The longest in use have about 100.
const MOST_TOKEN_BYTES: usize = 4096;
/// Largest `max_input_chars_per_word`; files in use have 100.
const MOST_WORD_CHARS: u64 = 100_000;
/// How much longer the `Replace` parts of a file may make a text, all of them together. `▁` for a space is 3.
const MOST_GROWTH: usize = 64;

/// Calls the reader's crate, whose panics become a text.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let describe = |panic: Box<dyn std::any::Any + Send>| {
        let text = panic_text(&*panic);
        format!("a part of the file cannot be used ({})", text.lines().next().unwrap_or_default())
    };
    catch_unwind(AssertUnwindSafe(work)).map_err(describe)
}

/// Reads a `tokenizer.json`.
pub(super) fn read(json: &str) -> Result<Tokenizer, String> {
    check(&serde_json::from_str(json).map_err(|e| e.to_string())?)?;
    serde_json::from_str::<Parts>(json).map_err(|e| e.to_string())?;
    caught(|| json.parse::<Tokenizer>())?.map_err(|e| e.to_string())
}

/// The parts that are checked. A part that a file has twice is an error: the check would see one of them, the reader's crate the other.
#[derive(Deserialize)]
#[expect(dead_code, reason = "the names are read, not the values")]
struct Parts {
    added_tokens: Option<IgnoredAny>,
    normalizer: Option<IgnoredAny>,
    pre_tokenizer: Option<IgnoredAny>,
    model: Option<IgnoredAny>,
    decoder: Option<IgnoredAny>,
}

/// Encodes a text with the special tokens of the file.
pub(super) fn encode<'t>(tokenizer: &Tokenizer, text: impl Into<EncodeInput<'t>>) -> Result<Encoding, String> {
    caught(|| tokenizer.encode(text, true))?.map_err(|e| e.to_string())
}

/// Refuses parts that would take memory or time without measure.
pub(super) fn check(parts: &Value) -> Result<(), String> {
    for token in parts["added_tokens"].as_array().into_iter().flatten() {
        let n = token["content"].as_str().map_or(0, str::len);
        if n > MOST_TOKEN_BYTES {
            return Err(format!("the added token {} has {n} bytes; {MOST_TOKEN_BYTES} are allowed", token["id"]));
        }
    }
    let chars = &parts["model"]["max_input_chars_per_word"];
    if chars.as_u64().is_some_and(|chars| chars > MOST_WORD_CHARS) {
        return Err(format!(
            "its model has max_input_chars_per_word = {chars}; set it to {MOST_WORD_CHARS} at most (usual: 100)"
        ));
    }
    for section in ["normalizer", "pre_tokenizer", "decoder"] {
        let growth = growth(&parts[section], section)?;
        if growth > MOST_GROWTH {
            return Err(format!(
                "{section}: its Replace parts can make a text {growth} times as long, {MOST_GROWTH} times are allowed"
            ));
        }
    }
    Ok(())
}

/// Returns the size that a precompiled map of characters gives for its trie: four bytes in base64, the lowest first.
fn trie_bytes(map: &str) -> Option<usize> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |digit: &u8| DIGITS.iter().position(|known| known == digit);
    let bits = map.as_bytes().get(..6)?.iter().try_fold(0, |bits, digit| Some(bits << 6 | value(digit)?))?;
    let bytes = u32::try_from(bits >> 4).ok()?.swap_bytes();
    usize::try_from(bytes).ok()
}

/// How much longer a part, with the parts inside it, can make a text.
fn growth(part: &Value, section: &str) -> Result<usize, String> {
    let mut factor = 1_usize;
    if let Some(map) = part["precompiled_charsmap"].as_str()
        && trie_bytes(map).is_none_or(|n| n > map.len())
    {
        return Err(format!("{section}: the precompiled_charsmap is damaged"));
    }
    if part["type"] == "Replace" {
        let content = part["content"].as_str().map_or(0, str::len);
        let pattern = match part["pattern"]["String"].as_str() {
            Some("") => return Err(format!("{section}: a Replace has an empty pattern; name what it replaces")),
            Some(pattern) => pattern.len(),
            None => 1,
        };
        factor = content.div_ceil(pattern).max(1);
    }
    let inside: Vec<&Value> = match part {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    inside.into_iter().try_fold(factor, |factor, part| Ok(factor.saturating_mul(growth(part, section)?)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::vocabulary::Vocabulary;
    use super::*;

    /// A small vocabulary with one part replaced.
    fn file(section: &str, part: Value) -> String {
        let mut file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": { "[UNK]": 0, "a": 1, "##a": 2, "!": 3 } },
        });
        match section.split_once('/') {
            Some((outer, inner)) => file[outer][inner] = part,
            None => file[section] = part,
        }
        file.to_string()
    }

    /// What becomes of a file, and of texts that it encodes.
    fn used(json: String) -> crate::error::Result<Vec<u32>> {
        let vocabulary = Vocabulary::parse(json, None, &[], Some("[UNK]"))?;
        let mut ids = Vec::new();
        for text in ["a", "aa a!", &("a".repeat(40) + "!"), "é\u{301} 語 \u{1f600}"] {
            vocabulary.encode(&vocabulary.tokenizer, text, &mut ids)?;
            vocabulary.normalized(text)?;
            vocabulary.encode_piece(text, &mut ids)?;
        }
        Ok(ids)
    }

    #[test]
    fn nonsense_ends_in_words_and_never_in_a_panic() {
        let replace =
            |pattern: Value, content: String| json!({ "type": "Replace", "pattern": pattern, "content": content });
        let thousand = || replace(json!({ "String": "a" }), "b".repeat(1000));

        for (section, part, wanted) in [
            ("normalizer", replace(json!({ "String": "" }), "b".into()), "empty pattern"),
            ("normalizer", json!({ "type": "Sequence", "normalizers": [thousand(), thousand()] }), "1000000 times"),
            ("normalizer", replace(json!({ "Regex": "." }), "b".repeat(1000)), "1000 times"),
            ("normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": "AAAA" }), ""),
            ("normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": "/////wD/AP8A" }), ""),
            ("normalizer", replace(json!({ "Regex": "(a+)+$" }), "b".into()), ""),
            (
                "pre_tokenizer",
                json!({ "type": "Split", "pattern": { "Regex": "(a+)+$" }, "behavior": "Isolated", "invert": false }),
                "",
            ),
            (
                "added_tokens",
                json!([{ "id": 4, "content": "x".repeat(10 << 20), "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": false }]),
                "10485760 bytes",
            ),
            ("model/max_input_chars_per_word", json!(1_u64 << 63), "max_input_chars_per_word = 9223372036854775808"),
            (
                "model",
                json!({ "type": "BPE", "vocab": { "a": 0, "b": 1, "ab": 2 }, "merges": ["a b"],
                "continuing_subword_prefix": "abcdef" }),
                "",
            ),
        ] {
            let shown = format!("{section}: {}", part.to_string().chars().take(80).collect::<String>());
            match used(file(section, part)) {
                // What the crate can use after all.
                Ok(_) => assert!(wanted.is_empty(), "{shown}"),
                Err(error) => assert!(error.to_string().contains(wanted), "{shown}: {error}"),
            }
        }

        let usual = json!({ "type": "Sequence", "normalizers": [
            replace(json!({ "String": " " }), "▁".into()), { "type": "Lowercase" }] });
        assert!(!used(file("normalizer", usual)).expect("usual").is_empty());
    }
}
