//! What is said of files that make too few rows to divide, and of how files are read before they are divided.

use anyhow::{Context, Result};
use kiln_data::{FileFormat, PairCorpus, TextCorpus, TextFormat};

use super::is_plain_text;
use crate::config::Config;
use crate::config::task::{Reads, traits_of};
use crate::dataset::Files;

/// What makes more documents of plain text.
const DIVIDED_BY_LINES: &str = "blank lines separate documents: add some, take each line as a document with --set \
                                data.text.format=lines, or name a text for data.valid";

/// Says how the text of `config` becomes rows, and what makes more of them. A file whose form is known comes with the command for it.
pub(super) fn remedy_for_few(config: &Config) -> String {
    let is_plain = is_plain_text(config) && traits_of(config.task).reads == Reads::Text;
    let has_records = || config.data.train.iter().any(|file| FileFormat::by_name(file).is_some());
    // What is wrong with the files is said when they are read.
    let notes = if is_plain { notes_on_files(config).unwrap_or_default() } else { Vec::new() };
    if !notes.is_empty() {
        return format!("{}\nor name a text for data.valid", notes.join("\n"));
    }
    let remedy = match config.data.text.format {
        TextFormat::Files if is_plain => {
            "each file is a document: --set data.text.format=blank_lines or lines divides files, or name a text for data.valid"
        }
        TextFormat::BlankLines if is_plain => DIVIDED_BY_LINES,
        TextFormat::Auto if is_plain && !has_records() => DIVIDED_BY_LINES,
        _ => "add rows, or name a text for data.valid",
    };
    remedy.to_owned()
}

/// Returns what the user should know about how the files of the training text are read, before some of their rows become validation rows.
pub(in crate::dataset) fn notes_on_files(config: &Config) -> Result<Vec<String>> {
    if config.is_built_in_task() || config.data.is_mixed() {
        return Ok(Vec::new());
    }
    let Files { train, .. } = Files::of(config)?;
    let row = traits_of(config.task);
    Ok(match row.reads {
        Reads::Pairs => PairCorpus::open(&train, &config.data.corpus).context("data.train")?.notes(),
        Reads::Text if row.classes.is_some() => Vec::new(),
        Reads::Text => TextCorpus::open(&train, &config.data.text).context("data.train")?.notes(),
    })
}
