//! Answers other names of `train.epochs`, with the number of steps.

use toml::{Table, Value};

use super::dotted::{lookup, remove};
use super::other_names::squashed;
use crate::config::Config;
use crate::config::length::batches_per_epoch;

/// Names that other trainers have for the number of epochs.
const NAMES: [&str; 6] = ["epochs", "epoch", "n_epochs", "num_epochs", "max_epochs", "num_train_epochs"];

/// Returns whether `name` is what another trainer calls the number of epochs. `-`, `_` and capitals make no difference.
pub(super) fn is_number_of_epochs(name: &str) -> bool {
    NAMES.map(squashed).contains(&squashed(name))
}

/// Explains an unknown `key` if it stands for a number of epochs. `table` is the configuration with all given values.
pub(super) fn explain(key: &str, table: &Table) -> Option<String> {
    if !is_number_of_epochs(key.rsplit('.').next()?) || key == "train.epochs" {
        return None;
    }
    let Some(epochs) = number_of_epochs(key, table) else {
        return Some(format!("unknown key {key}; did you mean train.epochs?"));
    };
    let about = steps_per_epoch(key, table)
        .map_or(String::new(), |per_epoch| format!(", which are about {} steps", (epochs * per_epoch).ceil().max(1.0)));
    Some(format!("unknown key {key}; Kiln calls it train.epochs{about}: --set train.epochs={epochs}"))
}

fn number_of_epochs(key: &str, table: &Table) -> Option<f64> {
    number(lookup(table, key)?).filter(|epochs| *epochs > 0.0 && epochs.is_finite())
}

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|integer| integer as f64))
}

/// Estimates the optimizer steps of an epoch. Returns `None` without text, or if something else is wrong, too.
fn steps_per_epoch(key: &str, table: &Table) -> Option<f64> {
    let mut others = table.clone();
    remove(&mut others, key);
    let config: Config = others.try_into().ok()?;
    if config.is_built_in_task() || !config.validate().is_empty() {
        return None;
    }
    Some(batches_per_epoch(&config, f64::INFINITY)? / config.train.grad_accum_steps as f64)
}
