//! The last stage: refuses a configuration with mistakes, or one that the machine cannot run.

use std::collections::BTreeSet;

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
    if let Some(machine) = machine {
        problems.extend(paths::missing(config));
        // Impossible sizes have been reported.
        if problems.iter().all(|problem| !problem.starts_with("model.")) {
            problems.extend(too_large(config, machine, set));
        }
    }
    problems
}
