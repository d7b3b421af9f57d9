//! What a configuration is made from, and what comes of it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use super::choose::Base;
use crate::config::{Config, Machine};

/// The sources of a configuration.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// `--task`; overrides `task = "..."` in the file.
    pub task: Option<String>,
    /// `--preset`; overrides `preset = "..."` in the file. Without either, Kiln chooses one.
    pub preset: Option<String>,
    /// `--config`.
    pub file: Option<PathBuf>,
    /// `--set`, each `key=value`; later ones override earlier ones.
    pub set: Vec<String>,
    /// The configuration of the run whose weights the new run starts from. It takes the place of the preset, and its model
    /// and vocabulary do not give way to other keys.
    pub base: Option<Config>,
    /// Whether a new run starts from trained weights, which want a lower learning rate than random ones.
    pub fine_tunes: bool,
    /// The machine that will train. With it, missing files and a model that cannot fit are mistakes, too, and the device and
    /// the size of the text choose the preset.
    pub machine: Option<Machine>,
    /// The configuration is only shown: it may name missing files, and a model that does not fit the machine.
    pub only_shown: bool,
}

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

/// All mistakes of a configuration. They are found before any work is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// One line per mistake: where, what was found, what to do.
    pub problems: Vec<String>,
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [problem] => f.write_str(problem),
            problems => {
                write!(f, "{} problems in the configuration", problems.len())?;
                problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}
