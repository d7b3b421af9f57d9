//! The tokenizer of a model folder as `transformers` 5 loads it: `tokenizer.json`, changed by the files next to it.
//!
//! The class of the tokenizer replaces normalizer, pre-tokenizer and more ([`class`]), and other files name further tokens
//! ([`added`]).

mod added;
mod class;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, Token, Tokenizer};

use self::class::{Class, Rules};

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
    /// The special tokens with names of their own (`image_token`), as a file says.
    pub named: BTreeMap<String, String>,
    /// Whether its file or else its class pads in front of a text, unless `tokenizer_config.json` says otherwise.
    pub pads_left: bool,
    /// The parts of the file that its class replaces.
    pub by_class: Vec<&'static str>,
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
        let rules = Rules::of(&parts, &config, &model);
        notes.extend(rules.unknown());
        let class = rules.class();
        let mut changed = class.map_or_else(Vec::new, |class| class.apply(&mut parts, &config));

        let changed_json = || if changed.is_empty() { json.clone() } else { format!("{parts:#}\n") };
        let mut tokenizer: Tokenizer = changed_json().parse().map_err(|e| not_a_tokenizer(Some(path), &e))?;
        let own = class.map_or(&[][..], Class::own_tokens);
        let further = class.map_or_else(Vec::new, |class| class.further_tokens(&config));
        let missing = added::missing(&parts, &config, &map, &added, own, &further);
        let mut roles: BTreeMap<_, _> =
            added::roles(&config, &map, own).into_iter().map(|(role, token)| (role, token.content)).collect();
        let padding = &parts["padding"];
        if class.is_none_or(Class::pads_as_the_file)
            && config.get("pad_token").or(map.get("pad_token")).is_none()
            && let Some(token) = padding["pad_token"].as_str()
        {
            roles.insert("pad_token", token.to_owned());
        }
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
        if !appended.is_empty() {
            notes.push(format!(
                "tokens that {JOINT_FILE} lacks come from the files next to it, or from its class: {}",
                appended.join(" ")
            ));
        }

        let token = |role: &str| {
            let token = roles.get(role)?;
            Some((token.clone(), tokenizer.token_to_id(token)?))
        };
        let around = class.and_then(|class| class.post_processor(token, &config));
        let around = around.filter(|part| !put_the_same(&parts["post_processor"], part));
        changed.extend(around.is_some().then_some("post_processor"));
        notes.extend(class.and_then(|class| class.says(&changed, &model)));
        let pads_left = match padding["direction"].as_str() {
            Some(direction) => direction == "Left",
            None => class.is_some_and(Class::pads_left),
        };
        let named = added::named(&config);
        if changed.is_empty() && appended.is_empty() {
            return Ok(Self { json, roles, named, pads_left, by_class: changed, notes });
        }

        let made = tokenizer.to_string(true).map_err(|e| not_a_tokenizer(Some(path), &e))?;
        let mut made: Value = serde_json::from_str(&made).map_err(|e| not_a_tokenizer(Some(path), &e))?;
        if let Some(around) = around {
            made["post_processor"] = around;
        }
        Ok(Self { json: format!("{made:#}\n"), roles, named, pads_left, by_class: changed, notes })
    }
}

/// Whether two post-processors put the same ids around texts and pairs.
fn put_the_same(one: &Value, other: &Value) -> bool {
    // It puts nothing around a text.
    let none = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false});
    let ids = |part: &Value, is_pair: bool| -> Option<(Vec<u32>, Vec<u32>)> {
        let part = if part.is_null() { &none } else { part };
        let part: PostProcessorWrapper = serde_json::from_value(part.clone()).ok()?;
        let text = |id: u32| Encoding::from_tokens(vec![Token::new(id, String::new(), (0, 0))], 0);
        let whole = part.process(text(u32::MAX), is_pair.then(|| text(u32::MAX - 1)), true).ok()?;
        Some((whole.get_ids().to_vec(), whole.get_type_ids().to_vec()))
    };
    [false, true].iter().all(|is_pair| ids(one, *is_pair).is_some_and(|found| Some(found) == ids(other, *is_pair)))
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
