//! What a configuration is made from.

use std::path::PathBuf;

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
