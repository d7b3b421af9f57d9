//! What the tokens of a `tokenizer.json` spell, whatever way the file has of writing spaces and bytes.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::TokenizerFile;

/// How tokens are written.
enum Writing {
    /// Each byte as a character (GPT-2): `Ġthe`.
    Bytes(HashMap<char, u8>),
    /// `##` before a token that continues a word (BERT): `##ing`.
    WordPieces,
    /// U+2581 for a space, `<0x0A>` for a byte (SentencePiece).
    Pieces,
}

impl Writing {
    fn of(json: &Value) -> Self {
        if json["model"]["type"] == "WordPiece" {
            return Self::WordPieces;
        }
        if has_type(&json["decoder"], "ByteLevel") || has_type(&json["pre_tokenizer"], "ByteLevel") {
            return Self::Bytes(characters_of_bytes());
        }
        Self::Pieces
    }

    /// Returns the bytes that a token adds to a text in the middle of a line.
    fn spelled(&self, token: &str) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => {
                let spelled: Option<Vec<u8>> = token.chars().map(|c| bytes.get(&c).copied()).collect();
                spelled.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Self::WordPieces => match token.strip_prefix("##") {
                Some(rest) => rest.as_bytes().to_vec(),
                None => format!(" {token}").into_bytes(),
            },
            Self::Pieces => match byte_of(token) {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
        }
    }
}

impl TokenizerFile {
    /// Returns what each token spells in the middle of a line: vocabularies that write spaces and bytes in different ways can be
    /// compared. Special tokens spell their names.
    pub fn spellings(&self) -> BTreeMap<u32, Vec<u8>> {
        let json = self.json();
        let writing = Writing::of(json);
        let added = json["added_tokens"].as_array().into_iter().flatten();
        let added: HashMap<u64, &Value> = added.filter_map(|token| Some((token["id"].as_u64()?, token))).collect();
        let spell = |(token, id): (&str, u64)| {
            let bytes = if added.contains_key(&id) { token.as_bytes().to_vec() } else { writing.spelled(token) };
            Some((u32::try_from(id).ok()?, bytes))
        };
        self.ids().into_iter().filter_map(spell).collect()
    }
}

/// Whether a part of a `tokenizer.json`, or one of its parts, is of a type.
fn has_type(part: &Value, wanted: &str) -> bool {
    match part {
        Value::Object(fields) => {
            fields.get("type").is_some_and(|found| found == wanted) || fields.values().any(|it| has_type(it, wanted))
        }
        Value::Array(parts) => parts.iter().any(|it| has_type(it, wanted)),
        _ => false,
    }
}

/// Returns the byte that each character of GPT-2's vocabulary stands for. Printable bytes stand for themselves, the others are
/// numbered from U+0100 on. Source: `bytes_to_unicode` of GPT-2's encoder, Radford et al. 2019.
fn characters_of_bytes() -> HashMap<char, u8> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    let character = |byte: u8| {
        if is_printable(byte) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).expect("below U+0200")
    };
    (0..=u8::MAX).map(character).zip(0..=u8::MAX).collect()
}

/// Returns the byte that a piece such as `<0x0A>` spells.
fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn spellings(json: &Value) -> BTreeMap<u32, Vec<u8>> {
        TokenizerFile::parse(json.to_string().as_bytes(), Path::new("tokenizer.json")).expect("a tokenizer").spellings()
    }

    #[test]
    fn the_same_text_is_recognized_in_every_writing() {
        let texts = |json: &Value, n: u32| -> Vec<String> {
            let found = spellings(json);
            (0..n).map(|id| String::from_utf8_lossy(&found[&id]).into_owned()).collect()
        };
        let bytes = json!({"model": {"type": "BPE", "vocab": {"Ġthe": 0, "ing": 1, "Ċ": 2, "Ã©": 3}},
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}});
        let pieces = json!({"model": {"type": "Unigram", "vocab": [["▁the", -1.0], ["ing", -1.0], ["<0x0A>", 0.0], ["é", -2.0]]}});
        assert_eq!(texts(&bytes, 4), [" the", "ing", "\n", "é"]);
        assert_eq!(texts(&pieces, 4), texts(&bytes, 4));
        let words = json!({"model": {"type": "WordPiece", "vocab": {"the": 0, "##ing": 1, "[CLS]": 2}},
            "added_tokens": [{"id": 2, "content": "[CLS]", "special": true}]});
        assert_eq!(texts(&words, 3), [" the", "ing", "[CLS]"]);
    }

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        let characters = characters_of_bytes();
        assert_eq!(characters.len(), 256);
        assert_eq!((characters[&'Ġ'], characters[&'Ċ'], characters[&'a']), (b' ', b'\n', b'a'));
    }
}
