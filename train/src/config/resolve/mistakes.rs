//! Describes keys and values that cannot be read, with the key that was probably meant.

use std::collections::BTreeSet;

use toml::Value;

use super::meant::{LENGTHS_OF_PAIRS, OPTIONAL_KEYS};
use super::other_names::{is_number_of_layers, layer_keys, other_name, squashed};
use super::other_values::other_value;
use crate::config::suggest::{did_you_mean, nearest};

/// Sections of other trainers, and what they are called here.
const OTHER_SECTIONS: [(&str, &str); 8] = [
    ("optimizer", "optim"),
    ("scheduler", "optim"),
    ("training", "train"),
    ("trainer", "train"),
    ("dataset", "data"),
    ("dataloader", "loader"),
    ("generation", "generate"),
    ("vocab", "tokenizer"),
];

/// What other trainers call the text that is scored after the training.
const TEST_TEXT: [&str; 7] = ["test", "testfile", "testfiles", "testpref", "testdata", "testset", "testpath"];

/// Describes in one sentence why a key could not be read.
pub(super) fn explain(key: &str, error: &toml::de::Error, known: &[(String, Value)]) -> String {
    let message = error.message().trim();
    let section = key.rsplit_once('.').map(|(section, _)| section);
    if let Some((found, known)) = unknown_key_of_mix(key, message) {
        let meant = match meant_in_mix(found, &known) {
            None => format!("; the known keys are {}", known.join(", ")),
            Some(meant) => format!("; did you mean {meant}?"),
        };
        return format!("data.mix has a source with the unknown key {found}{meant}");
    }
    if message.starts_with("unknown field") {
        return unknown_key(key, section, known);
    }
    if let Some(rest) = message.strip_prefix("unknown variant ") {
        let (found, expected) = rest.split_once(", expected ").unwrap_or((rest, ""));
        let names: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        let found = found.trim_matches('`');
        if let Some(flags) = other_value(key, found) {
            return format!("{key} = {found:?} is not known; did you mean {flags}?");
        }
        return format!(
            "{key} = {found:?} is not known{}; one of {}",
            did_you_mean(found, names.iter().copied()),
            names.join(", ")
        );
    }

    let Some((found, wanted)) = message.split_once(", expected ") else {
        return if message.starts_with(key) { message.into() } else { format!("{key}: {message}") };
    };
    let found = found.trim_start_matches("invalid type: ").trim_start_matches("invalid value: ");
    let wanted = match wanted {
        "f32" | "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0",
        "a sequence" => "a list",
        struct_name if struct_name.starts_with("struct ") => "a section with keys of its own",
        other => other,
    };
    format!("{key}: found {}, wanted {wanted}", found.replace('`', ""))
}

/// Returns the unknown key of a source of `data.mix` that `message` is about, and the known ones.
fn unknown_key_of_mix<'a>(key: &str, message: &'a str) -> Option<(&'a str, Vec<&'a str>)> {
    if key != "data.mix" || !message.starts_with("unknown field") {
        return None;
    }
    let mut names = message.split('`').skip(1).step_by(2);
    Some((names.next()?, names.collect()))
}

/// Returns the key of a source of `data.mix` that was probably meant.
fn meant_in_mix<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let other = OTHER_NAMES_IN_MIX.into_iter().find(|(other, _)| *other == found).map(|(_, meant)| meant);
    nearest(other.unwrap_or(found), known.iter().copied())
}

/// What others call the keys of a source.
const OTHER_NAMES_IN_MIX: [(&str, &str); 9] = [
    ("path", "train"),
    ("file", "train"),
    ("files", "train"),
    ("data", "train"),
    ("ratio", "weight"),
    ("share", "weight"),
    ("probability", "weight"),
    ("prefix", "tag"),
    ("source", "name"),
];

/// Gives an unknown key of the sources in `mix` the name that was probably meant, or removes it, so that further mistakes are found.
/// Returns whether the `error` was about such a key.
pub(super) fn correct_mix(key: &str, error: &toml::de::Error, mix: &mut Value) -> bool {
    let message = error.message().trim();
    let Some((found, known)) = unknown_key_of_mix(key, message) else { return false };
    let meant = meant_in_mix(found, &known);
    for source in mix.as_array_mut().into_iter().flatten().filter_map(Value::as_table_mut) {
        if let Some(value) = source.remove(found)
            && let Some(meant) = meant
        {
            source.entry(meant).or_insert(value);
        }
    }
    true
}

