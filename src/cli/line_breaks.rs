//! Texts with line breaks, for commands that read a text per line.

use kiln_data::{LabelledCorpus, PairCorpus, TextCorpus};
use kiln_metrics::logging::print::stderr_line;
use kiln_train::config::Config;
use kiln_train::config::task::{Classes, Reads, traits_of};

/// Stands for a text of several lines in an example.
pub(super) const EXAMPLE: &str = "one line\nand another";

/// Whether the model has learned from texts of several lines. Training files that are gone have none.
pub(super) fn are_learned(config: &Config) -> bool {
    let (files, row) = (config.data.train_files(), traits_of(config.task));
    match row.reads {
        _ if config.is_built_in_task() => false,
        Reads::Pairs => PairCorpus::open(&files, &config.data.corpus).is_ok_and(|corpus| corpus.has_line_breaks()),
        Reads::Text if row.classes == Some(Classes::OfWords) => false,
        Reads::Text if row.classes.is_some() => LabelledCorpus::has_line_breaks(&files, &config.data.labels),
        Reads::Text if config.data.text.is_chat() => {
            TextCorpus::open(&files, &config.data.text).is_ok_and(|corpus| corpus.has_line_breaks())
        }
        // A line is the beginning of a text.
        Reads::Text => false,
    }
}

/// Says on stderr that each line is read by itself, if the model has learned from `things` of several lines. Adds the `way` to pass one of them.
pub(super) fn note(config: &Config, things: &str, way: &str) {
    if are_learned(config) {
        stderr_line!(
            "note: the model has learned from {things} of several lines, and each line of stdin is read by itself: {way}"
        );
    }
}
