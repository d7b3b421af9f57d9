//! Looks up tokens and ids in a `tokenizer.json`, without loading the tokenizer.

use std::collections::BTreeMap;
use std::path::Path;

use kiln_data::files::read_file;
use serde_json::{Value, json};

use super::FolderError;

/// The name of Marian's padding token, by which CTranslate2 finds it.
pub const PADDING: &str = "<pad>";

/// A `tokenizer.json`.
#[derive(Debug, Clone)]
pub struct TokenizerFile {
    json: Value,
    tokens: BTreeMap<u64, String>,
}

impl TokenizerFile {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Self, FolderError> {
        Self::parse(&read_file(path).map_err(FolderError::io("read", path))?, path)
    }

    /// Reads the content of a file; errors name `path`.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, FolderError> {
        let json: Value = serde_json::from_slice(bytes)
            .map_err(|error| FolderError::bad_file(path, format!("is not a tokenizer.json: {error}")))?;
        let mut tokens = BTreeMap::new();
        match &json["model"]["vocab"] {
            // Unigram: pairs of token and score, in the order of ids.
            Value::Array(pieces) => tokens.extend(
                pieces.iter().enumerate().filter_map(|(id, piece)| Some((id as u64, piece[0].as_str()?.to_owned()))),
            ),
            Value::Object(vocab) => {
                tokens.extend(vocab.iter().filter_map(|(token, id)| Some((id.as_u64()?, token.clone()))));
            }
            _ => return Err(FolderError::bad_file(path, "is not a tokenizer.json: its model has no vocab")),
        }
        let added = json["added_tokens"].as_array().into_iter().flatten();
        tokens.extend(added.filter_map(|token| Some((token["id"].as_u64()?, token["content"].as_str()?.to_owned()))));
        Ok(Self { json, tokens })
    }

    pub(super) fn json(&self) -> &Value {
        &self.json
    }

    /// One more than the largest id.
    pub fn n_ids(&self) -> usize {
        self.tokens.last_key_value().map_or(0, |(id, _)| *id as usize + 1)
    }

    /// The token with this id.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.tokens.get(&u64::from(id)).map(String::as_str)
    }

    /// Every token with its id, as `vocab.json` of Marian has them.
    pub fn ids(&self) -> BTreeMap<&str, u64> {
        self.tokens.iter().map(|(id, token)| (token.as_str(), *id)).collect()
    }

    /// The token that stands for unknown text.
    pub fn unknown(&self) -> Option<&str> {
        let model = &self.json["model"];
        let by_id = || self.token(u32::try_from(model["unk_id"].as_u64()?).ok()?);
        model["unk_token"].as_str().or_else(by_id)
    }

    /// Whether texts are split by pairs of pieces that were merged in training.
    pub fn is_bpe(&self) -> bool {
        self.json["model"]["type"] == "BPE"
    }

    /// Whether `token` has an id.
    pub fn has(&self, token: &str) -> bool {
        self.tokens.values().any(|known| known == token)
    }

    /// The ids that the file's post-processor puts in front of and behind a text; `None` if it has no post-processor.
    pub fn around(&self) -> kiln_data::Result<Option<(Vec<u32>, Vec<u32>)>> {
        kiln_data::tokens_around(&self.json.to_string())
    }

    /// How the mask token is found in texts, if the file finds it otherwise than Kiln's own vocabularies: an object as
    /// `tokenizer_config.json` has it.
    pub fn mask_settings(&self, mask: &str) -> Option<Value> {
        let mut added = self.json["added_tokens"].as_array().into_iter().flatten();
        let mut settings = added.find(|token| token["content"] == mask)?.as_object()?.clone();
        let differs = settings.get("lstrip") != Some(&Value::Bool(true)) || self.begins_parts_with_spaces();
        settings.remove("id");
        settings.insert("__type".to_owned(), json!("AddedToken"));
        (differs && self.json["model"]["type"] != "WordPiece").then_some(Value::Object(settings))
    }

    /// Whether each part of a text behind an added token begins with a space.
    fn begins_parts_with_spaces(&self) -> bool {
        let pre_tokenizer = &self.json["pre_tokenizer"];
        let parts = pre_tokenizer["pretokenizers"].as_array().into_iter().flatten().chain([pre_tokenizer]);
        parts.into_iter().any(|part| part["type"] == "Metaspace" && part["prepend_scheme"] != "first")
    }

    /// Makes the mask take the white space in front of it, as Kiln does when it reads a text with masks. Vocabularies of whole
    /// words have no spaces to take.
    pub fn let_mask_take_spaces(&mut self, mask: u32) {
        if self.json["model"]["type"] == "WordPiece" {
            return;
        }
        let added = self.json["added_tokens"].as_array_mut().into_iter().flatten();
        added.filter(|token| token["id"] == mask).for_each(|token| token["lstrip"] = json!(true));
    }

    /// Adds the padding token that [`kiln_model::hf::start_with_zeros`] gives a model, behind all others. A token that has its name
    /// gets another one, and ids without a token get one.
    pub fn add_padding(&mut self, id: u32) {
        if self.has(PADDING) {
            let other = (0..).map(|n| format!("<unused-pad-{n}>")).find(|name| !self.has(name)).expect("a free name");
            self.rename(PADDING, &other);
        }
        let added = |id: u64, token: &str| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": true})
        };
        let fill: Vec<(u64, String)> =
            (self.n_ids() as u64..u64::from(id)).map(|id| (id, format!("<unused-{id}>"))).collect();
        let all = fill.into_iter().chain([(u64::from(id), PADDING.to_owned())]);
        for (id, token) in all {
            match &mut self.json["added_tokens"] {
                Value::Array(tokens) => tokens.push(added(id, &token)),
                other => *other = json!([added(id, &token)]),
            }
            self.tokens.insert(id, token);
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        match &mut self.json["model"]["vocab"] {
            Value::Array(pieces) => {
                pieces.iter_mut().filter(|piece| piece[0] == from).for_each(|piece| piece[0] = json!(to));
            }
            Value::Object(vocab) => {
                if let Some(id) = vocab.remove(from) {
                    vocab.insert(to.to_owned(), id);
                }
            }
            _ => {}
        }
        let added = self.json["added_tokens"].as_array_mut().into_iter().flatten();
        added.filter(|token| token["content"] == from).for_each(|token| token["content"] = json!(to));
        self.tokens.values_mut().filter(|token| *token == from).for_each(|token| to.clone_into(token));
    }

    /// Returns the content of the file with a template that puts these tokens around every text. It is unchanged if its
    /// post-processor does so already. Programs that load the file then encode texts as Kiln does.
    pub fn with_tokens_around(&self, before: &[u32], behind: &[u32]) -> kiln_data::Result<String> {
        let unchanged = || format!("{:#}\n", self.json);
        if self.around()?.unwrap_or_default() == (before.to_vec(), behind.to_vec()) {
            return Ok(unchanged());
        }
        let special: Option<Vec<(&str, u32)>> =
            before.iter().chain(behind).map(|id| Some((self.token(*id)?, *id))).collect();
        let Some(special) = special else { return Ok(unchanged()) };

        let piece = |token: &str, text: u8| json!({"SpecialToken": {"id": token, "type_id": text}});
        let sequence = |name: &str, text: u8| json!({"Sequence": {"id": name, "type_id": text}});
        let (front, back) = special.split_at(before.len());
        let front = front.iter().map(|(token, _)| piece(token, 0));
        let end = |text: u8| back.iter().map(move |(token, _)| piece(token, text));
        let single: Vec<Value> = front.chain([sequence("A", 0)]).chain(end(0)).collect();
        // The second text of a pair has no start token of its own.
        let pair: Vec<Value> = single.iter().cloned().chain([sequence("B", 1)]).chain(end(1)).collect();

        let tokens: serde_json::Map<String, Value> = special
            .iter()
            .map(|(token, id)| ((*token).to_owned(), json!({"id": token, "ids": [id], "tokens": [token]})))
            .collect();
        let mut json = self.json.clone();
        json["post_processor"] =
            json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens});
        Ok(format!("{json:#}\n"))
    }
}
