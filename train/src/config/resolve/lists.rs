//! Lists that are written without quotes, and names of `peft` for several projections.

use kiln_model::hf::adapter_problems;
use kiln_model::{LoraConfig, LoraTarget, TransformerConfig};
use toml::Value;

/// Lists of files. `--set` adds to them, where it replaces other keys.
pub(super) const FILES: [&str; 2] = ["data.train", "data.valid"];

/// Names of modules in `transformers` that stand for one or several targets of LoRA. A module that two sublayers have is both of them,
/// as for `peft`. Names for a single target are aliases of [`LoraTarget`].
const MODULES: [(&str, &[&str]); 8] = [
    ("c_proj", &["output", "down"]),
    ("attn.c_proj", &["output"]),
    ("mlp.c_proj", &["down"]),
    ("dense", &["output", "up", "down"]),
    ("attention.output.dense", &["output"]),
    ("intermediate.dense", &["up"]),
    ("output.dense", &["down"]),
    ("gate_up_proj", &["gate", "up"]),
];

/// Returns the items of a value that may be one string.
pub(super) fn listed(key: &str, value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        Value::String(text) => list_of(key, &text),
        other => vec![other],
    }
}

/// Returns the items of `query,value` or `[a.txt, b.txt]`. Two files that a comma joins are one entry, parallel files. No text is an empty
/// list, but for training text: without some, a run would take the built-in data.
fn list_of(key: &str, text: &str) -> Vec<Value> {
    if text.trim().is_empty() && key != "data.train" {
        return Vec::new();
    }
    let in_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match in_brackets {
        None if FILES.contains(&key) => vec![text.into()],
        _ => in_brackets.unwrap_or(text).split(',').map(|item| item.trim().trim_matches(['"', '\'']).into()).collect(),
    }
}

/// Replaces names of `peft` that stand for several targets of LoRA: `all-linear`, and modules of `transformers`. `model` is the one that
/// gets the adapters, unless other keys change it.
pub(super) fn with_all_targets(key: &str, value: Value, model: &TransformerConfig) -> Value {
    match value {
        Value::Array(items) if key == "model.lora.targets" => {
            let mut targets: Vec<Value> = Vec::new();
            for target in items.into_iter().flat_map(|item| targets_of(item, model)) {
                if !targets.contains(&target) {
                    targets.push(target);
                }
            }
            Value::Array(targets)
        }
        value => value,
    }
}

/// Returns what one name stands for.
fn targets_of(item: Value, model: &TransformerConfig) -> Vec<Value> {
    let Some(name) = item.as_str() else { return vec![item] };
    if ["all-linear", "all_linear", "all"].contains(&name) {
        return all_linear(model);
    }
    let several = MODULES.into_iter().find(|(module, _)| *module == name).map(|(_, targets)| targets);
    let last = || vec![Value::from(name.rsplit('.').next().unwrap_or(name))];
    several.map_or_else(last, |targets| targets.iter().copied().map(Value::from).collect())
}

/// Returns all projections of a layer, queries, keys and values as one where `transformers` has one module for them.
fn all_linear(model: &TransformerConfig) -> Vec<Value> {
    use LoraTarget::{Down, Gate, Key, Output, Qkv, Query, Up, Value as Values};
    let with = |attention: &[LoraTarget]| {
        let gate = model.activation.is_gated().then_some(Gate);
        attention.iter().copied().chain([Output, Up, Down]).chain(gate).collect::<Vec<_>>()
    };
    let (apart, together) = (with(&[Query, Key, Values]), with(&[Qkv]));
    let has_modules = |targets: &[LoraTarget]| {
        let lora = LoraConfig { rank: 1, targets: targets.to_vec(), ..LoraConfig::default() };
        adapter_problems(&TransformerConfig { lora, ..model.clone() }).is_empty()
    };
    let targets = if !has_modules(&apart) && has_modules(&together) { together } else { apart };
    targets.into_iter().map(|target| Value::try_from(target).expect("a name")).collect()
}
