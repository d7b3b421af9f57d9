//! The tokenizer of a model folder as `transformers` 5 loads it: `tokenizer.json`, changed by the files next to it.
//!
//! The class of the tokenizer replaces normalizer and pre-tokenizer ([`class`]), and other files name further tokens
//! ([`added`]).

mod added;
mod class;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tokenizers::Tokenizer;

use super::special::read_names;
use super::vocabulary::not_a_tokenizer;
use super::{JOINT_FILE, NAMES_FILE};
use crate::error::{Error, Result};
use crate::files::read_text;

/// A `tokenizer.json` with what the files next to it say. Made by [`FolderTokenizer::read`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderTokenizer {
    /// The content of the file, with what the other files add to it.
    pub json: String,
    /// The special token of each role (`mask_token`), as a file says or else the class.
    pub roles: BTreeMap<&'static str, String>,
    /// Whether its class pads in front of a text, unless `tokenizer_config.json` says otherwise.
    pub pads_left: bool,
    /// What the other files change, and what they say without effect, a sentence each.
    pub notes: Vec<String>,
}

impl FolderTokenizer {
    /// Reads the `tokenizer.json` at `path` and the files of the model next to it. Tokens of those files get no ids from `rows` on,
    /// because the model has no embedding for them.
    ///
    /// # Errors
    /// If a file cannot be read, or is not what its name says.
    pub fn read(path: &Path, rows: usize) -> Result<Self> {
        let json = read_text(path).map_err(Error::io(path, "reading the tokenizer"))?;
        let next_to = |name: &str| read_names(&path.with_file_name(name));
        let config = next_to(NAMES_FILE)?;
        let map = next_to("special_tokens_map.json")?;
        let added = next_to("added_tokens.json")?;
        let model = next_to("config.json")?;

        let mut parts: Value = serde_json::from_str(&json).map_err(|e| not_a_tokenizer(Some(path), &e))?;
        let mut notes = settings::without_effect(&config);
        let changes = class::apply(&mut parts, &config, &model);
        let json = if changes.is_none() { json } else { format!("{parts:#}\n") };
        notes.extend(changes);

        let mut tokenizer: Tokenizer = json.parse().map_err(|e| not_a_tokenizer(Some(path), &e))?;
        let own = class::own_tokens(&parts, &config, &model);
        let pads_left = class::pads_left(&parts, &config, &model);
        let missing = added::missing(&parts, &config, &map, &added, own);
        let roles = added::roles(&config, &map, own).into_iter().map(|(role, token)| (role, token.content)).collect();
        let (mut appended, mut left_out) = (Vec::new(), Vec::new());
        for token in &missing {
            let is_new = tokenizer.token_to_id(&token.content).is_none();
            let next = tokenizer.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
            if is_new && next >= rows {
                // No text of the model has a token that only its class knows.
                let is_named = [&config, &map, &added].iter().any(|file| names(file, &token.content));
                left_out.extend(is_named.then_some(token.content.as_str()));
                continue;
            }
            tokenizer.add_tokens(std::slice::from_ref(token));
            appended.push(token.content.as_str());
        }
        if !left_out.is_empty() {
            notes.push(format!(
                "{NAMES_FILE} or a file next to it names tokens that {JOINT_FILE} lacks and the embedding has no rows for: {}; texts \
                 that have them are spelled in other tokens",
                left_out.join(" ")
            ));
        }
        if appended.is_empty() {
            return Ok(Self { json, roles, pads_left, notes });
        }
        notes.push(format!(
            "tokens that {JOINT_FILE} lacks come from the files next to it, or from its class: {}",
            appended.join(" ")
        ));
        let json = tokenizer.to_string(true).map_err(|e| not_a_tokenizer(Some(path), &e))?;
        Ok(Self { json, roles, pads_left, notes })
    }
}

/// Whether a file has a token, as a key or as a value.
fn names(file: &Value, token: &str) -> bool {
    match file {
        Value::String(text) => text == token,
        Value::Array(values) => values.iter().any(|value| names(value, token)),
        Value::Object(entries) => entries.iter().any(|(key, value)| key == token || names(value, token)),
        _ => false,
    }
}
