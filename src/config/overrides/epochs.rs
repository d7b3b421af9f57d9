//! Answers keys that count epochs: Kiln counts optimizer steps.

use std::fs;
use std::path::Path;

use toml::{Table, Value};

use super::dotted::lookup;
use super::paths_in;

/// Names that other trainers have for the number of epochs.
const NAMES: [&str; 6] = ["epochs", "epoch", "n_epochs", "num_epochs", "max_epochs", "num_train_epochs"];

/// Bytes of text per token of a trained vocabulary, roughly.
const BYTES_PER_TOKEN: f64 = 4.0;

/// Explains an unknown `key` if it stands for a number of epochs. `table` is the configuration with all given values.
pub(super) fn explain(key: &str, table: &Table) -> Option<String> {
    NAMES.contains(&key.rsplit('.').next()?).then(|| {
        let number = match (number_of_epochs(key, table), steps_per_epoch(table)) {
            (Some(epochs), Some(per_epoch)) => {
                let steps = (epochs * per_epoch).ceil().max(1.0);
                format!("{epochs} epochs of data.train are about {steps} steps: --set train.steps={steps}")
            }
            _ => {
                "train.steps = epochs * batches per epoch / train.grad_accum_steps (kiln prepare shows the batches per \
                  epoch)"
                    .into()
            }
        };
        format!("unknown key {key}: Kiln counts optimizer steps; {number}")
    })
}

fn number_of_epochs(key: &str, table: &Table) -> Option<f64> {
    number(lookup(table, key)?).filter(|epochs| *epochs > 0.0 && epochs.is_finite())
}

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|integer| integer as f64))
}

/// Estimates the optimizer steps of an epoch from the size of the text. Returns `None` without text, or if
/// its size does not tell.
fn steps_per_epoch(table: &Table) -> Option<f64> {
    let of_key = |key: &str| number(lookup(table, key)?).filter(|number| *number > 0.0);
    let (batch_tokens, n_accumulated) = (of_key("loader.batch_tokens")?, of_key("train.grad_accum_steps")?);

    let mut n_bytes = 0;
    for entry in lookup(table, "data.train").map(paths_in)? {
        match entry.to_string_lossy().split_once(',') {
            Some((source, target)) if !entry.exists() => {
                n_bytes += bytes_of(Path::new(source.trim()))? + bytes_of(Path::new(target.trim()))?;
            }
            _ => n_bytes += bytes_of(&entry)?,
        }
    }
    // A batch counts the longer side of its pairs.
    let sides = if lookup(table, "task").and_then(Value::as_str) == Some("translation") { 2.0 } else { 1.0 };
    let n_batches = (n_bytes as f64 / sides / BYTES_PER_TOKEN / batch_tokens).max(1.0);
    (n_bytes > 0).then_some(n_batches / n_accumulated)
}

/// Returns the size of a file, or of all files in a folder. `None` if one cannot be read or is compressed.
fn bytes_of(path: &Path) -> Option<u64> {
    if fs::metadata(path).ok()?.is_dir() {
        return fs::read_dir(path).ok()?.map(|entry| bytes_of(&entry.ok()?.path())).sum();
    }
    let is_compressed = path.extension().is_some_and(|ending| ending == "gz" || ending == "zst");
    (!is_compressed).then_some(fs::metadata(path).ok()?.len())
}
