//! Spellings of special tokens: from the files next to a vocabulary, and appended to it.

use std::path::Path;

use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

use crate::error::Result;
use crate::tokenizer::special::{TextNames, read_names};
use crate::tokenizer::{NAMES_FILE, TokenizerConfig};

/// Reads the spellings of special tokens from the files next to a `tokenizer.json`. The first file that names a token
/// wins.
pub(super) fn neighbouring_names(path: &Path) -> Result<Value> {
    let mut names = serde_json::Map::new();
    for file in [NAMES_FILE, "special_tokens_map.json"] {
        if let Value::Object(more) = read_names(&path.with_file_name(file))? {
            for (key, value) in more.into_iter().filter(|(_, value)| !value.is_null()) {
                names.entry(key).or_insert(value);
            }
        }
    }
    Ok(Value::Object(names))
}

/// Appends the tokens for padding, ends of texts and masks that the vocabulary lacks. Returns whether it appended any.
pub(super) fn add_missing(tokenizer: &mut Tokenizer, config: &TokenizerConfig, hints: &Value) -> Result<bool> {
    let chosen = |token: &Option<String>| token.iter().cloned().collect::<Vec<_>>();
    // Spellings that the user chose: `TextNames::find` fails without them.
    let mut missing: Vec<String> = [&config.cls_token, &config.sep_token, &config.mask_token].map(chosen).concat();
    let defaults = TokenizerConfig::default();
    for (name, default) in [
        (&config.pad_token, &defaults.pad_token),
        (&config.bos_token, &defaults.bos_token),
        (&config.eos_token, &defaults.eos_token),
        (&config.unk_token, &defaults.unk_token),
    ] {
        missing.extend((name != default).then(|| name.clone()));
    }
    missing.retain(|token| tokenizer.token_to_id(token).is_none());
    let add = |tokenizer: &mut Tokenizer, tokens: &[String]| {
        tokenizer.add_special_tokens(&tokens.iter().map(|t| AddedToken::from(t, true)).collect::<Vec<_>>());
    };
    add(tokenizer, &missing);

    // Roles that are still without a token.
    let names = TextNames::find(tokenizer, config, hints, None)?;
    let end = names.eos_token.as_ref().or(names.sep_token.as_ref());
    let pad = names.pad_token.as_ref().filter(|pad| Some(*pad) != end);
    let wanted =
        [(pad, &config.pad_token), (end, &config.eos_token), (names.mask_token.as_ref(), &"<mask>".to_owned())];
    let more: Vec<String> =
        wanted.iter().filter(|(there, _)| there.is_none()).map(|(_, token)| (*token).clone()).collect();
    add(tokenizer, &more);
    Ok(!missing.is_empty() || !more.is_empty())
}

/// Returns the spellings that stay text in a corpus: of tokens with a role, and of special tokens without one, such as `<|im_start|>`.
/// Kiln's own `tokenizer.extra_tokens` are not special.
pub(super) fn controls(tokenizer: &Tokenizer, names: &TextNames) -> Vec<String> {
    let special = tokenizer.get_added_tokens_decoder().into_values().filter(|token| token.special);
    let mut spellings: Vec<String> = special.map(|token| token.content).collect();
    spellings.extend(names.all().into_iter().map(str::to_owned));
    spellings.sort_unstable();
    spellings.dedup();
    spellings
}
