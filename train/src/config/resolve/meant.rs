//! What a user means by an option that a command does not have.

use std::collections::BTreeSet;

use toml::Table;

use super::dotted::leaves;
use super::epochs;
use super::other_names::{LAYER_KEYS, is_number_of_layers, other_name, squashed};
use crate::config::Config;

/// Keys that no preset sets, so its TOML lacks them.
pub(super) const OPTIONAL_KEYS: [&str; 19] = [
    "preset",
    "data.cache_dir",
    "data.cache_limit",
    "data.direct",
    "data.mix_temperature",
    "data.text.chat_template",
    "tokenizer.path",
    "tokenizer.target_path",
    "tokenizer.cls_token",
    "tokenizer.sep_token",
    "tokenizer.mask_token",
    "model.activation_dropout",
    "model.qkv_bias",
    "model.feed_forward_bias",
    "model.rope_scaling",
    "model.local_rope_theta",
    "model.attention_scale",
    "model.logits_chunk_rows",
    "train.memory_limit",
];

/// What limits pairs as `data.text.seq_len` limits texts.
pub(super) const LENGTHS_OF_PAIRS: [&str; 2] = ["data.corpus.max_source_len", "data.corpus.max_target_len"];

/// Optional keys that answer no name: an option of its own, and a key that was removed.
const NO_ANSWERS: [&str; 2] = ["preset", "data.direct"];

/// Returns what a user means by `name`: keys of the configuration, or an option of the command, which begins with `--`. The name may
/// be a whole key, its last part, or what another trainer calls it. `-`, `_` and capitals make no difference.
#[doc(hidden)]
pub fn meant_by(name: &str) -> Vec<String> {
    let wanted = squashed(name);
    if wanted.is_empty() {
        return Vec::new();
    }
    let defaults = Table::try_from(Config::default()).expect("a configuration has string keys and plain values");
    let mut known = Vec::new();
    leaves(&defaults, "", &mut known);
    let optional = OPTIONAL_KEYS.into_iter().filter(|key| !NO_ANSWERS.contains(key)).map(str::to_owned);
    let keys: BTreeSet<String> = known.into_iter().map(|(key, _)| key).chain(optional).collect();

    if is_number_of_layers(name) {
        return LAYER_KEYS.map(str::to_owned).to_vec();
    }
    if epochs::is_number_of_epochs(name) {
        return vec!["train.epochs".into()];
    }

    // A key may have the name that another trainer gives to something else: `max_length`.
    let mut meant: Vec<String> = other_name(name).map(str::to_owned).into_iter().collect();
    let is_last = |key: &str| key.rsplit('.').next().is_some_and(|last| squashed(last) == wanted);
    let is_meant = |key: &String| squashed(key) == wanted || is_last(key);
    let mut more: Vec<String> = keys.into_iter().filter(|key| is_meant(key) && !meant.contains(key)).collect();
    more.sort_by_key(|key| squashed(key) != wanted);
    meant.extend(more);
    if meant.iter().any(|key| key == "data.text.seq_len") {
        meant.extend(LENGTHS_OF_PAIRS.map(str::to_owned));
    }
    if ["maxtokens", "maxlength"].contains(&wanted.as_str()) {
        // Servers and `transformers` call the length of an answer so.
        meant.push("generate.max_new_tokens".into());
    }
    match name.rsplit_once('.') {
        // A section of another trainer: `optimizer.lr`.
        Some((_, last)) if meant.is_empty() => meant_by(last),
        _ => meant,
    }
}

#[cfg(test)]
mod tests {
    use super::super::other_names::{LAYERS, OTHER_NAMES};
    use super::*;

    #[test]
    fn every_name_of_another_trainer_means_the_same_with_dashes_underscores_and_capitals() {
        let both = LAYER_KEYS.map(str::to_owned).to_vec();
        let of_table = OTHER_NAMES.into_iter().map(|(name, meant)| (name, vec![meant.to_owned()]));
        for (name, meant) in of_table.chain(LAYERS.map(|name| (name, both.clone()))) {
            let spellings = [name.to_owned(), name.replace('_', "-"), name.replace('_', "").to_uppercase()];
            for spelling in spellings {
                assert!(meant_by(&spelling).starts_with(&meant), "{spelling}: {:?}", meant_by(&spelling));
            }
        }
    }

    #[test]
    fn keys_are_meant_by_their_last_part_or_in_full() {
        assert_eq!(meant_by("lr"), ["optim.lr"]);
        assert_eq!(meant_by("optim.lr"), ["optim.lr"]);
        assert_eq!(meant_by("num-epochs"), ["train.epochs"]);
        assert_eq!(meant_by("cache-limit"), ["data.cache_limit"]);
        let lengths = [
            "data.text.seq_len",
            "data.filter.max_length",
            "data.corpus.max_source_len",
            "data.corpus.max_target_len",
            "generate.max_new_tokens",
        ];
        assert_eq!(meant_by("max_length"), lengths);
        assert_eq!(meant_by("optimizer.lr"), ["optim.lr"]);
        assert_eq!(meant_by("no-such-thing"), Vec::<String>::new());
        assert_eq!(meant_by("--"), Vec::<String>::new());
        assert_eq!(meant_by("direct"), Vec::<String>::new());
    }
}
