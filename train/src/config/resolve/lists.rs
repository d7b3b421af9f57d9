//! Lists that are written without quotes, and LoRA's names for all projections.

use toml::{Table, Value};

use super::dotted::lookup;

/// Lists of files. `--set` adds to them, where it replaces other keys.
pub(super) const FILES: [&str; 2] = ["data.train", "data.valid"];

/// The projections of a layer, without the gate.
const PROJECTIONS: [&str; 6] = ["query", "key", "value", "output", "up", "down"];

/// Returns the items of a value that may be one string.
pub(super) fn listed(key: &str, value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        Value::String(text) => list_of(key, &text),
        other => vec![other],
    }
}

/// Returns the items of `query,value` or `[a.txt, b.txt]`. Two files that a comma joins are one entry, parallel files.
fn list_of(key: &str, text: &str) -> Vec<Value> {
    let in_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match in_brackets {
        None if FILES.contains(&key) => vec![text.into()],
        _ => in_brackets.unwrap_or(text).split(',').map(|item| item.trim().trim_matches(['"', '\'']).into()).collect(),
    }
}

/// Replaces peft's `all-linear` by the names of all projections that the `preset`'s model has.
pub(super) fn with_all_targets(key: &str, value: Value, preset: &Table) -> Value {
    let is_all = |item: &Value| item.as_str().is_some_and(|name| ["all-linear", "all_linear", "all"].contains(&name));
    match value {
        Value::Array(items) if key == "model.lora.targets" && items.iter().any(is_all) => {
            let activation = lookup(preset, "model.activation").and_then(Value::as_str).unwrap_or_default();
            let gate = ["swiglu", "geglu"].contains(&activation).then_some("gate");
            Value::Array(PROJECTIONS.into_iter().chain(gate).map(Value::from).collect())
        }
        value => value,
    }
}
