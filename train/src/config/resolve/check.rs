//! The last stage: refuses a configuration with mistakes, or one that the machine cannot run.

use std::collections::BTreeSet;
use std::path::PathBuf;

use kiln_data::{CorpusConfig, CorpusFormat, FileFormat, Header, Task};

use super::adjust::Adjusted;
use super::choose::Base;
use super::report::ConfigError;
use super::sources::Sources;
use crate::config::machine::{Machine, too_large};
use crate::config::set_keys::SetKeys;
use crate::config::{Config, paths};

/// A configuration and its origin.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The configuration: valid.
    pub config: Config,
    /// The origin of the keys that are not set.
    pub base: Base,
    /// A sentence about each default that gave way to a set key.
    pub notes: Vec<String>,
    /// The keys that the file and the command line set.
    pub set: BTreeSet<String>,
}

/// Returns the configuration, or all mistakes of all stages.
pub(super) fn check(adjusted: Adjusted, sources: &Sources) -> Result<Resolved, ConfigError> {
    let Adjusted { config, base, set, mut report } = adjusted;
    let machine = sources.machine.filter(|_| !sources.only_shown);
    for problem in config.iter().flat_map(|config| problems(config, machine, &set)) {
        report.problem_of_its_key(problem);
    }
    match config {
        Some(config) if !report.has_problems() => {
            Ok(Resolved { config, base, notes: report.notes, set: set.into_given() })
        }
        _ => Err(report.into_error()),
    }
}

/// Returns everything that is wrong with the configuration, also on the machine.
fn problems(config: &Config, machine: Option<Machine>, set: &SetKeys) -> Vec<String> {
    let mut problems = config.validate();
    problems.extend(names_without_header(config, set));
    if let Some(machine) = machine {
        problems.extend(paths::missing(config));
        // Impossible sizes have been reported.
        if problems.iter().all(|problem| !problem.starts_with("model.")) {
            problems.extend(too_large(config, machine, set));
        }
    }
    problems
}

/// Says that the user has named columns of tables, and that no row has their names. A run that this one starts from may have named them.
fn names_without_header(config: &Config, set: &SetKeys) -> Option<String> {
    let (corpus, usual) = (&config.data.corpus, CorpusConfig::default());
    let names = [
        ("data.corpus.source_field", &corpus.source_field, &usual.source_field),
        ("data.corpus.target_field", &corpus.target_field, &usual.target_field),
    ];
    // A template reads the first row as names, whatever the header.
    let is_template = names.iter().any(|(_, name, _)| name.contains('{'));
    let is_named = |(key, name, usual): &(&str, &String, &String)| set.contains(key) && name != usual;
    let named: Vec<&str> = names.into_iter().filter(is_named).map(|(key, ..)| key).collect();

    let are_tables = |files: &[PathBuf]| {
        let is_table = |file: &PathBuf| match corpus.format {
            CorpusFormat::Auto => matches!(FileFormat::by_name(file).map(FileFormat::name), Some("tsv" | "csv")),
            format => matches!(format, CorpusFormat::Tsv | CorpusFormat::Csv),
        };
        !files.is_empty() && files.iter().all(is_table)
    };
    let is_meant = config.task == Task::Translation
        && corpus.header == Header::No
        && set.contains("data.corpus.header")
        && are_tables(&config.data.train)
        && !is_template;
    (is_meant && !named.is_empty()).then(|| {
        format!(
            "data.corpus.header = \"no\" says that no row has names, so {} cannot be found: leave out data.corpus.header, or leave out the names \
             and count the columns from 0 with data.corpus.source_column and data.corpus.target_column",
            named.join(" and ")
        )
    })
}
