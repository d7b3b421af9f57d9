//! Tokens that the files next to a `tokenizer.json` name. Source: `_from_pretrained` and `TokenizersBackend.__init__` of
//! `transformers`.

use std::collections::BTreeMap;

use serde_json::Value;
use tokenizers::AddedToken;

/// The keys of special tokens, in the order in which they get ids.
const ROLES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Returns the tokens that `tokenizer.json` lacks or has with other settings, in the order in which they get ids. `config` is
/// `tokenizer_config.json`, `map` is `special_tokens_map.json`, `added` is `added_tokens.json`; null for a file that does not
/// exist. `own` are the tokens of the class, which count where no file has a word about their role, and `further` has no roles.
pub(super) fn missing(
    tokenizer: &Value,
    config: &Value,
    map: &Value,
    added: &Value,
    own: &[(&str, &str)],
    further: &[String],
) -> Vec<AddedToken> {
    let there: BTreeMap<String, AddedToken> = tokenizer["added_tokens"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|token| read(token, false))
        .map(|token| (token.content.clone(), token))
        .collect();

    let roles: Vec<AddedToken> = roles(config, map, own).into_iter().map(|(_, token)| token).collect();
    let has_list = has_list(config);
    let map = if has_list { &Value::Null } else { map };
    let extra = extra_tokens(config, map);
    let is_named = |content: &str| roles.iter().any(|token| token.content == content);

    let mut listed = Vec::new();
    if has_list {
        listed = by_id(&config["added_tokens_decoder"], |id, token| Some((id.parse().ok()?, read(token, false)?)));
    } else if added.is_object() {
        listed = by_id(added, |content, id| {
            let is_special = is_named(content) || extra.iter().any(|token| token.content == content);
            Some((id.as_u64()?, AddedToken::from(content, is_special)))
        });
    }
    let same = |token: &AddedToken| there.get(&token.content).is_some_and(|other| settings(other) == settings(token));
    let mut missing: Vec<AddedToken> = listed.iter().filter(|token| !same(token)).cloned().collect();

    let further: Vec<_> = further.iter().map(|token| AddedToken::from(token.as_str(), true)).collect();
    for token in roles.iter().chain(&extra).chain(&further) {
        let known = there.contains_key(&token.content)
            || listed.iter().chain(&missing).any(|other| other.content == token.content);
        if !known {
            missing.push(token.clone());
        }
    }
    for token in &mut missing {
        token.special |= is_named(&token.content);
    }
    missing
}

/// Returns the tokens of the roles, of those that have one.
pub(super) fn roles(config: &Value, map: &Value, own: &[(&str, &str)]) -> Vec<(&'static str, AddedToken)> {
    let map = if has_list(config) { &Value::Null } else { map };
    ROLES.into_iter().filter_map(|role| Some((role, of_role(role, config, map, own)?))).collect()
}

/// Whether there is a list of tokens, which makes the older files void.
fn has_list(config: &Value) -> bool {
    config["added_tokens_decoder"].is_object()
}

/// Returns the token of a role; the map wins over the configuration, and both over the class.
fn of_role(key: &str, config: &Value, map: &Value, own: &[(&str, &str)]) -> Option<AddedToken> {
    if config.get(key).or(map.get(key)).is_none() {
        let (_, token) = own.iter().find(|(role, _)| *role == key)?;
        return Some(AddedToken::from(*token, true));
    }
    let value = if map[key].is_null() { &config[key] } else { &map[key] };
    read(value, true)
}

/// Returns the special tokens that have names of their own (`image_token`), by these names.
pub(super) fn named(config: &Value) -> BTreeMap<String, String> {
    let token = |(key, value): (&String, &Value)| Some((key.clone(), read(value, true)?.content));
    let listed = config["extra_special_tokens"].as_object().into_iter().flatten();
    own_keys(config).chain(listed).filter_map(token).collect()
}

fn own_keys(config: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let is_own = |key: &String| key.ends_with("_token") && !ROLES.contains(&key.as_str());
    let entries = config.as_object().into_iter().flatten();
    entries.filter(move |(key, value)| is_own(key) && value.is_string())
}

/// Returns further special tokens: the ones that have names of their own (`image_token`), then a list.
fn extra_tokens(config: &Value, map: &Value) -> Vec<AddedToken> {
    let mut tokens: Vec<AddedToken> = own_keys(config).filter_map(|(_, value)| read(value, true)).collect();

    let filled = |value: &&Value| {
        value.as_array().is_some_and(|list| !list.is_empty())
            || value.as_object().is_some_and(|named| !named.is_empty())
    };
    let of_config = [&config["extra_special_tokens"], &config["additional_special_tokens"]].into_iter().find(filled);
    let mut lists: Vec<&Value> =
        of_config.into_iter().chain(Some(&map["extra_special_tokens"])).filter(filled).collect();
    if lists.is_empty() {
        lists.push(&map["additional_special_tokens"]);
    }
    for list in lists {
        tokens.extend(list.as_object().into_iter().flatten().filter_map(|(_, token)| read(token, true)));
        tokens.extend(list.as_array().into_iter().flatten().filter_map(|token| read(token, true)));
    }
    let mut seen = Vec::new();
    tokens.retain(|token| {
        !seen.contains(&token.content) && {
            seen.push(token.content.clone());
            true
        }
    });
    tokens
}

/// Reads a token: its spelling, or an object with settings.
fn read(value: &Value, special: bool) -> Option<AddedToken> {
    if let Some(content) = value.as_str() {
        return (!content.is_empty()).then(|| AddedToken::from(content, special));
    }
    let content = value["content"].as_str().filter(|content| !content.is_empty())?;
    let flag = |key: &str, default: bool| value[key].as_bool().unwrap_or(default);
    let special = flag("special", special);
    Some(AddedToken {
        single_word: flag("single_word", false),
        lstrip: flag("lstrip", false),
        rstrip: flag("rstrip", false),
        normalized: flag("normalized", !special),
        ..AddedToken::from(content, special)
    })
}

fn settings(token: &AddedToken) -> [bool; 5] {
    [token.single_word, token.lstrip, token.rstrip, token.normalized, token.special]
}

/// Returns the tokens of an object in the order of their ids.
fn by_id(object: &Value, entry: impl Fn(&str, &Value) -> Option<(u64, AddedToken)>) -> Vec<AddedToken> {
    let entries = object.as_object().into_iter().flatten();
    let sorted: BTreeMap<u64, AddedToken> = entries.filter_map(|(key, value)| entry(key, value)).collect();
    sorted.into_values().collect()
}
