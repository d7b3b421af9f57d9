//! The text of the built-in task: numbers in digits -> English words, or sentences about them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::built_in::numbers::{self, Numbers};
use kiln_data::{Example, TextConfig, TextFormat};

use super::Files;
use crate::config::Config;

/// Training rows.
const TRAIN_ROWS: usize = 50_000;
/// Held-out rows.
pub(super) const VALID_ROWS: usize = 500;

/// Generates the rows of the built-in task.
pub fn rows(config: &Config) -> kiln_data::Result<Numbers> {
    numbers::examples(TRAIN_ROWS, VALID_ROWS, numbers::MAX_DIGITS, config.seed)
}

/// Writes the rows as pairs.
pub(super) fn write_pairs(config: &Config, dir: &Path) -> Result<Files> {
    let rows = rows(config)?;
    let [train, valid] = ["train", "valid"].map(|part| dir.join(format!("numbers.{part}.jsonl")));
    numbers::write_jsonl(&train, &rows.train)?;
    numbers::write_jsonl(&valid, &rows.held_out)?;
    Ok(Files { train: vec![train], valid: vec![valid] })
}

/// Writes the rows as text, one sentence per line: `105 is one hundred five.`
pub(super) fn write_text(config: &Config, dir: &Path) -> Result<Files> {
    let rows = rows(config)?;
    let [train, valid] = ["train", "valid"].map(|part| dir.join(format!("numbers.{part}.txt")));
    write_sentences(&train, &rows.train)?;
    write_sentences(&valid, &rows.held_out)?;
    Ok(Files { train: vec![train], valid: vec![valid] })
}

/// Returns how the built-in text is read: every sentence is a document.
pub(super) fn text_config(of_run: &TextConfig) -> TextConfig {
    TextConfig { format: TextFormat::Lines, ..of_run.clone() }
}

/// Writes `examples` as sentences, unless the file already holds exactly these.
fn write_sentences(path: &Path, examples: &[Example]) -> Result<()> {
    let text: String = examples.iter().map(|row| format!("{} is {}.\n", row.source, row.target)).collect();
    if fs::read(path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    fs::write(path, text).with_context(|| format!("{}: cannot write the built-in text", path.display()))
}