fn unknown_key(key: &str, section: Option<&str>, known: &[(String, Value)]) -> String {
    let last = key.rsplit('.').next().unwrap_or(key);
    if TEST_TEXT.contains(&squashed(last).as_str()) {
        return format!(
            "unknown key {key}: training reads no test text; afterwards, kiln evaluate RUN --data FILE scores it"
        );
    }
    if let Some(meant) = other_name(key).or_else(|| other_name(last)) {
        let of_pairs = if meant == "data.text.seq_len" { &LENGTHS_OF_PAIRS[..] } else { &[] };
        let meant = [&[meant], of_pairs].concat().join(" or ");
        return format!("unknown key {key}; did you mean {meant}?");
    }
    if let Some((_, meant)) = OTHER_SECTIONS.into_iter().find(|(name, _)| section.is_none() && *name == last) {
        return format!("unknown key {key}; the section is called {meant}, as in {meant}.KEY");
    }
    if is_number_of_layers(last) {
        return format!("unknown key {key}; did you mean {}?", layer_keys(known));
    }
    let keys = || known.iter().map(|(key, _)| key.as_str()).chain(OPTIONAL_KEYS);
    let sections: BTreeSet<&str> = keys().filter_map(|key| key.rsplit_once('.')).map(|(section, _)| section).collect();
    // A preset may set an optional key.
    let mut seen = BTreeSet::new();
    let all: Vec<&str> = keys().chain(sections).filter(|known| seen.insert(*known)).collect();

    // First the right key in the wrong section, then a near key of the same section, then any near key.
    let top_level = all.iter().copied().find(|known| *known == last);
    let same = || all.iter().copied().filter(|known| known.rsplit('.').next() == Some(last));
    // What generates text does not train.
    let elsewhere =
        top_level.or_else(|| same().find(|known| !known.starts_with("generate."))).or_else(|| same().next());
    let siblings = || all.iter().copied().filter(|known| known.rsplit_once('.').map(|(section, _)| section) == section);
    // `data.corpus.source` is a field rather than the number of a column.
    let field = section.map(|section| format!("{section}.{last}_field"));
    if let Some(meant) = field.filter(|field| all.contains(&field.as_str())) {
        return format!("unknown key {key}; did you mean {meant}?");
    }
    let near_sibling = || {
        let near = nearest(last, siblings().filter_map(|known| known.rsplit('.').next()))?;
        siblings().find(|known| known.rsplit('.').next() == Some(near))
    };
    if let Some(meant) = longer_siblings(last, section, elsewhere, siblings()) {
        return format!("unknown key {key}; did you mean {meant}?");
    }
    match elsewhere.or_else(near_sibling).or_else(|| nearest(key, all.iter().copied())) {
        Some(meant) => format!("unknown key {key}; did you mean {meant}?"),
        None => {
            let names: Vec<_> = siblings().filter_map(|known| known.rsplit('.').next()).collect();
            let names = if names.is_empty() { all } else { names };
            format!("unknown key {key}; the known keys are {}", names.join(", "))
        }
    }
}

/// Returns the `siblings` of an unknown key that have its `last` part as a word: `data.labels.text_field`, and not `data.text.field`.
/// Returns `None` unless the key that has it `elsewhere` says the same about another kind of data.
fn longer_siblings<'a>(
    last: &str,
    section: Option<&str>,
    elsewhere: Option<&str>,
    siblings: impl Iterator<Item = &'a str>,
) -> Option<String> {
    let around = |section: &str| section.rsplit_once('.').map(|(around, _)| around.to_owned());
    let (here, there) = (section?, elsewhere?.rsplit_once('.')?.0);
    if here == there || around(here)? != around(there)? {
        return None;
    }
    let has_word = |key: &&str| key.rsplit('.').next().is_some_and(|name| name.split('_').any(|word| word == last));
    let meant: Vec<&str> = siblings.filter(has_word).collect();
    (!meant.is_empty()).then(|| meant.join(" or "))
}
