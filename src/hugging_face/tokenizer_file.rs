//! What must be known of a `tokenizer.json` without encoding a text: which token has which id.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::FolderError;

/// A `tokenizer.json`.
#[derive(Debug, Clone)]
pub struct TokenizerFile {
    json: Value,
    tokens: BTreeMap<u64, String>,
}

impl TokenizerFile {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Self, FolderError> {
        let bytes = fs::read(path).map_err(FolderError::io("read", path))?;
        let json: Value = serde_json::from_slice(&bytes)
            .map_err(|error| FolderError::bad_file(path, format!("is no tokenizer.json: {error}")))?;
        let mut tokens = BTreeMap::new();
        match &json["model"]["vocab"] {
            // Unigram: pairs of token and score, in the order of the ids.
            Value::Array(pieces) => tokens.extend(
                pieces.iter().enumerate().filter_map(|(id, piece)| Some((id as u64, piece[0].as_str()?.to_owned()))),
            ),
            Value::Object(vocab) => {
                tokens.extend(vocab.iter().filter_map(|(token, id)| Some((id.as_u64()?, token.clone()))));
            }
            _ => return Err(FolderError::bad_file(path, "is no tokenizer.json: its model has no vocab")),
        }
        let added = json["added_tokens"].as_array().into_iter().flatten();
        tokens.extend(added.filter_map(|token| Some((token["id"].as_u64()?, token["content"].as_str()?.to_owned()))));
        Ok(Self { json, tokens })
    }

    /// The largest id and 1.
    pub fn n_ids(&self) -> usize {
        self.tokens.last_key_value().map_or(0, |(id, _)| *id as usize + 1)
    }

    /// Spelling of the token with this id.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.tokens.get(&u64::from(id)).map(String::as_str)
    }

    /// Spelling of the token that the model itself uses for what it cannot spell.
    pub fn unknown(&self) -> Option<&str> {
        let model = &self.json["model"];
        let by_id = || self.token(u32::try_from(model["unk_id"].as_u64()?).ok()?);
        model["unk_token"].as_str().or_else(by_id)
    }

    /// Whether `token` has an id.
    pub fn has(&self, token: &str) -> bool {
        self.tokens.values().any(|known| known == token)
    }

    /// The special token that the file puts in front of a text, if its template says so.
    pub fn first_token_around(&self) -> Option<&str> {
        let processor = &self.json["post_processor"];
        // BERT's and RoBERTa's kinds name it; a template spells it out.
        let named = || processor["cls"][0].as_str();
        processor["single"][0]["SpecialToken"]["id"].as_str().or_else(named)
    }

    /// The file's text with these tokens put around every text that is encoded, if nothing is put around it yet: whoever
    /// loads the file elsewhere then feeds the model what it was trained on.
    pub fn with_tokens_around(&self, before: &[u32], behind: &[u32]) -> String {
        let mut json = self.json.clone();
        let special: Option<Vec<(&str, u32)>> =
            before.iter().chain(behind).map(|id| Some((self.token(*id)?, *id))).collect();
        if let (Some(special), true) = (special.filter(|special| !special.is_empty()), json["post_processor"].is_null())
        {
            let piece = |token: &str, kind: u8| json!({"SpecialToken": {"id": token, "type_id": kind}});
            let text = |name: &str, kind: u8| json!({"Sequence": {"id": name, "type_id": kind}});
            let (front, back) = special.split_at(before.len());
            let around = |name: &str, kind: u8| {
                let front = front.iter().map(|(token, _)| piece(token, kind));
                front
                    .chain([text(name, kind)])
                    .chain(back.iter().map(|(token, _)| piece(token, kind)))
                    .collect::<Vec<_>>()
            };
            // In a pair the second text follows without a second beginning.
            let second = [text("B", 1)].into_iter().chain(back.iter().map(|(token, _)| piece(token, 1)));
            let tokens: serde_json::Map<String, Value> = special
                .iter()
                .map(|(token, id)| ((*token).to_owned(), json!({"id": token, "ids": [id], "tokens": [token]})))
                .collect();
            json["post_processor"] = json!({
                "type": "TemplateProcessing",
                "single": around("A", 0),
                "pair": around("A", 0).into_iter().chain(second).collect::<Vec<_>>(),
                "special_tokens": tokens,
            });
        }
        format!("{json:#}\n")
    }
}
